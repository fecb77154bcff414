"""Resolving over HTTP: with evidence, by a credential that may, once, never as a second send."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import httpx
import pytest
from fastapi import FastAPI

from api.deployment import Deployment, in_doubt, just_now
from effect_broker.store.api import PostgresApiStore

OBSERVED = "2026-01-01T00:00:00+00:00"


def statement(**members: Any) -> dict[str, Any]:
    return {
        "decision_id": "incident-1",
        "expected_version": 2,
        "conclusion": "committed",
        "reason": "It stands in the dashboard.",
        "evidence": [{"kind": "dashboard", "observed_at": just_now(), "reference": "ch_1"}],
        **members,
    }


def path(effect_id: str) -> str:
    return f"/v1/effects/{effect_id}/resolve"


async def test_a_person_settles_an_effect_with_evidence(
    api: httpx.AsyncClient, operator: httpx.AsyncClient, deployment: Deployment
) -> None:
    effect_id = await in_doubt(api, deployment)
    answer = await operator.post(path(effect_id), json=statement(external_id="ch_1"))
    body = answer.json()
    assert (answer.status_code, body["state"], body["replayed"]) == (200, "succeeded", False)
    receipt = (await api.get(f"/v1/effects/{effect_id}/receipt")).json()["receipt"]
    assert (receipt["source"], receipt["external_id"]) == ("operator", "ch_1")
    ((content, actor),) = deployment.execute(
        "SELECT content, actor FROM effect_broker.effect_resolutions"
    )
    assert "It stands in the dashboard." in content
    assert actor.startswith("operator:")


async def test_the_same_decision_again_changes_nothing(
    api: httpx.AsyncClient, operator: httpx.AsyncClient, deployment: Deployment
) -> None:
    effect_id = await in_doubt(api, deployment)
    said = statement()
    first = await operator.post(path(effect_id), json=said)
    again = await operator.post(path(effect_id), json=said)
    assert (again.status_code, again.json()["replayed"]) == (200, True)
    assert again.json()["version"] == first.json()["version"]
    assert deployment.count("effect_resolutions") == 1


async def test_without_the_look_for_it_a_decision_said_again_is_refused_and_stands_once(
    api: httpx.AsyncClient,
    operator: httpx.AsyncClient,
    deployment: Deployment,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    effect_id = await in_doubt(api, deployment)
    said = statement()
    await operator.post(path(effect_id), json=said)

    async def unknown(*_: object) -> None:
        return None

    monkeypatch.setattr(PostgresApiStore, "resolution", unknown)
    again = await operator.post(path(effect_id), json=said)
    assert (again.status_code, again.json()["code"]) == (409, "illegal_transition")
    assert deployment.count("effect_resolutions") == 1  # the version is a second lock


async def test_a_decision_id_is_not_used_for_another_statement(
    api: httpx.AsyncClient, operator: httpx.AsyncClient, deployment: Deployment
) -> None:
    effect_id = await in_doubt(api, deployment)
    await operator.post(path(effect_id), json=statement())
    answer = await operator.post(path(effect_id), json=statement(reason="Another."))
    assert (answer.status_code, answer.json()["code"]) == (409, "decision_conflict")


async def test_of_many_decisions_at_once_one_wins(
    api: httpx.AsyncClient, operator: httpx.AsyncClient, deployment: Deployment
) -> None:
    effect_id = await in_doubt(api, deployment)
    answers = await asyncio.gather(
        *(
            operator.post(path(effect_id), json=statement(decision_id=f"d-{n}", conclusion=c))
            for n, c in enumerate(["committed", "failed"] * 4)
        )
    )
    codes = sorted(a.status_code for a in answers)
    assert codes == [200] + [409] * 7
    assert {a.json().get("code") for a in answers if a.status_code == 409} <= {
        "stale_version",
        "illegal_transition",
    }
    assert deployment.count("effect_resolutions") == 1


async def test_the_same_decision_many_times_at_once_stands_once(
    api: httpx.AsyncClient, operator: httpx.AsyncClient, deployment: Deployment
) -> None:
    effect_id = await in_doubt(api, deployment)
    said = statement()
    answers = await asyncio.gather(*(operator.post(path(effect_id), json=said) for _ in range(6)))
    assert {a.status_code for a in answers} <= {200, 409}
    assert sum(not a.json().get("replayed", True) for a in answers) == 1
    assert deployment.count("effect_resolutions") == 1


async def test_a_key_without_the_scope_may_not(
    api: httpx.AsyncClient, deployment: Deployment
) -> None:
    effect_id = await in_doubt(api, deployment)
    answer = await api.post(path(effect_id), json=statement())
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert answer.json()["scope"] == "operate"
    assert deployment.count("effect_resolutions") == 0


async def test_another_tenants_effect_is_missing(
    operator: httpx.AsyncClient, application: FastAPI, deployment: Deployment
) -> None:
    async with deployment.client(application, "globex") as globex:
        effect_id = await in_doubt(globex, deployment)
    for wanted in (effect_id, str(uuid4()), "no-id"):
        answer = await operator.post(path(wanted), json=statement())
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"evidence": []}, "/evidence"),
        ({"evidence": [{"kind": "log", "observed_at": OBSERVED}]}, "/evidence/0"),
        (
            {"evidence": [{"kind": "log", "observed_at": "now", "reference": "x"}]},
            "/evidence/0/observed_at",
        ),
        (
            {"evidence": [{"kind": "log", "observed_at": OBSERVED, "digest": "md5:1"}]},
            "/evidence/0/digest",
        ),
        (
            {"evidence": [{"kind": "l", "observed_at": OBSERVED, "reference": "x",
                           "note": "é" * 1001}]},
            "/evidence/0",
        ),
        (
            {"evidence": [{"kind": "l", "observed_at": "2999-01-01T00:00:00Z", "reference": "x"}]},
            "/evidence",
        ),
        ({"conclusion": "retry"}, "/conclusion"),
        ({"reason": ""}, "/reason"),
        ({"decision_id": "two words"}, "/decision_id"),
        ({"expected_version": 0}, "/expected_version"),
        ({"expected_version": True}, "/expected_version"),
        ({"conclusion": "failed", "external_id": "ch_1"}, ""),
        ({"force": True}, "/force"),
    ],
)  # fmt: skip
async def test_an_incomplete_statement_is_refused_and_nothing_is_stored(
    api: httpx.AsyncClient,
    operator: httpx.AsyncClient,
    deployment: Deployment,
    members: dict[str, Any],
    field: str,
) -> None:
    effect_id = await in_doubt(api, deployment)
    answer = await operator.post(path(effect_id), json=statement(**members))
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert answer.json()["field"] == field
    assert deployment.count("effect_resolutions") == 0
    assert deployment.count("effect_evidence") == 0


async def test_a_stale_decision_names_the_present_version(
    api: httpx.AsyncClient, operator: httpx.AsyncClient, deployment: Deployment
) -> None:
    effect_id = await in_doubt(api, deployment)
    answer = await operator.post(path(effect_id), json=statement(expected_version=7))
    assert (answer.status_code, answer.json()["code"]) == (409, "stale_version")
    assert answer.json()["version"] == 2
