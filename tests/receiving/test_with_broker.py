"""The whole product before a server that keeps keys, while its answers are lost after the commit.

Counted in the server's own table of orders.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from adapter_calls import merged
from effect_broker.proof.broker import ProofBroker, wait_until
from effect_broker.receiving import PostgresKeys, connecting
from effect_contracts.catalog import catalog_documents
from effect_contracts.document import ContractDocument, with_origin
from migrated import MIGRATED
from peers import Arrival
from postgres import RunningServer, clone, drop_database, ensure_template
from real_targets.relay import Relay, carried
from receiving.shop import PostgresShop
from receiving.test_processes import Process, process

# Shorter than in the contract, so that nobody waits; the ratios stay.
QUICK: dict[str, Any] = {
    "attempt_deadline_seconds": 1.5,
    "transit_seconds": 0.2,
    "clock_margin_seconds": 0.2,
    "settlement_bound_seconds": 0.5,
    "retry": {"backoff_initial_seconds": 0.1, "backoff_cap_seconds": 0.5},
    "probe": {"initial_seconds": 0.2, "cap_seconds": 1.0},
}


class LosingRelay(Relay):
    """Loses the answers to orders, the first `lose` of them; look-ups go through."""

    lose = 0

    def _carry(self, arrival: Arrival) -> None:
        request = arrival.read_request()
        if not request:
            return
        answer = carried(request, self._target_port)
        if request.startswith(b"POST") and self.lose > 0:
            self.lose -= 1
            arrival.reset()
        else:
            arrival.send(answer)

    def count(self, method: bytes) -> int:
        """How many requests of a method have come."""
        return sum(request.startswith(method) for request in self.requests)


@pytest.fixture(scope="module")
def broker(
    running_server: RunningServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProofBroker]:
    """A broker of processes: an API and a worker."""
    database = clone(running_server, ensure_template(running_server, MIGRATED))
    environment = {"EFFECT_BROKER_SECRET_SHOP": "ada"}
    with ProofBroker(
        tmp_path_factory.mktemp("broker"),
        database.superuser_url,
        environment=environment,
        migrated=True,
    ) as running:
        running.prepare()
        worker = running.stack.worker()
        running.start_api()
        worker.wait_ready()
        yield running
    drop_database(running_server, database.name)


@pytest.fixture(scope="module")
def server(shop_url: str) -> Iterator[Process]:
    """The shop, as a process."""
    with process(shop_url, "atomic") as running:
        yield running


@pytest.fixture
async def shop(shop_url: str) -> PostgresShop:
    store = PostgresKeys(connecting(shop_url))
    await store.create_table()
    return PostgresShop(store, shop_url)


@pytest.fixture
def relay(server: Process) -> Iterator[LosingRelay]:
    carrier = LosingRelay(server.port)
    yield carrier
    carrier.stop()


def contract(relay: LosingRelay, **changes: Any) -> ContractDocument:
    document = with_origin(catalog_documents()["idempotent-server-http"], relay.origin)
    value = merged(json.loads(document.canonical()), QUICK)
    # A published version never changes, and every test has a relay of its own.
    version = {"version": relay.origin.rpartition(":")[2]}
    return ContractDocument.parse_yaml(json.dumps(merged(merged(value, version), changes)))


def settled(broker: ProofBroker, order: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Submit an order; return the effect and its receipt."""
    answer = broker.submit(f"order:{order}", "shop.order", {"order": order, "amount": 3})
    assert answer.status_code == 202, answer.text
    effect_id = answer.json()["effect_id"]
    effect = broker.settled(effect_id)
    assert effect["state"] == "succeeded", effect
    found = wait_until(lambda: broker.receipt(effect_id), "a receipt")
    return effect, found["receipt"]


def test_an_order_whose_answers_are_lost_is_made_once(
    broker: ProofBroker, relay: LosingRelay, shop: PostgresShop, order: str
) -> None:
    broker.apply(contract(relay))
    relay.lose = 2
    _, receipt = settled(broker, order)
    assert (receipt["attempts"], receipt["source"]) == (3, "response")
    assert relay.count(b"POST") == 3
    assert shop.orders(order) == 1


def test_an_order_whose_answers_are_all_lost_is_found_by_its_key(
    broker: ProofBroker, relay: LosingRelay, shop: PostgresShop, order: str
) -> None:
    broker.apply(contract(relay, retry={"attempts_max": 2}))
    relay.lose = 100
    _, receipt = settled(broker, order)
    assert (receipt["attempts"], receipt["source"]) == (2, "probe")
    assert relay.count(b"GET") >= 1
    assert shop.orders(order) == 1
