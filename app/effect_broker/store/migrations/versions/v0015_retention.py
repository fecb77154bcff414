"""Retention: how far the rows of a settled effect have been removed."""

from __future__ import annotations

from effect_broker.store.migrate import refuse_downgrade, run_sql_files

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Add the stage, and the rights of pruning."""
    run_sql_files("0015_retention")


def downgrade() -> None:
    """Refuse: migrations go forward only."""
    refuse_downgrade()
