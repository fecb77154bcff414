"""What a caller with a role of the database tells has to be readable for everybody else."""

from __future__ import annotations

from effect_broker.store.migrate import refuse_downgrade, run_sql_files

revision = "0033"
down_revision = "0032"


def upgrade() -> None:
    """Check what is told by callers, and let holds be locked by the broker alone."""
    run_sql_files("0033_told_by_callers", "0033_hold_gates")


def downgrade() -> None:
    """Refuse: migrations go forward only."""
    refuse_downgrade()
