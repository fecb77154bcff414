"""What persons conclude of effects."""

from __future__ import annotations

from effect_broker.store.migrate import refuse_downgrade, run_sql_files

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the resolutions."""
    run_sql_files("0003_resolutions")


def downgrade() -> None:
    """Refuse: migrations go forward only."""
    refuse_downgrade()
