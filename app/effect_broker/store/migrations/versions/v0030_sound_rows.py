"""Rows of intents and attempts are judged by one function each."""

from __future__ import annotations

from effect_broker.store.migrate import refuse_downgrade, run_sql_files

revision = "0030"
down_revision = "0029"


def upgrade() -> None:
    """Put one constraint in the place of many; the rules stay, and no row is read."""
    run_sql_files("0030_sound_rows")


def downgrade() -> None:
    """Refuse: migrations go forward only."""
    refuse_downgrade()
