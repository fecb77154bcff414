"""Callers that submit, or carry out their effects, inside their own transactions."""

from __future__ import annotations

from effect_broker.store.migrate import refuse_downgrade, run_sql_files

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    """Add the callers and their one function."""
    run_sql_files("0019_callers", "0019_transactions")


def downgrade() -> None:
    """Refuse: migrations go forward only."""
    refuse_downgrade()
