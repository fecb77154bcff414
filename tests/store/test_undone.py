"""Statements of the hot path that undo themselves: what they took for granted was no longer so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import Connection
from psycopg.rows import TupleRow

from effect_broker.holding import HoldScope
from effect_broker.protocol import election
from effect_broker.protocol.ports import Snapshot
from effect_broker.protocol.submission import Elected
from effect_broker.store.api import PostgresApiStore
from effect_broker.store.elections import PostgresElections
from effect_broker.store.holds import Holds
from effect_broker.store.pool import Pool
from effect_broker.store.runs import PostgresWorkerStore
from effect_contracts.facts import EffectState
from postgres import Database
from store.conformance import Both, World
from store.conformance_elections import first_of, success
from store.samples import contract, submission


async def until(seen: Callable[[], bool]) -> None:
    """Wait for something that has to happen.

    Raises:
        AssertionError: it does not within half a minute.
    """
    for _ in range(3000):
        if seen():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not in time")


@dataclass
class Scene:
    """A world with its elections, a session that stands in the way, and what is waited for."""

    world: World
    elections: PostgresElections
    holds: Holds
    superuser: Connection[TupleRow]
    other: Connection[TupleRow]

    async def waits(self) -> None:
        """Return once a session of the API waits for a lock."""
        statement = (
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'test-api'"
            " AND datname = current_database() AND wait_event_type = 'Lock'"
        )
        await until(lambda: self.superuser.execute(statement).fetchone() != (0,))

    async def held(self) -> None:
        """Return once a hold is placed."""
        statement = "SELECT count(*) FROM effect_broker.holds WHERE tenant_id = %s"
        tenant = [self.world.tenant_id]
        await until(lambda: self.superuser.execute(statement, tenant).fetchone() != (0,))

    async def known(self, made: Elected) -> Snapshot:
        """What the election left, at the database's present moment."""
        known = election.first_snapshot(made, contract("idempotent"))
        return replace(known, now=(await self.world.load(made.intent.effect_id)).now)

    async def standing(self, effect_id: UUID) -> tuple[EffectState, int]:
        """State and version."""
        intent = (await self.world.load(effect_id)).intent
        return intent.state, intent.version


@pytest.fixture
async def scene(
    shared_database: Database,
    superuser: Connection[TupleRow],
    api_pool: Pool,
    api_store: PostgresApiStore,
    worker_store: PostgresWorkerStore,
    tenant_id: UUID,
) -> AsyncIterator[Scene]:
    elections = PostgresElections(api_pool)
    world = World(Both(api_store, worker_store, elections), tenant_id, lambda _: [])
    with psycopg.connect(shared_database.superuser_url) as other:
        yield Scene(world, elections, Holds(api_pool, tenant_id), superuser, other)


async def test_nobody_is_elected_past_a_hold_that_comes_at_the_last_moment(scene: Scene) -> None:
    """It is placed after the look at the holds, and before the lock that ends the looking."""
    tenant_id = scene.world.tenant_id
    scene.other.execute("SELECT effect_broker.await_holds(%s)", [tenant_id])
    wanted = submission(tenant_id, "order-1")
    electing = asyncio.create_task(scene.elections.elect_first(wanted, first_of()))
    await scene.waits()
    placing = asyncio.create_task(
        scene.holds.place(uuid4(), HoldScope(tenant_id), "test", "operator:test")
    )
    await scene.held()
    scene.other.rollback()
    made = await electing
    assert (await placing).effective
    assert (made.created, made.first) == (True, None)
    assert await scene.standing(wanted.effect_id) == (EffectState.PREPARED, 1)
    assert (await scene.world.load(wanted.effect_id)).attempts == ()


async def test_an_election_that_waited_for_nothing_is_as_it_always_was(scene: Scene) -> None:
    tenant_id = scene.world.tenant_id
    scene.other.execute("SELECT effect_broker.await_holds(%s)", [tenant_id])
    wanted, first = submission(tenant_id, "order-1"), first_of()
    electing = asyncio.create_task(scene.elections.elect_first(wanted, first))
    await scene.waits()
    scene.other.rollback()
    assert (await electing).first == first
    assert await scene.standing(wanted.effect_id) == (EffectState.DISPATCHING, 2)


async def test_a_success_whose_lock_came_too_late_is_not_settled(scene: Scene) -> None:
    """Its moment was measured; the longest that it is true is a second."""
    wanted, first = submission(scene.world.tenant_id, "order-1"), first_of()
    made = await scene.elections.elect_first(wanted, first)
    known = await scene.known(made)
    key = [scene.world.tenant_id, wanted.effect_id]
    scene.other.execute(
        "SELECT 1 FROM effect_broker.effect_intents WHERE tenant_id = %s AND effect_id = %s"
        " FOR UPDATE",
        key,
    )
    settling = asyncio.create_task(
        scene.elections.settle_first(known, success(known, first.attempt_id))
    )
    await scene.waits()
    scene.other.execute("SELECT pg_sleep(1.1)")
    scene.other.rollback()
    assert not await settling
    assert await scene.standing(wanted.effect_id) == (EffectState.DISPATCHING, 2)
    stored = await scene.world.load(wanted.effect_id)
    assert stored.attempts[0].fact.outcome is None


@pytest.mark.parametrize("moved", [timedelta(seconds=1.5), timedelta(seconds=-5)])
async def test_a_success_of_another_moment_is_not_settled(scene: Scene, moved: timedelta) -> None:
    wanted, first = submission(scene.world.tenant_id, "order-1"), first_of()
    made = await scene.elections.elect_first(wanted, first)
    await asyncio.sleep(max(0.0, moved.total_seconds()))
    known = await scene.known(made)
    known = replace(known, now=known.now - moved)
    assert not await scene.elections.settle_first(known, success(known, first.attempt_id))
    assert await scene.standing(wanted.effect_id) == (EffectState.DISPATCHING, 2)


async def test_a_success_of_another_attempt_is_not_settled(scene: Scene) -> None:
    wanted, first = submission(scene.world.tenant_id, "order-1"), first_of()
    known = await scene.known(await scene.elections.elect_first(wanted, first))
    stranger = uuid4()
    attempts = tuple(replace(row, attempt_id=stranger) for row in known.attempts)
    change = success(replace(known, attempts=attempts), stranger)
    assert not await scene.elections.settle_first(known, change)
    assert await scene.standing(wanted.effect_id) == (EffectState.DISPATCHING, 2)
    events = scene.superuser.execute(
        "SELECT count(*) FROM effect_broker.effect_events WHERE effect_id = %s", [wanted.effect_id]
    ).fetchone()
    assert events == (2,), "what was written has been undone"


async def test_the_head_of_the_chain_is_the_digest_of_the_last_event(scene: Scene) -> None:
    """The intent's is computed before the event is written, and by the event's trigger again."""
    heads = (
        "SELECT i.event_digest = e.digest FROM effect_broker.effect_intents AS i"
        " JOIN effect_broker.effect_events AS e"
        " ON e.effect_id = i.effect_id AND e.sequence = i.version WHERE i.effect_id = %s"
    )
    wanted, first = submission(scene.world.tenant_id, "order-1"), first_of()
    made = await scene.elections.elect_first(wanted, first)
    assert scene.superuser.execute(heads, [wanted.effect_id]).fetchone() == (True,)
    known = await scene.known(made)
    assert await scene.elections.settle_first(known, success(known, first.attempt_id))
    assert await scene.standing(wanted.effect_id) == (EffectState.SUCCEEDED, 3)
    assert scene.superuser.execute(heads, [wanted.effect_id]).fetchone() == (True,)
