"""The engine's queue, parted by tenant."""

from __future__ import annotations

from effect_broker.store.migrate import refuse_downgrade, run_sql_files

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Enqueue each run in its tenant's part."""
    run_sql_files("0004_queue_by_tenant")


def downgrade() -> None:
    """Refuse: migrations go forward only."""
    refuse_downgrade()
