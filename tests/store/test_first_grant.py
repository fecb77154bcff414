"""The first attempt of a new effect, planned without a lock: what may come in between.

The plan is made on a read; then something happens; then the one statement is sent that grants. It
has to write nothing then, and the attempt is planned again, under the lock. Each condition of the
function is also cut out of it, to see that this condition is what stops it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg import AsyncConnection, Connection
from psycopg.rows import TupleRow

from effect_broker.protocol import changes
from effect_broker.protocol.changes import Grant, GrantKind
from effect_broker.protocol.ports import (
    Change,
    CommitUnknown,
    Snapshot,
    StaleWrite,
    StoreBusy,
)
from effect_broker.store import statements
from effect_broker.store.api import PostgresApiStore
from effect_broker.store.catalogue import Catalogue
from effect_broker.store.export import export_trace
from effect_broker.store.pool import Pool, make_pool
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.runs import PostgresWorkerStore
from effect_contracts.document import ContractDocument
from effect_contracts.facts import Certified, SafetyClass
from effect_contracts.trace.check import verify_lines
from effect_contracts.trace.findings import Rule
from postgres import Database, RunningServer, clone, drop_database
from store.issuer import Issuer
from store.samples import TARGET, contract, submission
from store.wire import wire_to

GRANTED, STALE = GrantKind.GRANTED, GrantKind.STALE


@pytest.fixture(scope="module")
def shared_database(running_server: RunningServer, template_name: str) -> Iterator[Database]:
    """A database of this module's own: its functions are changed, and its holds are everybody's."""
    cloned = clone(running_server, template_name)
    yield cloned
    drop_database(running_server, cloned.name)


@dataclass
class First:
    """A new effect whose first attempt is asked for; `between` runs behind the first plan."""

    store: PostgresWorkerStore
    superuser: Connection[TupleRow]
    tenant_id: UUID
    effect_id: UUID
    attempt_id: UUID = field(default_factory=uuid4)
    planned: int = 0

    async def grant(self, between: Callable[[], None] = lambda: None, **asked: Any) -> Grant:
        """Run transaction 1."""

        def plan(seen: Snapshot) -> Change[Grant]:
            self.planned += 1
            change = changes.grant_attempt(
                seen,
                identity=TARGET,
                expected_version=1,
                ordinal=1,
                attempt_id=self.attempt_id,
                executor_id="executor-1",
            )
            if self.planned == 1:
                between()
            return change

        told = {"paced": lambda _: TARGET, "new": True, **asked}
        return await self.store.change(self.tenant_id, self.effect_id, plan, **told)

    def execute(self, query: str) -> None:
        """What happens meanwhile, whatever triggers say of it."""
        told = {"tenant": self.tenant_id, "effect": self.effect_id}
        with self.superuser.transaction():
            self.superuser.execute("SET LOCAL session_replication_role = replica")
            self.superuser.execute(query.encode(), told)


Submit = Callable[..., Any]


@pytest.fixture
def submit(
    worker_store: PostgresWorkerStore,
    api_store: PostgresApiStore,
    superuser: Connection[TupleRow],
    tenant_id: UUID,
) -> Submit:
    """Makes new effects."""

    async def made(safety: str = "idempotent", key: str = "order-1", **more: Any) -> First:
        effect = submission(tenant_id, key, safety, **more)
        await api_store.submit(effect)
        return First(worker_store, superuser, tenant_id, effect.effect_id)

    return made


# What comes in between ---------------------------------------------------------------------------

_INTENT = "UPDATE effect_broker.effect_intents SET {} WHERE effect_id = %(effect)s"
_HOLD = (
    "INSERT INTO effect_broker.holds (hold_id, kind, tenant_id, tool, contract_name,"
    " contract_version, reason, placed_by) VALUES (gen_random_uuid(), 'paused', {}, 'r', 'p')"
)
_LIFTED = "DELETE FROM effect_broker.holds"
_SOUND = (
    "UPDATE effect_broker.database_identity SET halted_at = NULL,"
    " relation_oid = 'effect_broker.effect_intents'::regclass::oid"
)
_UNHELD = " OR EXISTS (\n        SELECT 1 FROM effect_broker.holds AS h"


# What looks at an obstacle: the grant, and what it shares with elections.
_LOOKING = ("effect_broker.start_first_attempt", "effect_broker.nothing_holds")


@dataclass(frozen=True)
class Obstacle:
    """Something that happens, the condition that sees it, and how it is undone.

    Attributes:
        cut, put: of the text of one of `_LOOKING`, what looks at it, and what stands there without.
        kind: what the second plan says, under the lock.
        refused: without the condition, the writes are refused by another guard.
    """

    happens: str
    cut: str
    put: str = ""
    kind: GrantKind = STALE
    safety: str = "idempotent"
    undone: str = ""
    refused: bool = False


def hold(scope: str) -> Obstacle:
    """A hold of this scope; all are seen by one look."""
    return Obstacle(_HOLD.format(scope), "h.lifted_at IS NULL", "false", undone=_LIFTED)


OBSTACLES = {
    "a fact": Obstacle(
        _INTENT.format("version = 2"), "effect.version <> p_version OR ", refused=True
    ),
    "another generation": Obstacle(
        _INTENT.format("generation = 2"),
        "effect.generation <> p_generation",
        "false",
        kind=GRANTED,
        refused=True,
    ),
    "another state": Obstacle(
        _INTENT.format("state = 'retryable'"), "effect.state <> 'prepared' OR ", kind=GRANTED
    ),
    "a park": Obstacle(
        _INTENT.format("parked = true, next_action_at = NULL"), "effect.parked OR ", kind=GRANTED
    ),
    "a target that was bound": Obstacle(
        _INTENT.format("target_identity = 'https://other.example#a'"),
        "effect.target_identity IS NOT NULL",
        "false",
        refused=True,
    ),
    "a wish to cancel": Obstacle(
        _INTENT.format("cancel_requested_at = now()"),
        "effect.cancel_requested_at IS NOT NULL OR ",
    ),
    "a person's word": Obstacle(
        _INTENT.format("failed_by_operator_at = now()"),
        "effect.failed_by_operator_at IS NOT NULL",
        "false",
    ),
    "a hold of the tenant": hold("%(tenant)s, NULL, NULL, NULL"),
    "a hold of the tool": hold("%(tenant)s, 'tool.idempotent', NULL, NULL"),
    "a hold of the contract": hold("%(tenant)s, NULL, 'idempotent', '1'"),
    "a hold of everybody": hold("NULL, NULL, NULL, NULL"),
    "a disabled tenant": Obstacle(
        "UPDATE effect_broker.tenants SET disabled_at = now() WHERE tenant_id = %(tenant)s",
        "AND t.disabled_at IS NULL",
    ),
    "a restored database": Obstacle(
        "UPDATE effect_broker.database_identity SET halted_at = now()",
        "AND d.halted_at IS NULL",
        safety="unsafe",
        undone=_SOUND,
    ),
    "a database from a dump": Obstacle(
        "UPDATE effect_broker.database_identity SET relation_oid = 1",
        "AND d.relation_oid = 'effect_broker.effect_intents'::regclass::oid",
        safety="unsafe",
        undone=_SOUND,
    ),
    "a moment that has passed": Obstacle(
        _INTENT.format("send_before = clock_timestamp()"), " OR effect.send_before <= at"
    ),
    "a later change": Obstacle(
        _INTENT.format("updated_at = clock_timestamp()"),
        "p_started_at < effect.updated_at OR ",
        kind=GRANTED,
    ),
}


@contextmanager
def without(superuser: Connection[TupleRow], cut: str, put: str) -> Iterator[None]:
    """The one function that has the condition without it, inside the block."""
    query = "SELECT pg_get_functiondef(%s::regproc)"
    texts = [superuser.execute(query, [name]).fetchone() for name in _LOOKING]
    (whole,) = [row[0] for row in texts if row is not None and cut in row[0]]
    superuser.execute(whole.replace(cut, put).encode())
    try:
        yield
    finally:
        superuser.execute(whole.encode())


@pytest.mark.parametrize("name", OBSTACLES)
async def test_what_comes_in_between_is_seen_under_the_lock(submit: Submit, name: str) -> None:
    met = OBSTACLES[name]
    first: First = await submit(met.safety, send_before=None)
    try:
        grant = await first.grant(partial(first.execute, met.happens))
    finally:
        if met.undone:
            first.execute(met.undone)
    assert (first.planned, grant.kind) == (2, met.kind)


@pytest.mark.parametrize("name", OBSTACLES)
async def test_without_its_condition_nothing_else_would_see_it(submit: Submit, name: str) -> None:
    met = OBSTACLES[name]
    first: First = await submit(met.safety)
    with without(first.superuser, met.cut, met.put):
        try:
            if met.refused:  # the writes compare it once more
                with pytest.raises(StaleWrite):
                    await first.grant(partial(first.execute, met.happens))
            else:
                grant = await first.grant(partial(first.execute, met.happens))
                assert grant.kind is GRANTED
        finally:
            if met.undone:
                first.execute(met.undone)
    assert first.planned == 1


@pytest.mark.parametrize(
    ("moment", "cut"),
    [
        ("- interval '2 seconds'", "OR p_started_at < at - interval '1 second'"),
        ("+ interval '1 hour'", "OR p_started_at > at"),
    ],
    ids=["long ago", "in the future"],
)
async def test_a_moment_that_is_not_the_databases_grants_nothing(
    submit: Submit, monkeypatch: pytest.MonkeyPatch, moment: str, cut: str
) -> None:
    clock = "clock_timestamp() AS now"
    moved = statements.READ_NEW.replace(clock, f"clock_timestamp() {moment} AS now")
    monkeypatch.setattr(statements, "READ_NEW", moved)
    first, second = await submit(key="first"), await submit(key="second")
    for one in (first, second):
        one.execute(_INTENT.format("updated_at = updated_at - interval '1 day'"))
    assert (await first.grant()).kind is GRANTED
    assert first.planned == 2
    with without(first.superuser, cut, ""):
        await second.grant()
    assert second.planned == 1


async def test_a_restored_database_does_not_stop_what_de_duplicates(submit: Submit) -> None:
    first: First = await submit("idempotent")
    halted = "UPDATE effect_broker.database_identity SET halted_at = now()"
    try:
        grant = await first.grant(partial(first.execute, halted))
    finally:
        first.execute(_SOUND)
    assert (first.planned, grant.kind) == (1, GRANTED)


async def test_a_hold_of_another_scope_stops_nothing(submit: Submit) -> None:
    first: First = await submit()
    others = ("%(tenant)s, 'another', NULL, NULL", "%(tenant)s, NULL, 'idempotent', '2'")

    def placed() -> None:
        for scope in others:
            first.execute(_HOLD.format(scope))

    try:
        grant = await first.grant(placed)
    finally:
        first.execute(_LIFTED)
    assert (first.planned, grant.kind) == (1, GRANTED)


# What is not asked for without a lock -------------------------------------------------------------


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that leave for the database."""
    seen: list[str] = []
    executed = AsyncConnection.execute

    async def execute(self: AsyncConnection[Any], query: Any, *rest: Any, **named: Any) -> Any:
        seen.append(str(query))
        return await executed(self, query, *rest, **named)

    monkeypatch.setattr(AsyncConnection, "execute", execute)
    return seen


@pytest.mark.parametrize(
    "members",
    [
        {"limits": {"concurrency_max": 1}},
        {"oversight": {"certificate": {}}},
        {"oversight": {"approval_valid_seconds": 60}},
    ],
    ids=["limits", "a certificate", "an approval"],
)
async def test_what_more_than_the_effect_decides_is_decided_under_the_lock(
    submit: Submit, admin_pool: Pool, sent: list[str], members: dict[str, Any]
) -> None:
    document: ContractDocument = contract("idempotent", f"v-{uuid4().hex[:8]}", **members)
    await Catalogue(admin_pool).apply(document)
    first: First = await submit(
        contract_version=document.version, contract_digest=document.digest()
    )
    await first.grant()
    assert any("effect_broker.lock_effect" in statement for statement in sent)
    assert not any("start_first_attempt" in statement for statement in sent)


async def test_a_certificate_in_force_is_looked_for_under_the_lock(
    submit: Submit, admin_pool: Pool, worker_pool: Pool, sent: list[str]
) -> None:
    """Nothing keeps it from being revoked meanwhile."""
    document = contract("idempotent", f"v-{uuid4().hex[:8]}", oversight={"certificate": {}})
    await Catalogue(admin_pool).apply(document)
    first: First = await submit(
        contract_version=document.version, contract_digest=document.digest()
    )
    issuer = Issuer(admin_pool)
    first.store = PostgresWorkerStore(worker_pool, trusted=issuer.public_keys)
    now = (await first.store.load(first.tenant_id, first.effect_id)).now
    trials = frozenset({"accepts_the_request"})
    said = Certified(str(uuid4()), TARGET, trials, now, now + timedelta(hours=1))
    await issuer.store(document, said)
    sent.clear()
    assert (await first.grant()).kind is GRANTED
    assert any("effect_broker.lock_effect" in statement for statement in sent)
    assert not any("start_first_attempt" in statement for statement in sent)


async def test_a_first_attempt_is_granted_without_the_hint_too(
    submit: Submit, sent: list[str]
) -> None:
    first: First = await submit()
    assert (await first.grant(new=False)).kind is GRANTED
    assert any("effect_broker.lock_effect" in statement for statement in sent)


# What is written ---------------------------------------------------------------------------------

# Of each row all columns, but for ids and moments; moments as the time since the attempt began.
_NAMES = "'{effect_id,operation_key,downstream_key,request_hash,attempt_id,created_at}'"
_SINCE = {
    "effect_intents": ("next_action_at", "key_expires_at", "attempt_open_until", "updated_at"),
    "effect_attempts": ("started_at", "deadline_at"),
    "effect_events": ("at",),
    "effect_payloads": (),
}


def rows(superuser: Connection[TupleRow], first: First) -> dict[str, list[Any]]:
    """All that is stored of an effect."""
    found = {}
    for table, moments in _SINCE.items():
        told = ", ".join(f"'{name}', (r.{name} - a.started_at)::text" for name in moments)
        query = (
            f"SELECT (to_jsonb(r) - {_NAMES}::text[]) || jsonb_build_object({told})"
            f" FROM effect_broker.{table} AS r, effect_broker.effect_attempts AS a"
            " WHERE r.effect_id = %s AND a.effect_id = r.effect_id ORDER BY 1"
        )
        found[table] = [row[0] for row in superuser.execute(query.encode(), [first.effect_id])]
    for event in found["effect_events"]:
        event["metadata"] = {**json.loads(event["metadata"]), "request_hash": ""}
        if "attempt_id" in event["metadata"]:
            assert event["metadata"].pop("attempt_id") == str(first.attempt_id)
        # Digests are those of other moments; that they are right is checked below.
        for name in ("digest", "previous_digest", "at", "place"):
            event.pop(name, None)
    for intent in found["effect_intents"]:
        intent.pop("event_digest")
    for payload in found["effect_payloads"]:
        payload.pop("stored_at")
    return found


@pytest.mark.parametrize("safety", list(SafetyClass))
async def test_it_writes_the_very_rows_of_the_long_way(
    submit: Submit, admin_pool: Pool, superuser: Connection[TupleRow], safety: SafetyClass
) -> None:
    document = contract(
        safety.value,
        f"v-{uuid4().hex[:8]}",
        attempt_deadline_seconds=1.2345678,
        clock_margin_seconds=0.0123457,
    )
    await Catalogue(admin_pool).apply(document)
    named = {"contract_version": document.version, "contract_digest": document.digest()}
    short: First = await submit(safety.value, "short", **named)
    long: First = await submit(safety.value, "long", **named)
    await short.grant()
    await long.grant(new=False)
    written = rows(superuser, short)
    assert [len(written[table]) for table in _SINCE] == [1, 1, 2, 2]
    assert written == rows(superuser, long)
    left = short.store._grants.take(short.tenant_id, short.effect_id)
    kept = long.store._grants.take(long.tenant_id, long.effect_id)
    assert left is not None
    assert kept is not None
    assert (left.intent.version, left.parked, left.urgency) == (2, kept.parked, kept.urgency)
    assert replace(left.facts, attempts=(), jitter_seed=0) == replace(
        kept.facts, attempts=(), jitter_seed=0
    )


async def test_the_events_hang_together(submit: Submit, shared_database: Database) -> None:
    first: First = await submit(key="chained")
    await first.grant()
    assert first.planned == 1
    lines: list[bytes] = []
    url = shared_database.superuser_url
    async with make_pool(url, None, application_name="test-export", size_max=1) as pool:
        await export_trace(pool, lines.append)
    # Other tests here have left what no broker writes; the ids of samples are not derived.
    found = verify_lines(lines, whole=True).violations
    mine = {one.rule for one in found if one.effect_id == first.effect_id}
    assert mine <= {Rule.IDENTITY}


# What goes wrong ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("swallow", "version"), [(True, 1), (False, 2)])
async def test_a_connection_lost_in_the_grant_leaves_it_unknown(
    submit: Submit, shared_database: Database, swallow: bool, version: int
) -> None:
    """Until it is read back under the lock; here it has been granted, or it has not."""
    async with (
        wire_to(shared_database.url_for(DatabaseRole.WORKER)) as wire,
        make_pool(wire.url, None, application_name="wired", size_max=1) as pool,
    ):
        first: First = await submit()
        first.store = PostgresWorkerStore(pool)
        warm: First = await submit(key="warm")
        warm.store = first.store
        await warm.grant()
        wire.cut_at, wire.swallow = str(first.attempt_id).encode(), swallow
        with pytest.raises(CommitUnknown):
            await first.grant()
        wire.cut_at = None
        stands = await first.store.change(
            first.tenant_id,
            first.effect_id,
            partial(changes.confirm_grant, attempt_id=first.attempt_id),
        )
    assert stands is (version == 2)
    row = first.superuser.execute(
        b"SELECT version FROM effect_broker.effect_intents WHERE effect_id = %s",
        [first.effect_id],
    ).fetchone()
    assert row == (version,)


async def test_a_lock_that_others_hold_makes_it_busy_and_grants_nothing(
    submit: Submit, shared_database: Database, worker_store: PostgresWorkerStore
) -> None:
    first: First = await submit()
    with first.superuser.transaction():
        first.superuser.execute(
            b"SELECT 1 FROM effect_broker.effect_intents WHERE effect_id = %s FOR UPDATE",
            [first.effect_id],
        )
        url = shared_database.url_for(DatabaseRole.WORKER)
        async with make_pool(
            url, None, application_name="hurried", size_max=1, ttl_seconds=0.4
        ) as pool:
            first.store = PostgresWorkerStore(pool)
            with pytest.raises(StoreBusy):
                await first.grant()
    assert (await worker_store.load(first.tenant_id, first.effect_id)).attempts == ()


async def test_a_request_that_cannot_be_opened_grants_nothing(submit: Submit) -> None:
    """It is opened while it is planned, before anything is written."""
    first: First = await submit()

    def unreadable() -> None:
        raise ValueError("unreadable")

    with pytest.raises(ValueError, match="unreadable"):
        await first.grant(unreadable)
    assert (await first.store.load(first.tenant_id, first.effect_id)).attempts == ()
