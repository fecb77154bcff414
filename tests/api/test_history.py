"""The history of an effect: its events, and how it stood after any of them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import httpx
import pytest

from api.deployment import Deployment, charge, entry, in_doubt

PATH = "/v1/effects"


async def settled(api: httpx.AsyncClient, deployment: Deployment) -> str:
    deployment.make_ledger()
    made = (await api.post(PATH, json=entry())).json()
    await deployment.settle(made["effect_id"])
    return str(made["effect_id"])


async def history(api: httpx.AsyncClient, effect_id: str, **query: Any) -> dict[str, Any]:
    answer = await api.get(f"{PATH}/{effect_id}/history", params=query)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def test_all_events_are_shown_in_order_with_their_chain(
    api: httpx.AsyncClient, deployment: Deployment
) -> None:
    effect_id = await settled(api, deployment)
    body = await history(api, effect_id)
    events = body["events"]
    assert [event["sequence"] for event in events] == list(range(1, body["version"] + 1))
    assert events[0]["previous_digest"] == ""
    for before, event in pairwise(events):
        assert event["previous_digest"] == before["digest"]
        assert event["from_state"] == before["to_state"]
    assert events[-1]["to_state"] == "succeeded"
    assert (body["cursor"], body["complete"]) == (None, True)
    assert body["chain"] == {
        "intact": True, "from_sequence": 1, "through_sequence": body["version"],
        "broken_at_sequence": None, "what": None,
    }  # fmt: skip


async def test_pages_follow_each_other_and_each_is_linked_to_the_one_before(
    api: httpx.AsyncClient, deployment: Deployment
) -> None:
    effect_id = await settled(api, deployment)
    whole = (await history(api, effect_id))["events"]
    seen, cursor = [], None
    while True:
        query = {"limit": 1} if cursor is None else {"limit": 1, "cursor": cursor}
        page = await history(api, effect_id, **query)
        assert page["chain"]["intact"]
        seen += page["events"]
        if (cursor := page["cursor"]) is None:
            break
    assert seen == whole
    assert len(seen) >= 3


async def test_an_effect_is_shown_as_it_stood_then(
    api: httpx.AsyncClient, deployment: Deployment
) -> None:
    effect_id = await settled(api, deployment)
    first = (await history(api, effect_id, at_sequence=1))["then"]
    assert (first["state"], first["final"], first["attempts"]) == ("prepared", False, [])
    assert first["submitted_by"].startswith("caller:")
    begun = (await history(api, effect_id, at_sequence=2))["then"]
    assert begun["state"] == "dispatching"
    assert [a["outcome"] for a in begun["attempts"]] == [None]
    now = (await api.get(f"{PATH}/{effect_id}")).json()
    last = await history(api, effect_id, at_sequence=now["version"])
    assert (last["then"]["state"], last["then"]["reason"]) == (now["state"], now["reason"])
    assert [a["outcome"] for a in last["then"]["attempts"]] == ["committed"]
    assert last["chain"]["intact"]
    assert [deed["sequence"] for deed in last["then"]["deeds"]] == list(
        range(1, now["version"] + 1)
    )


async def test_two_moments_are_compared(api: httpx.AsyncClient, deployment: Deployment) -> None:
    effect_id = await settled(api, deployment)
    version = (await history(api, effect_id))["version"]
    body = await history(api, effect_id, at_sequence=version, compare_to=1)
    changed = {one["place"]: (one["before"], one["after"]) for one in body["changes"]}
    assert changed["state"] == ("prepared", "succeeded")
    assert changed["attempts.1.outcome"] == (None, "committed")
    assert [deed["sequence"] for deed in body["between"]] == list(range(2, version + 1))
    assert body["compared_to"]["sequence"] == 1


async def test_what_was_altered_in_the_database_is_told(
    api: httpx.AsyncClient, deployment: Deployment
) -> None:
    effect_id = await settled(api, deployment)
    deployment.execute(
        "SET session_replication_role = replica; UPDATE effect_broker.effect_events"
        f" SET actor = 'worker:another' WHERE effect_id = '{effect_id}' AND sequence = 2"
    )
    for query in ({}, {"at_sequence": 2}, {"at_sequence": 3}):
        chain = (await history(api, effect_id, **query))["chain"]
        assert (chain["intact"], chain["broken_at_sequence"]) == (False, 2)
    assert (await history(api, effect_id, at_sequence=1))["chain"]["intact"]


async def test_events_that_were_taken_from_the_end_are_missed(
    api: httpx.AsyncClient, deployment: Deployment
) -> None:
    effect_id = await settled(api, deployment)
    version = (await history(api, effect_id))["version"]
    deployment.execute(
        "SET session_replication_role = replica; DELETE FROM effect_broker.effect_events"
        f" WHERE effect_id = '{effect_id}' AND sequence = {version}"
    )
    chain = (await history(api, effect_id))["chain"]
    assert (chain["intact"], chain["broken_at_sequence"]) == (False, None)
    gone = await api.get(f"{PATH}/{effect_id}/history", params={"at_sequence": version})
    assert gone.status_code == 400


async def test_what_is_left_after_pruning_is_folded_and_said_to_be_incomplete(
    api: httpx.AsyncClient, deployment: Deployment
) -> None:
    effect_id = await settled(api, deployment)
    deployment.execute(
        "UPDATE effect_broker.effect_intents SET retention_stage = 3"
        f" WHERE effect_id = '{effect_id}'; SET ROLE effect_broker_prune;"
        f" DELETE FROM effect_broker.effect_events WHERE effect_id = '{effect_id}' AND sequence = 1"
    )
    body = await history(api, effect_id, at_sequence=3)
    assert body["chain"]["intact"]
    assert body["then"]["complete"] is False
    page = await history(api, effect_id)
    assert (page["complete"], page["events"][0]["sequence"]) == (False, 2)
    deployment.execute(
        "SET ROLE effect_broker_prune; DELETE FROM effect_broker.effect_events"
        f" WHERE effect_id = '{effect_id}'"
    )
    page = await history(api, effect_id)
    assert (page["complete"], page["events"], page["chain"]["intact"]) == (False, [], True)
    early = await api.get(f"{PATH}/{effect_id}/history", params={"at_sequence": 1})
    assert (early.status_code, early.json()["parameter"]) == (400, "at_sequence")


async def test_an_event_that_this_release_cannot_read_stops_nothing(
    api: httpx.AsyncClient, deployment: Deployment
) -> None:
    effect_id = await in_doubt(api, deployment)
    body = await history(api, effect_id, at_sequence=2)
    assert body["then"]["unread"] == [2]
    assert body["then"]["state"] == "outcome_unknown"
    assert not body["chain"]["intact"]


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ({"at_sequence": 99}, "at_sequence"),
        ({"at_sequence": 0}, "at_sequence"),
        ({"at_sequence": -1}, "at_sequence"),
        ({"at_sequence": 2**31}, "at_sequence"),
        ({"at_sequence": "x"}, "at_sequence"),
        ({"at_sequence": 1, "compare_to": 99}, "at_sequence"),
        ({"compare_to": 1}, "compare_to"),
        ({"at_sequence": 1, "cursor": "1"}, "cursor"),
        ({"at_sequence": 1, "limit": 1}, "limit"),
        ({"cursor": "x"}, "cursor"),
        ({"cursor": "9999999999"}, "cursor"),
        ({"limit": 0}, "limit"),
        ({"limit": 501}, "limit"),
        ({"at_squence": 1}, "at_squence"),
    ],
)
async def test_a_question_that_means_nothing_is_refused(
    api: httpx.AsyncClient, query: dict[str, Any], parameter: str | None
) -> None:
    made = (await api.post(PATH, json=charge())).json()
    answer = await api.get(f"{PATH}/{made['effect_id']}/history", params=query)
    assert (answer.status_code, answer.json()["code"]) == (400, "request_malformed")
    assert answer.json().get("parameter") == parameter


async def test_the_history_of_another_tenant_is_missing(
    api: httpx.AsyncClient, deployment: Deployment, application: Any
) -> None:
    made = (await api.post(PATH, json=charge())).json()
    path = f"{PATH}/{made['effect_id']}/history"
    async with deployment.client(application, "globex") as other:
        for query in ({}, {"at_sequence": 1}):
            assert (await other.get(path, params=query)).status_code == 404
    async with deployment.client(application, None) as nobody:
        assert (await nobody.get(path)).status_code == 401
    assert (await api.get(f"{PATH}/nothing/history")).status_code == 404


async def test_reading_a_history_writes_nothing_and_needs_no_worker(
    api: httpx.AsyncClient, deployment: Deployment
) -> None:
    effect_id = await settled(api, deployment)
    before = deployment.execute(
        f"SELECT i.*, xmin FROM effect_broker.effect_intents i WHERE effect_id = '{effect_id}'"
    )
    events = deployment.count("effect_events")
    for query in ({}, {"at_sequence": 2, "compare_to": 3}):
        await history(api, effect_id, **query)
    after = deployment.execute(
        f"SELECT i.*, xmin FROM effect_broker.effect_intents i WHERE effect_id = '{effect_id}'"
    )
    assert after == before
    assert deployment.count("effect_events") == events
