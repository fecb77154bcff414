"""Performing with both faces against a served API, over sockets that lose answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import pytest

from effect_broker import AsyncBroker, Broker, Performed, PerformOutcome
from effect_broker.keyring import ENV_KEY_RING_FILE
from effect_broker.proof.broker import API_READY_SECONDS
from effect_broker.proof.stack import Stack
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
