"""Signatures of receipts."""

from __future__ import annotations

from effect_broker.store.migrate import refuse_downgrade, run_sql_files

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Add the signatures."""
    run_sql_files("0010_receipts_signed")


def downgrade() -> None:
    """Refuse: migrations go forward only."""
    refuse_downgrade()
