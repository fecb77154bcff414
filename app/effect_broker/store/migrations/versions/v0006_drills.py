"""Live drills: a fault that is armed for one effect of a running broker."""

from __future__ import annotations

from effect_broker.store.migrate import refuse_downgrade, run_sql_files

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the drills, and let a submit take the one that it matches."""
    run_sql_files("0006_drills")


def downgrade() -> None:
    """Refuse: migrations go forward only."""
    refuse_downgrade()
