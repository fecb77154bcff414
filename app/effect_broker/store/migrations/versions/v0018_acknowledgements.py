"""Alerts that a person has dealt with."""

from __future__ import annotations

from effect_broker.store.migrate import refuse_downgrade, run_sql_files

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    """Add the acknowledgements."""
    run_sql_files("0018_acknowledgements")


def downgrade() -> None:
    """Refuse: migrations go forward only."""
    refuse_downgrade()
