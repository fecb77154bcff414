"""The migrations: plain SQL in order, forward only."""
