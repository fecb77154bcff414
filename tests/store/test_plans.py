"""The hot queries find their rows by an index, however large the tables grow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import Connection
from psycopg.rows import TupleRow

from effect_broker.reading import EffectFilter
from effect_broker.store import api, runs
from effect_broker.store import statements as sql
from effect_broker.store.links import LINKS_OF
from effect_contracts.facts import EffectState
from postgres import RunningServer, clone, drop_database

ROWS = 20_000


TENANT = UUID(int=77)


@pytest.fixture(scope="module")
def filled(running_server: RunningServer, template_name: str) -> Iterator[Connection[TupleRow]]:
    """Twenty thousand settled effects with all that belongs to them; statistics are fresh."""
    database = clone(running_server, template_name)
    with psycopg.connect(database.superuser_url, autocommit=True) as superuser:
        _fill(superuser)
        yield superuser
    drop_database(running_server, database.name)


def _fill(superuser: Connection[TupleRow]) -> None:
    superuser.execute("SET session_replication_role = replica")  # no triggers: bulk load
    superuser.execute(
        "INSERT INTO effect_broker.effect_intents (tenant_id, effect_id, operation_key, tool,"
        " request_hash, contract_name, contract_version, contract_digest, safety, downstream_key,"
        " hmac_key_id, requested_by, created_at, state, reason, version, generation,"
        " progress_generation, latest_ordinal, receipt_digest, event_digest, updated_at)"
        " SELECT %(t)s, md5(n::text)::uuid, 'order/' || n, 'tool', sha256(''), 'idempotent', '1',"
        " %(c)s, 'idempotent', 'd', 'h', 'r', now() - n * interval '1 second', 'succeeded',"
        " 'committed', 3, 1, 1, 1, sha256(''), sha256(''), now()"
        f" FROM generate_series(1, {ROWS}) n",
        {"t": TENANT, "c": bytes(32)},
    )
    superuser.execute(
        "INSERT INTO effect_broker.effect_attempts (attempt_id, tenant_id, effect_id, ordinal,"
        " executor_id, started_at, deadline_at, target_identity, outcome, code, recorded_at,"
        " bytes_may_have_left) SELECT gen_random_uuid(), tenant_id, effect_id, 1, 'e', now(),"
        " now() + interval '1 s', 't', 'committed', 'c', now(), true"
        " FROM effect_broker.effect_intents"
    )
    superuser.execute(
        "INSERT INTO effect_broker.effect_evidence SELECT gen_random_uuid(), tenant_id, effect_id,"
        " 'probe', 'unknown', 'c', now(), now(), 1, '{}' FROM effect_broker.effect_intents"
    )
    superuser.execute(
        "INSERT INTO effect_broker.effect_events SELECT tenant_id, effect_id, 1, 'k', 'e', NULL,"
        " 'prepared', 'r', 'a', now(), '{}', '', '' FROM effect_broker.effect_intents"
    )
    superuser.execute(
        "INSERT INTO effect_broker.effect_payloads SELECT tenant_id, effect_id, 'wire', '', 'k',"
        " 'x', now() FROM effect_broker.effect_intents"
    )
    superuser.execute(
        "INSERT INTO effect_broker.effect_receipts SELECT gen_random_uuid(), tenant_id, effect_id,"
        " '{}', sha256('{}'), NULL, now() FROM effect_broker.effect_intents"
    )
    superuser.execute("SET session_replication_role = origin")
    superuser.execute("ANALYZE")


def _scans(
    connection: Connection[TupleRow], role: str, query: str, parameters: dict[str, Any]
) -> list[str]:
    """The nodes of the plan that read the broker's tables from end to end."""
    with connection.transaction(force_rollback=True):
        connection.execute(f"SET LOCAL ROLE {role}".encode())
        connection.execute(sql.SET_TENANT, parameters)
        row = connection.execute(b"EXPLAIN (FORMAT JSON) " + query.encode(), parameters).fetchone()
    assert row is not None
    found: list[str] = []
    _walk(row[0][0]["Plan"], found)
    return found


# Small by nature: tenants, holds, workers, one row of identity, the fences of open effects.
SMALL = {"tenants", "holds", "database_identity", "workers", "mutation_keys"}


def _walk(node: dict[str, Any], found: list[str]) -> None:
    relation = node.get("Relation Name")
    whole = node["Node Type"] == "Seq Scan"
    if node["Node Type"].startswith("Index") and "Index Cond" not in node:
        # Reading an index in order is as good as a condition where a LIMIT ends it.
        whole = node["Index Name"] not in {"effects_by_age", "effects_by_next_action"}
    if relation is not None and whole and relation not in SMALL and relation != "workflow_status":
        found.append(f"{node['Node Type']} on {relation}")
    for child in node.get("Plans", ()):
        _walk(child, found)


CHANGE = {
    "read_intent": sql.READ_INTENT,
    "read_new": sql.READ_NEW,
    # What `lock_effect` runs inside.
    "lock_intent": f"{sql.READ_INTENT}FOR NO KEY UPDATE",
    "attempts": sql.READ_ATTEMPTS,
    "evidence": sql.READ_EVIDENCE,
    "context": sql.READ_CONTEXT,
    "payload": sql.READ_PAYLOAD,
    "receipt": api._RECEIPT,
    "events": api._EVENTS,
    "detail": api._ONE,
}


def test_hot_queries_of_one_effect_use_indexes(filled: Connection[TupleRow]) -> None:
    parameters = {
        "tenant_id": TENANT, "effect_id": uuid4(), "kind": "wire", "ref": "",
    }  # fmt: skip
    for role in ("effect_broker_worker", "effect_broker_api"):
        for name, query in CHANGE.items():
            assert _scans(filled, role, query, parameters) == [], (role, name)


def test_due_effects_are_found_by_their_index(filled: Connection[TupleRow]) -> None:
    parameters = {
        **runs._OURS, "tenant_id": TENANT, "limit": 100, "run_overdue_seconds": 60,
        "delay_overdue_seconds": 10,
    }  # fmt: skip
    assert _scans(filled, "effect_broker_worker", runs._DUE, parameters) == []


@pytest.mark.parametrize(
    "filters",
    [
        EffectFilter(),
        EffectFilter(unresolved=True),
        EffectFilter(states=frozenset({EffectState.MANUAL_REVIEW})),
        EffectFilter(operation_prefix="order/77"),
        EffectFilter(older_than_seconds=10.0),
    ],
    ids=["all", "unresolved", "state", "prefix", "age"],
)
def test_listings_use_indexes(filled: Connection[TupleRow], filters: EffectFilter) -> None:
    query, parameters = api._listing(filters, None)
    every = {**parameters, "tenant_id": TENANT, "limit": 51}
    assert _scans(filled, "effect_broker_api", query, every) == []


def test_the_count_of_outstanding_effects_uses_its_index(filled: Connection[TupleRow]) -> None:
    query = (
        "SELECT count(*) FROM (SELECT 1 FROM effect_broker.effect_intents i"
        " WHERE i.tenant_id = %(tenant_id)s AND i.next_action_at IS NOT NULL LIMIT 500) AS c"
    )
    assert _scans(filled, "effect_broker_owner", query, {"tenant_id": TENANT}) == []


BY_KEY = {
    # What a foreign key asks for each row that refers to an effect; Postgres keeps this plan.
    "foreign_key": "SELECT 1 FROM ONLY effect_broker.effect_intents x"
    " WHERE tenant_id = $1 AND effect_id = $2 FOR KEY SHARE OF x",
    "update": "UPDATE effect_broker.effect_intents SET reason = 'r'"
    " WHERE tenant_id = $1 AND effect_id = $2",
    "lock": "SELECT * FROM effect_broker.effect_intents"
    " WHERE tenant_id = $1 AND effect_id = $2 AND version = $3 FOR NO KEY UPDATE",
}
BY_OTHER_KEYS = {
    "one_intent_per_operation_key": "SELECT * FROM effect_broker.effect_intents"
    " WHERE tenant_id = $1 AND operation_key = $2",
    "effects_by_downstream_key": "SELECT * FROM effect_broker.effect_intents"
    " WHERE tenant_id = $1 AND downstream_key = $2",
    "effects_by_age": "SELECT * FROM effect_broker.effect_intents WHERE tenant_id = $1"
    + api._NEWEST_FIRST.replace("%(limit)s", "$2"),
}


@pytest.fixture
def empty(running_server: RunningServer, template_name: str) -> Iterator[Connection[TupleRow]]:
    """A database as migrations leave it: no rows, and no statistics to tell indexes apart."""
    database = clone(running_server, template_name)
    with psycopg.connect(database.superuser_url, autocommit=True) as superuser:
        yield superuser
    drop_database(running_server, database.name)


def _index_of(connection: Connection[TupleRow], query: str) -> str:
    """The index by which a statement finds its rows whatever its parameters are."""
    explained = b"EXPLAIN (GENERIC_PLAN, FORMAT JSON) " + query.encode()
    row = connection.execute(explained).fetchone()
    assert row is not None
    node = row[0][0]["Plan"]
    while "Index Name" not in node:
        (node,) = node["Plans"]
    return str(node["Index Name"])


@pytest.mark.parametrize("name", BY_KEY)
def test_an_effect_is_found_by_its_primary_key_before_there_are_statistics(
    empty: Connection[TupleRow], name: str
) -> None:
    assert _index_of(empty, BY_KEY[name]) == "effect_intents_pkey"


OF_A_FEW = {
    **CHANGE,
    "links": LINKS_OF,
    "compensations": runs._ENDED_COMPENSATIONS,
}


@pytest.mark.parametrize("name", OF_A_FEW)
def test_nobody_reads_a_whole_tenant_for_a_few_effects_before_there_are_statistics(
    empty: Connection[TupleRow], name: str
) -> None:
    names: dict[str, str] = {}
    query = re.sub(
        r"%\((\w+)\)s", lambda m: names.setdefault(m[1], f"${len(names) + 1}"), OF_A_FEW[name]
    )
    row = empty.execute(b"EXPLAIN (GENERIC_PLAN, FORMAT JSON) " + query.encode()).fetchone()
    assert row is not None
    scans = [
        node
        for node in _nodes(row[0][0]["Plan"])
        if node.get("Relation Name", "").startswith("effect_intents")
    ]
    assert all("effect_id" in node.get("Index Cond", "") for node in scans), scans


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)


@pytest.mark.parametrize("index", BY_OTHER_KEYS)
def test_other_lookups_have_their_own_index_before_there_are_statistics(
    empty: Connection[TupleRow], index: str
) -> None:
    assert _index_of(empty, BY_OTHER_KEYS[index]) == index
