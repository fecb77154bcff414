"""The schema itself refuses what must never be, also to a superuser."""

from __future__ import annotations

from typing import LiteralString
from uuid import UUID

import psycopg
import pytest
from psycopg import Connection
from psycopg.rows import TupleRow

from effect_broker.protocol.ports import Change, Snapshot
from effect_broker.store.api import PostgresApiStore
from effect_broker.store.errors import GUARD_SQLSTATE
from effect_broker.store.runs import PostgresWorkerStore
from effect_contracts.events import Event, event_digest, verify_events
from effect_contracts.facts import EffectState, Outcome, Verdict
from effect_contracts.life import LifeEvent
from store.conformance import World
from store.samples import advance, contract, evidence, outcome, receipt, submission

# Statements that change one column or row of `%(id)s`, by what refuses them.
CHECKED: dict[LiteralString, str] = {
    "UPDATE effect_broker.effect_intents SET state = 'done', version = version + 1"
    " WHERE effect_id = %(id)s":
        "effect_intents_state_check",
    "UPDATE effect_broker.effect_intents SET version = 0 WHERE effect_id = %(id)s":
        GUARD_SQLSTATE,
    "UPDATE effect_broker.effect_intents SET state = 'succeeded', version = version + 1,"
    " next_action_at = NULL WHERE effect_id = %(id)s": "final_has_a_receipt",
    "UPDATE effect_broker.effect_intents SET receipt_digest = sha256('') WHERE effect_id = %(id)s":
        "final_has_a_receipt",
    "UPDATE effect_broker.effect_intents SET state = 'failed_final', version = version + 1,"
    " receipt_digest = sha256('') WHERE effect_id = %(id)s": "final_is_at_most_counted",
    "UPDATE effect_broker.effect_intents SET next_action_at = NULL WHERE effect_id = %(id)s":
        "open_acts_or_is_parked",
    "UPDATE effect_broker.effect_intents SET parked = true WHERE effect_id = %(id)s":
        "open_acts_or_is_parked",
    "UPDATE effect_broker.effect_intents SET state = 'cancelled', version = version + 1,"
    " next_action_at = NULL, receipt_digest = sha256('') WHERE effect_id = %(id)s":
        "attempts_fit_the_state",
    "UPDATE effect_broker.effect_intents SET state = 'prepared', version = version + 1"
    " WHERE effect_id = %(id)s": "attempts_fit_the_state",
    "UPDATE effect_broker.effect_intents SET progress_generation = 9 WHERE effect_id = %(id)s":
        "effect_intents_check",
    "UPDATE effect_broker.effect_intents SET wire_digest = 'short' WHERE effect_id = %(id)s":
        GUARD_SQLSTATE,
    "UPDATE effect_broker.effect_attempts SET outcome = 'maybe' WHERE effect_id = %(id)s":
        "effect_attempts_outcome_check",
    "UPDATE effect_broker.effect_attempts SET outcome = 'rejected' WHERE effect_id = %(id)s":
        "recorded_by_the_sender",
    "UPDATE effect_broker.effect_attempts SET outcome = 'presumed_ambiguous'"
    " WHERE effect_id = %(id)s": "presumed_by_a_successor",
    "UPDATE effect_broker.effect_attempts SET outcome = 'not_sent', code = 'c',"
    " recorded_at = now(), bytes_may_have_left = true WHERE effect_id = %(id)s":
        "not_sent_is_proved",
    "INSERT INTO effect_broker.effect_attempts (attempt_id, tenant_id, effect_id, ordinal,"
    " executor_id, started_at, deadline_at, target_identity) SELECT gen_random_uuid(), tenant_id,"
    " effect_id, 2, 'e', now(), now() + interval '1 s', 't' FROM effect_broker.effect_intents"
    " WHERE effect_id = %(id)s": "one_open_attempt",
    "INSERT INTO effect_broker.effect_attempts (attempt_id, tenant_id, effect_id, ordinal,"
    " executor_id, started_at, deadline_at, target_identity) SELECT gen_random_uuid(), tenant_id,"
    " effect_id, 3, 'e', now(), now() + interval '1 s', 't' FROM effect_broker.effect_intents"
    " WHERE effect_id = %(id)s": GUARD_SQLSTATE,
    # The trigger lets both rows pass: each follows the latest ordinal that it can see.
    "WITH closed AS (UPDATE effect_broker.effect_attempts SET outcome = 'retryable', code = 'c',"
    " recorded_at = now(), bytes_may_have_left = true WHERE effect_id = %(id)s RETURNING *)"
    " INSERT INTO effect_broker.effect_attempts (attempt_id, tenant_id, effect_id, ordinal,"
    " executor_id, started_at, deadline_at, target_identity) SELECT gen_random_uuid(), tenant_id,"
    " effect_id, 2, 'e', now(), now() + interval '1 s', 't' FROM closed, generate_series(1, 2)":
        "one_attempt_per_ordinal",
    "INSERT INTO effect_broker.effect_receipts SELECT gen_random_uuid(), tenant_id, effect_id,"
    " '{}', sha256(''), NULL, now() FROM effect_broker.effect_intents WHERE effect_id = %(id)s":
        "receipt_digest_fits",
    "INSERT INTO effect_broker.effect_evidence SELECT gen_random_uuid(), tenant_id, effect_id,"
    " 'webhook', 'not_committed', 'c', now(), now(), 1, '{}' FROM effect_broker.effect_intents"
    " WHERE effect_id = %(id)s": "effect_evidence_check1",
    "INSERT INTO effect_broker.effect_events SELECT tenant_id, effect_id, 7, 'k', 'e', 'prepared',"
    " 'prepared', 'r', 'a', now(), '{}' FROM effect_broker.effect_intents WHERE effect_id = %(id)s":
        GUARD_SQLSTATE,
    "INSERT INTO effect_broker.effect_events SELECT tenant_id, effect_id, 2, 'k', 'e', 'prepared',"
    " 'prepared', 'r', 'a', now(), '{}' FROM effect_broker.effect_intents WHERE effect_id = %(id)s":
        "effect_events_pkey",
    "INSERT INTO effect_broker.effect_events SELECT tenant_id, effect_id, 3, 'k', 'e', NULL,"
    " 'prepared', 'r', 'a', now(), '{}' FROM effect_broker.effect_intents WHERE effect_id = %(id)s":
        "effect_events_check",
    "INSERT INTO effect_broker.effect_events SELECT tenant_id, effect_id, 3, 'k', 'e', 'prepared',"
    " 'prepared', 'r', 'a', now(), '[]' FROM effect_broker.effect_intents WHERE effect_id = %(id)s":
        "effect_events_metadata_check",
    "INSERT INTO effect_broker.effect_payloads SELECT tenant_id, effect_id, 'thing', '', 'k', 'c',"
    " now() FROM effect_broker.effect_intents WHERE effect_id = %(id)s":
        "effect_payloads_kind_check",
    "INSERT INTO effect_broker.effect_payloads SELECT tenant_id, effect_id, 'wire', 'w', 'k', 'c',"
    " now(), now() FROM effect_broker.effect_intents WHERE effect_id = %(id)s":
        "effect_payloads_check",
    "INSERT INTO effect_broker.effect_events SELECT gen_random_uuid(), effect_id, 3, 'k', 'e',"
    " 'prepared', 'prepared', 'r', 'a', now(), '{}' FROM effect_broker.effect_intents"
    " WHERE effect_id = %(id)s": "effect_events_tenant_id_effect_id_fkey",
}  # fmt: skip

# Identity, and what is kept for ever.
KEPT: tuple[LiteralString, ...] = (
    "UPDATE effect_broker.effect_intents SET operation_key = 'x' WHERE effect_id = %(id)s",
    "UPDATE effect_broker.effect_intents SET request_hash = sha256('') WHERE effect_id = %(id)s",
    "UPDATE effect_broker.effect_intents SET downstream_key = 'x' WHERE effect_id = %(id)s",
    "UPDATE effect_broker.effect_intents SET hmac_key_id = 'x' WHERE effect_id = %(id)s",
    "UPDATE effect_broker.effect_intents SET contract_version = 'x' WHERE effect_id = %(id)s",
    "UPDATE effect_broker.effect_intents SET safety = 'unsafe' WHERE effect_id = %(id)s",
    "UPDATE effect_broker.effect_intents SET target_identity = 'x' WHERE effect_id = %(id)s",
    "UPDATE effect_broker.effect_intents SET wire_digest = NULL WHERE effect_id = %(id)s",
    "UPDATE effect_broker.effect_intents SET generation = 3 WHERE effect_id = %(id)s",
    "UPDATE effect_broker.effect_intents SET state = 'retryable' WHERE effect_id = %(id)s",
    "DELETE FROM effect_broker.effect_intents WHERE effect_id = %(id)s",
    "DELETE FROM effect_broker.effect_attempts WHERE effect_id = %(id)s",
    "DELETE FROM effect_broker.effect_events WHERE effect_id = %(id)s",
    "UPDATE effect_broker.effect_events SET reason = 'x' WHERE effect_id = %(id)s",
    "UPDATE effect_broker.effect_events SET digest = sha256('') WHERE effect_id = %(id)s",
    "UPDATE effect_broker.effect_attempts SET executor_id = 'x' WHERE effect_id = %(id)s",
    "UPDATE effect_broker.contracts SET document = '{}'",
    "DELETE FROM effect_broker.contracts",
    "TRUNCATE effect_broker.effect_intents CASCADE",
    "TRUNCATE effect_broker.effect_events",
    "TRUNCATE effect_broker.effect_receipts",
    "TRUNCATE effect_broker.effect_evidence CASCADE",
    "TRUNCATE effect_broker.effect_resolutions",
    "TRUNCATE effect_broker.effect_attempts",
    "TRUNCATE effect_broker.mutation_keys",
    "TRUNCATE effect_broker.contracts CASCADE",
)


@pytest.fixture
def world(worker_store: PostgresWorkerStore, api_store: PostgresApiStore, tenant_id: UUID) -> World:
    """The worker's store; submits are the API's."""
    return World(api_store, tenant_id, lambda _: [])


@pytest.fixture
async def effect_id(world: World, worker_store: PostgresWorkerStore) -> UUID:
    """An effect with an open attempt."""
    effect_id = await world.submit()
    world.store = worker_store
    await world.dispatching(effect_id)
    return effect_id


@pytest.mark.parametrize("statement", CHECKED)
async def test_a_constraint_refuses_it(
    superuser: Connection[TupleRow], effect_id: UUID, statement: LiteralString
) -> None:
    with pytest.raises(psycopg.Error) as caught:
        superuser.execute(statement, {"id": effect_id})
    refused_by = caught.value.diag.constraint_name or caught.value.sqlstate
    assert refused_by == CHECKED[statement]


@pytest.mark.parametrize("statement", KEPT)
async def test_identity_and_history_are_kept(
    superuser: Connection[TupleRow], effect_id: UUID, statement: LiteralString
) -> None:
    with pytest.raises(psycopg.Error) as caught:
        superuser.execute(statement, {"id": effect_id})
    assert caught.value.sqlstate == GUARD_SQLSTATE


async def _settled(world: World, effect_id: UUID) -> None:
    def plan(snapshot: Snapshot) -> Change[None]:
        attempt_id = snapshot.attempts[0].attempt_id
        recorded = outcome(attempt_id, snapshot.now, Outcome.COMMITTED)
        move = advance(LifeEvent.COMMIT_PROVED, EffectState.SUCCEEDED, None)
        found = evidence(snapshot, Verdict.COMMITTED)
        return Change(None, (recorded, found, receipt(), move))

    await world.store.change(world.tenant_id, effect_id, plan)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE effect_broker.effect_receipts SET content = content WHERE effect_id = %(id)s",
        "UPDATE effect_broker.effect_receipts SET result_ref = 'x' WHERE effect_id = %(id)s",
        "DELETE FROM effect_broker.effect_receipts WHERE effect_id = %(id)s",
        "UPDATE effect_broker.effect_evidence SET verdict = 'unknown' WHERE effect_id = %(id)s",
        "DELETE FROM effect_broker.effect_evidence WHERE effect_id = %(id)s",
        "UPDATE effect_broker.effect_attempts SET outcome = 'rejected' WHERE effect_id = %(id)s",
        "UPDATE effect_broker.effect_attempts SET outcome = NULL WHERE effect_id = %(id)s",
        "UPDATE effect_broker.effect_intents SET receipt_digest = sha256('x')"
        " WHERE effect_id = %(id)s",
        "UPDATE effect_broker.effect_intents SET state = 'failed_final', version = version + 1"
        " WHERE effect_id = %(id)s",
    ],
)
async def test_what_is_settled_stays(
    world: World, superuser: Connection[TupleRow], effect_id: UUID, statement: LiteralString
) -> None:
    await _settled(world, effect_id)
    with pytest.raises(psycopg.Error) as caught:
        superuser.execute(statement, {"id": effect_id})
    assert caught.value.sqlstate == GUARD_SQLSTATE


PRUNED: tuple[LiteralString, ...] = ("effect_attempts", "effect_events", "effect_payloads")


def _being_pruned(superuser: Connection[TupleRow], effect_id: UUID) -> None:
    superuser.execute("SET LOCAL ROLE effect_broker_prune")
    superuser.execute(
        "UPDATE effect_broker.effect_intents SET retention_stage = 3 WHERE effect_id = %s",
        [effect_id],
    )


async def test_only_the_prune_role_removes_rows_and_the_receipt_stays(
    world: World, superuser: Connection[TupleRow], effect_id: UUID
) -> None:
    await _settled(world, effect_id)
    with superuser.transaction():
        _being_pruned(superuser, effect_id)
        for table in PRUNED:
            removed = superuser.execute(
                f"DELETE FROM effect_broker.{table} WHERE effect_id = %s", [effect_id]
            )
            assert removed.rowcount >= 1, table
    for table in ("effect_intents", "effect_receipts"):
        with superuser.transaction(force_rollback=True):
            superuser.execute("SET LOCAL ROLE effect_broker_prune")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                superuser.execute(f"DELETE FROM effect_broker.{table}")


@pytest.mark.parametrize("table", PRUNED)
async def test_nothing_of_an_effect_that_is_not_being_pruned_is_removed(
    world: World, superuser: Connection[TupleRow], effect_id: UUID, table: LiteralString
) -> None:
    await _settled(world, effect_id)
    with superuser.transaction(force_rollback=True):
        superuser.execute("SET LOCAL ROLE effect_broker_prune")
        with pytest.raises(psycopg.Error) as caught:
            superuser.execute(
                f"DELETE FROM effect_broker.{table} WHERE effect_id = %s", [effect_id]
            )
    assert caught.value.sqlstate == GUARD_SQLSTATE


async def test_an_open_effect_is_not_pruned(
    superuser: Connection[TupleRow], effect_id: UUID
) -> None:
    with superuser.transaction(force_rollback=True), pytest.raises(psycopg.errors.CheckViolation):
        _being_pruned(superuser, effect_id)


async def test_a_fact_after_pruning_continues_the_chain(
    world: World, superuser: Connection[TupleRow], effect_id: UUID
) -> None:
    await _settled(world, effect_id)
    head = _stored(superuser, effect_id)[-1][1]
    with superuser.transaction():
        _being_pruned(superuser, effect_id)
        superuser.execute(
            "DELETE FROM effect_broker.effect_events WHERE effect_id = %s", [effect_id]
        )
    await world.write(effect_id, advance(LifeEvent.LATE_FACT, EffectState.SUCCEEDED, None))
    after = _stored(superuser, effect_id)
    assert [event.sequence for event, _ in after] == [4]
    verify_events(after, head)


async def test_events_are_chained_by_digests_that_anybody_can_recompute(
    world: World, superuser: Connection[TupleRow], effect_id: UUID
) -> None:
    await _settled(world, effect_id)
    events = _stored(superuser, effect_id)
    assert [event.sequence for event, _ in events] == [1, 2, 3]
    head = verify_events(events)
    row = superuser.execute(
        "SELECT event_digest FROM effect_broker.effect_intents WHERE effect_id = %s", [effect_id]
    ).fetchone()
    assert row == (head,)


@pytest.mark.parametrize(
    "texts",
    [("a", "b", "c"), ("1:", ";-;", ""), ("ünï✓😀", "a;1:b", "\n\t"), ("-", "-;", "0:;")],
)
def test_the_database_and_python_compute_one_digest(
    superuser: Connection[TupleRow], texts: tuple[str, str, str]
) -> None:
    for at in ("1969-12-31 23:59:59.000001+00", "2026-02-03 04:05:06.789012+05:45"):
        for from_state in (None, texts[0]):
            parameters = {
                "tenant": UUID(int=1), "effect": UUID(int=2**128 - 1), "kind": texts[0],
                "event": texts[1], "from": from_state, "to": texts[2], "reason": texts[1],
                "actor": texts[0], "at": at, "metadata": texts[2],
            }  # fmt: skip
            row = superuser.execute(
                "SELECT effect_broker.event_digest('\\x0102', %(tenant)s, %(effect)s, 7, %(kind)s,"
                " %(event)s, %(from)s, %(to)s, %(reason)s, %(actor)s, %(at)s::timestamptz,"
                " %(metadata)s), %(at)s::timestamptz",
                parameters,
            ).fetchone()
            assert row is not None
            event = Event(
                UUID(int=1), UUID(int=2**128 - 1), 7, texts[0], texts[1], from_state, texts[2],
                texts[1], texts[0], row[1], texts[2],
            )  # fmt: skip
            assert row[0] == event_digest(b"\x01\x02", event)


def test_a_contract_name_and_version_is_one_document(
    superuser: Connection[TupleRow], tenant_id: UUID
) -> None:
    document = contract("unsafe", transit_seconds=7).canonical().decode()
    with pytest.raises(psycopg.errors.UniqueViolation):
        superuser.execute(
            "INSERT INTO effect_broker.contracts (digest, name, version, tool, safety, document)"
            " SELECT sha256(convert_to(%(d)s, 'UTF8')), 'unsafe', '1', 'tool.unsafe', 'unsafe',"
            " %(d)s",
            {"d": document},
        )
    with pytest.raises(psycopg.errors.CheckViolation):
        superuser.execute(
            "INSERT INTO effect_broker.contracts (digest, name, version, tool, safety, document)"
            " VALUES (sha256(''), 'n', '1', 't', 'unsafe', '{}')"
        )


def _stored(superuser: Connection[TupleRow], effect_id: UUID) -> list[tuple[Event, bytes]]:
    rows = superuser.execute(
        "SELECT tenant_id, effect_id, sequence, kind, event, from_state, to_state, reason, actor,"
        " at, metadata, digest FROM effect_broker.effect_events WHERE effect_id = %s"
        " ORDER BY sequence",
        [effect_id],
    ).fetchall()
    return [(Event(*row[:-1]), row[-1]) for row in rows]


async def test_a_submission_of_a_bad_operation_key_is_refused(
    world: World, superuser: Connection[TupleRow], tenant_id: UUID
) -> None:
    for key in ("", "with space", "ü", "x" * 256):
        wanted = submission(tenant_id, key="placeholder", operation_key=key)
        with pytest.raises(Exception, match="operation_key_check"):
            await world.store.submit(wanted)
