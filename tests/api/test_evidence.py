"""The evidence inbox over HTTP: who is believed, what a delivery proves, and what it never does."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from api.deployment import Deployment, in_doubt
from api.webhooks import (
    SECRET_VARIABLE,
    SECTION,
    Provider,
    apply,
    event,
    hooked,
    make_due,
    match_now,
    only_row,
    shown,
)
from effect_broker.evidence_matching import Matching
from effect_broker.protocol.ports import StoreUnavailable
from effect_broker.store.inbox import PostgresInbox


def events_of(deployment: Deployment, effect_id: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Kind, actor and metadata of the events, but for the two that made the effect."""
    rows = deployment.execute(
        "SELECT kind, actor, metadata FROM effect_broker.effect_events"
        f" WHERE effect_id = '{effect_id}' AND sequence > 2 ORDER BY sequence"
    )
    return [(kind, actor, json.loads(metadata)) for kind, actor, metadata in rows]


# What a delivery proves -----------------------------------------------------------------------


async def test_a_delivery_ends_the_doubt_of_an_unsafe_effect_once(
    api: httpx.AsyncClient, provider: Provider, doubted: str
) -> None:
    told = event(provider.key_of(doubted))
    first = await provider.deliver(told)
    assert (first.status_code, first.json()) == (200, {"status": "settled", "duplicate": False})
    effect = await shown(api, doubted)
    assert (effect["state"], effect["reason"], effect["alert"]) == ("succeeded", "committed", None)
    receipt = (await api.get(f"/v1/effects/{doubted}/receipt")).json()
    assert receipt["receipt"]["source"] == "webhook"
    assert receipt["receipt"]["external_id"] == "ch_1"
    assert receipt["result"] == told["data"]["object"]
    assert receipt["fields"] == {"amount": 1200}

    row = only_row(provider.deployment)
    assert (row["status"], row["code"], row["effect_id"]) == ("settled", "told", doubted)
    assert (row["senders_id"], row["ciphertext"]) == (told["id"], None)
    ((kind, actor, metadata),) = events_of(provider.deployment, doubted)
    assert (kind, actor) == ("evidence_added", f"webhook:{row['delivery_id']}")
    assert (metadata["source"], metadata["verdict"]) == ("webhook", "committed")


async def test_the_same_delivery_again_changes_nothing(
    api: httpx.AsyncClient, provider: Provider, doubted: str
) -> None:
    told = event(provider.key_of(doubted))
    await provider.told(told)
    before = await shown(api, doubted)
    for _ in range(3):
        again = await provider.deliver(told)
        assert (again.status_code, again.json()) == (200, {"status": "settled", "duplicate": True})
    after = await shown(api, doubted)
    assert after["version"] == before["version"]
    assert provider.deployment.count("evidence_inbox") == 1
    assert provider.deployment.count("effect_evidence") == 1


async def test_without_an_id_of_the_sender_the_same_bytes_are_the_same_delivery(
    api: httpx.AsyncClient, provider: Provider, doubted: str
) -> None:
    told = event(provider.key_of(doubted))
    del told["id"]
    body = json.dumps(told).encode()
    assert (await provider.deliver(body)).json()["duplicate"] is False
    assert (await provider.deliver(body)).json()["duplicate"] is True
    assert only_row(provider.deployment)["senders_id"].startswith("sha256:")


@pytest.mark.parametrize("alike", [True, False], ids=["one_delivery", "many_deliveries"])
async def test_twenty_deliveries_at_once_settle_once(
    api: httpx.AsyncClient, provider: Provider, doubted: str, alike: bool
) -> None:
    key = provider.key_of(doubted)
    one = event(key)
    answers = await asyncio.gather(
        *(provider.deliver(one if alike else event(key)) for _ in range(20))
    )
    assert {answer.status_code for answer in answers} == {200}
    make_due(provider.deployment)  # whoever found the effect locked for too long is taken up
    await match_now(provider.deployment)
    statuses = provider.deployment.execute("SELECT status FROM effect_broker.evidence_inbox")
    assert sorted(status for (status,) in statuses) == sorted(
        ["settled"] if alike else ["settled", *["recorded"] * 19]
    )
    assert sum(not answer.json()["duplicate"] for answer in answers) == (1 if alike else 20)
    assert provider.deployment.count("effect_receipts") == 1
    effect = await shown(api, doubted)
    assert (effect["state"], effect["alert"]) == ("succeeded", None)


@pytest.mark.parametrize(
    "changes",
    [
        {"amount": 1201},
        {"amount": "1200"},
        {"amount": None},
        {"currency": "usd"},
        {"metadata": {"key": "@KEY", "order": "43"}},
        {"metadata": {"key": "@KEY"}},
    ],
)
async def test_an_object_whose_fields_disagree_settles_nothing_and_asks_a_person(
    api: httpx.AsyncClient, provider: Provider, doubted: str, changes: dict[str, Any]
) -> None:
    key = provider.key_of(doubted)
    told = json.loads(json.dumps(event(key, **changes)).replace("@KEY", key))
    assert await provider.told(told) == "recorded"
    effect = await shown(api, doubted)
    assert (effect["state"], effect["reason"]) == ("manual_review", "ambiguous_probe")
    assert only_row(provider.deployment)["code"] == "fields_disagree"
    waiting = (await api.get("/v1/unresolved")).json()["unresolved"]
    assert [item["effect_id"] for item in waiting] == [doubted]


async def test_a_notice_of_failure_clears_nothing(
    api: httpx.AsyncClient, provider: Provider, doubted: str
) -> None:
    told = event(provider.key_of(doubted), kind="charge.failed")
    assert await provider.told(told) == "recorded"
    effect = await shown(api, doubted)
    assert (effect["state"], effect["reason"]) == ("outcome_unknown", "outcome_unknown")
    ((kind, _, metadata),) = events_of(provider.deployment, doubted)
    assert (kind, metadata["verdict"], metadata["code"]) == (
        "evidence_added", "unknown", "failure_notice",
    )  # fmt: skip
    # And a commit that is told afterwards still counts.
    assert await provider.told(event(provider.key_of(doubted))) == "settled"


async def test_a_commit_after_a_failure_is_a_linked_event_an_alert_and_an_item_for_review(
    api: httpx.AsyncClient, operator: httpx.AsyncClient, provider: Provider, doubted: str
) -> None:
    statement = {
        "decision_id": "d1", "expected_version": 2, "conclusion": "failed", "reason": "given up",
        "evidence": [{"kind": "log", "observed_at": "2026-01-01T00:00:00Z", "reference": "x"}],
    }  # fmt: skip
    resolved = await operator.post(f"/v1/effects/{doubted}/resolve", json=statement)
    assert resolved.json()["state"] == "failed_final", resolved.text
    before = (await api.get(f"/v1/effects/{doubted}/receipt")).json()

    assert await provider.told(event(provider.key_of(doubted))) == "contradicts"
    effect = await shown(api, doubted)
    assert (effect["state"], effect["alert"]) == ("failed_final", "late_contradiction")
    assert (await api.get(f"/v1/effects/{doubted}/receipt")).json() == before
    kind, actor, metadata = events_of(provider.deployment, doubted)[-1]
    row = only_row(provider.deployment)
    assert (kind, actor) == ("late_fact", f"webhook:{row['delivery_id']}")
    assert metadata["contradicts"] is True
    waiting = (await api.get("/v1/unresolved")).json()["unresolved"]
    assert [(item["effect_id"], item["reason"]) for item in waiting] == [
        (doubted, "late_contradiction")
    ]


@pytest.mark.parametrize(
    ("kind", "changes"),
    [("charge.failed", {}), ("charge.succeeded", {"amount": 9})],
    ids=["failure", "other_amount"],
)
async def test_what_speaks_against_a_success_rewrites_nothing_and_is_an_alert(
    api: httpx.AsyncClient, provider: Provider, doubted: str, kind: str, changes: dict[str, Any]
) -> None:
    key = provider.key_of(doubted)
    assert await provider.told(event(key)) == "settled"
    before = (await api.get(f"/v1/effects/{doubted}/receipt")).json()
    assert await provider.told(event(key, kind=kind, **changes)) == "contradicts"
    effect = await shown(api, doubted)
    assert (effect["state"], effect["alert"]) == ("succeeded", "late_contradiction")
    assert (await api.get(f"/v1/effects/{doubted}/receipt")).json() == before


async def test_a_second_object_under_our_key_is_a_duplicate(
    api: httpx.AsyncClient, provider: Provider, doubted: str
) -> None:
    key = provider.key_of(doubted)
    assert await provider.told(event(key)) == "settled"
    assert await provider.told(event(key, id="ch_2")) == "contradicts"
    assert (await shown(api, doubted))["alert"] == "duplicate_detected"


async def test_while_nothing_may_have_been_sent_a_delivery_proves_nothing(
    api: httpx.AsyncClient, provider: Provider, doubted: str
) -> None:
    submitted = await api.post(
        "/v1/effects",
        json={"operation_key": "fresh", "tool": "demo.charge",
              "arguments": {"order": "42", "amount": 1200, "currency": "eur"}},
    )  # fmt: skip
    fresh = submitted.json()["effect_id"]
    provider.deployment.execute(f"""
        SET session_replication_role = replica;
        UPDATE effect_broker.effect_attempts
        SET outcome = 'not_sent', code = 'refused', bytes_may_have_left = false
        WHERE effect_id = '{doubted}'""")
    for effect_id in (fresh, doubted):
        assert await provider.told(event(provider.key_of(effect_id))) == "recorded"
        assert (await shown(api, effect_id))["final"] is False
    rows = provider.deployment.execute(
        "SELECT verdict, code, covers_through FROM effect_broker.effect_evidence"
    )
    assert sorted(rows) == [("unknown", "nothing_sent", 0), ("unknown", "nothing_sent", 1)]


async def test_while_an_attempt_is_open_its_own_answer_comes_first(
    api: httpx.AsyncClient, provider: Provider, doubted: str
) -> None:
    opened = f"""
        SET session_replication_role = replica;
        UPDATE effect_broker.effect_attempts SET outcome = NULL, code = NULL, recorded_at = NULL,
            bytes_may_have_left = NULL, deadline_at = now() + interval '@'
            WHERE effect_id = '{doubted}';
        UPDATE effect_broker.effect_intents SET state = 'dispatching', parked = false,
            next_action_at = now() + interval '@' WHERE effect_id = '{doubted}'"""
    provider.deployment.execute(opened.replace("@", "1 hour"))
    assert await provider.told(event(provider.key_of(doubted))) == "waiting"
    row = only_row(provider.deployment)
    assert (row["code"], row["effect_id"]) == ("attempt_open", doubted)
    sealed = bytes.fromhex(row["ciphertext"].removeprefix("\\x"))
    assert len(sealed) > 64
    assert b"amount" not in sealed, "the body is sealed while it waits"
    make_due(provider.deployment)
    assert await match_now(provider.deployment) == 1
    assert only_row(provider.deployment)["status"] == "waiting"
    assert (await shown(api, doubted))["state"] == "dispatching"

    # Its sender was lost; the delivery is what is left.
    provider.deployment.execute(opened.replace("@", "-10 min"))
    make_due(provider.deployment)
    assert await match_now(provider.deployment) == 1
    assert only_row(provider.deployment)["status"] == "settled"
    assert (await shown(api, doubted))["state"] == "succeeded"
    make_due(provider.deployment)
    assert await match_now(provider.deployment) == 0


# What is looked for ---------------------------------------------------------------------------


async def test_a_delivery_without_our_key_is_linked_by_the_object_and_proves_nothing(
    api: httpx.AsyncClient, provider: Provider, doubted: str
) -> None:
    keyless = event("x", kind="charge.failed", metadata={})
    assert await provider.told(keyless) == "unmatched"
    assert await provider.told(event(provider.key_of(doubted))) == "settled"
    assert await provider.told(event("x", metadata={})) == "recorded"
    make_due(provider.deployment)
    assert await match_now(provider.deployment) == 1
    (status,) = provider.deployment.execute(
        "SELECT status, effect_id::text FROM effect_broker.evidence_inbox"
        f" WHERE senders_id = '{keyless['id']}'"
    )
    assert status == ("contradicts", doubted)
    codes = provider.deployment.execute(
        "SELECT verdict, code FROM effect_broker.effect_evidence ORDER BY recorded_at"
    )
    assert codes == [("committed", "told"), ("unknown", "key_missing"),
                     ("unknown", "failure_notice")]  # fmt: skip


@pytest.mark.parametrize(
    ("key", "age", "status", "code", "waits"),
    [
        ("k" * 43, "0 s", "unmatched", "no_effect", True),
        ("k" * 43, "6 days", "unmatched", "no_effect", True),
        ("k" * 43, "8 days", "unmatched", "no_effect", False),
        ("of somebody else", "0 s", "ignored", "key_of_others", False),
        (None, "1 hour", "unmatched", "no_effect", True),
        (None, "3 hours", "unmatched", "no_effect", False),
    ],
)
async def test_an_effect_that_is_not_known_is_looked_for_again_for_a_bounded_time(
    provider: Provider, key: str | None, age: str, status: str, code: str, waits: bool
) -> None:
    told = event("") if key is None else event(key)
    assert await provider.told(told) == status
    make_due(provider.deployment, age)
    await match_now(provider.deployment)
    row = only_row(provider.deployment)
    assert (row["status"], row["code"]) == (status, code)
    assert (row["next_match_at"] is not None, row["ciphertext"] is not None) == (waits, waits)


async def test_what_was_stored_and_not_matched_is_taken_up_by_a_worker(
    api: httpx.AsyncClient, application: FastAPI, provider: Provider, doubted: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A process that dies right after the commit has answered, or not: the delivery stands."""

    async def away(*_: object) -> None:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(Matching, "match", away)
        assert await provider.told(event(provider.key_of(doubted))) == "received"
    assert (await shown(api, doubted))["state"] == "outcome_unknown"
    assert await match_now(provider.deployment) == 0, "it is not due yet"
    make_due(provider.deployment)
    assert await match_now(provider.deployment) == 1
    assert (await shown(api, doubted))["state"] == "succeeded"


async def test_a_delivery_that_was_interrupted_after_its_evidence_is_not_told_twice(
    api: httpx.AsyncClient, provider: Provider, doubted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise StoreUnavailable("away")

    key = provider.key_of(doubted)
    for told, status in (
        (event(key, kind="charge.failed"), "recorded"),
        (event(key), "settled"),
        (event(key, amount=7), "contradicts"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(PostgresInbox, "decide", away)
            assert await provider.told(told) == "received"
        before = await shown(api, doubted)
        make_due(provider.deployment)
        assert await match_now(provider.deployment) == 1
        rows = provider.deployment.execute(
            "SELECT status, effect_id::text, ciphertext FROM effect_broker.evidence_inbox"
            f" WHERE senders_id = '{told['id']}'"
        )
        assert rows == [(status, doubted, None)]
        assert (await shown(api, doubted))["version"] == before["version"]
    assert provider.deployment.count("effect_evidence") == 3


# Whose effect it is ---------------------------------------------------------------------------


async def test_another_tenants_effect_is_never_touched(
    application: FastAPI, provider: Provider, doubted: str
) -> None:
    told = event(provider.key_of(doubted))
    theirs = Provider(provider.http, provider.deployment, "globex")
    assert await theirs.told(told) == "unmatched"
    make_due(provider.deployment)
    await match_now(provider.deployment)
    assert provider.deployment.count("effect_evidence") == 0
    assert only_row(provider.deployment)["effect_id"] is None
    # The same id at another tenant's endpoint is another delivery.
    assert await provider.told(told) == "settled"


async def test_another_contracts_effect_is_never_touched(
    api: httpx.AsyncClient, provider: Provider, doubted: str
) -> None:
    await apply(provider.deployment, hooked("1", "other-charge", tool="other.tool"))
    other = Provider(provider.http, provider.deployment, contract="other-charge")
    assert await other.told(event(provider.key_of(doubted))) == "unmatched"
    assert only_row(provider.deployment)["code"] == "other_contract"
    assert (await shown(api, doubted))["version"] == 2


async def test_the_pinned_contract_says_what_counts_and_the_newest_who_is_believed(
    api: httpx.AsyncClient, provider: Provider, doubted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{SECRET_VARIABLE}_2", "whsec_2")
    section = {
        **SECTION,
        "secrets": [f"env:{SECRET_VARIABLE}_2"],
        "agree": {"/order": "data.object.metadata.order"},
    }
    await apply(provider.deployment, hooked("2", webhook=section))
    key = provider.key_of(doubted)
    assert (await provider.deliver(event(key))).status_code == 404, "the old secret is gone"
    following = Provider(provider.http, provider.deployment, secret="whsec_2")
    # Version 2 would not compare the amount; the effect is of version 1.
    assert await following.told(event(key, amount=1)) == "recorded"
    assert (await shown(api, doubted))["state"] == "manual_review"


async def test_a_key_at_another_place_than_the_pinned_contract_names_proves_nothing(
    api: httpx.AsyncClient, provider: Provider, doubted: str
) -> None:
    elsewhere = {"kind": "field", "path": "data.object.other_key"}
    await apply(provider.deployment, hooked("2", webhook={**SECTION, "key_match": elsewhere}))
    key = provider.key_of(doubted)
    assert await provider.told(event("k" * 43, other_key=key)) == "recorded"
    assert only_row(provider.deployment)["code"] == "key_disagrees"
    assert (await shown(api, doubted))["state"] == "outcome_unknown"


async def test_an_effect_whose_contract_knew_no_webhook_is_not_settled_by_one(
    api: httpx.AsyncClient, provider: Provider
) -> None:
    await apply(provider.deployment, hooked("0", webhook=None))
    effect_id = await in_doubt(api, provider.deployment)
    await apply(provider.deployment, hooked("2"))
    assert await provider.told(event(provider.key_of(effect_id))) == "ignored"
    assert only_row(provider.deployment)["code"] == "not_in_its_contract"
    assert (await shown(api, effect_id))["version"] == 2


async def test_a_disabled_tenant_still_learns_what_has_become_of_its_effects(
    provider: Provider, doubted: str
) -> None:
    provider.deployment.execute("UPDATE effect_broker.tenants SET disabled_at = now()")
    assert await provider.told(event(provider.key_of(doubted))) == "settled"
