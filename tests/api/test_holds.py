"""Holds over HTTP: an operator stops dispatches, sees what stops them, and lets them go on."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import httpx
import pytest
from fastapi import FastAPI

from api.deployment import CHARGE, Deployment, charge

CONTRACT = {"name": CHARGE.name, "version": CHARGE.version}
SUBJECTS: dict[str, dict[str, Any]] = {
    "everything": {},
    "the tool": {"tool": CHARGE.tool},
    "the contract": {"contract": CONTRACT},
}


async def _submitted(api: httpx.AsyncClient) -> str:
    answer = await api.post("/v1/effects", json=charge())
    assert answer.status_code == 202, "submits are accepted whatever is held"
    return str(answer.json()["effect_id"])


@pytest.mark.parametrize("subject", SUBJECTS)
async def test_what_is_paused_waits_visibly_and_is_not_sent(
    operator: httpx.AsyncClient, deployment: Deployment, subject: str
) -> None:
    body = SUBJECTS[subject] | {"reason": "double postings"}
    placed = await operator.post("/v1/holds", json=body)
    assert placed.status_code == 201, placed.text
    assert placed.json()["effective"] is True
    effect_id = await _submitted(operator)
    await deployment.settle(effect_id)
    effect = (await operator.get(f"/v1/effects/{effect_id}")).json()
    assert (effect["state"], effect["reason"], effect["attempts"]) == ("prepared", "paused", [])
    assert effect["waits_for_person"] is True

    hold_id = placed.json()["hold_id"]
    lifted = await operator.post(f"/v1/holds/{hold_id}/lift", json={"reason": "mended"})
    assert (lifted.status_code, lifted.json()["changed"]) == (200, True)
    again = await operator.post(f"/v1/holds/{hold_id}/lift", json={"reason": "mended"})
    assert (again.status_code, again.json()["changed"]) == (200, False)
    await deployment.settle(effect_id)
    assert (await operator.get(f"/v1/effects/{effect_id}")).json()["attempts"] != []


async def test_another_tool_and_another_version_go_on(
    operator: httpx.AsyncClient, deployment: Deployment
) -> None:
    deployment.execute(
        "INSERT INTO effect_broker.holds (hold_id, kind, tool, contract_name, contract_version,"
        " reason, placed_by) VALUES (gen_random_uuid(), 'paused', 'other.tool', NULL, NULL, 'r',"
        f" 'o'), (gen_random_uuid(), 'paused', NULL, '{CHARGE.name}', 'another', 'r', 'o')"
    )
    effect_id = await _submitted(operator)
    await deployment.settle(effect_id)
    assert (await operator.get(f"/v1/effects/{effect_id}")).json()["attempts"] != []


async def test_the_same_pause_again_is_the_one_that_stands(operator: httpx.AsyncClient) -> None:
    first = await operator.post("/v1/holds", json={"reason": "first"})
    again = await operator.post("/v1/holds", json={"reason": "second"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["replayed"] is True
    assert again.json()["hold_id"] == first.json()["hold_id"]
    assert again.json()["reason"] == "first"


async def test_holds_are_listed_with_who_and_why_and_the_past_stays(
    operator: httpx.AsyncClient,
) -> None:
    placed = (await operator.post("/v1/holds", json={"reason": "why"})).json()
    assert placed["placed_by"].startswith("operator:")
    (listed,) = (await operator.get("/v1/holds")).json()["holds"]
    assert listed == {k: v for k, v in placed.items() if k not in {"replayed", "effective"}}
    await operator.post(f"/v1/holds/{placed['hold_id']}/lift", json={"reason": "mended"})
    assert (await operator.get("/v1/holds")).json()["holds"] == []
    (past,) = (await operator.get("/v1/holds?lifted=true")).json()["holds"]
    assert (past["lift_reason"], past["hold_id"]) == ("mended", placed["hold_id"])


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        ({}, 422, "invalid_request", "/reason"),
        ({"reason": ""}, 422, "invalid_request", "/reason"),
        ({"reason": "r", "tool": "no.such"}, 422, "unknown_tool", "/tool"),
        ({"reason": "r", "contract": {"name": "n", "version": "1"}}, 404, "not_found", None),
        ({"reason": "r", "contract": {"name": "n"}}, 422, "invalid_request", "/contract/version"),
        ({"reason": "r", "tool": "t", "contract": CONTRACT}, 422, "invalid_request", ""),
        ({"reason": "r", "tenant": "globex"}, 422, "invalid_request", "/tenant"),
        ({"reason": "a\x00b"}, 422, "invalid_payload", "/reason"),
        ([], 422, "invalid_payload", ""),
    ],
)
async def test_a_pause_that_would_stop_nothing_is_refused(
    operator: httpx.AsyncClient, deployment: Deployment, body: object, status: int, code: str,
    field: str | None,
) -> None:  # fmt: skip
    answer = await operator.post("/v1/holds", json=body)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert answer.json().get("field") == field
    assert deployment.count("holds") == 0


async def test_a_key_without_the_right_to_operate_stops_nothing(
    api: httpx.AsyncClient, operator: httpx.AsyncClient, deployment: Deployment
) -> None:
    refused = await api.post("/v1/holds", json={"reason": "r"})
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert "lacks the scope 'operate'" in refused.json()["detail"]
    assert deployment.count("holds") == 0
    hold_id = (await operator.post("/v1/holds", json={"reason": "r"})).json()["hold_id"]
    refused = await api.post(f"/v1/holds/{hold_id}/lift", json={"reason": "r"})
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")


async def test_a_tenant_sees_what_stops_everybody_and_cannot_lift_it(
    operator: httpx.AsyncClient, application: FastAPI, deployment: Deployment
) -> None:
    mine = (await operator.post("/v1/holds", json={"reason": "mine"})).json()["hold_id"]
    every, other = uuid4(), uuid4()
    deployment.execute(
        "INSERT INTO effect_broker.holds (hold_id, kind, tenant_id, reason, placed_by) VALUES"
        f" ('{every}', 'paused', NULL, 'all', 'o'),"
        f" ('{other}', 'paused', '{deployment.tenant_ids['globex']}', 'theirs', 'o')"
    )
    listed = (await operator.get("/v1/holds")).json()["holds"]
    assert {hold["hold_id"] for hold in listed} == {mine, str(every)}
    for hold_id in (str(every), str(other), str(uuid4()), "no-uuid"):
        answer = await operator.post(f"/v1/holds/{hold_id}/lift", json={"reason": "r"})
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert deployment.execute(
        "SELECT count(*) FROM effect_broker.holds WHERE lifted_at IS NULL"
    ) == [(3,)]
