"""The two contracts of the catalog read what such a server answers, and the server conforms."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest
import yaml

from adapter_calls import budget, dispatch_call, ignore
from effect_adapters.base import Adapter, Answer, Finding, ProbeCall, SecretUnavailable
from effect_adapters.http import HttpAdapter
from effect_adapters.mcp import McpAdapter
from effect_broker.clock import SystemClock
from effect_broker.conformance import Judgement, Trial, drifted_arguments, examine
from effect_contracts.catalog import catalog_documents, catalog_texts
from effect_contracts.document import ContractDocument, with_origin
from effect_contracts.facts import Outcome, Verdict
from mcp_bridge.modern import served
from receiving.orders_mcp import high_server
from receiving.shop import Shop, covered

ShopOf = Callable[..., Shop]


def secret(reference: str) -> str:
    """The token of a tenant."""
    if reference != "env:EFFECT_BROKER_SECRET_SHOP":
        raise SecretUnavailable(reference)
    return "ada"


class Target:
    """A shop that is served, seen by the adapter of a contract."""

    def __init__(self, adapter: Adapter, document: ContractDocument) -> None:
        self.adapter = adapter
        self.document = document

    async def send(self, order: str, *, key: str = "", **changes: Any) -> Answer:
        """Send an order once, under its own name as the key."""
        key = key or order
        wire = self.adapter.render(self.document, {"order": order, "amount": 3, **changes}, key)
        call = dispatch_call(self.document, wire, within=budget(10))
        return await self.adapter.dispatch(replace(call, downstream_key=key))

    async def look(self, order: str, **changes: Any) -> Finding:
        """Ask whether the order's key has landed."""
        return await self.adapter.probe(
            ProbeCall(
                effect_id=UUID(int=1),
                tenant_id=UUID(int=2),
                downstream_key=order,
                arguments={"order": order, "amount": 3, **changes},
                document=self.document,
                operation=None,
                budget=budget(10),
                reach=ignore,
            )
        )


@asynccontextmanager
async def over_http(shop: Shop) -> AsyncIterator[Target]:
    async with served(covered(shop)) as origin:
        document = with_origin(catalog_documents()["idempotent-server-http"], origin)
        yield Target(HttpAdapter(secret), document)


@asynccontextmanager
async def over_mcp(shop: Shop) -> AsyncIterator[Target]:
    server = high_server(shop, [])
    async with served(server.streamable_http_app(json_response=True)) as origin:
        value = yaml.safe_load(catalog_texts()["idempotent-server-mcp"])
        value["adapter"]["server"]["url"] = origin + "/mcp"
        document = ContractDocument.parse_yaml(yaml.safe_dump(value))
        yield Target(McpAdapter(secret), document)


# What is read here is the same of both stores.
pytestmark = pytest.mark.parametrize("shop_of", ["postgres"], indirect=True)


@pytest.fixture(params=[over_http, over_mcp], ids=["http", "mcp"])
def served_as(request: pytest.FixtureRequest) -> Any:
    """How a shop is served, with the contract of that way."""
    return request.param


@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "separate"])
async def test_every_answer_is_read_as_what_it_proves(
    shop_of: ShopOf, order: str, served_as: Any, atomic: bool
) -> None:
    shop = shop_of(shares_transaction=atomic)
    await shop.store.create_table()
    async with served_as(shop) as target:
        assert (await target.look(order)).verdict is Verdict.NOT_COMMITTED
        first, again = await target.send(order), await target.send(order)
        assert (first.outcome, again.outcome) == (Outcome.COMMITTED, Outcome.COMMITTED)
        assert first.external_id
        assert first.external_id == again.external_id
        drifted = await target.send(order, amount=4)
        assert (drifted.outcome, drifted.code) == (Outcome.KEY_CONFLICT, "key_conflict")
        found = await target.look(order)
        assert (found.verdict, found.external_ids) == (Verdict.COMMITTED, (first.external_id,))
        assert (await target.look(order, amount=4)).verdict is Verdict.MISMATCH

        failed = await target.send(f"{order}f", note="raise")
        later = await target.send(f"{order}f", note="raise")
        finding = await target.look(f"{order}f")
        if atomic:
            assert (failed.outcome, failed.code) == (Outcome.RETRYABLE, "not_done")
            assert finding.verdict is Verdict.NOT_COMMITTED
        else:
            assert [failed.outcome, later.outcome] == [Outcome.AMBIGUOUS] * 2
            assert finding.verdict is Verdict.UNKNOWN

        working = asyncio.create_task(target.send(f"{order}w", note="wait"))
        await shop.entered.wait()
        second = await target.send(f"{order}w", note="wait")
        assert (second.outcome, second.code) == (Outcome.IN_PROGRESS, "in_progress")
        assert (await target.look(f"{order}w")).verdict is Verdict.UNKNOWN
        shop.go_on.set()
        assert (await working).outcome is Outcome.COMMITTED
    assert shop.orders(order) == 1


async def test_a_kept_refusal_is_final_and_a_look_up_says_that_nothing_was_done(
    shop_of: ShopOf, order: str
) -> None:
    shop = shop_of()
    await shop.store.create_table()
    async with over_http(shop) as target:
        refused = await target.send(order, note="refuse")
        assert (refused.outcome, refused.code) == (Outcome.REJECTED, "refused")
        # It may be the answer to an attempt that was lost: a replay alone is no proof.
        assert (await target.send(order, note="refuse")).code == "replayed_error"
        assert (await target.look(order)).verdict is Verdict.NOT_COMMITTED
        busy = await target.send(f"{order}b", note="busy")
        assert (busy.outcome, busy.code) == (Outcome.RETRYABLE, "not_done")


async def test_such_a_server_conforms_to_its_contract(
    shop_of: ShopOf, order: str, served_as: Any
) -> None:
    shop = shop_of()
    await shop.store.create_table()
    async with served_as(shop) as target:
        arguments: Any = {"order": order, "amount": 3}
        drifted = drifted_arguments(target.document, target.adapter, arguments)
        trial = Trial(target.document, target.adapter, arguments, drifted, SystemClock(), uuid4)
        found = {result.check: result.judgement for result in await examine(trial)}
    assert {"same_key_same_effect", "drift_is_refused", "found_once_by_key"} <= found.keys()
    assert set(found.values()) == {Judgement.KEPT}
