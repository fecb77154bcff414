"""What the listing of unresolved effects is read from: their urgency, and its indexes."""

from __future__ import annotations

from effect_broker.store.migrate import refuse_downgrade, run_sql_files

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the columns, fill them for effects under way, and index them."""
    run_sql_files("0007_unresolved")


def downgrade() -> None:
    """Refuse: migrations go forward only."""
    refuse_downgrade()
