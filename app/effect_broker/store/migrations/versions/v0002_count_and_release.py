"""Settled effects that are counted once more, alerts, and holds that are lifted."""

from __future__ import annotations

from effect_broker.store.migrate import refuse_downgrade, run_sql_files

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the alert, let a final effect have a count ahead, and let holds be lifted."""
    run_sql_files("0002_count_and_release")


def downgrade() -> None:
    """Refuse: migrations go forward only."""
    refuse_downgrade()
