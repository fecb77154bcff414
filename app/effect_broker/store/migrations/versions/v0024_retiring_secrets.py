"""Secrets of subscriptions are replaced with an overlap."""

from __future__ import annotations

from effect_broker.store.migrate import refuse_downgrade, run_sql_files

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    """Make the table of secrets that still sign for a time."""
    run_sql_files("0024_retiring_secrets")


def downgrade() -> None:
    """Refuse: migrations go forward only."""
    refuse_downgrade()
