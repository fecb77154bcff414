"""Whoever is interrupted while it performs an effect: what was known is told, nothing is left over.

At each place where a caller waits: while it asks, as the answer comes, while it tells; by a
cancelled task, by Ctrl-C in a thread's block, and by a client that is closed meanwhile.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from effect_broker import AsyncBroker, Broker, NotElected, Performed
from effect_broker.clock import SystemClock
from effect_broker.sdk.errors import Body, Closed
from effect_broker.sdk.performing import AsyncPerformance
from effect_broker.sdk.transport import Deed, Transport
from performing.conftest import Desk

UNSAFE = "shop.caller-unsafe"
CHARGE = {"amount": 5}


class HeldUp:
    """A way to a broker: answers to elections wait behind, what is told waits before."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.asked, self.telling = asyncio.Event(), asyncio.Event()
        self.answers, self.tells = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def elect(self, body: bytes) -> Body:
        answer = await self._inner.elect(body)
        self.asked.set()
        await self.answers.wait()
        return answer

    async def attempt(self, effect_id: UUID, ordinal: int, deed: Deed, body: bytes) -> Body:
        if deed == "confirm":
            self.telling.set()
            await self.tells.wait()
        return await self._inner.attempt(effect_id, ordinal, deed, body)

    async def close(self) -> None:
        """It is another client's."""


@pytest.fixture
def way(broker: AsyncBroker) -> HeldUp:
    return HeldUp(broker._transport)


@pytest.fixture
async def client(way: HeldUp) -> AsyncIterator[AsyncBroker]:
    made = AsyncBroker.over(
        way,  # type: ignore[arg-type]
        patience=timedelta(seconds=5),
        clock=SystemClock(),
    )
    yield made
    way.answers.set()
    way.tells.set()
    await made.close()


def outcomes(desk: Desk, key: str) -> list[str | None]:
    rows = desk.rows(
        "SELECT outcome FROM effect_broker.effect_attempts JOIN effect_broker.effect_intents"
        " USING (tenant_id, effect_id) WHERE operation_key = %s ORDER BY ordinal",
        key,
    )
    return [row["outcome"] for row in rows]


async def cancelled(task: asyncio.Task[object]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# While it asks -----------------------------------------------------------------------------------


async def test_a_block_that_is_entered_again_is_another_election(
    desk: Desk, client: AsyncBroker, way: HeldUp
) -> None:
    """Else the giving back of the first says `not_sent` of what the second one sends."""
    key = f"order:{uuid4()}"
    performance = client.perform(UNSAFE, CHARGE, operation_key=key)
    asking = asyncio.create_task(performance.__aenter__())
    await way.asked.wait()
    await cancelled(asking)
    way.answers.set()
    async with performance:
        assert not performance.elected
        way.tells.set()
        await asyncio.wait(client._giving_back._under_way)
    assert outcomes(desk, key) == ["not_sent"]
    async with performance:
        await performance.confirm("done")
    assert performance.outcome == Performed(performance.effect_id, "done")
    assert outcomes(desk, key) == ["not_sent", "committed"]


async def test_two_blocks_of_one_performance_at_once_are_refused(
    client: AsyncBroker, way: HeldUp
) -> None:
    way.answers.set()
    way.tells.set()
    performance = client.perform(UNSAFE, CHARGE, operation_key=f"order:{uuid4()}")
    async with performance:
        with pytest.raises(RuntimeError, match="at a time"):
            await performance.__aenter__()
        await performance.confirm("once")


async def test_a_client_that_is_closed_while_another_task_asks_gives_the_election_back(
    desk: Desk, client: AsyncBroker, way: HeldUp
) -> None:
    key = f"order:{uuid4()}"
    way.tells.set()
    asking = asyncio.create_task(client.perform(UNSAFE, CHARGE, operation_key=key).__aenter__())
    await way.asked.wait()
    closing = asyncio.create_task(client.close())
    with pytest.raises(Closed):
        await asking
    way.answers.set()
    await closing
    assert outcomes(desk, key) == ["not_sent"]
    with pytest.raises(Closed):
        await client.perform(UNSAFE, CHARGE, operation_key=key).__aenter__()


async def test_a_client_of_another_event_loop_asks_nobody(client: AsyncBroker, way: HeldUp) -> None:
    way.answers.set()
    way.tells.set()
    async with client.perform(UNSAFE, CHARGE, operation_key=f"order:{uuid4()}") as effect:
        await effect.confirm("done")

    async def elsewhere() -> None:
        await client.perform(UNSAFE, CHARGE, operation_key=f"order:{uuid4()}").__aenter__()

    with pytest.raises(Closed, match="another event loop"):
        await asyncio.to_thread(asyncio.run, elsewhere())


# While it tells ----------------------------------------------------------------------------------


async def test_what_a_cancelled_caller_has_begun_to_tell_is_told(
    desk: Desk, client: AsyncBroker, way: HeldUp
) -> None:
    key = f"order:{uuid4()}"
    way.answers.set()

    async def work() -> None:
        async with client.perform(UNSAFE, CHARGE, operation_key=key) as effect:
            await effect.confirm("done")

    working: asyncio.Task[object] = asyncio.create_task(work())
    await way.telling.wait()
    await cancelled(working)
    assert outcomes(desk, key) == [None]
    way.tells.set()
    await client.close()
    assert outcomes(desk, key) == ["committed"]


async def test_a_call_that_was_told_of_may_not_be_made_any_more(
    client: AsyncBroker, way: HeldUp
) -> None:
    way.answers.set()
    way.tells.set()
    async with client.perform(UNSAFE, CHARGE, operation_key=f"order:{uuid4()}") as effect:
        effect.check()
        await effect.fail("not_sent")
        assert effect.lease_seconds_left == 0
        with pytest.raises(NotElected):
            effect.check()


# In threads --------------------------------------------------------------------------------------


@pytest.fixture
def face(desk: Desk) -> Iterator[Broker]:
    """A synchronous client."""
    with Broker.on_postgres(desk.url(), api_key=desk.api_key, key_ring=desk.ring) as made:
        yield made


def interrupt() -> None:
    """Press Ctrl-C: the thread that waits is woken by it."""
    waiting = threading.main_thread().ident
    assert waiting is not None
    signal.pthread_kill(waiting, signal.SIGINT)


def test_an_interrupt_as_the_answer_comes_gives_the_election_back(
    desk: Desk, face: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, enter = f"order:{uuid4()}", AsyncPerformance.__aenter__

    async def interrupted(self: AsyncPerformance) -> AsyncPerformance:
        entered = await enter(self)
        task = asyncio.current_task()
        assert task is not None
        # After the thread that waits was given the result: nothing is left to be cancelled.
        task.add_done_callback(lambda _: interrupt())
        return entered

    monkeypatch.setattr(AsyncPerformance, "__aenter__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        face.perform(UNSAFE, CHARGE, operation_key=key).__enter__()
    face.close()
    assert outcomes(desk, key) == ["not_sent"]


def test_an_interrupt_while_it_tells_keeps_the_telling(
    desk: Desk, face: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = f"order:{uuid4()}"
    go = threading.Event()
    tell = type(face._client._transport).attempt

    async def held(self: object, effect_id: UUID, ordinal: int, deed: Deed, body: bytes) -> Body:
        if deed == "confirm" and not go.is_set():
            interrupt()
            await asyncio.to_thread(go.wait, 10)
        return await tell(self, effect_id, ordinal, deed, body)  # type: ignore[arg-type]

    monkeypatch.setattr(type(face._client._transport), "attempt", held)
    with (
        pytest.raises(KeyboardInterrupt),
        face.perform(UNSAFE, CHARGE, operation_key=key) as effect,
    ):
        effect.confirm("done")
    assert outcomes(desk, key) == [None]
    go.set()
    face.close()
    assert outcomes(desk, key) == ["committed"]


def test_a_client_that_is_closed_in_its_block_hides_no_error_of_the_block(face: Broker) -> None:
    performance = face.perform(UNSAFE, CHARGE, operation_key=f"order:{uuid4()}")

    def block() -> None:
        with performance:
            face.close()
            raise LookupError("the block's own")

    with pytest.raises(LookupError) as raised:
        block()
    assert any("nobody knows" in note for note in raised.value.__notes__)
    assert type(performance.outcome).__name__ == "Unknown"
