"""Alerts are dealt with by a person, who says how; a later alert is another one."""

from __future__ import annotations

import httpx
import pytest

from api.deployment import Deployment, charge


async def _alarmed(api: httpx.AsyncClient, deployment: Deployment, alert: str) -> str:
    """A cancelled effect whose target says otherwise."""
    effect_id = str((await api.post("/v1/effects", json=charge())).json()["effect_id"])
    await api.post(f"/v1/effects/{effect_id}/cancel")
    _raise(deployment, alert)
    return effect_id


def _raise(deployment: Deployment, alert: str) -> None:
    deployment.execute(
        "SET session_replication_role = replica;"
        f" UPDATE effect_broker.effect_intents SET alert = '{alert}'"
    )


def _said(alert: str = "duplicate_detected", **members: str) -> dict[str, str]:
    return {"alert": alert, "reason": "refunded: re_1", **members}


async def test_an_alert_that_was_dealt_with_waits_for_nobody(
    api: httpx.AsyncClient, operator: httpx.AsyncClient, deployment: Deployment
) -> None:
    effect_id = await _alarmed(api, deployment, "duplicate_detected")
    path = f"/v1/effects/{effect_id}"
    assert len((await api.get("/v1/unresolved")).json()["unresolved"]) == 1
    answer = await operator.post(f"{path}/acknowledge", json=_said())
    body = answer.json()
    assert (answer.status_code, body["alert"], body["changed"]) == (200, None, True), answer.text
    assert body["state"] == "cancelled"
    assert (await api.get("/v1/unresolved")).json()["unresolved"] == []
    again = await operator.post(f"{path}/acknowledge", json=_said())
    assert (again.status_code, again.json()["changed"]) == (200, False)
    assert again.json()["version"] == body["version"]
    ((alert, reason, actor, kind),) = deployment.execute(
        "SELECT a.alert, a.reason, a.actor, e.kind FROM effect_broker.effect_acknowledgements a"
        " JOIN effect_broker.effect_events e USING (effect_id, sequence)"
    )
    assert (alert, reason, kind) == ("duplicate_detected", "refunded: re_1", "acknowledged")
    assert actor.startswith("operator:")


async def test_an_alert_that_came_meanwhile_is_not_taken_with_it(
    api: httpx.AsyncClient, operator: httpx.AsyncClient, deployment: Deployment
) -> None:
    effect_id = await _alarmed(api, deployment, "late_contradiction")
    _raise(deployment, "duplicate_detected")
    answer = await operator.post(
        f"/v1/effects/{effect_id}/acknowledge", json=_said("late_contradiction")
    )
    assert (answer.status_code, answer.json()["code"]) == (409, "another_alert")
    assert (await api.get(f"/v1/effects/{effect_id}")).json()["alert"] == "duplicate_detected"
    assert deployment.count("effect_acknowledgements") == 0


@pytest.mark.parametrize(
    ("body", "field"),
    [(_said(reason=""), "/reason"), (_said("no_such"), "/alert"), ({"alert": 1}, "/alert")],
)
async def test_only_a_whole_word_counts(
    api: httpx.AsyncClient, operator: httpx.AsyncClient, deployment: Deployment,
    body: dict[str, object], field: str,
) -> None:  # fmt: skip
    effect_id = await _alarmed(api, deployment, "duplicate_detected")
    answer = await operator.post(f"/v1/effects/{effect_id}/acknowledge", json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, field)
    refused = await api.post(f"/v1/effects/{effect_id}/acknowledge", json=_said())
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
