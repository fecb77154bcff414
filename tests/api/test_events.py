"""The event stream and its subscriptions over the API."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from api.deployment import Deployment, charge
from effect_broker.store.pool import Pool
from effect_broker.store.tenants import Tenants

HOOK = {"url": "https://hooks.acme.example/effects", "states": ["succeeded"]}


@pytest.fixture
async def admin(
    deployment: Deployment, application: FastAPI, admin_pool: Pool
) -> AsyncIterator[httpx.AsyncClient]:
    """A client whose key of `acme` may do everything."""
    made = await Tenants(admin_pool).create_key("acme", ("effects", "operate", "admin"))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(application),
        base_url="http://broker",
        headers={"Authorization": f"Bearer {made.api_key}"},
    ) as client:
        yield client


async def caught_up(deployment: Deployment) -> None:
    """Wait until all that is committed can be read: other tests write on this server too."""
    ((reached,),) = deployment.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
    behind = f"SELECT pg_snapshot_xmin(pg_current_snapshot()) < '{reached}'::xid8"
    for _ in range(3000):
        if deployment.execute(behind) == [(False,)]:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("a transaction on this server lasts")


async def test_the_stream_tells_what_happened_and_no_arguments(
    api: httpx.AsyncClient, deployment: Deployment
) -> None:
    effect_id = (await api.post("/v1/effects", json=charge("secret-free"))).json()["effect_id"]
    await caught_up(deployment)
    page = (await api.get("/v1/events")).json()
    (event,) = page["events"]
    assert (event["effect_id"], event["sequence"]) == (effect_id, 1)
    assert (event["type"], event["state"], event["previous_state"]) == (
        "submitted", "prepared", None,
    )  # fmt: skip
    assert (event["operation_key"], event["tool"]) == ("secret-free", "demo.charge")
    # Not by its value: those digits also come up in ids and digests.
    assert "amount" not in str(page)
    assert (page["more"], page["pruned"]) == (False, False)
    empty = (await api.get("/v1/events", params={"after": page["cursor"]})).json()
    assert (empty["events"], empty["cursor"]) == ([], page["cursor"])
    async with deployment.client(api._transport.app, "globex") as globex:  # type: ignore[attr-defined]
        assert (await globex.get("/v1/events")).json()["events"] == []
        theirs = await globex.get("/v1/events", params={"after": page["cursor"]})
        assert (theirs.status_code, theirs.json()["code"]) == (400, "request_malformed")


MEANINGLESS: list[dict[str, Any]] = [
    {"after": "x"}, {"after": ""}, {"after": "A" * 89}, {"limit": 0}, {"limit": 501},
    {"types": "No Type"}, {"types": "no_such_type"}, {"types": ["wait"] * 51},
    {"states": "nowhere"}, {"wait_seconds": 61},
    {"wait_seconds": "nan"}, {"cursor": "x"},
]  # fmt: skip


async def test_a_parameter_that_means_nothing_is_refused(api: httpx.AsyncClient) -> None:
    for parameters in MEANINGLESS:
        answer = await api.get("/v1/events", params=parameters)
        found = (answer.status_code, answer.json()["code"])
        assert found == (400, "request_malformed"), parameters


async def test_a_wait_ends_with_the_event_that_it_waits_for_or_with_its_time(
    api: httpx.AsyncClient,
) -> None:
    cursor = (await api.get("/v1/events")).json()["cursor"]
    asked = {"after": cursor, "wait_seconds": 50, "types": "submitted"}
    began = time.monotonic()
    waits = [asyncio.create_task(api.get("/v1/events", params=asked)) for _ in range(3)]
    await asyncio.sleep(0.2)
    await api.post("/v1/effects", json=charge())
    for answer in await asyncio.gather(*waits):
        assert [event["type"] for event in answer.json()["events"]] == ["submitted"]
    assert time.monotonic() - began < 30
    nothing = {"after": cursor, "wait_seconds": 0.3, "types": "denied"}
    assert (await api.get("/v1/events", params=nothing)).json()["events"] == []


async def test_a_drain_ends_waits(deployment: Deployment) -> None:
    draining = False
    async with (
        deployment.application(draining=lambda: draining) as app,
        deployment.client(app) as api,
    ):
        wait = asyncio.create_task(api.get("/v1/events", params={"wait_seconds": 50}))
        await asyncio.sleep(0.1)
        draining = True
        assert (await asyncio.wait_for(wait, 30)).status_code == 200


async def test_a_subscription_is_made_seen_paused_resumed_and_ended(
    admin: httpx.AsyncClient,
) -> None:
    made = await admin.post("/v1/subscriptions", json=HOOK | {"description": "orders"})
    assert made.status_code == 201, made.text
    body = made.json()
    assert body["secret"].startswith("whsec_")
    path = made.headers["Location"]
    seen = (await admin.get(path)).json()
    assert seen == {name: value for name, value in body.items() if name != "secret"}
    assert (seen["status"], seen["states"], seen["types"]) == ("active", ["succeeded"], [])
    listed = (await admin.get("/v1/subscriptions")).json()["subscriptions"]
    assert listed == [seen]
    paused = (await admin.post(f"{path}/pause")).json()
    assert (paused["status"], paused["pause_code"]) == ("paused", "paused_by_person")
    assert (await admin.post(f"{path}/resume")).json()["status"] == "active"
    assert (await admin.get(f"{path}/dead-letters")).json() == {"dead_letters": [], "cursor": None}
    every = await admin.post(f"{path}/dead-letters/redeliver", json={"every": True})
    assert every.json() == {"redelivered": 0}
    for wrong in ({"overlap_seconds": -1}, {"overlap_seconds": 1e9}, {"secret": "mine"}):
        refused = await admin.post(f"{path}/replace-secret", json=wrong)
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")
    replaced = (await admin.post(f"{path}/replace-secret", json={"overlap_seconds": 60})).json()
    assert replaced["secret"].startswith("whsec_")
    assert replaced["secret"] != body["secret"]
    assert replaced["old_secret_until"] == (await admin.get(path)).json()["old_secret_until"]
    assert replaced["old_secret_until"] is not None
    assert (await admin.delete(path)).status_code == 204
    for answer in (
        await admin.post(f"{path}/replace-secret", json={}),
        await admin.delete(path), await admin.get(path), await admin.post(f"{path}/resume"),
        await admin.get(f"{path}/dead-letters"), await admin.get("/v1/subscriptions/none"),
        await admin.post(f"{path}/dead-letters/redeliver", json={"every": True}),
    ):  # fmt: skip
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"url": "https://127.0.0.1/x"}, "/url"),
    ({"url": "https://user:pw@acme.example/"}, "/url"),
    ({"url": "file:///etc/passwd"}, "/url"),
    ({"types": ["No Type"]}, "/types/0"),
    ({"types": ["wait", "no_such_type"]}, "/types/1"),
    ({"states": ["nowhere"]}, "/states/0"),
    ({"description": "a\nb"}, "/description"),
    ({"secret": "mine"}, "/secret"),
]


async def test_a_subscription_that_cannot_be_is_refused_at_its_field(
    admin: httpx.AsyncClient,
) -> None:
    for changes, field in IMPOSSIBLE:
        answer = await admin.post("/v1/subscriptions", json=HOOK | changes)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request"), changes
        assert answer.json()["field"] == field


async def test_a_subscription_begins_at_a_cursor_that_was_given(
    admin: httpx.AsyncClient, deployment: Deployment
) -> None:
    await admin.post("/v1/effects", json=charge())
    await caught_up(deployment)
    cursor = (await admin.get("/v1/events")).json()["cursor"]
    assert (await admin.post("/v1/subscriptions", json=HOOK | {"after": cursor})).is_success
    ((sequence,),) = deployment.execute("SELECT sequence FROM effect_broker.event_subscriptions")
    assert sequence == 1
    forged = await admin.post("/v1/subscriptions", json=HOOK | {"after": cursor[:-2] + "AA"})
    assert (forged.status_code, forged.json()["code"]) == (400, "request_malformed")
    deployment.execute("UPDATE effect_broker.event_epochs SET epoch_id = gen_random_uuid()")
    old = await admin.get("/v1/events", params={"after": cursor})
    assert (old.status_code, old.json()["code"]) == (409, "cursor_superseded")
    again = (await admin.get("/v1/events", params={"after": old.json()["resume"]})).json()
    assert len(again["events"]) == 1
