"""What an effect reads does not grow with the effects beside it, settled or open.

Statistics are gathered while nothing is open, as they mostly are; then a backlog comes. The plans
are those that the server uses inside of the functions (`auto_explain`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import Connection
from psycopg.errors import Diagnostic
from psycopg.rows import TupleRow

from effect_broker.store import statements
from effect_broker.store.errors import UNDONE_SQLSTATE
from postgres import Database, RunningServer, clone, drop_database
from store.samples import contract
from unresolved.history import add

TENANT = UUID(int=79)
SETTLED, OPEN = 5_000, 2_000
TIMES = 7  # the server decides after five whether it keeps a plan

START = """
INSERT INTO effect_broker.effect_attempts (
    attempt_id, tenant_id, effect_id, ordinal, executor_id, started_at, deadline_at,
    target_identity)
SELECT gen_random_uuid(), i.tenant_id, i.effect_id, 1, 'e', now(), now() + interval '1 h', 't'
FROM effect_broker.effect_intents AS i
WHERE i.tenant_id = %(tenant)s AND i.operation_key = 'on_its_way/' || %(n)s
"""
SETTLE = """
SELECT effect_broker.settle_success(
    i.tenant_id, i.effect_id, i.version, i.generation, gen_random_uuid(), clock_timestamp(), 'c',
    NULL, 200, NULL, NULL, 'k', NULL, gen_random_uuid(), '', sha256(''), NULL, 'e', 'succeeded',
    'r', 'a', 'k', '{}', NULL, NULL, NULL, NULL)
FROM effect_broker.effect_intents AS i
WHERE i.tenant_id = %(tenant)s AND i.operation_key = 'on_its_way/1'
"""


@pytest.fixture(scope="module")
def backlog(running_server: RunningServer, template_name: str) -> Iterator[Connection[TupleRow]]:
    """A superuser's session on a database with a history, and a backlog it has no statistics of."""
    made: Database = clone(running_server, template_name)
    with psycopg.connect(made.superuser_url, autocommit=True) as superuser:
        superuser.execute("ALTER TABLE effect_broker.effect_intents SET (autovacuum_enabled = off)")
        superuser.execute(
            "INSERT INTO effect_broker.tenants (tenant_id, name, hmac_key_id)"
            " VALUES (%s, 't', 'h')",
            [TENANT],
        )
        document = contract("unsafe")
        superuser.execute(
            "INSERT INTO effect_broker.contracts (digest, name, version, tool, safety, document)"
            " VALUES (%s, 'unsafe', '1', 'tool.unsafe', 'unsafe', %s)",
            [document.digest(), document.canonical().decode()],
        )
        add(superuser, TENANT, "settled", SETTLED, digest=document.digest())
        superuser.execute("VACUUM ANALYZE")
        add(superuser, TENANT, "on_its_way", OPEN, digest=document.digest())
        yield superuser
    drop_database(running_server, made.name)


def plans_of(session: Connection[TupleRow], part: str, statement: str) -> list[str]:
    """Run a statement often enough for a plan that is kept; return the plans of one inside it."""
    told: list[str] = []

    def note(diagnostic: Diagnostic) -> None:
        told.append(diagnostic.message_primary or "")

    session.add_notice_handler(note)
    session.execute("LOAD 'auto_explain'")
    for name, value in (("log_min_duration", "0"), ("log_nested_statements", "on"),
                        ("log_level", "notice")):  # fmt: skip
        session.execute(f"SET auto_explain.{name} = '{value}'".encode())
    for n in range(1, TIMES + 1):
        try:
            session.execute(statement.encode(), {"tenant": TENANT, "n": n})
        except psycopg.DatabaseError as problem:
            if problem.sqlstate != UNDONE_SQLSTATE:
                raise
    session.execute("SET auto_explain.log_min_duration = -1")
    session.remove_notice_handler(note)
    found = [plan for plan in told if part in plan.partition("->")[0]]
    assert len(found) == TIMES, told
    return found


def test_an_attempt_finds_its_effect_by_the_key(backlog: Connection[TupleRow]) -> None:
    plans = plans_of(backlog, "SELECT i.latest_ordinal", START)
    assert all("effect_intents_pkey" in plan for plan in plans), plans[-1]


def test_a_settlement_finds_its_effect_by_the_key(backlog: Connection[TupleRow]) -> None:
    # Undone at the attempt, which is another one: so each finds the effect as it was.
    plans = plans_of(backlog, "UPDATE effect_broker.effect_intents", SETTLE)
    assert all("effect_intents_pkey" in plan for plan in plans), plans[-1]


@pytest.mark.parametrize("statement", ["SUBMIT", "SUBMIT_LINKED"])
def test_a_replay_reads_nothing_of_the_other_effects(
    backlog: Connection[TupleRow], statement: str
) -> None:
    """What is looked up beside the row of a replay is looked up for it alone."""
    query: str = getattr(statements, statement)
    names = {part.partition(")s")[0] for part in query.split("%(")[1:]}
    given: dict[str, Any] = dict.fromkeys(names) | {"tenant_id": TENANT}
    with backlog.transaction(force_rollback=True):
        backlog.execute("SET LOCAL ROLE effect_broker_api")
        rows = backlog.execute(b"EXPLAIN " + query.encode(), given).fetchall()
    plan = "\n".join(row[0] for row in rows)
    # Else it would be a table of all effects of the tenant, made anew for each replay.
    found = re.search(r"using effect_intents_pkey .*\n *Index Cond: .*effect_id =", plan)
    assert found is not None, plan


@pytest.mark.parametrize("table", ["effect_broker.effect_intents", "dbos.workflow_status"])
def test_statistics_follow_a_backlog_however_long_the_history_is(
    shared_database: Database, table: str
) -> None:
    with psycopg.connect(shared_database.superuser_url) as superuser:
        row = superuser.execute(
            "SELECT reloptions FROM pg_class WHERE oid = %s::regclass", [table]
        ).fetchone()
    assert row is not None
    assert {"autovacuum_analyze_scale_factor=0", "autovacuum_analyze_threshold=2000"} <= set(row[0])
