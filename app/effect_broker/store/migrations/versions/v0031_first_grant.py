"""The first permission to send an effect is one statement."""

from __future__ import annotations

from effect_broker.store.migrate import refuse_downgrade, run_sql_files

revision = "0031"
down_revision = "0030"


def upgrade() -> None:
    """Add the function."""
    run_sql_files("0031_first_grant")


def downgrade() -> None:
    """Refuse: migrations go forward only."""
    refuse_downgrade()
