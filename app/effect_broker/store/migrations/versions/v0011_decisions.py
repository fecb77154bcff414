"""Approvals, and conclusions that wait for a second person."""

from __future__ import annotations

from effect_broker.store.migrate import refuse_downgrade, run_sql_files

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Add both."""
    run_sql_files("0011_decisions")


def downgrade() -> None:
    """Refuse: migrations go forward only."""
    refuse_downgrade()
