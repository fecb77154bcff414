"""What a scrape costs the database does not grow with its history."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import psycopg
import pytest
from psycopg import Connection
from psycopg.rows import TupleRow

from effect_broker.store.roles import DatabaseRole
from postgres import RunningServer, clone, drop_database

TENANT = UUID(int=77)
SETTLED = 20_000
OPEN = 5_000
COUNTED = 10

_INTENTS = """
INSERT INTO effect_broker.effect_intents (tenant_id, effect_id, operation_key, tool, request_hash,
    contract_name, contract_version, contract_digest, safety, downstream_key, hmac_key_id,
    requested_by, created_at, state, reason, version, generation, progress_generation,
    latest_ordinal, receipt_digest, event_digest, updated_at, parked)
SELECT %(tenant)s, md5(%(state)s || n::text)::uuid, %(state)s || '/' || n, 'tool', sha256(''), 'c',
    '1', sha256('{}'), 'unsafe', 'd', 'h', 'r', now() - n * interval '1 second', %(state)s, 'r', 3,
    1, 1, 1, CASE WHEN %(parked)s THEN NULL ELSE sha256('') END, sha256(''), now(), %(parked)s
FROM generate_series(1, %(count)s) AS n
"""
_RUNS = """
INSERT INTO dbos.workflow_status (workflow_uuid, status, name, queue_name, application_name)
SELECT 'w' || n, 'SUCCESS', 'effect_run', 'effects', 'effect-broker'
FROM generate_series(1, %(count)s) AS n
"""
_COST = """
SELECT relname, seq_scan, seq_tup_read + idx_tup_fetch AS rows_read
FROM pg_stat_xact_user_tables WHERE relname IN ('effect_intents', 'workflow_status')
"""


@pytest.fixture(scope="module")
def filled(running_server: RunningServer, template_name: str) -> Iterator[str]:
    """A database with a long history and a pile of effects in doubt; the URL of the API's role."""
    database = clone(running_server, template_name)
    with psycopg.connect(database.superuser_url, autocommit=True) as superuser:
        superuser.execute("SET session_replication_role = replica")  # no triggers: bulk load
        superuser.execute(
            "INSERT INTO effect_broker.contracts (digest, name, version, tool, safety, document)"
            " VALUES (sha256('{}'), 'c', '1', 'tool', 'unsafe', '{}')"
        )
        told = {"tenant": TENANT}
        for state, count in (("succeeded", SETTLED), ("outcome_unknown", OPEN)):
            parked = state == "outcome_unknown"
            superuser.execute(
                _INTENTS.encode(), {**told, "state": state, "parked": parked, "count": count}
            )
        superuser.execute(_RUNS.encode(), {"count": SETTLED})
        superuser.execute("VACUUM ANALYZE")
    yield database.url_for(DatabaseRole.API)
    drop_database(running_server, database.name)


def cost(connection: Connection[TupleRow]) -> dict[str, tuple[int, int]]:
    """Scans from end to end and rows read, of one reading of the numbers, by table."""
    with connection.transaction():
        rows = connection.execute(
            "SELECT measure, value FROM effect_broker.ledger_numbers(%s)", [COUNTED]
        ).fetchall()
        assert ("in_doubt", float(COUNTED)) in rows
        # As the superuser would see it; the statistics are of this transaction alone.
        found = connection.execute(_COST).fetchall()
    return {row[0]: (row[1], row[2]) for row in found}


def test_a_scrape_reads_no_more_than_it_counts_however_much_is_settled_or_in_doubt(
    filled: str,
) -> None:
    with psycopg.connect(filled, autocommit=True) as connection:
        found = cost(connection)
        assert "effect_intents" in found
        for table, (scans, rows_read) in found.items():
            assert scans == 0, f"{table} is read from end to end"
            assert rows_read <= 5 * COUNTED, f"{table}: {rows_read} rows for {COUNTED} counted"
