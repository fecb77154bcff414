"""The sessions of the console."""

from __future__ import annotations

from effect_broker.store.migrate import refuse_downgrade, run_sql_files

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Add the sessions and the functions that alone reach them."""
    run_sql_files("0013_console_sessions")


def downgrade() -> None:
    """Refuse: migrations go forward only."""
    refuse_downgrade()
