"""The first schema: effects with everything that belongs to them, tenants, contracts, workers."""

from __future__ import annotations

from effect_broker.store.migrate import refuse_downgrade, run_sql_files

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables, their guards, the functions and the rights."""
    run_sql_files("0001_tables", "0001_guards", "0001_submit", "0001_access")


def downgrade() -> None:
    """Refuse: migrations go forward only."""
    refuse_downgrade()
