"""Effects that belong to others: children are counted at their parent, compensations undo once."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import httpx
import pytest
from fastapi import FastAPI

from api.deployment import Deployment, charge


async def _submit(api: httpx.AsyncClient, key: str, **members: Any) -> httpx.Response:
    return await api.post("/v1/effects", json=charge(key, **members))


async def _effect(api: httpx.AsyncClient, key: str, **members: Any) -> str:
    answer = await _submit(api, key, **members)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["effect_id"])


def _set(deployment: Deployment, effect_id: str, state: str) -> None:
    """Put an effect where its worker would have left it."""
    deployment.execute(
        "SET session_replication_role = replica;"
        f" UPDATE effect_broker.effect_intents SET state = '{state}', next_action_at = NULL,"
        f" parked = {state == 'outcome_unknown'}, receipt_digest = CASE WHEN '{state}' IN"
        " ('succeeded', 'failed_final', 'cancelled') THEN sha256('x') END"
        f" WHERE effect_id = '{effect_id}'"
    )


async def test_a_parent_shows_how_its_children_stand(
    api: httpx.AsyncClient, deployment: Deployment
) -> None:
    parent = await _effect(api, "parent")
    children = [await _effect(api, f"child-{n}", parent_effect_id=parent) for n in range(4)]
    for child, state in zip(children, ("succeeded", "failed_final", "outcome_unknown"),
                            strict=False):  # fmt: skip
        _set(deployment, child, state)
    body = (await api.get(f"/v1/effects/{parent}")).json()
    assert body["children"] == {
        "total": 4, "settled": 2, "succeeded": 1, "failed": 1, "unresolved": 1, "outcome": None,
    }  # fmt: skip
    assert (await api.get(f"/v1/effects/{children[0]}")).json()["parent_effect_id"] == parent
    listed = (await api.get(f"/v1/effects?parent={parent}")).json()["effects"]
    assert {effect["effect_id"] for effect in listed} == set(children)
    (shown,) = [
        effect
        for effect in (await api.get("/v1/effects")).json()["effects"]
        if effect["effect_id"] == parent
    ]
    assert shown["children"] == body["children"]


@pytest.mark.parametrize(
    ("states", "classification"),
    [
        (("succeeded", "succeeded"), "children_succeeded"),
        (("failed_final", "cancelled"), "children_failed"),
        (("succeeded", "failed_final"), "children_mixed"),
        (("succeeded", "outcome_unknown"), None),
    ],
)
async def test_a_failed_parent_is_classified_by_its_settled_children(
    api: httpx.AsyncClient, deployment: Deployment, states: tuple[str, str],
    classification: str | None,
) -> None:  # fmt: skip
    parent = await _effect(api, "parent")
    for n, state in enumerate(states):
        _set(deployment, await _effect(api, f"child-{n}", parent_effect_id=parent), state)
    assert (await api.get(f"/v1/effects/{parent}")).json()["classification"] is None
    _set(deployment, parent, "failed_final")
    body = (await api.get(f"/v1/effects/{parent}")).json()
    assert body["classification"] == classification


async def test_a_link_is_fixed_by_the_first_submit(
    api: httpx.AsyncClient, deployment: Deployment
) -> None:
    parent, other = await _effect(api, "parent"), await _effect(api, "other")
    child = await _effect(api, "child", parent_effect_id=parent)
    again = await _submit(api, "child", parent_effect_id=parent)
    assert (again.status_code, again.json()["replayed"]) == (200, True)
    # A replay that names none is the same request; one that names another is not.
    assert (await _submit(api, "child")).status_code == 200
    changed = await _submit(api, "child", parent_effect_id=other)
    assert (changed.status_code, changed.json()["code"]) == (409, "payload_conflict")
    assert (changed.json()["field"], changed.json()["effect_id"]) == ("/parent_effect_id", child)
    drift = await _submit(api, "child", parent_effect_id=other, amount=7)
    assert drift.json()["field"] == "/arguments/amount"
    assert deployment.count("effect_links") == 1


async def test_only_an_effect_of_the_tenant_can_be_named(
    api: httpx.AsyncClient, application: FastAPI, deployment: Deployment
) -> None:
    async with deployment.client(application, "globex") as globex:
        foreign = await _effect(globex, "theirs")
    for name in ("parent_effect_id", "compensates"):
        for effect_id in (foreign, str(uuid4())):
            answer = await _submit(api, "mine", **{name: effect_id})
            body = answer.json()
            assert (answer.status_code, body["code"], body["reason"], body["field"]) == (
                422, "invalid_request", "no_such_effect", f"/{name}",
            )  # fmt: skip
        answer = await _submit(api, "mine", **{name: "no-uuid"})
        assert (answer.status_code, answer.json()["field"]) == (422, f"/{name}")
    assert deployment.execute(
        "SELECT count(*) FROM effect_broker.effect_intents WHERE operation_key = 'mine'"
    ) == [(0,)]


async def test_only_what_has_succeeded_is_compensated_and_only_once_at_a_time(
    api: httpx.AsyncClient, deployment: Deployment
) -> None:
    original = await _effect(api, "original")
    early = await _submit(api, "undo-0", compensates=original)
    assert (early.status_code, early.json()["code"], early.json()["state"]) == (
        409, "illegal_transition", "prepared",
    )  # fmt: skip
    _set(deployment, original, "succeeded")
    undo = await _effect(api, "undo-1", compensates=original)
    second = await _submit(api, "undo-2", compensates=original)
    assert (second.status_code, second.json()["code"]) == (409, "illegal_transition")
    body = (await api.get(f"/v1/effects/{original}")).json()
    assert body["compensated_by"] == {"effect_id": undo, "state": "prepared"}
    # A failed one is visible, and another may follow.
    _set(deployment, undo, "failed_final")
    body = (await api.get(f"/v1/effects/{original}")).json()
    assert body["compensated_by"] == {"effect_id": undo, "state": "failed_final"}
    assert (await _submit(api, "undo-2", compensates=original)).status_code == 202
