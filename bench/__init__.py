"""Measurements of the broker against the limit of its database, side by side in one run."""
