"""Reading effects over HTTP: by id, by page, by waiting, and only one's own."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import httpx
import pytest
from fastapi import FastAPI

from api.deployment import Deployment, charge, entry

PATH = "/v1/effects"


async def test_an_effect_can_be_read_by_its_id(api: httpx.AsyncClient) -> None:
    made = (await api.post(PATH, json=charge())).json()
    answer = await api.get(made["links"]["self"])
    body = answer.json()
    assert answer.status_code == 200
    assert body["attempts"] == []
    assert body["operation_key"] == "order:42:charge:v1"
    assert "replayed" not in body


async def test_another_tenants_effect_looks_like_one_that_never_was(
    api: httpx.AsyncClient, deployment: Deployment, application: FastAPI
) -> None:
    theirs = (await api.post(PATH, json=charge())).json()["effect_id"]
    async with deployment.client(application, "globex") as other:
        for suffix in ("", "/receipt"):
            found = await other.get(f"{PATH}/{theirs}{suffix}")
            missing = await other.get(f"{PATH}/{uuid4()}{suffix}")
            assert found.status_code == missing.status_code == 404
            bodies = [answer.json() for answer in (found, missing)]
            assert {b.pop("instance") for b in bodies} == {
                answer.url.path for answer in (found, missing)
            }
            assert bodies[0] == bodies[1]
        listed = (await other.get(PATH)).json()
    assert listed == {"effects": [], "cursor": None}


@pytest.mark.parametrize("text", ["x", "0c0e3a1f", "%F0%9F%92%A5", "0" * 200])
async def test_what_is_no_id_is_missing(api: httpx.AsyncClient, text: str) -> None:
    answer = await api.get(f"{PATH}/{text}")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_pages_hold_every_effect_once_newest_first(api: httpx.AsyncClient) -> None:
    keys = [f"key-{number}" for number in range(7)]
    for key in keys:
        await api.post(PATH, json=charge(key))
    seen: list[str] = []
    query: dict[str, Any] = {"limit": 3}
    pages = 0
    while True:
        page = (await api.get(PATH, params=query)).json()
        seen += [effect["operation_key"] for effect in page["effects"]]
        pages += 1
        if page["cursor"] is None:
            break
        query["cursor"] = page["cursor"]
    assert seen == keys[::-1]
    assert pages == 3


async def test_filters_select(api: httpx.AsyncClient, deployment: Deployment) -> None:
    deployment.make_ledger()
    await api.post(PATH, json=charge("order-1"))
    settled = (await api.post(PATH, json=entry("entry-1"))).json()["effect_id"]
    await deployment.settle(settled)

    async def keys(**query: Any) -> list[str]:
        answer = await api.get(PATH, params=query)
        assert answer.status_code == 200, answer.text
        return [effect["operation_key"] for effect in answer.json()["effects"]]

    assert await keys(status="succeeded") == ["entry-1"]
    assert await keys(status=["succeeded", "prepared"]) == ["entry-1", "order-1"]
    assert await keys(unresolved=True) == ["order-1"]
    assert await keys(reason="committed") == ["entry-1"]
    assert await keys(tool="demo.charge") == ["order-1"]
    assert await keys(operation_prefix="ord") == ["order-1"]
    assert await keys(older_than_seconds=3600) == []
    assert await keys(older_than_seconds=0) == ["entry-1", "order-1"]
    assert await keys(status="cancelled") == []


async def test_a_receipt_is_there_once_the_effect_is_settled(
    api: httpx.AsyncClient, deployment: Deployment
) -> None:
    deployment.make_ledger()
    made = (await api.post(PATH, json=entry(amount=5))).json()
    early = await api.get(made["links"]["receipt"])
    assert (early.status_code, early.json()["code"]) == (404, "not_found")
    await deployment.settle(made["effect_id"])
    answer = await api.get(made["links"]["receipt"])
    body = answer.json()
    assert answer.status_code == 200
    assert body["result"]["amount"] == 5
    assert body["fields"] == {"posted_at": "2026-11-29"}
    effect = (await api.get(made["links"]["self"])).json()
    assert (effect["state"], effect["final"]) == ("succeeded", True)
    assert effect["receipt_digest"] == body["digest"]
    assert [attempt["outcome"] for attempt in effect["attempts"]] == ["committed"]
    replay = await api.post(PATH, json=entry(amount=5))
    assert (replay.status_code, replay.json()["state"]) == (200, "succeeded")


async def test_a_wait_ends_when_the_effect_is_settled(
    api: httpx.AsyncClient, deployment: Deployment
) -> None:
    deployment.make_ledger()
    made = (await api.post(PATH, json=entry())).json()
    waiting = asyncio.create_task(api.get(made["links"]["self"], params={"wait": 30}))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await deployment.settle(made["effect_id"])
    answer = await asyncio.wait_for(waiting, 25)
    assert answer.json()["state"] == "succeeded"


async def test_a_wait_ends_with_its_time(api: httpx.AsyncClient) -> None:
    made = (await api.post(PATH, json=charge())).json()
    began_at = asyncio.get_running_loop().time()
    answer = await api.get(made["links"]["self"], params={"wait": 0.4})
    took = asyncio.get_running_loop().time() - began_at
    assert answer.json()["state"] == "prepared"
    assert 0.4 <= took < 20


async def test_a_submit_can_wait_too(api: httpx.AsyncClient, deployment: Deployment) -> None:
    deployment.make_ledger()
    first = (await api.post(PATH, json=entry())).json()
    waiting = asyncio.create_task(api.post(PATH, json=entry(), params={"wait": 30}))
    await deployment.settle(first["effect_id"])
    answer = await asyncio.wait_for(waiting, 10)
    assert (answer.status_code, answer.json()["state"]) == (200, "succeeded")


async def test_a_wait_ends_when_the_process_does(deployment: Deployment) -> None:
    ending = asyncio.Event()
    async with (
        deployment.application(draining=ending.is_set) as app,
        deployment.client(app) as client,
    ):
        made = (await client.post(PATH, json=charge())).json()
        waiting = asyncio.create_task(client.get(made["links"]["self"], params={"wait": 60}))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        ending.set()
        answer = await asyncio.wait_for(waiting, 25)
    assert answer.status_code == 200


async def test_a_wait_ends_when_nobody_waits_any_more(
    api: httpx.AsyncClient, application: FastAPI, deployment: Deployment
) -> None:
    made = (await api.post(PATH, json=charge())).json()
    gone = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if not asked:
            asked.append(True)
            return {"type": "http.request", "body": b"", "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    asked: list[bool] = []
    sent: list[Any] = []
    key = deployment.headers()["Authorization"].encode()
    path = made["links"]["self"]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET",
        "path": path, "raw_path": path.encode(), "root_path": "", "scheme": "http",
        "query_string": b"wait=60", "headers": [(b"authorization", key)],
        "client": ("127.0.0.1", 1), "server": ("broker", 80),
    }  # fmt: skip
    serving = asyncio.create_task(application(scope, receive, send))
    await asyncio.sleep(0.3)
    assert not serving.done()
    gone.set()
    await asyncio.wait_for(serving, 30)
