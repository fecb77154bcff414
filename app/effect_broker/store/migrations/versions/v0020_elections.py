"""Elections: callers that perform their effects themselves."""

from __future__ import annotations

from effect_broker.store.migrate import refuse_downgrade, run_sql_files

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    """Let callers be elected, and extend their leases."""
    run_sql_files("0020_elections")


def downgrade() -> None:
    """Refuse: migrations go forward only."""
    refuse_downgrade()
