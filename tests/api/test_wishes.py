"""Reconcile and cancel over HTTP: they may be repeated, and never send what may not be sent."""

from __future__ import annotations

import httpx
from fastapi import FastAPI

from api.deployment import Deployment, charge, in_doubt


async def test_an_effect_is_withdrawn_before_it_is_sent_and_stays_so(
    api: httpx.AsyncClient, deployment: Deployment
) -> None:
    effect_id = (await api.post("/v1/effects", json=charge())).json()["effect_id"]
    first = await api.post(f"/v1/effects/{effect_id}/cancel")
    again = await api.post(f"/v1/effects/{effect_id}/cancel")
    assert (first.status_code, first.json()["state"], first.json()["changed"]) == (
        200,
        "cancelled",
        True,
    )
    assert (again.status_code, again.json()["changed"]) == (200, False)
    await deployment.settle(effect_id)
    assert deployment.count("effect_attempts") == 0
    replay = await api.post("/v1/effects", json=charge())
    assert (replay.status_code, replay.json()["state"]) == (200, "cancelled")


async def test_what_may_have_been_sent_is_not_withdrawn(
    api: httpx.AsyncClient, deployment: Deployment
) -> None:
    effect_id = await in_doubt(api, deployment)
    answer = await api.post(f"/v1/effects/{effect_id}/cancel")
    assert (answer.status_code, answer.json()["code"]) == (409, "illegal_transition")
    assert answer.json()["state"] == "outcome_unknown"


async def test_a_wish_for_another_tenants_effect_finds_nothing(
    api: httpx.AsyncClient, application: FastAPI, deployment: Deployment
) -> None:
    effect_id = (await api.post("/v1/effects", json=charge())).json()["effect_id"]
    async with deployment.client(application, "globex") as globex:
        for wish in ("reconcile", "cancel"):
            answer = await globex.post(f"/v1/effects/{effect_id}/{wish}")
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_a_look_at_a_final_effect_changes_nothing(
    api: httpx.AsyncClient, deployment: Deployment
) -> None:
    effect_id = (await api.post("/v1/effects", json=charge())).json()["effect_id"]
    version = (await api.post(f"/v1/effects/{effect_id}/cancel")).json()["version"]
    answer = await api.post(f"/v1/effects/{effect_id}/reconcile")
    assert (answer.status_code, answer.json()["changed"]) == (200, False)
    assert answer.json()["version"] == version
