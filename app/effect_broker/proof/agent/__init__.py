"""The demo agent: a model plans, a loop acts through the broker, and a restart doubles nothing."""
