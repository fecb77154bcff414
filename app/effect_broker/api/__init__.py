"""The HTTP surface. `effect_broker.api.app.create_app` makes the application."""
