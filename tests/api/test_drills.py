"""Drills over HTTP: an operator's right, refused in words where they cannot be armed."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from api.deployment import Deployment, charge
from effect_broker.drills import POINTS
from effect_broker.intake import Scope
from effect_broker.store.pool import Pool
from effect_broker.store.tenants import Tenants

ORDER: dict[str, Any] = {"tool": "demo.charge", "reason": "a drill of the test"}


@pytest.fixture
async def operator(
    deployment: Deployment, application: FastAPI, admin_pool: Pool
) -> httpx.AsyncClient:
    """A caller of `acme` whose key may operate."""
    scopes = [Scope.EFFECTS.value, Scope.OPERATE.value]
    made = await Tenants(admin_pool).create_key("acme", scopes)
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(application),
        base_url="http://broker",
        headers={"Authorization": f"Bearer {made.api_key}"},
    )


async def test_a_drill_is_armed_read_listed_and_disarmed(operator: httpx.AsyncClient) -> None:
    armed = await operator.post("/v1/drills", json=ORDER)
    body = armed.json()
    assert (armed.status_code, body["status"], body["fault_point"]) == (
        201, "armed", "after_target_answer",
    )  # fmt: skip
    assert armed.headers["Location"] == f"/v1/drills/{body['drill_id']}"
    assert body["reason"] == ORDER["reason"]
    assert body["armed_by"].startswith("operator:")
    read = await operator.get(armed.headers["Location"])
    assert read.json() | {"now": body["now"]} == body
    listed = (await operator.get("/v1/drills")).json()["drills"]
    assert [one["drill_id"] for one in listed] == [body["drill_id"]]
    for _ in range(2):
        cancelled = await operator.delete(armed.headers["Location"])
        assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")


async def test_a_matched_drill_shows_its_effect_and_is_not_disarmed(
    operator: httpx.AsyncClient,
) -> None:
    place = (await operator.post("/v1/drills", json=ORDER)).headers["Location"]
    effect = (await operator.post("/v1/effects", json=charge())).json()
    body = (await operator.get(place)).json()
    assert (body["status"], body["effect_id"]) == ("matched", effect["effect_id"])
    assert body["effect"]["state"] == "prepared"
    refused = await operator.delete(place)
    assert (refused.status_code, refused.json()["code"]) == (409, "illegal_transition")


async def test_a_key_without_the_scope_operate_may_nothing(
    api: httpx.AsyncClient, operator: httpx.AsyncClient
) -> None:
    place = (await operator.post("/v1/drills", json=ORDER)).headers["Location"]
    for answer in (
        await api.post("/v1/drills", json=ORDER),
        await api.get("/v1/drills"),
        await api.get(place),
        await api.delete(place),
    ):
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert (await operator.get(place)).json()["status"] == "armed"


@pytest.mark.parametrize("point", ["before_submit_commit", "after_requeue_commit", "nowhere", ""])
async def test_a_point_that_is_no_place_of_a_drill_is_refused_with_the_list(
    operator: httpx.AsyncClient, deployment: Deployment, point: str
) -> None:
    answer = await operator.post("/v1/drills", json=ORDER | {"fault_point": point})
    body = answer.json()
    assert (answer.status_code, body["code"], body["field"]) == (
        422, "invalid_request", "/fault_point",
    )  # fmt: skip
    assert body["allowed"] == ", ".join(POINTS)
    assert deployment.count("drills") == 0


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"tool": None}, ""),
        ({"operation_key": "order-1"}, ""),
        ({"operation_key": "two words", "tool": None}, "/operation_key"),
        ({"tool": "bell\x07"}, "/tool"),
        ({"reason": " "}, "/reason"),
        ({"reason": "bell\x07"}, "/reason"),
        ({"expires_in_seconds": 0}, "/expires_in_seconds"),
        ({"expires_in_seconds": 86_401}, "/expires_in_seconds"),
        ({"expires_in_seconds": True}, "/expires_in_seconds"),
        ({"takeover_seconds": 601}, "/takeover_seconds"),
        ({"action": "stop"}, "/action"),
    ],
)
async def test_a_body_at_fault_is_refused_by_its_place(
    operator: httpx.AsyncClient, deployment: Deployment, changes: dict[str, Any], field: str
) -> None:
    answer = await operator.post("/v1/drills", json=ORDER | changes)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert answer.json()["field"] == field
    assert deployment.count("drills") == 0


async def test_what_no_new_effect_can_match_is_refused(operator: httpx.AsyncClient) -> None:
    unknown = await operator.post("/v1/drills", json=ORDER | {"tool": "nobody.serves.it"})
    assert (unknown.status_code, unknown.json()["code"]) == (422, "unknown_tool")
    await operator.post("/v1/effects", json=charge())
    taken = {"operation_key": charge()["operation_key"], "reason": "late"}
    answer = await operator.post("/v1/drills", json=taken)
    assert (answer.status_code, answer.json()["code"]) == (409, "illegal_transition")


@pytest.mark.parametrize("name", ["0c0e3a1f-7a64-8e0c-9b3f-2d5a4d1c8e77", "no-id"])
async def test_a_drill_that_does_not_exist_is_missing(
    operator: httpx.AsyncClient, name: str
) -> None:
    for answer in (
        await operator.get(f"/v1/drills/{name}"),
        await operator.delete(f"/v1/drills/{name}"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
