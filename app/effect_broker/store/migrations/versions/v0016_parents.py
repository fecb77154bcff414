"""Effects that belong to another one: children of a parent, and compensations."""

from __future__ import annotations

from effect_broker.store.migrate import refuse_downgrade, run_sql_files

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    """Add the links."""
    run_sql_files("0016_parents")


def downgrade() -> None:
    """Refuse: migrations go forward only."""
    refuse_downgrade()
