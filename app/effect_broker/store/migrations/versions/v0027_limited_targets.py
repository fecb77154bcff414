"""Limits of contracts: the pace of each limited target, its open attempts, and the turns given."""

from __future__ import annotations

from effect_broker.store.migrate import refuse_downgrade, run_sql_files

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    """Make the tables and their two functions; no table that is there changes."""
    run_sql_files("0027_limited_targets")


def downgrade() -> None:
    """Refuse: migrations go forward only."""
    refuse_downgrade()
