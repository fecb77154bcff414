"""Certificates that contracts demand: who may read them, and what waits for one."""

from __future__ import annotations

from effect_broker.store.migrate import refuse_downgrade, run_sql_files

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    """Grant the reading of certificates, and make the indexes of the new reason."""
    run_sql_files("0023_certificates_demanded")


def downgrade() -> None:
    """Refuse: migrations go forward only."""
    refuse_downgrade()
