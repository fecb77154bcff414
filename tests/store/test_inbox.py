"""The inbox in the database: who may read and write it, what never changes, and what is indexed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import Connection
from psycopg.rows import TupleRow

from effect_broker.store import inbox
from effect_broker.store import statements as sql
from effect_broker.store.roles import DatabaseRole
from postgres import Database, RunningServer, clone, drop_database

TENANT, OTHER = UUID(int=78), UUID(int=79)
ROWS = 20_000
INSERT = (
    "INSERT INTO effect_broker.evidence_inbox (delivery_id, tenant_id, contract_name,"
    " contract_version, contract_digest, senders_id, body_digest, received_at, status, code,"
    " decided_at, next_match_at, key_id, ciphertext)"
)
DECIDED = "now(), NULL, NULL, NULL"
OPEN = "NULL, now() + interval '1 hour', 'k', 'x'"


@pytest.fixture(scope="module")
def filled(running_server: RunningServer, template_name: str) -> Iterator[Database]:
    """Many effects, each with an attempt, evidence and a delivery; statistics are fresh."""
    database = clone(running_server, template_name)
    with psycopg.connect(database.superuser_url, autocommit=True) as superuser:
        superuser.execute("SET session_replication_role = replica")  # no triggers: bulk load
        _fill(superuser)
    yield database
    drop_database(running_server, database.name)


def _fill(superuser: Connection[TupleRow]) -> None:
    series = {"n": ROWS, "t": TENANT, "o": OTHER}
    superuser.execute(
        "INSERT INTO effect_broker.tenants (tenant_id, name, hmac_key_id)"
        " VALUES (%(t)s, 'inbox-1', 'h'), (%(o)s, 'inbox-2', 'h')", series,
    )  # fmt: skip
    superuser.execute(
        "INSERT INTO effect_broker.effect_intents (tenant_id, effect_id, operation_key, tool,"
        " request_hash, contract_name, contract_version, contract_digest, safety, downstream_key,"
        " hmac_key_id, requested_by, created_at, state, reason, version, generation,"
        " progress_generation, latest_ordinal, receipt_digest, event_digest, updated_at)"
        " SELECT %(t)s, md5(n::text)::uuid, 'o/' || n, 'tool', sha256(''), 'c', '1', sha256(''),"
        " 'unsafe', md5('k' || n), 'h', 'r', now(), 'succeeded', 'committed', 3, 1, 1, 1,"
        " sha256(''), sha256(''), now() FROM generate_series(1, %(n)s) n", series,
    )  # fmt: skip
    superuser.execute(
        "INSERT INTO effect_broker.effect_attempts (attempt_id, tenant_id, effect_id, ordinal,"
        " executor_id, started_at, deadline_at, target_identity, outcome, code, recorded_at,"
        " bytes_may_have_left, external_id) SELECT gen_random_uuid(), tenant_id, effect_id, 1,"
        " 'e', now(), now() + interval '1 s', 't', 'committed', 'c', now(), true,"
        " 'a' || operation_key FROM effect_broker.effect_intents"
    )
    superuser.execute(
        "INSERT INTO effect_broker.effect_evidence (evidence_id, tenant_id, effect_id, source,"
        " verdict, code, began_at, recorded_at, covers_through, external_ids)"
        " SELECT gen_random_uuid(), tenant_id, effect_id, 'probe', 'committed', 'c', now(), now(),"
        " 1, ARRAY['e' || operation_key] FROM effect_broker.effect_intents"
    )
    superuser.execute(
        "INSERT INTO effect_broker.effect_events SELECT tenant_id, effect_id, 1, 'k', 'e', NULL,"
        " 'prepared', 'r', 'a', now(), '{}', '', '' FROM effect_broker.effect_intents"
    )
    superuser.execute(
        "INSERT INTO effect_broker.effect_receipts SELECT gen_random_uuid(), tenant_id, effect_id,"
        " '{}', sha256('{}'), NULL, now() FROM effect_broker.effect_intents"
    )
    superuser.execute(
        f"{INSERT} SELECT gen_random_uuid(), CASE WHEN n %% 2 = 0 THEN %(t)s ELSE %(o)s END::uuid,"
        " 'c', '1', sha256(''), 's' || n, sha256(''), now() - n * interval '1 s', 'ignored', 'c',"
        f" {DECIDED} FROM generate_series(1, %(n)s) n".encode(), series,
    )  # fmt: skip
    superuser.execute("ANALYZE")


@pytest.fixture
def superuser(filled: Database) -> Iterator[Connection[TupleRow]]:
    """A session that is rolled back."""
    with (
        psycopg.connect(filled.superuser_url, autocommit=True) as connection,
        connection.transaction(force_rollback=True),
    ):
        yield connection


QUERIES: dict[str, tuple[str, dict[str, Any]]] = {
    "by_key": (inbox._BY_KEY, {"text": "x"}),
    "by_external_id": (inbox._BY_EXTERNAL_ID, {"text": "x", "contract_name": "c"}),
    "standing": (inbox._STANDING, {"contract_name": "c", "senders_id": "s1"}),
    "page": (inbox._LIST + inbox._NEWEST_FIRST, {"limit": 50}),
    "of_effect": (
        inbox._LIST + inbox._EFFECT + inbox._NEWEST_FIRST, {"effect_id": uuid4(), "limit": 50},
    ),
    "verdicted": (inbox._VERDICTED, {"delivery_id": uuid4()}),
}  # fmt: skip


@pytest.mark.parametrize("role", [DatabaseRole.API, DatabaseRole.WORKER])
@pytest.mark.parametrize("query", QUERIES)
def test_every_look_up_of_the_inbox_finds_its_rows_by_an_index(
    superuser: Connection[TupleRow], query: str, role: DatabaseRole
) -> None:
    statement, parameters = QUERIES[query]
    parameters = {"tenant_id": TENANT, **parameters}
    assert _whole_reads(superuser, role, statement, parameters) == []


def test_due_deliveries_are_found_by_their_index(superuser: Connection[TupleRow]) -> None:
    parameters = {"tenant_id": TENANT, "limit": 50, "again_seconds_min": 2, "again_seconds_max": 9}
    assert _whole_reads(superuser, DatabaseRole.WORKER, inbox._TAKE, parameters) == []


def _whole_reads(
    connection: Connection[TupleRow], role: DatabaseRole, query: str, parameters: dict[str, Any]
) -> list[str]:
    """The nodes of the plan that read a table, or more of an index than a page, from end to end."""
    connection.execute(f"SET LOCAL ROLE {role.value}".encode())
    connection.execute(sql.SET_TENANT, parameters)
    row = connection.execute(b"EXPLAIN (FORMAT JSON) " + query.encode(), parameters).fetchone()
    assert row is not None
    pending, found = [row[0][0]["Plan"]], []
    while pending:
        node = pending.pop()
        pending += node.get("Plans", ())
        unbound = node["Node Type"].startswith("Index") and "Index Cond" not in node
        if node["Node Type"] == "Seq Scan" or unbound:
            found.append(f"{node['Node Type']} on {node.get('Relation Name')}")
    return found


def test_a_tenant_sees_its_own_deliveries_and_nobody_without_one(filled: Database) -> None:
    query = "SELECT DISTINCT tenant_id FROM effect_broker.evidence_inbox"
    with psycopg.connect(filled.url_for(DatabaseRole.API), autocommit=True) as api:
        assert api.execute(query).fetchall() == []
        with api.transaction():
            api.execute(sql.SET_TENANT, {"tenant_id": TENANT})
            assert api.execute(query).fetchall() == [(TENANT,)]
            changed = api.execute(
                "UPDATE effect_broker.evidence_inbox SET code = 'x' WHERE tenant_id = %s", [OTHER]
            )
            assert changed.rowcount == 0
    with psycopg.connect(filled.url_for(DatabaseRole.WORKER), autocommit=True) as worker:
        assert len(worker.execute(query).fetchall()) == 2


@pytest.mark.parametrize("role", [DatabaseRole.API, DatabaseRole.WORKER])
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE effect_broker.evidence_inbox SET senders_id = 'x'",
        "UPDATE effect_broker.evidence_inbox SET tenant_id = gen_random_uuid()",
        "UPDATE effect_broker.evidence_inbox SET received_at = now()",
        "DELETE FROM effect_broker.evidence_inbox",
        "TRUNCATE effect_broker.evidence_inbox",
    ],
)
def test_what_has_come_cannot_be_changed_or_removed(
    filled: Database, role: DatabaseRole, statement: str
) -> None:
    with (
        psycopg.connect(filled.url_for(role), autocommit=True) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(statement.encode())


def test_only_the_api_takes_deliveries_in(superuser: Connection[TupleRow]) -> None:
    superuser.execute("SET LOCAL ROLE effect_broker_worker")
    values = f"VALUES (gen_random_uuid(), '{TENANT}', 'c', '1', '', 's', '', now(),"
    with pytest.raises(psycopg.errors.InsufficientPrivilege), superuser.transaction():
        superuser.execute(f"{INSERT} {values} 'ignored', 'c', {DECIDED})".encode())
    with pytest.raises(psycopg.errors.InsufficientPrivilege), superuser.transaction():
        superuser.execute("SELECT effect_broker.tenant_named('inbox-1')")


def test_a_decided_delivery_stays_decided_whoever_asks(superuser: Connection[TupleRow]) -> None:
    with pytest.raises(psycopg.Error, match="decided once"), superuser.transaction():
        superuser.execute(
            "UPDATE effect_broker.evidence_inbox SET code = 'y' WHERE senders_id = 's1'"
        )
    for statement in ("DELETE FROM", "TRUNCATE"):
        with pytest.raises(psycopg.Error, match="refused"), superuser.transaction():
            superuser.execute(f"{statement} effect_broker.evidence_inbox".encode())


@pytest.mark.parametrize(
    ("status", "rest", "constraint"),
    [
        ("settled", DECIDED, "a_fact_has_its_effect"),
        ("received", DECIDED, "status_fits_the_decision"),
        ("ignored", OPEN, "status_fits_the_decision"),
        ("ignored", "now(), NULL, 'k', 'body'", "open_until_decided"),
        ("received", "NULL, now(), NULL, NULL", "open_until_decided"),
        ("received", "NULL, NULL, NULL, NULL", "open_until_decided"),
        ("unknown", DECIDED, "evidence_inbox_status_check"),
    ],
)
def test_a_row_that_cannot_be_is_refused(
    superuser: Connection[TupleRow], status: str, rest: str, constraint: str
) -> None:
    superuser.execute("ALTER TABLE effect_broker.evidence_inbox DROP CONSTRAINT"
                      " evidence_inbox_contract_digest_fkey")  # fmt: skip
    values = f"VALUES (gen_random_uuid(), '{TENANT}', 'c', '1', sha256(''), 'new', sha256(''),"
    with pytest.raises(psycopg.errors.CheckViolation, match=constraint), superuser.transaction():
        superuser.execute(f"{INSERT} {values} now(), '{status}', 'c', {rest})".encode())


def test_one_delivery_of_an_id_for_each_tenant_and_contract(
    superuser: Connection[TupleRow],
) -> None:
    superuser.execute("ALTER TABLE effect_broker.evidence_inbox DROP CONSTRAINT"
                      " evidence_inbox_contract_digest_fkey")  # fmt: skip
    values = "VALUES (gen_random_uuid(), '{}', '{}', '1', sha256(''), 's2', sha256(''), now(),"
    rest = f" 'ignored', 'c', {DECIDED})"
    for tenant, contract in ((OTHER, "c"), (TENANT, "d")):
        superuser.execute(f"{INSERT} {values.format(tenant, contract)} {rest}".encode())
    with pytest.raises(psycopg.errors.UniqueViolation), superuser.transaction():
        superuser.execute(f"{INSERT} {values.format(TENANT, 'c')} {rest}".encode())
