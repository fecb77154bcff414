"""The hot path in fewer statements: the locks of a change, a granted attempt, a plain success."""

from __future__ import annotations

from effect_broker.store.migrate import refuse_downgrade, run_sql_files

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    """Make the three functions; no table changes."""
    run_sql_files("0026_hot_path")


def downgrade() -> None:
    """Refuse: migrations go forward only."""
    refuse_downgrade()
