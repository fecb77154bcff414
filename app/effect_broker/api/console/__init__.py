"""The console: pages for operators, rendered on the server, below `/console`.

It has no script, and nothing of it comes from elsewhere. Every form goes through the same services
as the API's routes. `effect_broker.api.console.site.mount` adds it to the application.
"""
