"""A client on Postgres says what a client over HTTP says: the same calls, the same answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeAlias
from uuid import UUID

import pytest

from effect_broker import (
    AsyncBroker,
    Broker,
    BrokerError,
    Cancelled,
    Closed,
    Conflict,
    Effect,
    Evidence,
    Failed,
    NotYet,
    Succeeded,
    Unknown,
)
from effect_broker.proof.broker import wait_until
from effect_broker.proof.contracts import charge
from effect_broker.store.roles import DatabaseRole
from hosting.scenes import Scene
from sdk.conftest import Access, access_to

PATIENT = timedelta(seconds=60)
SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'effect-broker-sdk'"

Pair: TypeAlias = tuple[Broker, Broker]


def on_postgres(scene: Scene, access: Access) -> Broker:
    return Broker.on_postgres(
        scene.broker.url(DatabaseRole.API),
        api_key=access.api_key,
        key_ring=str(scene.broker.directory / "keyring.json"),
    )


@pytest.fixture(scope="module")
def both(scene: Scene) -> Iterator[Pair]:
    """The two ways, with the same key, which may resolve."""
    scene.ensure_workers(1)
    access = access_to(scene, ("effects", "operate"))
    with on_postgres(scene, access) as direct, access.broker() as http:
        yield direct, http


def same(both: Pair, call: Callable[[Broker], Any]) -> Any:
    """Make a call in both ways; the answers are equal, but for the moment at which they came."""
    answers: list[tuple[Any, Any, Any]] = []
    for broker in both:
        try:
            answer = call(broker)
        except BrokerError as problem:
            told = {name: v for name, v in problem.problem.items() if name != "instance"}
            answers.append((type(problem), told, problem))
            continue
        if isinstance(answer, Effect):
            answer = replace(answer, now=None)
        elif hasattr(answer, "effect"):
            answer = replace(answer, effect=replace(answer.effect, now=None))
        answers.append((answer, None, answer))
    assert answers[0][:2] == answers[1][:2]
    return answers[0][2]


def submit(broker: Broker, tool: str, name: str, amount: int = 1200) -> Effect:
    return broker.submit(tool, charge(name, amount), operation_key=f"{tool}:{name}")


def test_a_success_a_replay_and_a_conflict_are_the_same(scene: Scene, both: Pair) -> None:
    tool = scene.offer("both_ways")
    direct, _ = both
    effect = submit(direct, tool, "1")
    assert (effect.replayed, effect.durable) == (False, True)
    assert isinstance(direct.result(effect, deadline=PATIENT), Succeeded)
    assert isinstance(same(both, lambda broker: broker.result(effect)), Succeeded)
    assert same(both, lambda broker: broker.receipt(effect)).source == "response"
    assert same(both, lambda broker: submit(broker, tool, "1")).replayed
    conflict = same(both, lambda broker: submit(broker, tool, "1", amount=1))
    assert isinstance(conflict, Conflict)
    assert conflict.field == "/arguments/amount"
    same(both, lambda broker: broker.unresolved(tool=tool))
    assert scene.ledger("both_ways").effects == 1


def test_failures_doubts_and_withdrawals_are_the_same(scene: Scene, both: Pair) -> None:
    direct, _ = both
    refused = scene.offer("both_refused")
    scene.broker.target.client.script("status(402)", kind="both_refused", repeat_last=True)
    failed = submit(direct, refused, "1")
    direct.result(failed, deadline=PATIENT)
    assert isinstance(same(both, lambda broker: broker.result(failed)), Failed)

    lost = scene.offer("both_lost", "unsafe")
    scene.broker.target.client.script("commit;RST", kind="both_lost")
    doubted = submit(direct, lost, "1")
    unknown = direct.result(doubted, deadline=PATIENT)
    assert isinstance(unknown, Unknown)
    assert isinstance(same(both, lambda broker: broker.result(doubted)), Unknown)
    seen = [Evidence(kind="books", observed_at=scene.value("SELECT clock_timestamp()"))]
    seen[0] = replace(seen[0], reference="books/1")

    def resolve(broker: Broker) -> Effect:
        return broker.resolve(
            doubted,
            "committed",
            decision_id="both-1",
            expected_version=unknown.effect.version,
            reason="seen",
            evidence=seen,
            external_id="o-1",
        )

    assert not resolve(direct).replayed
    assert same(both, resolve).replayed

    waiting = scene.offer("both_waiting", oversight={"approval_valid_seconds": 60.0})
    withdrawn = submit(direct, waiting, "1")
    assert direct.cancel(withdrawn).changed
    assert not same(both, lambda broker: broker.cancel(withdrawn)).changed
    assert isinstance(same(both, lambda broker: broker.result(withdrawn)), Cancelled)


def test_errors_are_the_same(scene: Scene, both: Pair) -> None:
    tool = scene.offer("both_errors")
    calls: list[Callable[[Broker], object]] = [
        lambda broker: broker.get(UUID(int=1)),
        lambda broker: broker.receipt("00000000-0000-0000-0000-000000000001"),
        lambda broker: broker.submit("nobody.knows", {}, operation_key="k"),
        lambda broker: broker.submit(tool, {"order": 1}, operation_key="k"),
        lambda broker: broker.submit(tool, charge("1"), operation_key="k", trace_id="x" * 256),
        lambda broker: broker.submit(tool, {"order": "x" * 300_000}, operation_key="k"),
    ]
    for call in calls:
        assert isinstance(same(both, call), BrokerError)


def test_a_wait_ends_with_its_deadline_and_holds_no_call(scene: Scene, both: Pair) -> None:
    tool = scene.offer("both_slow", attempt_deadline_seconds=60.0)
    scene.broker.target.client.script("hold(both)", kind="both_slow")
    direct, _ = both
    effect = submit(direct, tool, "1")
    scene.broker.target.client.wait_held()
    outcome = direct.result(effect, deadline=timedelta(seconds=0.6))
    assert isinstance(outcome, NotYet)
    scene.broker.target.client.release("both")
    assert isinstance(direct.result(effect, deadline=PATIENT), Succeeded)


def test_a_closed_client_leaves_no_session_and_no_thread(scene: Scene, access: Access) -> None:
    def threads() -> int:
        return sum(thread.name == "effect-broker" for thread in threading.enumerate())

    sessions, before = scene.value(SESSIONS), threads()
    made = on_postgres(scene, access)
    assert (scene.value(SESSIONS), threads()) == (sessions, before), "nothing before the first call"
    with pytest.raises(BrokerError):
        made.get(UUID(int=1))
    assert scene.value(SESSIONS) > sessions
    made.close()
    wait_until(lambda: scene.value(SESSIONS) == sessions or None, "its sessions have ended")
    assert threads() == before
    with pytest.raises(Closed):
        made.get(UUID(int=1))


def test_a_cancelled_task_ends_no_other_call(scene: Scene, access: Access) -> None:
    """The application belongs to no caller: who opened it may go."""
    scene.ensure_workers(1)
    tool = scene.offer("both_tasks")

    async def work() -> None:
        url = scene.broker.url(DatabaseRole.API)
        ring = str(scene.broker.directory / "keyring.json")
        async with AsyncBroker.on_postgres(url, api_key=access.api_key, key_ring=ring) as broker:
            opening = asyncio.create_task(broker.get(UUID(int=1)))
            await asyncio.sleep(0)
            opening.cancel()
            effects = await asyncio.gather(
                *(
                    broker.submit(tool, charge(str(n)), operation_key=f"{tool}:{n}")
                    for n in range(8)
                )
            )
            outcomes = [await broker.result(effect, deadline=PATIENT) for effect in effects]
            assert all(isinstance(outcome, Succeeded) for outcome in outcomes)

    asyncio.run(work())
