"""The events of a tenant as one stream, and subscriptions to it."""

from __future__ import annotations

from effect_broker.store.migrate import refuse_downgrade, run_sql_files

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    """Give every event its place in the stream, and add the subscriptions."""
    run_sql_files("0021_event_stream")


def downgrade() -> None:
    """Refuse: migrations go forward only."""
    refuse_downgrade()
