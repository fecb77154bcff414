"""Rows of turns at limited targets: no longer than those who stand in them."""

from __future__ import annotations

from effect_broker.store.migrate import refuse_downgrade, run_sql_files

revision = "0029"
down_revision = "0028"


def upgrade() -> None:
    """Make an index and a function, and replace one; no table that is there changes."""
    run_sql_files("0029_lines_of_targets")


def downgrade() -> None:
    """Refuse: migrations go forward only."""
    refuse_downgrade()
