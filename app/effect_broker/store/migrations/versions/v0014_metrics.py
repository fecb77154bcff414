"""What `/metrics` tells of the ledger."""

from __future__ import annotations

from effect_broker.store.migrate import refuse_downgrade, run_sql_files

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Add the numbers over all tenants, and the index that they are read from."""
    run_sql_files("0014_metrics")


def downgrade() -> None:
    """Refuse: migrations go forward only."""
    refuse_downgrade()
