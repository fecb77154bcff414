"""FC-10: word about an effect arrives late, and says something else.

Operators speak over HTTP here, and so do providers: their deliveries are signed, and come to an API
process that knows the secret. What no provider would say is added by the plan in which every fact
ends.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from secrets import token_urlsafe
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from effect_broker.faultpoints import FaultAction, FaultPoint
from effect_broker.proof.broker import wait_until
from effect_broker.proof.stack import ManagedProcess
from effect_broker.store.export import TraceSelection, export_trace
from effect_broker.store.pool import make_pool
from effect_broker.store.roles import DatabaseRole
from effect_contracts.facts import EvidenceSource, Verdict
from effect_contracts.trace.check import TraceReport, verify_lines
from field_cases.cases import SETTLE_SECONDS, Case, Offer
from field_cases.desk import Desk
from field_cases.provider import Provider, listens
from hosting.scenes import go_on

REASONS = {
    "rejected": "rejected",
    "not_committed": "proved_not_committed",
    "failed": "failed_by_operator",
}


# Of an attempt whose sender is stopped with the answer in hand; its successor waits for it.
ANSWER_SECONDS = 5.0


def trace_of(case: Case, effect_id: str) -> TraceReport:
    """The effect's whole account, replayed against the rules."""
    lines: list[bytes] = []

    async def work() -> None:
        url = case.broker.url(DatabaseRole.WORKER)
        async with make_pool(url, None, application_name="field-case", size_max=1) as pool:
            await export_trace(pool, lines.append, TraceSelection(effect_id=UUID(effect_id)))

    asyncio.run(work())
    return verify_lines(b"".join(lines).splitlines(keepends=True))


@pytest.fixture(scope="module")
def listening(evidence_api: ManagedProcess) -> Iterator[httpx.Client]:
    """A client without an API key, of an API process that knows the provider's secret."""
    with httpx.Client(base_url=evidence_api.wait_ready(), timeout=60.0) as client:
        yield client


def stored_of(case: Case, offer: Offer) -> dict[str, int]:
    """How many rows there are of the offer's effects, by kind of row."""
    (counts,) = case.scene.rows(
        "SELECT count(*) AS effects,"
        " sum((SELECT count(*) FROM effect_broker.effect_evidence AS e"
        "  WHERE e.effect_id = i.effect_id)) AS evidence,"
        " sum((SELECT count(*) FROM effect_broker.effect_events AS e"
        "  WHERE e.effect_id = i.effect_id)) AS events"
        " FROM effect_broker.effect_intents AS i WHERE tool = %s",
        offer.tool,
    )
    return counts


def latest_event(case: Case, effect_id: str) -> tuple[str, str, dict[str, Any]]:
    """Kind, event and metadata of the last event."""
    event = case.scene.events(effect_id)[-1]
    return event["kind"], event["event"], json.loads(event["metadata"])


def test_fc_10_a_late_failure_notice_does_not_overturn_a_success(
    case: Case, listening: httpx.Client
) -> None:
    """It may be the first attempt's, whose answer was lost; a notice names the key, not the try."""
    offer = case.offer("idempotent", amend=listens)
    offer.script("commit;FIN")
    effect_id = offer.submit()
    offer.judge(effect_id, state="succeeded", requests=2, effects=1)
    version = case.scene.intent(effect_id)["version"]
    assert Provider(case, offer, listening).tells(effect_id, "failed") == "contradicts"
    effect = offer.judge(effect_id, state="succeeded", requests=2, effects=1)
    assert effect["alert"] == "late_contradiction"
    kind, event, metadata = latest_event(case, effect_id)
    assert (kind, event, metadata["contradicts"]) == ("late_fact", "late_fact", True)
    assert case.scene.intent(effect_id)["version"] == version + 1
    assert trace_of(case, effect_id).clean


def test_fc_10_an_older_attempt_that_was_refused_says_nothing_against_a_later_success(
    case: Case,
) -> None:
    """What names its attempt contradicts no receipt that rests on another one."""
    case.scene.ensure_workers(3)
    offer = case.offer("idempotent", attempt_deadline_seconds=ANSWER_SECONDS)
    offer.script("status(400)", "ok")
    case.broker.arm(FaultPoint.AFTER_TARGET_ANSWER, FaultAction.STOP)
    effect_id = offer.submit()
    pid = case.scene.stopped_at(FaultPoint.AFTER_TARGET_ANSWER)
    offer.judge(effect_id, state="succeeded", requests=2, effects=1)
    go_on(pid)

    def told() -> bool | None:
        return offer.attempts(effect_id)[0]["outcome"] == "rejected" or None

    wait_until(told, "the first attempt's sender has told", SETTLE_SECONDS)
    effect = offer.judge(effect_id, state="succeeded", requests=2, effects=1)
    assert effect["alert"] is None
    kind, event, metadata = latest_event(case, effect_id)
    assert (kind, event) == ("late_fact", "late_fact")
    assert (metadata["late"], metadata["ordinal"], metadata["contradicts"]) == (True, 1, False)


def test_fc_10_evidence_of_the_commit_ends_the_doubt_once(case: Case) -> None:
    offer = case.offer("unsafe")
    offer.script("commit;FIN")
    effect_id = offer.submit()
    offer.judge(effect_id, state="outcome_unknown", requests=1, effects=1)
    (made,) = offer.effect_ids(effect_id)
    for _ in range(3):  # deliveries repeat themselves
        case.add_evidence(
            effect_id, Verdict.COMMITTED, source=EvidenceSource.WEBHOOK, external_ids=[made]
        )
        offer.judge(effect_id, state="succeeded", requests=1, effects=1)
    assert offer.receipt(effect_id)["source"] == "webhook"
    assert offer.receipt(effect_id)["external_id"] == made
    _, _, metadata = latest_event(case, effect_id)
    assert metadata["contradicts"] is False


@pytest.mark.parametrize("proof", ["rejected", "not_committed", "failed"])
def test_fc_10_a_late_commit_rewrites_no_failure_and_is_an_alert(
    case: Case, desk: Desk, proof: str
) -> None:
    offer = case.offer("unsafe")
    offer.script("commit;status(400)" if proof == "rejected" else "commit;FIN")
    effect_id = offer.submit()
    if proof != "rejected":  # the target's own word; the others are the operator's
        offer.judge(effect_id, state="outcome_unknown", requests=1, effects=1)
        resolved = desk.resolve(effect_id, proof)
        assert resolved.status_code == 200, resolved.text
    failed = offer.judge(effect_id, state="failed_final", requests=1, effects=1)
    assert failed["reason"] == REASONS[proof]
    (made,) = offer.effect_ids(effect_id)
    case.add_evidence(
        effect_id, Verdict.COMMITTED, source=EvidenceSource.WEBHOOK, external_ids=[made]
    )
    effect = offer.judge(effect_id, state="failed_final", requests=1, effects=1)
    assert effect["alert"] == "late_contradiction"
    _, event, metadata = latest_event(case, effect_id)
    assert event == "late_fact"
    assert metadata["contradicts"] is True


def test_fc_10_a_signed_delivery_of_an_unknown_key_is_of_no_effect(
    case: Case, listening: httpx.Client
) -> None:
    """It is kept in the inbox, as the sender's word, and becomes no effect's fact."""
    offer = case.offer("unsafe", amend=listens)
    offer.script("commit;FIN")
    effect_id = offer.submit()
    offer.judge(effect_id, state="outcome_unknown", requests=1, effects=1)
    before = stored_of(case, offer)
    told = str(uuid4())
    stranger = token_urlsafe(32)  # of the form that ours have
    provider = Provider(case, offer, listening)
    assert provider.tells(effect_id, delivery=told, key=stranger) == "unmatched"
    (kept,) = case.scene.rows(
        "SELECT effect_id, status FROM effect_broker.evidence_inbox WHERE senders_id = %s", told
    )
    assert (kept["effect_id"], kept["status"]) == (None, "unmatched")
    offer.judge(effect_id, state="outcome_unknown", requests=1, effects=1)
    assert stored_of(case, offer) == before


def test_fc_10_a_signed_delivery_ends_the_doubt_and_later_word_rewrites_nothing(
    case: Case, listening: httpx.Client
) -> None:
    offer = case.offer("unsafe", amend=listens)
    provider = Provider(case, offer, listening)
    offer.script("commit;FIN")
    effect_id = offer.submit()
    offer.judge(effect_id, state="outcome_unknown", requests=1, effects=1)
    assert provider.delivers(b'{"event":"charged"}', "another secret") == "404"
    assert provider.tells(effect_id, "failed") == "recorded"
    offer.judge(effect_id, state="outcome_unknown", requests=1, effects=1)
    assert provider.tells(effect_id, delivery="evt_1") == "settled"
    assert provider.tells(effect_id, delivery="evt_1") == "settled"  # a delivery repeats itself
    offer.judge(effect_id, state="succeeded", requests=1, effects=1)
    assert offer.receipt(effect_id)["source"] == "webhook"
    assert [row["verdict"] for row in offer.evidence(effect_id)] == ["unknown", "committed"]

    assert provider.tells(effect_id, "failed") == "contradicts"
    effect = offer.judge(effect_id, state="succeeded", requests=1, effects=1)
    assert effect["alert"] == "late_contradiction"
    waiting = case.broker.http.get("/v1/unresolved", params={"reason": "late_contradiction"})
    assert effect_id in {item["effect_id"] for item in waiting.json()["unresolved"]}
    assert trace_of(case, effect_id).clean


def test_fc_10_a_delivery_of_another_payload_settles_nothing(
    case: Case, listening: httpx.Client
) -> None:
    offer = case.offer("unsafe", amend=listens)
    offer.script("commit;FIN")
    effect_id = offer.submit()
    offer.judge(effect_id, state="outcome_unknown", requests=1, effects=1)
    assert Provider(case, offer, listening).tells(effect_id, amount=1) == "recorded"
    offer.judge(effect_id, state="manual_review", requests=1, effects=1, reason="ambiguous_probe")


def test_fc_10_a_delivery_that_overtakes_the_answer_waits_for_it(
    case: Case, listening: httpx.Client
) -> None:
    """Then it settles what the answer leaves in doubt; a worker takes it up."""
    offer = case.offer("unsafe", amend=listens, attempt_deadline_seconds=8.0)
    provider = Provider(case, offer, listening)
    offer.script("commit;gate(never)")
    effect_id = offer.submit()
    wait_until(lambda: offer.effect_ids(effect_id) or None, "the target has committed")
    assert provider.tells(effect_id) == "waiting"
    assert not case.check_receipt(effect_id)

    def settled() -> bool | None:
        return case.scene.intent(effect_id)["state"] == "succeeded" or None

    wait_until(settled, "the delivery is matched")
    offer.judge(effect_id, state="succeeded", requests=1, effects=1)
    assert offer.codes(effect_id) != []
    assert offer.receipt(effect_id)["source"] == "webhook"
