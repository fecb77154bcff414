"""A lookup by key takes the primary key, also before the tables have statistics."""

from __future__ import annotations

from effect_broker.store.migrate import refuse_downgrade, run_sql_files

revision = "0028"
down_revision = "0027"


def upgrade() -> None:
    """Give three indexes a condition that lookups by the primary key do not state."""
    run_sql_files("0028_by_key_alone")


def downgrade() -> None:
    """Refuse: migrations go forward only."""
    refuse_downgrade()
