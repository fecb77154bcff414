"""Certificates of targets, and what ends them before their time."""

from __future__ import annotations

from effect_broker.store.migrate import refuse_downgrade, run_sql_files

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    """Make the two tables; both only ever grow."""
    run_sql_files("0022_certificates")


def downgrade() -> None:
    """Refuse: migrations go forward only."""
    refuse_downgrade()
