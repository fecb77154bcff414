"""Where the contract asks for persons: an approval before the first send, a second conclusion."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from api.deployment import CHARGE, Deployment, charge, in_doubt, versioned
from api.test_resolve import statement
from effect_broker.store.catalogue import Catalogue
from effect_broker.store.pool import Pool
from effect_broker.store.tenants import Tenants

VALID_SECONDS = 60.0


@pytest.fixture
async def approving(deployment: Deployment, admin_pool: Pool) -> None:
    """The charge contract asks for an approval."""
    changes = {"oversight": {"approval_valid_seconds": VALID_SECONDS}}
    await Catalogue(admin_pool).apply(versioned(CHARGE, "approving", **changes))


@pytest.fixture
async def two_persons(deployment: Deployment, admin_pool: Pool) -> None:
    """The charge contract asks for a second person."""
    changes = {"oversight": {"second_person": True}}
    await Catalogue(admin_pool).apply(versioned(CHARGE, "two-persons", **changes))


@pytest.fixture
async def second(
    deployment: Deployment, application: FastAPI, admin_pool: Pool
) -> AsyncIterator[httpx.AsyncClient]:
    """Another operator of `acme`."""
    made = await Tenants(admin_pool).create_key("acme", ("effects", "operate"))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(application),
        base_url="http://broker",
        headers={"Authorization": f"Bearer {made.api_key}"},
    ) as client:
        yield client


async def _waiting(
    api: httpx.AsyncClient, deployment: Deployment, **members: Any
) -> dict[str, Any]:
    """An effect that its worker has left waiting for an approval."""
    effect_id = (await api.post("/v1/effects", json=charge(**members))).json()["effect_id"]
    await deployment.settle(effect_id)
    effect: dict[str, Any] = (await api.get(f"/v1/effects/{effect_id}")).json()
    assert (effect["state"], effect["reason"]) == ("prepared", "awaiting_approval")
    assert effect["waits_for_person"] is True
    assert effect["attempts"] == []
    return effect


def _yes(effect: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {
        "decision_id": "approval-1",
        "request_hash": effect["request_hash"],
        "reason": "as ordered",
        **members,
    }


# Approvals ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("approving")
async def test_nothing_is_sent_before_an_approval_and_then_it_is(
    api: httpx.AsyncClient, operator: httpx.AsyncClient, deployment: Deployment
) -> None:
    effect = await _waiting(api, deployment)
    path = f"/v1/effects/{effect['effect_id']}"
    first = await operator.post(f"{path}/approve", json=_yes(effect))
    assert (first.status_code, first.json()["replayed"]) == (200, False), first.text
    assert first.json()["waits_for_person"] is False
    again = await operator.post(f"{path}/approve", json=_yes(effect))
    assert (again.status_code, again.json()["replayed"]) == (200, True)
    assert again.json()["version"] == first.json()["version"]
    await deployment.settle(effect["effect_id"])
    assert len((await api.get(path)).json()["attempts"]) >= 1
    ((approved, content, actor),) = deployment.execute(
        "SELECT approved, content, actor FROM effect_broker.effect_approvals"
    )
    assert (approved, "as ordered" in content) == (True, True)
    assert actor.startswith("operator:")


@pytest.mark.usefixtures("approving")
async def test_an_approval_that_nobody_used_in_time_is_none(
    api: httpx.AsyncClient, operator: httpx.AsyncClient, deployment: Deployment
) -> None:
    effect = await _waiting(api, deployment)
    path = f"/v1/effects/{effect['effect_id']}"
    await operator.post(f"{path}/approve", json=_yes(effect))
    deployment.execute(
        "UPDATE effect_broker.effect_intents SET approved_at ="
        f" approved_at - make_interval(secs => {VALID_SECONDS})"
    )
    await deployment.settle(effect["effect_id"])
    later = (await api.get(path)).json()
    assert (later["reason"], later["attempts"]) == ("awaiting_approval", [])
    second_yes = _yes(effect, decision_id="approval-2")
    assert (await operator.post(f"{path}/approve", json=second_yes)).status_code == 200
    await deployment.settle(effect["effect_id"])
    assert (await api.get(path)).json()["attempts"] != []


@pytest.mark.usefixtures("approving")
async def test_a_denial_withdraws_it_for_good(
    api: httpx.AsyncClient, operator: httpx.AsyncClient, deployment: Deployment
) -> None:
    effect = await _waiting(api, deployment)
    path = f"/v1/effects/{effect['effect_id']}"
    denied = await operator.post(f"{path}/deny", json=_yes(effect))
    assert (denied.status_code, denied.json()["state"]) == (200, "cancelled"), denied.text
    late = await operator.post(f"{path}/approve", json=_yes(effect, decision_id="approval-2"))
    assert (late.status_code, late.json()["code"]) == (409, "illegal_transition")
    await deployment.settle(effect["effect_id"])
    assert deployment.count("effect_attempts") == 0


@pytest.mark.usefixtures("approving")
async def test_yes_and_no_at_once_have_one_winner(
    api: httpx.AsyncClient, operator: httpx.AsyncClient, deployment: Deployment
) -> None:
    effect = await _waiting(api, deployment)
    path = f"/v1/effects/{effect['effect_id']}"
    answers = await asyncio.gather(
        operator.post(f"{path}/deny", json=_yes(effect, decision_id="no")),
        operator.post(f"{path}/approve", json=_yes(effect, decision_id="yes")),
    )
    state = (await api.get(path)).json()["state"]
    codes = [answer.status_code for answer in answers]
    # Approved first, it can still be denied, since nothing was sent; denied first, it is over.
    assert codes in ([200, 200], [200, 409])
    assert state == "cancelled"


@pytest.mark.usefixtures("approving")
async def test_what_was_not_read_is_not_approved(
    api: httpx.AsyncClient, operator: httpx.AsyncClient, deployment: Deployment
) -> None:
    effect = await _waiting(api, deployment)
    path = f"/v1/effects/{effect['effect_id']}"
    other = await operator.post(f"{path}/approve", json=_yes(effect, request_hash="0" * 64))
    assert (other.status_code, other.json()["code"]) == (409, "another_request")
    for body, field in (
        (_yes(effect, request_hash="x"), "/request_hash"),
        (_yes(effect, reason=""), "/reason"),
        (_yes(effect, decision_id="a b"), "/decision_id"),
    ):
        answer = await operator.post(f"{path}/approve", json=body)
        assert (answer.status_code, answer.json()["field"]) == (422, field)
    await operator.post(f"{path}/approve", json=_yes(effect))
    conflict = await operator.post(f"{path}/approve", json=_yes(effect, reason="another"))
    assert (conflict.status_code, conflict.json()["code"]) == (409, "decision_conflict")
    assert deployment.count("effect_approvals") == 1


@pytest.mark.usefixtures("approving")
async def test_nobody_approves_a_request_of_their_own_and_no_caller_any(
    api: httpx.AsyncClient, operator: httpx.AsyncClient, second: httpx.AsyncClient,
    deployment: Deployment,
) -> None:  # fmt: skip
    effect = await _waiting(operator, deployment)
    path = f"/v1/effects/{effect['effect_id']}"
    own = await operator.post(f"{path}/approve", json=_yes(effect))
    assert (own.status_code, own.json()["code"]) == (403, "second_person_required")
    caller = await api.post(f"{path}/approve", json=_yes(effect))
    assert (caller.status_code, caller.json()["code"]) == (403, "forbidden")
    assert deployment.count("effect_approvals") == 0
    assert (await second.post(f"{path}/approve", json=_yes(effect))).status_code == 200


async def test_what_waits_for_no_approval_takes_none(
    api: httpx.AsyncClient, operator: httpx.AsyncClient, deployment: Deployment
) -> None:
    effect = (await api.post("/v1/effects", json=charge())).json()
    path = f"/v1/effects/{effect['effect_id']}"
    for verb in ("approve", "deny"):
        answer = await operator.post(f"{path}/{verb}", json=_yes(effect))
        assert (answer.status_code, answer.json()["code"]) == (409, "illegal_transition")
    assert deployment.count("effect_approvals") == 0


# Two persons --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("two_persons")
@pytest.mark.parametrize("how", ["confirm", "say the same"])
async def test_a_conclusion_counts_once_a_second_person_has_confirmed_it(
    api: httpx.AsyncClient, operator: httpx.AsyncClient, second: httpx.AsyncClient,
    deployment: Deployment, how: str,
) -> None:  # fmt: skip
    effect_id = await in_doubt(api, deployment)
    path = f"/v1/effects/{effect_id}"
    said = statement(external_id="ch_1")
    for _ in range(2):
        first = await operator.post(f"{path}/resolve", json=said)
        assert (first.status_code, first.json()["awaits_second_person"]) == (202, True), first.text
        assert first.json()["state"] == "outcome_unknown"
    own = await operator.post(f"{path}/confirm", json={"decision_id": said["decision_id"]})
    assert (own.status_code, own.json()["code"]) == (403, "second_person_required")
    (proposal,) = (await second.get(f"{path}/proposals")).json()["proposals"]
    assert (proposal["conclusion"], proposal["external_id"]) == ("committed", "ch_1")
    if how == "confirm":
        body = {"decision_id": proposal["decision_id"]}
        confirmed = await second.post(f"{path}/confirm", json=body)
        again = await second.post(f"{path}/confirm", json=body)
    else:
        confirmed = await second.post(f"{path}/resolve", json=said)
        again = await second.post(f"{path}/resolve", json=said)
    assert (confirmed.status_code, confirmed.json()["state"]) == (200, "succeeded"), confirmed.text
    assert (again.status_code, again.json()["replayed"]) == (200, True)
    assert (await second.get(f"{path}/proposals")).json()["proposals"] == []
    ((metadata, actor),) = deployment.execute(
        "SELECT metadata::jsonb->>'proposed_by', actor FROM effect_broker.effect_events"
        " WHERE kind = 'resolved'"
    )
    assert metadata.startswith("operator:")
    assert metadata != actor


@pytest.mark.usefixtures("two_persons")
async def test_a_proposal_on_an_older_version_is_not_confirmed(
    api: httpx.AsyncClient, operator: httpx.AsyncClient, second: httpx.AsyncClient,
    deployment: Deployment,
) -> None:  # fmt: skip
    effect_id = await in_doubt(api, deployment)
    path = f"/v1/effects/{effect_id}"
    assert (await operator.post(f"{path}/resolve", json=statement())).status_code == 202
    deployment.execute(
        "SET session_replication_role = replica;"
        " UPDATE effect_broker.effect_intents SET version = version + 1"
    )
    answer = await second.post(f"{path}/confirm", json={"decision_id": "incident-1"})
    assert (answer.status_code, answer.json()["code"]) == (409, "stale_version")


@pytest.mark.usefixtures("two_persons")
async def test_only_what_was_proposed_for_this_effect_is_confirmed(
    api: httpx.AsyncClient, operator: httpx.AsyncClient, second: httpx.AsyncClient,
    deployment: Deployment,
) -> None:  # fmt: skip
    one = await in_doubt(api, deployment, "order-1")
    other = (await api.post("/v1/effects", json=charge("order-2"))).json()["effect_id"]
    assert (await operator.post(f"/v1/effects/{one}/resolve", json=statement())).status_code == 202
    for effect_id, decision in ((other, "incident-1"), (one, "nothing")):
        answer = await second.post(
            f"/v1/effects/{effect_id}/confirm", json={"decision_id": decision}
        )
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    changed = await second.post(f"/v1/effects/{one}/resolve", json=statement(reason="Another."))
    assert (changed.status_code, changed.json()["code"]) == (409, "decision_conflict")


@pytest.mark.usefixtures("two_persons")
async def test_what_would_be_refused_is_not_even_proposed(
    api: httpx.AsyncClient, operator: httpx.AsyncClient, deployment: Deployment
) -> None:
    effect_id = await in_doubt(api, deployment)
    answer = await operator.post(
        f"/v1/effects/{effect_id}/resolve", json=statement(expected_version=9)
    )
    assert (answer.status_code, answer.json()["code"]) == (409, "stale_version")
    assert deployment.count("effect_proposals") == 0
