"""The inbox of signed provider webhooks, and the indexes by which a delivery finds its effect."""

from __future__ import annotations

from effect_broker.store.migrate import refuse_downgrade, run_sql_files

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Add the inbox."""
    run_sql_files("0009_evidence_inbox")


def downgrade() -> None:
    """Refuse: migrations go forward only."""
    refuse_downgrade()
