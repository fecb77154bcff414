"""The listing over HTTP: what is in it, in which order, by which filter, and whose."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import httpx
import pytest

from api.deployment import Deployment
from effect_broker.api.documentation import UNRESOLVED_EXAMPLE
from effect_broker.store.pool import make_pool
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.tenants import Tenants
from effect_broker.unresolved import REASONS
from effect_contracts.facts import Outcome, Verdict
from unresolved.scenes import KEY_RETENTION_SECONDS, REASONS_OF, Scenes, quick

PATH = "/v1/unresolved"


async def _rows(api: httpx.AsyncClient, **query: Any) -> list[dict[str, Any]]:
    answer = await api.get(PATH, params=query)
    assert answer.status_code == 200, answer.text
    rows: list[dict[str, Any]] = answer.json()["unresolved"]
    return rows


async def _keys(api: httpx.AsyncClient, **query: Any) -> set[str]:
    return {row["operation_key"] for row in await _rows(api, **query)}


async def test_all_that_is_not_simply_on_its_way_is_listed_with_its_reasons(
    api: httpx.AsyncClient, scenes: Scenes
) -> None:
    await scenes.everything()
    rows = await _rows(api)
    assert {row["operation_key"]: tuple(row["reasons"]) for row in rows} == REASONS_OF
    assert all(row["reason"] == row["reasons"][0] for row in rows)
    assert {row["tenant"] for row in rows} == {"acme"}


async def test_what_expires_first_comes_first_and_then_the_oldest(
    api: httpx.AsyncClient, scenes: Scenes
) -> None:
    await scenes.sent("old-unsafe", quick("unsafe"), Outcome.AMBIGUOUS)
    for key, hours in (("lives-long", 20), ("lives-short", 10)):
        document = quick("idempotent", key, key_retention_seconds=hours * 3600)
        await scenes.lost(key, document)
    await scenes.sent("young-unsafe", quick("unsafe"), Outcome.AMBIGUOUS)
    rows = await _rows(api)
    keys = [row["operation_key"] for row in rows]
    assert keys == ["lives-short", "lives-long", "old-unsafe", "young-unsafe"]
    assert 599 <= rows[0]["key_expires_in_minutes"] <= 600
    assert rows[2]["key_expires_at"] is rows[2]["key_expires_in_minutes"] is None


async def test_the_key_of_an_idempotent_effect_lives_from_its_first_send(
    api: httpx.AsyncClient, scenes: Scenes
) -> None:
    effect_id = await scenes.lost("order-1", quick("idempotent"))
    (row,) = await _rows(api)
    attempts = (await api.get(f"/v1/effects/{effect_id}")).json()["attempts"]
    began, ends = (datetime.fromisoformat(at) for at in (attempts[0]["started_at"],
                   row["key_expires_at"]))  # fmt: skip
    assert (ends - began).total_seconds() == KEY_RETENTION_SECONDS
    left = (ends - datetime.fromisoformat(row["now"])).total_seconds()
    assert row["key_expires_in_minutes"] == round(left / 60, 1)


async def test_a_row_says_what_is_known_what_comes_next_and_what_a_person_may_say(
    api: httpx.AsyncClient, scenes: Scenes
) -> None:
    await scenes.everything()
    rows = {row["operation_key"]: row for row in await _rows(api)}
    lost, unsafe = rows["idempotent-lost"], rows["unsafe-ambiguous"]
    assert set(lost) == set(UNRESOLVED_EXAMPLE)
    assert lost["contract"] == {"name": "quick-idempotent", "version": "1"}
    assert (lost["last_evidence"]["source"], lost["last_evidence"]["says"]) == (
        "attempt", "presumed_ambiguous",
    )  # fmt: skip
    assert lost["next_action"]["step"] == "send"
    assert lost["next_action"]["at"] > lost["created_at"]
    assert not lost["waits_for_person"]
    assert unsafe["next_action"] is None
    assert unsafe["waits_for_person"]
    assert unsafe["age_seconds"] > 0
    assert unsafe["last_evidence"]["says"] == "ambiguous"
    assert rows["stale"]["next_action"]["step"] == "close_attempt"
    assert rows["stale"]["last_evidence"] is None
    assert rows["looked-up"]["next_action"]["step"] == "look_up"
    assert rows["frozen-until"]["next_action"]["step"] == "settle"
    assert rows["contradicted"]["last_evidence"]["source"] == "probe"
    assert rows["contradicted"]["alert"] == "late_contradiction"


async def test_a_row_tells_which_conclusions_stand_open(
    api: httpx.AsyncClient, scenes: Scenes
) -> None:
    await scenes.everything()
    told = {
        row["operation_key"]: {p["conclusion"]: p for p in row["permitted_resolutions"]}
        for row in await _rows(api)
    }
    assert set(told["unsafe-ambiguous"]) == {"committed", "not_committed", "failed"}
    assert told["unsafe-ambiguous"]["not_committed"]["possible_now"]
    # A settlement bound of 60 s runs; a look of now would be too early.
    absence = told["looked-up"]["not_committed"]
    assert not absence["possible_now"]
    assert absence["observed_after"] is not None
    # A conflict stays one, whatever a person says of absence.
    assert set(told["key-conflict"]) == {"committed", "failed"}
    # Nobody is asked of what is under way or over.
    assert told["stale"] == told["contradicted"] == {}


async def test_what_is_permitted_is_what_a_resolution_gets(
    api: httpx.AsyncClient, deployment: Deployment, scenes: Scenes
) -> None:
    """The listing's word against the rules themselves, for each effect and each conclusion."""
    await scenes.everything()
    headers = await _operator(deployment)
    seen = []
    for row in await _rows(api):
        permitted = {p["conclusion"]: p["possible_now"] for p in row["permitted_resolutions"]}
        for conclusion in ("not_committed", "committed", "failed"):
            if permitted.get(conclusion, False) and conclusion != "not_committed":
                continue  # it would be the end of the effect
            statement = {
                "decision_id": f"{row['effect_id']}-{conclusion}",
                "expected_version": row["version"],
                "conclusion": conclusion,
                "reason": "a look",
                "evidence": [
                    {"kind": "look", "observed_at": row["now"], "reference": "x"},
                ],
            }  # fmt: skip
            path = row["links"]["resolve"]
            answer = await api.post(path, json=statement, headers=headers)
            expected = permitted.get(conclusion, False)
            assert (answer.status_code == 200) is expected, (row, conclusion, answer.text)
            seen.append(expected)
    assert {True, False} == set(seen)


async def _operator(deployment: Deployment) -> dict[str, str]:
    url = deployment.database.url_for(DatabaseRole.ADMIN)
    async with make_pool(url, None, application_name="test-admin", size_max=1) as pool:
        made = await Tenants(pool).create_key("acme", ["effects", "operate"])
    return {"Authorization": f"Bearer {made.api_key}"}


# Filters ----------------------------------------------------------------------------------------


async def test_every_reason_of_a_row_finds_it_and_no_other_does(
    api: httpx.AsyncClient, scenes: Scenes
) -> None:
    await scenes.everything()
    for reason in REASONS:
        expected = {key for key, reasons in REASONS_OF.items() if reason in reasons}
        assert await _keys(api, reason=reason) == expected, reason


async def test_filters_select(api: httpx.AsyncClient, scenes: Scenes) -> None:
    await scenes.everything()
    every = set(REASONS_OF)
    assert await _keys(api, status="manual_review") == {"key-conflict"}
    assert await _keys(api, status=["dispatching", "prepared"]) == {
        "stale", "frozen", "frozen-until",
    }  # fmt: skip
    assert await _keys(api, tool="quick-unsafe.tool") == {
        "unsafe-ambiguous", "unsafe-lost", "stale",
    }  # fmt: skip
    assert await _keys(api, operation_prefix="unsafe-") == {"unsafe-ambiguous", "unsafe-lost"}
    assert await _keys(api, older_than_seconds=3600) == set()
    assert await _keys(api, older_than_seconds=0) == every
    assert await _keys(api, operation_prefix="unsafe-", reason="crash_window") == {"unsafe-lost"}


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("reason", "outcome_unknwon"),
        ("reason", ""),
        ("status", "lost"),
        ("older_than_seconds", "-1"),
        ("older_than_seconds", "nan"),
        ("operation_prefix", "a b"),
        ("tool", "a\x00b"),
        ("limit", "0"),
        ("limit", "201"),
        ("cursor", "x" * 256),
        ("cursor", "nonsense"),
        ("cursor", "dW5yZXNvbHZlZC4xLjI"),  # of ours, and cut
        ("cursor", "b3RoZXIubmV2ZXIuMS4wMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMA"),  # other
    ],
)
async def test_what_cannot_be_asked_is_refused_by_name(
    api: httpx.AsyncClient, parameter: str, value: str
) -> None:
    answer = await api.get(PATH, params={parameter: value})
    body = answer.json()
    assert (answer.status_code, body["code"]) == (400, "request_malformed")
    assert body["parameter"] == parameter


async def test_a_filter_that_does_not_exist_is_refused(api: httpx.AsyncClient) -> None:
    answer = await api.get(PATH, params={"reasons": "frozen"})
    assert (answer.status_code, answer.json()["code"]) == (400, "request_malformed")


# Pages ------------------------------------------------------------------------------------------


async def _pages(api: httpx.AsyncClient, limit: int) -> list[list[str]]:
    pages: list[list[str]] = []
    query: dict[str, Any] = {"limit": limit}
    while True:
        body = (await api.get(PATH, params=query)).json()
        pages.append([row["operation_key"] for row in body["unresolved"]])
        if body["cursor"] is None:
            return pages
        query["cursor"] = body["cursor"]


@pytest.mark.parametrize("limit", [1, 2, 4])
async def test_pages_hold_every_effect_once_in_the_same_order(
    api: httpx.AsyncClient, scenes: Scenes, limit: int
) -> None:
    await scenes.everything()
    whole = [row["operation_key"] for row in await _rows(api)]
    pages = await _pages(api, limit)
    assert [key for page in pages for key in page] == whole
    assert max(map(len, pages)) == limit


async def test_nothing_that_stays_is_skipped_while_rows_change(
    api: httpx.AsyncClient, scenes: Scenes
) -> None:
    unsafe = quick("unsafe")
    for number in range(6):
        await scenes.sent(f"stays-{number}", unsafe, Outcome.AMBIGUOUS)
    first = (await api.get(PATH, params={"limit": 2})).json()
    # The last row shown is settled, one before it and one after it turn up, one not yet shown goes.
    ids = {key: effect_id for effect_id, key in scenes.keys.items()}
    await scenes.see(ids["stays-1"], Verdict.COMMITTED)
    await scenes.see(ids["stays-4"], Verdict.COMMITTED)
    await scenes.lost("turns-up-before", quick("idempotent"))
    await scenes.sent("turns-up-after", unsafe, Outcome.AMBIGUOUS)
    rest = (await api.get(PATH, params={"limit": 50, "cursor": first["cursor"]})).json()
    seen = [row["operation_key"] for row in (*first["unresolved"], *rest["unresolved"])]
    assert seen == ["stays-0", "stays-1", "stays-2", "stays-3", "stays-5", "turns-up-after"]
    assert (await _rows(api))[0]["operation_key"] == "turns-up-before"


async def test_a_cursor_of_another_listing_is_refused(
    api: httpx.AsyncClient, scenes: Scenes
) -> None:
    for number in range(2):
        await scenes.sent(f"order-{number}", quick("unsafe"), Outcome.AMBIGUOUS)
    for path, other in ((PATH, "/v1/effects"), ("/v1/effects", PATH)):
        cursor = (await api.get(path, params={"limit": 1})).json()["cursor"]
        assert cursor is not None
        answer = await api.get(other, params={"cursor": cursor})
        body = answer.json()
        assert (answer.status_code, body["code"], body["parameter"]) == (
            400, "request_malformed", "cursor",
        )  # fmt: skip


async def test_another_tenant_sees_nothing_of_it(
    api: httpx.AsyncClient, deployment: Deployment, scenes: Scenes
) -> None:
    for number in range(2):
        await scenes.sent(f"order-{number}", quick("unsafe"), Outcome.AMBIGUOUS)
    cursor = (await api.get(PATH, params={"limit": 1})).json()["cursor"]
    for query in ({}, {"cursor": cursor}, {"reason": "outcome_unknown"}):
        answer = await api.get(PATH, params=query, headers=deployment.headers("globex"))
        assert answer.json() == {"unresolved": [], "cursor": None}
    assert (await api.get(PATH, headers={"Authorization": "Bearer eb_x"})).status_code == 401


async def test_an_effect_is_listed_until_it_is_resolved_and_no_longer(
    api: httpx.AsyncClient, scenes: Scenes
) -> None:
    effect_id = await scenes.lost("order-1", quick("unsafe"))
    assert await _keys(api) == {"order-1"}
    await scenes.see(effect_id, Verdict.COMMITTED)
    assert await _keys(api) == set()


async def test_an_effect_is_no_crash_window_once_its_sender_has_spoken(
    api: httpx.AsyncClient, scenes: Scenes
) -> None:
    effect_id = await scenes.lost("order-1", quick("unsafe"))
    attempt_id = (await scenes.worker.load(scenes.tenant_id, effect_id)).attempts[0].attempt_id
    await scenes.answer(effect_id, attempt_id, Outcome.AMBIGUOUS)
    (row,) = await _rows(api)
    assert row["reasons"] == ["outcome_unknown"]


async def test_a_run_that_nobody_takes_up_is_listed(
    api: httpx.AsyncClient, deployment: Deployment, scenes: Scenes
) -> None:
    await scenes.submit("order-1", quick("idempotent"))
    assert await _keys(api) == set()
    deployment.execute(
        "UPDATE effect_broker.effect_intents SET next_action_at = now() - interval '61 s'"
    )
    (row,) = await _rows(api, reason="stale_in_flight")
    assert row["reasons"] == ["stale_in_flight", "submitted"]
    assert row["next_action"]["step"] == "send"


async def test_the_openapi_document_has_the_listing(api: httpx.AsyncClient) -> None:
    operation = (await api.get("/openapi.json")).json()["paths"][PATH]["get"]
    example = operation["responses"]["200"]["content"]["application/json"]["example"]
    assert example == {"unresolved": [UNRESOLVED_EXAMPLE], "cursor": None}
    names = {parameter["name"] for parameter in operation["parameters"]}
    assert names == {
        "status", "reason", "tool", "operation_prefix", "older_than_seconds", "cursor", "limit",
    }  # fmt: skip
