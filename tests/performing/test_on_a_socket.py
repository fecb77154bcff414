"""Performing with both faces against a served API, over sockets that lose answers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import pytest

from effect_broker import AsyncBroker, Broker, Performed, PerformOutcome, Unavailable
from effect_broker.keyring import ENV_KEY_RING_FILE
from effect_broker.proof.broker import API_READY_SECONDS, wait_until
from effect_broker.proof.stack import Stack
from effect_broker.sdk import giving_back
from performing.conftest import Desk
from performing.lossy_way import LossyWay, lossy_way

# The class in which a second call would be seen, and a lost election would be for good.
TOOL = "shop.caller-unsafe"
CHARGE = {"amount": 5}


class Shop:
    """A target that keeps a ledger, and no key."""

    def __init__(self) -> None:
        self.ledger: list[str] = []

    def charge(self, key: str) -> dict[str, Any]:
        self.ledger.append(key)
        return {"id": f"ch_{len(self.ledger)}"}


Caller: TypeAlias = Callable[[str, str, str, Shop], tuple[bool, PerformOutcome | None]]


def in_a_thread(url: str, api_key: str, key: str, shop: Shop) -> tuple[bool, PerformOutcome | None]:
    """Perform with the synchronous face; return who was elected, and the outcome."""
    with Broker(url, api_key) as broker:
        with broker.perform(TOOL, CHARGE, operation_key=key) as effect:
            charge = shop.charge(effect.downstream_key)
            effect.confirm(charge, external_id=charge["id"])
        return effect.elected, effect.outcome


def in_a_loop(url: str, api_key: str, key: str, shop: Shop) -> tuple[bool, PerformOutcome | None]:
    """The same with the asynchronous one."""

    async def perform() -> tuple[bool, PerformOutcome | None]:
        async with AsyncBroker(url, api_key) as broker:
            async with broker.perform(TOOL, CHARGE, operation_key=key) as effect:
                charge = shop.charge(effect.downstream_key)
                await effect.confirm(charge, external_id=charge["id"])
            return effect.elected, effect.outcome

    return asyncio.run(perform())


@pytest.fixture(scope="module")
def served(desk: Desk, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`effect-broker serve`, as a process of its own; its URL."""
    directory = tmp_path_factory.mktemp("served")
    ring = directory / "keyring.json"
    ring.write_text(desk.ring)
    environment = {
        "EFFECT_BROKER_API_DATABASE_URL": desk.url(),
        "EFFECT_BROKER_HOME": str(directory),
        ENV_KEY_RING_FILE: str(ring),
    }
    with Stack(Path(directory), environment) as stack:
        yield stack.api().wait_ready(API_READY_SECONDS)


@pytest.fixture
def way(served: str) -> Iterator[LossyWay]:
    with lossy_way(served) as made:
        yield made


def history(desk: Desk, key: str) -> list[tuple[object, ...]]:
    """Each attempt under a key, with the receipt that stands for it."""
    rows = desk.rows(
        "SELECT a.ordinal, a.outcome, r.content::json->>'external_id' AS external_id"
        " FROM effect_broker.effect_intents AS i"
        " JOIN effect_broker.effect_attempts AS a USING (tenant_id, effect_id)"
        " LEFT JOIN effect_broker.effect_receipts AS r USING (tenant_id, effect_id)"
        " WHERE operation_key = %s ORDER BY ordinal",
        key,
    )
    return [tuple(row.values()) for row in rows]


@pytest.mark.parametrize("perform", [in_a_thread, in_a_loop])
@pytest.mark.parametrize("lost", ["/elect", "/confirm"])
def test_a_lost_answer_is_asked_for_again_and_one_effect_is_performed(
    desk: Desk, way: LossyWay, perform: Caller, lost: str
) -> None:
    key, shop = f"order:{uuid4()}", Shop()
    way.lose(lost)
    elected, outcome = perform(way.url, desk.api_key, key, shop)
    assert (way.count("/elect"), way.count("/confirm")) == ((2, 1) if lost == "/elect" else (1, 2))
    assert elected
    assert isinstance(outcome, Performed)
    assert (outcome.result, outcome.external_id, outcome.replayed) == (
        {"id": "ch_1"},
        "ch_1",
        False,
    )
    # Whoever comes later over the same sockets finds it done.
    later, found = perform(way.url, desk.api_key, key, shop)
    assert not later
    assert isinstance(found, Performed)
    assert (found.effect_id, found.result, found.replayed) == (
        outcome.effect_id, {"id": "ch_1"}, True,
    )  # fmt: skip
    assert len(shop.ledger) == 1
    assert history(desk, key) == [(1, "committed", "ch_1")]


@pytest.mark.parametrize("face", [Broker, AsyncBroker])
def test_an_election_whose_answers_were_all_lost_is_given_back_when_the_broker_is_there_again(
    desk: Desk, way: LossyWay, face: type[Broker] | type[AsyncBroker]
) -> None:
    """Its caller has the error, so that nothing is sent: nobody has to wonder about it for ever."""
    key, shop = f"order:{uuid4()}", Shop()
    way.lose("/elect", times=1000)
    hasty = face(way.url, desk.api_key, patience=timedelta(seconds=0.3))

    async def ask(broker: AsyncBroker) -> None:
        async with broker:
            with pytest.raises(Unavailable):
                await broker.perform(TOOL, CHARGE, operation_key=key).__aenter__()
            assert history(desk, key) == [(1, None, None)]
            way.find_again()
            await asyncio.wait(broker._giving_back._under_way)

    if isinstance(hasty, AsyncBroker):
        asyncio.run(ask(hasty))
    else:
        with pytest.raises(Unavailable):
            hasty.perform(TOOL, CHARGE, operation_key=key).__enter__()
        assert history(desk, key) == [(1, None, None)]
        way.find_again()
        wait_until(lambda: history(desk, key) != [(1, None, None)] or None, "given back")
        hasty.close()
    assert history(desk, key) == [(1, "not_sent", None)]
    elected, outcome = in_a_thread(way.url, desk.api_key, key, shop)
    assert elected
    assert isinstance(outcome, Performed)
    assert history(desk, key) == [(1, "not_sent", "ch_1"), (2, "committed", "ch_1")]


async def test_a_broker_that_was_never_reached_is_not_asked_on(desk: Desk) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    async with AsyncBroker(url, desk.api_key, patience=timedelta(seconds=0.3)) as broker:
        with pytest.raises(Unavailable, match="ConnectError"):
            await broker.perform(TOOL, CHARGE, operation_key=f"order:{uuid4()}").__aenter__()
        assert not broker._giving_back._under_way


async def test_a_client_that_is_closed_asks_on_no_more(
    desk: Desk, way: LossyWay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(giving_back, "GIVE_BACK_SECONDS", 0.05)
    way.lose("/elect", times=1000)
    async with AsyncBroker(way.url, desk.api_key, patience=timedelta(seconds=0.3)) as broker:
        with pytest.raises(Unavailable):
            await broker.perform(TOOL, CHARGE, operation_key=f"order:{uuid4()}").__aenter__()
        assert broker._giving_back._under_way
    assert not broker._giving_back._under_way
