"""The same promises where the database is part of them: real locks, real lost connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, LiteralString, cast
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import Connection
from psycopg.rows import TupleRow

from effect_adapters.base import Answer, DispatchCall, Finding
from effect_broker import repair
from effect_broker.clock import SystemClock
from effect_broker.holding import HoldScope
from effect_broker.intake import EffectRequest, Intake, Tenant
from effect_broker.keyring import AesVault
from effect_broker.process import WorkerProcess
from effect_broker.protocol import steps
from effect_broker.protocol.conclusion import Next, View
from effect_broker.protocol.ports import Ports, Snapshot, StoreError
from effect_broker.protocol.run import drive
from effect_broker.store.api import PostgresApiStore
from effect_broker.store.catalogue import Catalogue
from effect_broker.store.holds import Holds
from effect_broker.store.pool import make_pool
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.runs import PostgresWorkerStore
from effect_contracts.document import ContractDocument
from effect_contracts.facts import Outcome, Verdict
from postgres import Database
from protocol.world import (
    ARGUMENTS,
    RING,
    NamedAdapter,
    SeenCalls,
    TroubledStore,
    WatchedTarget,
    WorldClock,
    contract,
    lost_answer,
)

DEADLINE_SECONDS = 0.5
SHORT = {
    "attempt_deadline_seconds": DEADLINE_SECONDS,
    "clock_margin_seconds": 0.05,
    "retry": {"backoff_initial_seconds": 0.05},
    "probe": {"initial_seconds": 0.05, "horizon_seconds": 120},
}


@pytest.fixture
def superuser(database: Database) -> Iterator[Connection[TupleRow]]:
    """A superuser's session in autocommit mode."""
    with psycopg.connect(database.superuser_url, autocommit=True) as connection:
        yield connection


class LedgerAdapter(NamedAdapter):
    """Mutates a real table, and can stop in the middle of it."""

    def __init__(self, target: WatchedTarget) -> None:
        super().__init__(target)
        self.inside: Callable[[], Any] | None = None

    async def mutate(self, connection: Any, call: DispatchCall) -> Answer:
        """See `TransactionalAdapter`."""
        await connection.execute(
            "INSERT INTO public.entries (key) VALUES (%s)", [call.downstream_key]
        )
        if self.inside is not None:
            await self.inside()
        return Answer(Outcome.COMMITTED, "committed", "entry_1")


@dataclass
class Broker:
    """Workers over one real database."""

    store: TroubledStore
    workers: PostgresWorkerStore
    api: PostgresApiStore
    catalogue: Catalogue
    superuser: Connection[TupleRow]
    tenant: Tenant
    target: WatchedTarget = field(
        default_factory=lambda: WatchedTarget(WorldClock(), deduplicates=False)
    )
    on_reach: dict[str, Callable[[], None]] = field(default_factory=dict)
    effect_id: UUID = field(default_factory=uuid4)

    def __post_init__(self) -> None:
        self.adapter = LedgerAdapter(self.target)
        self.vault = AesVault(RING)
        self.ports = self.ports_of("worker-1")

    def ports_of(self, name: str) -> Ports:
        """A worker process."""
        clock = SystemClock()
        process = WorkerProcess(name, clock, 60)
        process.beaten(clock.boot_seconds())
        return Ports(
            self.store, {"simulated": self.adapter}, self.vault, clock, process, uuid4, self._reach
        )

    def _reach(self, name: str) -> None:
        if (act := self.on_reach.pop(name, None)) is not None:
            act()

    async def submit(self, document: ContractDocument, key: str = "order-1") -> None:
        """Apply the contract and submit an effect of its tool."""
        await self.catalogue.apply(document)
        intake = Intake(self.api, {"simulated": self.adapter}, RING, self.vault, self._reach)
        request = EffectRequest(key, document.tool, ARGUMENTS)
        self.effect_id = (await intake.submit(self.tenant, request)).intent.effect_id

    async def snapshot(self) -> Snapshot:
        """The effect as it stands."""
        return await self.workers.load(self.tenant.tenant_id, self.effect_id)

    async def outcomes(self) -> list[str | None]:
        """The outcomes of all attempts."""
        attempts = (await self.snapshot()).facts.attempts
        return [a.outcome and a.outcome.value for a in attempts]

    async def state(self) -> tuple[str, str]:
        """State and reason."""
        intent = (await self.snapshot()).intent
        return intent.state.value, intent.reason

    async def dispatch(self, version: int = 1, ordinal: int = 1, name: str = "") -> View:
        """Enter the step."""
        ports = self.ports_of(name) if name else self.ports
        return await steps.dispatch(ports, self.tenant.tenant_id, self.effect_id, version, ordinal)

    async def run(self, generation: int = 1) -> SeenCalls:
        """Drive a run to its end."""
        calls = SeenCalls(
            self.ports, self.effect_id, generation, [], tenant_id=self.tenant.tenant_id
        )
        await drive(calls)
        return calls

    async def run_until(self, wanted: Callable[[Snapshot], bool]) -> None:
        """Run whenever the effect is due, until it is as wanted.

        Raises:
            AssertionError: it is not within a few seconds.
        """
        for _ in range(400):
            snapshot = await self.snapshot()
            if wanted(snapshot):
                return
            due_at = snapshot.intent.next_action_at
            if due_at is not None and due_at <= snapshot.now:
                with suppress(StoreError):
                    await self.run()
            await asyncio.sleep(0.02)
        raise AssertionError(f"not in time: {await self.state()}")

    def end_as_failed(self) -> None:
        """Write what an operator's final failure will write."""
        tenant_id, effect_id = self.tenant.tenant_id, self.effect_id
        with self.superuser.transaction():
            self.superuser.execute(
                "INSERT INTO effect_broker.effect_receipts (receipt_id, tenant_id, effect_id,"
                " content, digest, recorded_at)"
                " VALUES (%s, %s, %s, '{}', sha256('{}'), now())",
                [uuid4(), tenant_id, effect_id],
            )
            self.superuser.execute(
                "INSERT INTO effect_broker.effect_events (tenant_id, effect_id, sequence, kind,"
                " event, from_state, to_state, reason, actor, at, metadata)"
                " VALUES (%s, %s, 3, 'failed', 'failure_proved', 'dispatching', 'failed_final',"
                " 'failed_by_operator', 'operator:test', now(), '{}')",
                [tenant_id, effect_id],
            )
            self.superuser.execute(
                "UPDATE effect_broker.effect_intents SET state = 'failed_final', version = 3,"
                " reason = 'failed_by_operator', failed_by_operator_at = now(),"
                " next_action_at = NULL, receipt_digest = sha256('{}'), event_digest ="
                " (SELECT digest FROM effect_broker.effect_events e WHERE e.effect_id = %s"
                " AND e.sequence = 3) WHERE effect_id = %s",
                [effect_id, effect_id],
            )

    def end_sessions(self) -> None:
        """Cut the connections of all workers, as a failing server or network does."""
        self.superuser.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'test-worker' AND datname = current_database()"
        )

    def waits_for_lock(self) -> bool:
        """Whether a worker waits for a lock now."""
        row = self.superuser.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'test-worker'"
            " AND datname = current_database() AND wait_event_type = 'Lock'"
        ).fetchone()
        return row is not None and bool(row[0])

    def entries(self) -> int:
        """How many mutations have been committed."""
        row = self.superuser.execute("SELECT count(*) FROM public.entries").fetchone()
        assert row is not None
        return int(row[0])


@pytest.fixture
async def broker(
    worker_store: PostgresWorkerStore,
    api_store: PostgresApiStore,
    catalogue: Catalogue,
    superuser: Connection[TupleRow],
    tenant_id: UUID,
) -> Broker:
    """A broker on a database of its own, with a table to mutate."""
    superuser.execute("CREATE TABLE public.entries (key text)")
    superuser.execute("GRANT ALL ON public.entries TO PUBLIC")
    tenant = Tenant(tenant_id, "hmac", "caller:test")
    return Broker(
        TroubledStore(worker_store), worker_store, api_store, catalogue, superuser, tenant
    )


async def until(seen: Callable[[], bool]) -> None:
    """Wait for something that has to happen.

    Raises:
        AssertionError: it does not within five seconds.
    """
    for _ in range(500):
        if seen():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not in time")


# The whole way ------------------------------------------------------------------------------------


@pytest.mark.parametrize("safety", ["idempotent", "reconcilable", "unsafe", "transactional"])
async def test_an_effect_goes_from_submit_to_receipt(broker: Broker, safety: str) -> None:
    await broker.submit(contract(safety, **SHORT))
    calls = await broker.run()
    assert calls.names == ["reserve", "dispatch 1"]
    assert await broker.state() == ("succeeded", "committed")
    receipt = await broker.api.receipt(broker.tenant.tenant_id, broker.effect_id)
    assert receipt is not None
    assert broker.entries() == int(safety == "transactional")


async def test_what_was_lost_is_found_by_its_key(broker: Broker) -> None:
    await broker.submit(contract("reconcilable", **SHORT, settlement_bound_seconds=0.4))
    broker.target.answers.append(lost_answer())
    broker.target.findings.extend(
        [Finding(Verdict.UNKNOWN, "busy"), Finding(Verdict.COMMITTED, "found", ("sim_1",))]
    )
    await broker.run()
    assert await broker.state() == ("succeeded", "committed")
    assert len(broker.target.sent) == 1


async def test_a_second_attempt_comes_only_after_a_conclusive_absence(broker: Broker) -> None:
    await broker.submit(contract("reconcilable", **SHORT, settlement_bound_seconds=0.4))
    broker.target.answers.append(lost_answer())
    await broker.run()
    assert await broker.outcomes() == ["ambiguous", "committed"]
    facts = (await broker.snapshot()).facts
    first, second = facts.attempts
    absent, counted = facts.evidence
    assert first.recorded_at is not None
    assert (absent.began_at - first.recorded_at).total_seconds() > 0.4
    assert second.started_at > absent.began_at
    # The count after the end, four bounds later.
    assert counted.verdict is Verdict.COMMITTED
    assert second.recorded_at is not None
    assert (counted.began_at - second.recorded_at).total_seconds() > 4 * 0.4


# Transaction 1 ------------------------------------------------------------------------------------


async def test_many_executions_at_once_send_once(broker: Broker) -> None:
    await broker.submit(contract("unsafe", **SHORT))
    seen = await asyncio.gather(*(broker.dispatch(name=f"w-{n}") for n in range(8)))
    assert len(broker.target.sent) == 1
    assert await broker.outcomes() == ["committed"]
    assert [s.next for s in seen].count(Next.RELOAD) == 7


async def test_a_connection_that_is_cut_before_commit_sends_nothing(broker: Broker) -> None:
    await broker.submit(contract("unsafe", **SHORT))
    broker.on_reach["before_attempt_commit"] = broker.end_sessions
    assert (await broker.dispatch()).next is Next.RELOAD
    assert broker.target.sent == []
    assert await broker.outcomes() == []
    await broker.run()
    assert await broker.state() == ("succeeded", "committed")


async def test_a_commit_whose_answer_is_lost_is_read_back_and_sent(broker: Broker) -> None:
    await broker.submit(contract("unsafe", **SHORT))
    broker.store.lose_next_answer()
    await broker.dispatch()
    assert len(broker.target.sent) == 1
    assert await broker.state() == ("succeeded", "committed")


async def test_nothing_is_granted_past_a_pause_that_says_it_is_effective(
    broker: Broker, database: Database
) -> None:
    """The worst moment: transaction 1 has its locks and not yet its facts when the pause comes."""
    await broker.submit(contract("unsafe", **SHORT))
    tenant_id = broker.tenant.tenant_id
    async with make_pool(
        database.url_for(DatabaseRole.API), DatabaseRole.API, application_name="test-worker"
    ) as pool:
        holds = Holds(pool, tenant_id)
        with psycopg.connect(database.superuser_url) as granting:
            granting.execute("SELECT effect_broker.share_holds(%s)", [tenant_id])
            placing = asyncio.create_task(
                holds.place(uuid4(), HoldScope(tenant_id), "test", "operator:test")
            )
            await until(broker.waits_for_lock)
            assert not placing.done(), "it says nothing while somebody may not have seen it"
            granting.rollback()
        placed = await placing
        assert (placed.created, placed.effective) == (True, True)
    assert (await broker.dispatch()).next is Next.RELOAD
    assert broker.target.sent == []
    assert await broker.outcomes() == []


async def test_every_change_is_waited_for_by_a_hold(broker: Broker, database: Database) -> None:
    await broker.submit(contract("unsafe", **SHORT))
    with psycopg.connect(database.superuser_url) as holding:
        holding.execute("SELECT effect_broker.await_holds(%s)", [broker.tenant.tenant_id])
        granting = asyncio.create_task(broker.dispatch())
        await until(broker.waits_for_lock)
        assert broker.target.sent == []
        holding.rollback()
    await granting
    assert len(broker.target.sent) == 1


# Transaction 2 ------------------------------------------------------------------------------------


async def test_transaction_2_outlives_its_connections(broker: Broker) -> None:
    await broker.submit(contract("unsafe", **SHORT))
    cuts = 3

    def cut() -> None:
        nonlocal cuts
        cuts -= 1
        broker.end_sessions()
        if cuts:
            broker.on_reach["before_outcome_commit"] = cut

    broker.on_reach["before_outcome_commit"] = cut
    await broker.dispatch()
    assert cuts == 0
    assert await broker.state() == ("succeeded", "committed")
    assert len(broker.target.sent) == 1


async def test_cancelling_a_run_loses_no_outcome(broker: Broker) -> None:
    await broker.submit(contract("unsafe", **SHORT))
    out = asyncio.Event()

    async def wait() -> None:
        out.set()
        await asyncio.sleep(0.05)

    broker.target.while_sending = wait
    run = asyncio.create_task(broker.dispatch())
    await out.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    process = broker.ports.process
    assert isinstance(process, WorkerProcess)
    assert await process.sends_ended(5)
    assert await broker.state() == ("succeeded", "committed")


async def test_a_late_answer_settles_what_a_peer_has_parked(broker: Broker) -> None:
    await broker.submit(contract("unsafe", **SHORT))

    async def take_over() -> None:
        await asyncio.sleep(DEADLINE_SECONDS + 0.1)
        await broker.run()
        assert await broker.outcomes() == ["presumed_ambiguous"]
        assert await broker.state() == ("outcome_unknown", "outcome_unknown")

    broker.target.while_sending = take_over
    await broker.dispatch(name="zombie")
    assert await broker.outcomes() == ["committed"]
    assert await broker.state() == ("succeeded", "committed")


async def test_an_operation_is_polled_by_the_reference_of_its_own_attempt(broker: Broker) -> None:
    adapter = {"kind": "simulated", "target": "ledger", "polls_operations": True}
    await broker.submit(contract("idempotent", **SHORT, adapter=adapter))

    async def take_over() -> None:
        await asyncio.sleep(DEADLINE_SECONDS + 0.2)
        broker.target.answers.appendleft(Answer(Outcome.IN_PROGRESS, "accepted", operation="op-2"))
        await broker.dispatch((await broker.snapshot()).intent.version, 2, "peer")
        broker.target.findings.append(Finding(Verdict.REJECTED, "operation_failed"))
        version = (await broker.snapshot()).intent.version
        await steps.probe(broker.ports, broker.tenant.tenant_id, broker.effect_id, version)

    broker.target.while_sending = take_over
    broker.target.answers.append(Answer(Outcome.IN_PROGRESS, "accepted", operation="op-1"))
    await broker.dispatch(name="zombie")
    broker.target.findings.append(Finding(Verdict.COMMITTED, "succeeded", ("sim_1",)))
    await broker.run()
    assert [c.operation for c in broker.target.looked] == ["op-2", "op-1"]
    assert [e.covers_through for e in (await broker.snapshot()).facts.evidence][:1] == [2]
    assert await broker.state() == ("succeeded", "committed")


# Mutations and fences -----------------------------------------------------------------------------


@asynccontextmanager
async def mutating(broker: Broker, go_on: asyncio.Event) -> AsyncIterator[asyncio.Task[View]]:
    """A worker that is stopped inside the transaction of its mutation."""
    inside = asyncio.Event()

    async def wait() -> None:
        broker.adapter.inside = None
        inside.set()
        await go_on.wait()

    broker.adapter.inside = wait
    task = asyncio.create_task(broker.dispatch(name="zombie"))
    await inside.wait()
    yield task
    go_on.set()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_fence_stops_an_older_open_transaction(broker: Broker) -> None:
    """While the transaction is open, nobody can fence it; once fenced, it cannot commit."""
    await broker.submit(contract("transactional", **SHORT))
    go_on = asyncio.Event()
    async with mutating(broker, go_on) as zombie:
        await asyncio.sleep(DEADLINE_SECONDS + 0.1)
        early = await steps.reserve(broker.ports, broker.tenant.tenant_id, broker.effect_id, 1)
        assert early.next is Next.PROBE
        probing = asyncio.create_task(
            steps.probe(broker.ports, broker.tenant.tenant_id, broker.effect_id, early.version)
        )
        await until(broker.waits_for_lock)
        busy = await probing
        # The fence had to wait: for the lock's timeout, or for the end of the stopped session.
        assert busy.next in {Next.END, Next.DISPATCH, Next.WAIT}
        await broker.run_until(lambda found: len(found.facts.evidence) == 1)
        assert broker.entries() == 0
        go_on.set()
        await asyncio.wait([zombie])
    assert broker.entries() == 0
    await broker.run_until(lambda found: found.intent.next_action_at is None)
    assert await broker.state() == ("succeeded", "committed")
    assert broker.entries() == 1
    row = broker.superuser.execute(
        "SELECT ordinal, kind FROM effect_broker.mutation_keys ORDER BY ordinal"
    ).fetchall()
    assert row == [(1, "fence"), (2, "mutation")]


async def test_a_mutation_that_has_committed_is_found_by_its_key(broker: Broker) -> None:
    await broker.submit(contract("transactional", **SHORT))
    broker.store.lose_next_answer(after=1)
    calls = await broker.run()
    assert calls.names == ["reserve", "dispatch 1", "reserve"]
    assert await broker.state() == ("succeeded", "committed")
    assert broker.entries() == 1


async def test_a_mutation_whose_connection_is_cut_is_undone_and_done_again(
    broker: Broker,
) -> None:
    await broker.submit(contract("transactional", **SHORT))
    broker.on_reach["inside_mutation"] = broker.end_sessions
    await broker.run_until(lambda found: found.intent.next_action_at is None)
    assert await broker.state() == ("succeeded", "committed")
    assert await broker.outcomes() == ["not_sent", "committed"]
    assert broker.entries() == 1


async def test_no_mutation_commits_on_a_final_effect(broker: Broker) -> None:
    await broker.submit(contract("transactional", **SHORT))

    async def end() -> None:
        broker.end_as_failed()

    broker.on_reach["after_attempt_commit"] = lambda: setattr(broker.store, "before", end)
    await broker.dispatch()
    assert broker.entries() == 0
    assert await broker.outcomes() == ["not_sent"]
    assert await broker.state() == ("failed_final", "failed_by_operator")


# Repair -------------------------------------------------------------------------------------------


async def test_of_many_reconcile_loops_one_starts_the_run(broker: Broker) -> None:
    await broker.submit(contract("unsafe", **SHORT))
    broker.superuser.execute("DELETE FROM dbos.workflow_status")
    started = await asyncio.gather(
        *(
            repair.reconcile(broker.workers, broker.workers, f"worker:{n}", lambda _: None)
            for n in range(4)
        )
    )
    assert sum(started) == 1
    assert (await broker.snapshot()).intent.generation == 2
    assert await broker.workers.due_effects(10) == []


# Guards, switched off -----------------------------------------------------------------------------


def as_if_never(broker: Broker, *statements: LiteralString) -> None:
    """Run statements that no role of the broker may run, past every trigger."""
    with broker.superuser.transaction():
        broker.superuser.execute("SET LOCAL session_replication_role = replica")
        for statement in statements:
            broker.superuser.execute(statement, {"id": broker.effect_id})


# As a database that was restored from before the first attempt.
RESTORED: tuple[LiteralString, ...] = (
    "DELETE FROM effect_broker.effect_attempts WHERE effect_id = %(id)s",
    "DELETE FROM effect_broker.effect_events WHERE effect_id = %(id)s AND sequence > 1",
    "UPDATE effect_broker.effect_intents SET state = 'prepared', version = 1, latest_ordinal = 0,"
    " progress_generation = 1, parked = false, next_action_at = now(), event_digest = (SELECT"
    " digest FROM effect_broker.effect_events e WHERE e.effect_id = %(id)s AND e.sequence = 1)"
    " WHERE effect_id = %(id)s",
)


@pytest.mark.parametrize("halts", [True, False])
async def test_without_the_halt_a_restored_database_sends_an_unsafe_effect_again(
    broker: Broker, halts: bool
) -> None:
    await broker.submit(contract("unsafe", **SHORT))
    broker.target.answers.append(lost_answer())
    await broker.run()
    as_if_never(broker, *RESTORED)
    if halts:
        broker.superuser.execute("UPDATE effect_broker.database_identity SET halted_at = now()")
    await broker.run()
    assert len(broker.target.sent) == (1 if halts else 2)


@pytest.mark.parametrize("gated", [True, False])
async def test_without_its_heartbeats_gate_a_process_sends_when_its_peers_take_it_for_dead(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, gated: bool
) -> None:
    await broker.submit(contract("unsafe", **SHORT))
    ports = broker.ports_of("silent")
    # Its last beat is older than the TTL.
    cast(WorkerProcess, ports.process).beaten(ports.clock.boot_seconds() - 61)
    if not gated:
        monkeypatch.setattr(WorkerProcess, "may_dispatch", lambda _: True)
    await steps.dispatch(ports, broker.tenant.tenant_id, broker.effect_id, 1, 1)
    assert len(broker.target.sent) == (0 if gated else 1)


@pytest.mark.parametrize("kept", [True, False])
async def test_without_its_key_a_mutation_is_taken_for_absent_and_done_again(
    broker: Broker, kept: bool
) -> None:
    await broker.submit(contract("transactional", **SHORT))
    await broker.run()
    # The answer to COMMIT was lost, and the effect is looked at as its attempt left it.
    as_if_never(
        broker,
        "UPDATE effect_broker.effect_attempts SET outcome = NULL, code = NULL, recorded_at = NULL,"
        " bytes_may_have_left = NULL, external_id = NULL, deadline_at = now()"
        " WHERE effect_id = %(id)s",
        "DELETE FROM effect_broker.effect_receipts WHERE effect_id = %(id)s",
        "UPDATE effect_broker.effect_intents SET state = 'dispatching', receipt_digest = NULL,"
        " next_action_at = now() WHERE effect_id = %(id)s",
    )
    if not kept:
        as_if_never(broker, "DELETE FROM effect_broker.mutation_keys WHERE effect_id = %(id)s")
    await broker.run_until(lambda found: found.intent.next_action_at is None)
    assert broker.entries() == (1 if kept else 2)
