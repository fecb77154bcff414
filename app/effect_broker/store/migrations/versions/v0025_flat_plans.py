"""Plans that stay flat beside a long history and beside a backlog."""

from __future__ import annotations

from effect_broker.store.migrate import refuse_downgrade, run_sql_files

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    """Replace one trigger's function, and tell the planner what it cannot know."""
    run_sql_files("0025_flat_plans")


def downgrade() -> None:
    """Refuse: migrations go forward only."""
    refuse_downgrade()
