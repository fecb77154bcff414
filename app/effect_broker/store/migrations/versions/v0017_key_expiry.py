"""Keys that expire, and separate rights."""

from __future__ import annotations

from effect_broker.store.migrate import refuse_downgrade, run_sql_files

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    """Add the end of a key, and keep the rights of the keys that exist."""
    run_sql_files("0017_key_expiry")


def downgrade() -> None:
    """Refuse: migrations go forward only."""
    refuse_downgrade()
