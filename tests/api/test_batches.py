"""One decision on many effects: each by itself, what changed is left out, the rest goes on."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest
from fastapi import FastAPI

from api.deployment import Deployment, charge, in_doubt, just_now

TOOL = "demo.charge"


def decision(effects: list[tuple[str, int]], **members: Any) -> dict[str, Any]:
    return {
        "decision_id": "incident-1",
        "group": {"tool": TOOL, "reason": "outcome_unknown"},
        "conclusion": "committed",
        "reason": "All stand in the export.",
        "causes": ["The gateway answered 504 and charged."],
        "remedies": ["Its time-out was raised."],
        "evidence": [{"kind": "export", "observed_at": just_now(), "reference": "s3://export/1"}],
        "effects": [
            {"effect_id": effect_id, "expected_version": version} for effect_id, version in effects
        ],
        **members,
    }


async def _doubtful(
    api: httpx.AsyncClient, deployment: Deployment, count: int
) -> list[tuple[str, int]]:
    return [(await in_doubt(api, deployment, f"order-{n}"), 2) for n in range(count)]


async def _states(api: httpx.AsyncClient, effects: list[tuple[str, int]]) -> list[str]:
    return [(await api.get(f"/v1/effects/{effect_id}")).json()["state"] for effect_id, _ in effects]


async def test_many_are_settled_as_one_with_a_record_for_each(
    api: httpx.AsyncClient, operator: httpx.AsyncClient, deployment: Deployment
) -> None:
    effects = await _doubtful(api, deployment, 3)
    said = decision(effects)
    answer = await operator.post("/v1/decisions", json=said)
    body = answer.json()
    assert answer.status_code == 200, answer.text
    assert [e["outcome"] for e in body["effects"]] == ["settled"] * 3
    assert (body["open"], body["reopened_by"]) == (False, [])
    assert body["causes"] == ["The gateway answered 504 and charged."]
    assert await _states(api, effects) == ["succeeded"] * 3
    assert deployment.count("effect_resolutions") == 3
    again = await operator.post("/v1/decisions", json=said)
    assert again.json() == body
    assert deployment.count("effect_resolutions") == 3
    (listed,) = (await api.get("/v1/decisions")).json()["decisions"]
    assert (listed["decision_id"], listed["open"]) == ("incident-1", False)


async def test_what_has_changed_or_is_of_another_group_is_left_out_and_named(
    api: httpx.AsyncClient, operator: httpx.AsyncClient, deployment: Deployment
) -> None:
    effects = await _doubtful(api, deployment, 2)
    changed = (await in_doubt(api, deployment, "changed"), 1)
    on_its_way = ((await api.post("/v1/effects", json=charge("fresh"))).json()["effect_id"], 1)
    missing = (str(uuid4()), 1)
    named = [*effects, changed, on_its_way, missing]
    body = (await operator.post("/v1/decisions", json=decision(named))).json()
    assert {e["effect_id"]: (e["outcome"], e["code"]) for e in body["effects"]} == {
        effects[0][0]: ("settled", None),
        effects[1][0]: ("settled", None),
        changed[0]: ("left_out", "stale_version"),
        on_its_way[0]: ("left_out", "not_in_group"),
        missing[0]: ("left_out", "not_found"),
    }
    # What was left out and still waits keeps the decision open, and is nothing new.
    assert (body["open"], body["reopened_by"]) == (True, [])
    assert await _states(api, [changed, on_its_way]) == ["outcome_unknown", "prepared"]


async def test_a_new_effect_of_the_group_opens_it_again(
    api: httpx.AsyncClient, operator: httpx.AsyncClient, deployment: Deployment
) -> None:
    effects = await _doubtful(api, deployment, 1)
    assert (await operator.post("/v1/decisions", json=decision(effects))).json()["open"] is False
    later = await in_doubt(api, deployment, "later")
    body = (await api.get("/v1/decisions/incident-1")).json()
    assert body["open"] is True
    assert [row["effect_id"] for row in body["reopened_by"]] == [later]
    (listed,) = (await api.get("/v1/decisions")).json()["decisions"]
    assert listed["open"] is True


async def test_a_group_may_be_one_run_of_an_agent(
    api: httpx.AsyncClient, operator: httpx.AsyncClient, deployment: Deployment
) -> None:
    mine = await in_doubt(api, deployment, "mine")
    other = await in_doubt(api, deployment, "other")
    deployment.execute(
        "SET session_replication_role = replica;"
        f" UPDATE effect_broker.effect_intents SET trace_id = 'run-7' WHERE effect_id = '{mine}'"
    )
    group = {"trace_id": "run-7"}
    body = (
        await operator.post("/v1/decisions", json=decision([(mine, 2), (other, 2)], group=group))
    ).json()
    assert [(e["effect_id"], e["code"]) for e in body["effects"]] == [
        (mine, None),
        (other, "not_in_group"),
    ]
    assert body["open"] is False


async def test_after_an_outage_the_same_decision_goes_on(
    api: httpx.AsyncClient, operator: httpx.AsyncClient, deployment: Deployment
) -> None:
    """The process was lost after the resolution and before its record: it stands already."""
    effects = await _doubtful(api, deployment, 2)
    said = decision(effects)
    assert (await operator.post("/v1/decisions", json=said)).status_code == 200
    deployment.execute(
        "SET session_replication_role = replica; DELETE FROM effect_broker.batch_effects"
    )
    body = (await operator.post("/v1/decisions", json=said)).json()
    assert [e["outcome"] for e in body["effects"]] == ["settled", "settled"]
    assert deployment.count("effect_resolutions") == 2


async def test_a_decision_id_is_not_used_for_another_statement(
    api: httpx.AsyncClient, operator: httpx.AsyncClient, deployment: Deployment
) -> None:
    effects = await _doubtful(api, deployment, 1)
    await operator.post("/v1/decisions", json=decision(effects))
    answer = await operator.post("/v1/decisions", json=decision(effects, causes=["Another."]))
    assert (answer.status_code, answer.json()["code"]) == (409, "decision_conflict")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"evidence": []}, "/evidence"),
        ({"causes": []}, "/causes"),
        ({"group": {}}, "/group"),
        ({"group": {"reason": "no_such"}}, "/group/reason"),
        ({"effects": []}, "/effects"),
        ({"effects": [{"effect_id": "x", "expected_version": 1}]}, "/effects/0/effect_id"),
        ({"decision_id": "a b"}, "/decision_id"),
        ({"conclusion": "retry"}, "/conclusion"),
    ],
)
async def test_an_incomplete_decision_is_refused_whole(
    operator: httpx.AsyncClient, deployment: Deployment, changes: dict[str, Any], field: str
) -> None:
    said = decision([(str(uuid4()), 1)]) | changes
    answer = await operator.post("/v1/decisions", json=said)
    assert (answer.status_code, answer.json()["field"]) == (422, field), answer.text
    assert deployment.count("batch_decisions") == 0


async def test_one_effect_is_named_once(
    operator: httpx.AsyncClient, deployment: Deployment
) -> None:
    one = str(uuid4())
    answer = await operator.post("/v1/decisions", json=decision([(one, 1), (one, 2)]))
    assert (answer.status_code, answer.json()["field"]) == (422, "/effects")


async def test_another_tenant_and_a_mere_caller_decide_nothing(
    api: httpx.AsyncClient, operator: httpx.AsyncClient, application: FastAPI,
    deployment: Deployment,
) -> None:  # fmt: skip
    effects = await _doubtful(api, deployment, 1)
    refused = await api.post("/v1/decisions", json=decision(effects))
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    await operator.post("/v1/decisions", json=decision(effects))
    async with deployment.client(application, "globex") as globex:
        assert (await globex.get("/v1/decisions")).json()["decisions"] == []
        assert (await globex.get("/v1/decisions/incident-1")).status_code == 404


@pytest.mark.parametrize("decision_id", ["%00", "%E2%80%AE", "a%20b", "x" * 201, "none"])
async def test_what_is_no_decision_id_names_no_decision(
    operator: httpx.AsyncClient, decision_id: str
) -> None:
    answer = await operator.get(f"/v1/decisions/{decision_id}")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_a_decision_is_read_by_any_id_that_it_may_have(
    api: httpx.AsyncClient, operator: httpx.AsyncClient, deployment: Deployment
) -> None:
    effects = await _doubtful(api, deployment, 1)
    name = "incident/2026?11#29/" + "~" * 180
    made = await operator.post("/v1/decisions", json=decision(effects, decision_id=name))
    assert made.json()["effects"][0]["outcome"] == "settled", made.text
    read = await operator.get(f"/v1/decisions/{quote(name, safe='')}")
    assert (read.status_code, read.json()["decision_id"]) == (200, name)
