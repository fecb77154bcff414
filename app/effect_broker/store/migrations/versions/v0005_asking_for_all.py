"""Questions that an API process asks for all of its callers at once."""

from __future__ import annotations

from effect_broker.store.migrate import refuse_downgrade, run_sql_files

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the functions behind long polls and readiness."""
    run_sql_files("0005_asking_for_all")


def downgrade() -> None:
    """Refuse: migrations go forward only."""
    refuse_downgrade()
