"""Whoever is cancelled while it asks to be elected leaves nothing behind that nobody knows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import uuid4

import pytest

from effect_broker import AsyncBroker, Performed
from effect_broker.clock import SystemClock
from effect_broker.sdk import giving_back
from effect_broker.sdk.errors import Body
from effect_broker.sdk.transport import Transport
from performing.conftest import Desk

CHARGE = {"amount": 5}


class LateAnswers:
    """A way to a broker on which the answers to elections are held up; all else passes."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.elected = asyncio.Event()
        self.let_go = asyncio.Event()

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def elect(self, body: bytes) -> Body:
        answer = await self._inner.elect(body)
        self.elected.set()
        await self.let_go.wait()
        return answer


@pytest.fixture
async def late(broker: AsyncBroker) -> AsyncIterator[tuple[AsyncBroker, LateAnswers]]:
    """A client whose elections are granted at once and answered late."""
    way = LateAnswers(broker._transport)
    client = AsyncBroker.over(
        way,  # type: ignore[arg-type]
        patience=timedelta(seconds=5),
        clock=SystemClock(),
    )
    yield client, way
    way.let_go.set()
    await client._giving_back.end()


async def cancelled_while_it_asks(client: AsyncBroker, way: LateAnswers, key: str) -> None:
    """Ask for an election, and be cancelled once the broker has granted it."""
    asking = asyncio.create_task(
        client.perform("shop.caller-unsafe", CHARGE, operation_key=key).__aenter__()
    )
    await way.elected.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_an_election_that_nobody_waits_for_is_given_back_as_not_sent(
    desk: Desk, broker: AsyncBroker, late: tuple[AsyncBroker, LateAnswers]
) -> None:
    key = f"order:{uuid4()}"
    await cancelled_while_it_asks(*late, key)
    late[1].let_go.set()
    await late[0]._giving_back.end()
    rows = desk.rows(
        "SELECT outcome, code FROM effect_broker.effect_attempts JOIN effect_broker.effect_intents"
        " USING (tenant_id, effect_id) WHERE operation_key = %s",
        key,
    )
    assert rows == [{"outcome": "not_sent", "code": "caller_cancelled"}]
    # So another may perform it at once, although its contract is unsafe.
    async with broker.perform("shop.caller-unsafe", CHARGE, operation_key=key) as effect:
        await effect.confirm("done")
    assert isinstance(effect.outcome, Performed)


async def test_a_client_that_is_closed_gives_back_first(
    desk: Desk, late: tuple[AsyncBroker, LateAnswers]
) -> None:
    client, way = late
    key = f"order:{uuid4()}"
    await cancelled_while_it_asks(client, way, key)
    closing = asyncio.create_task(client.close())
    await asyncio.sleep(0)
    way.let_go.set()
    await closing
    rows = desk.rows(
        "SELECT outcome FROM effect_broker.effect_attempts JOIN effect_broker.effect_intents"
        " USING (tenant_id, effect_id) WHERE operation_key = %s",
        key,
    )
    assert rows == [{"outcome": "not_sent"}]


async def test_a_broker_that_does_not_answer_holds_up_nobody(
    late: tuple[AsyncBroker, LateAnswers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(giving_back, "GIVE_BACK_SECONDS", 0.05)
    client, way = late
    await cancelled_while_it_asks(client, way, f"order:{uuid4()}")
    began = time.monotonic()
    await client._giving_back.end()
    assert time.monotonic() - began >= 0.05
    assert not client._giving_back._under_way
