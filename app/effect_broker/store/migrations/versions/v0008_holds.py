"""What stops the dispatches of a tenant, a tool or a contract version, and who said so."""

from __future__ import annotations

from effect_broker.store.migrate import refuse_downgrade, run_sql_files

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Replace the control rows by holds."""
    run_sql_files("0008_holds")


def downgrade() -> None:
    """Refuse: migrations go forward only."""
    refuse_downgrade()
