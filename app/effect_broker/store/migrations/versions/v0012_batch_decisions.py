"""One decision on many effects."""

from __future__ import annotations

from effect_broker.store.migrate import refuse_downgrade, run_sql_files

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Add the decisions and what became of each effect under one."""
    run_sql_files("0012_batch_decisions")


def downgrade() -> None:
    """Refuse: migrations go forward only."""
    refuse_downgrade()
