"""The same through the routes of the API: bodies, rights and errors as HTTP shows them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from effect_broker import AsyncBroker, ElectionLost, Performed
from effect_broker.clock import SystemClock
from effect_broker.direct import PostgresTransport, ring_for, settings_for
from effect_broker.sdk.errors import Body
from effect_broker.sdk.http import HttpTransport
from effect_broker.sdk.transport import Deed
from performing.conftest import LEASE, Desk


class ThroughRoutes(PostgresTransport):
    """The application in this process, asked by HTTP alone."""

    async def elect(self, body: bytes) -> Body:
        return await HttpTransport.elect(self, body)

    async def attempt(self, effect_id: UUID, ordinal: int, deed: Deed, body: bytes) -> Body:
        return await HttpTransport.attempt(self, effect_id, ordinal, deed, body)


@pytest.fixture
async def transport(desk: Desk) -> AsyncIterator[ThroughRoutes]:
    """The way through the routes."""
    settings = settings_for(desk.url())
    made = ThroughRoutes(settings, ring_for(settings, desk.ring), desk.api_key, answer_seconds=30)
    yield made
    await made.close()


@pytest.fixture
async def api(desk: Desk, transport: ThroughRoutes) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the bare HTTP."""
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(await transport._application.app()),
        base_url="http://broker/v1/effects",
        headers={"Authorization": f"Bearer {desk.api_key}"},
    ) as client:
        yield client


def wish(**changes: Any) -> dict[str, Any]:
    return {
        "operation_key": f"order:{uuid4()}",
        "tool": "shop.caller-unsafe",
        "arguments": {"amount": 5},
        "election": secrets.token_urlsafe(32),
        **changes,
    }


async def test_a_caller_performs_through_the_routes(desk: Desk, transport: ThroughRoutes) -> None:
    broker = AsyncBroker.over(transport, patience=timedelta(seconds=5), clock=SystemClock())
    key = f"order:{uuid4()}"
    tool = "shop.brief-idempotent"
    async with broker.perform(tool, {"amount": 5}, operation_key=key) as lost:
        await asyncio.sleep(LEASE + 0.1)
        async with broker.perform(tool, {"amount": 5}, operation_key=key) as effect:
            assert effect.downstream_key == lost.downstream_key
            await effect.confirm({"n": 1}, external_id="ch_1")
        with pytest.raises(ElectionLost):
            await lost.confirm({"n": 1}, external_id="ch_1")
    async with broker.perform(tool, {"amount": 5}, operation_key=key) as again:
        assert not again.elected
    assert isinstance(again.outcome, Performed)
    assert again.outcome.result == {"n": 1}


async def test_an_election_may_be_repeated_and_shows_its_token_to_nobody(
    desk: Desk, api: httpx.AsyncClient
) -> None:
    body = wish()
    first = await api.post("/elect", json=body)
    again = await api.post("/elect", json=body)
    assert first.status_code == again.status_code == 200
    assert first.json()["elected"] is again.json()["elected"] is True
    assert first.json()["downstream_key"] == again.json()["downstream_key"]
    assert 0 < again.json()["lease_seconds"] <= first.json()["lease_seconds"] == 30
    other = await api.post("/elect", json={**body, "election": secrets.token_urlsafe(32)})
    assert other.json()["elected"] is False
    assert "downstream_key" not in other.json()
    effect_id = first.json()["effect"]["effect_id"]
    history = await api.get(f"/{effect_id}/history")
    shown = first.text + history.text + (await api.get(f"/{effect_id}")).text
    assert body["election"] not in shown


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"election": "short"}, "/election"),
        ({"election": None}, "/election"),
        ({"more": 1}, "/more"),
        ({"tool": ""}, "/tool"),
        ({"trace_id": 7}, "/trace_id"),
    ],
)
async def test_a_wish_that_breaks_a_rule_is_refused_by_its_place(
    api: httpx.AsyncClient, change: dict[str, Any], field: str
) -> None:
    refused = await api.post("/elect", json=wish(**change))
    assert refused.status_code == 422
    assert refused.json()["field"] == field


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"outcome": "partial"}, "/outcome"),
        ({"outcome": "presumed_ambiguous"}, "/outcome"),
        ({"code": "Not A Code"}, "/code"),
        ({"outcome": "not_sent", "external_id": "ch_1"}, ""),
        ({"outcome": "committed", "retry_after_seconds": 5}, ""),
        ({"external_id": "a b"}, "/external_id"),
    ],
)
async def test_what_is_told_is_read_strictly(
    api: httpx.AsyncClient, change: dict[str, Any], field: str
) -> None:
    body = wish()
    elected = (await api.post("/elect", json=body)).json()
    path = f"/{elected['effect']['effect_id']}/attempts/1/confirm"
    told = {"election": body["election"], "outcome": "committed", "code": "ok"}
    refused = await api.post(path, json={**told, **change})
    assert (refused.status_code, refused.json()["field"]) == (422, field)
    assert (await api.post(path, json=told)).json()["state"] == "succeeded"
    assert (await api.post(path, json=told)).json()["replayed"] is True


async def test_a_stranger_is_told_nothing(api: httpx.AsyncClient) -> None:
    body = wish()
    elected = (await api.post("/elect", json=body)).json()
    effect_id = elected["effect"]["effect_id"]
    told = {"election": secrets.token_urlsafe(32), "outcome": "committed", "code": "ok"}
    mine = {**told, "election": body["election"]}
    assert (await api.post(f"/{effect_id}/attempts/1/confirm", json=told)).status_code == 409
    assert (await api.post(f"/{effect_id}/attempts/2/confirm", json=mine)).status_code == 409
    assert (await api.post(f"/{uuid4()}/attempts/1/confirm", json=mine)).status_code == 404
    assert (await api.get(f"/{effect_id}")).json()["state"] == "dispatching"
    extend = {"election": told["election"]}
    answer = await api.post(f"/{effect_id}/attempts/1/extend", json=extend)
    assert answer.json() == {"held": False, "lease_seconds": 0.0}
    extend = {"election": body["election"]}
    answer = await api.post(f"/{effect_id}/attempts/1/extend", json=extend)
    assert answer.json()["held"] is True, "held, though this contract extends no lease"
