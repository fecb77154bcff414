"""A receipt says what the facts do, word for word, at the moment of the settlement."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from effect_contracts.facts import EffectState, EvidenceSource, Outcome, Verdict
from effect_contracts.receipts import receipt_content, receipt_digest, receipt_time
from effect_contracts.trace.findings import Rule
from effect_contracts.trace.log import AttemptRecord, EvidenceRecord, ReceiptRecord
from effect_contracts.trace.receipt import check_old_receipt, check_receipt, standing_findings
from effect_contracts.trace.timeline import Timeline
from trace_check.asked_alone import TICK, after, attempt, evidence, known, refused

SETTLED = 100.0
FAR = "f" * 64
COMMITTED = attempt(1, Outcome.COMMITTED, recorded=1, external_id="a", result_digest=FAR)
SUCCEEDED, FAILED = EffectState.SUCCEEDED, EffectState.FAILED_FINAL
Row = AttemptRecord | EvidenceRecord


def told(timeline: Timeline, **changes: Any) -> dict[str, Any]:
    """What the receipt of a success by its first answer says; `changes` of it."""
    intent = timeline.line.intent
    usual: dict[str, Any] = {
        "receipt_id": str(UUID(int=7)), "effect_id": str(intent.effect_id),
        "tenant_id": str(intent.tenant_id), "operation_key": intent.operation_key,
        "tool": intent.tool, "request_hash": intent.request_hash,
        "contract": {"name": intent.contract_name, "version": intent.contract_version,
                     "digest": intent.contract_digest},
        "safety": intent.safety.value, "downstream_key_digest": intent.downstream_key_digest,
        "state": "succeeded", "reason": "committed", "source": "response", "external_id": "a",
        "result_digest": FAR, "attempts": len(timeline.attempts),
        "settled_at": receipt_time(after(SETTLED)),
    }  # fmt: skip
    return usual | changes


def bearing(
    *rows: Row, content: bytes | None = None, ref: str | None = None, **changes: Any
) -> Timeline:
    """A timeline whose effect has a receipt that says this."""
    timeline = known(*rows)
    written = content or receipt_content(told(timeline, **changes))
    digest = receipt_digest(written).hex()
    receipt = ReceiptRecord(
        receipt_id=UUID(int=7), content=written.decode(), digest=digest,
        result_ref=ref, recorded_at=after(SETTLED),
    )  # fmt: skip
    state = changes.get("state", "succeeded")
    intent = timeline.line.intent.model_copy(
        update={"state": EffectState(state) if state in set(EffectState) else SUCCEEDED,
                "receipt_digest": digest}
    )  # fmt: skip
    timeline.line = timeline.line.model_copy(update={"receipt": receipt, "intent": intent})
    return timeline


def judge(
    timeline: Timeline, state: EffectState = SUCCEEDED, reason: str = "committed",
    at: float = SETTLED,
) -> None:  # fmt: skip
    check_receipt(timeline, state, reason, after(at))


def wrong(timeline: Timeline, state: EffectState = SUCCEEDED, at: float = SETTLED) -> str:
    return refused(Rule.RECEIPT, judge, timeline, state, "committed", at)


REF = str(COMMITTED.attempt_id)


# As it is written ---------------------------------------------------------------------------------


def test_a_settlement_has_its_receipt_of_the_same_moment() -> None:
    judge(bearing(COMMITTED, ref=REF))
    assert wrong(known(COMMITTED)) == "the effect is settled here and has no receipt"
    for other in (SETTLED - TICK, SETTLED + TICK):
        what = wrong(bearing(COMMITTED, ref=REF), at=other)
        assert what == "the receipt was written at another moment"


@pytest.mark.parametrize("member", [*told(known()), "format"])
def test_a_receipt_that_says_something_else_is_told_by_the_member(member: str) -> None:
    for value in ("", "zz", None, 99):
        changes: dict[str, Any] = {member: value, "note": 1}
        what = wrong(bearing(COMMITTED, ref=REF, **changes))
        assert what.startswith("the receipt says something else in: ")
        assert member in what
        assert "zz" not in what


def test_members_that_differ_are_all_named_and_foreign_ones_are_not_repeated() -> None:
    what = wrong(bearing(COMMITTED, ref=REF, tool="x", reason="y"))
    assert what == "the receipt says something else in: reason, tool"
    what = wrong(bearing(COMMITTED, ref=REF, hunter2=1))
    assert what == "the receipt says something else in: members that it does not have"
    spaced = json.dumps({"format": "effect-broker/receipt/1", **told(known(COMMITTED))}).encode()
    what = wrong(bearing(COMMITTED, ref=REF, content=spaced))
    assert what == "the receipt says something else in: its spelling"


@pytest.mark.parametrize("content", [b"[]", b"null", b"{", b"1", b"[" * 100_000])
def test_a_receipt_that_is_no_object_is_none(content: bytes) -> None:
    assert wrong(bearing(COMMITTED, ref=REF, content=content)) == "the receipt is no JSON object"
    old = bearing(COMMITTED, ref=REF, content=content)
    assert refused(Rule.RECEIPT, check_old_receipt, old) == "the receipt is no JSON object"


def test_a_row_that_no_receipt_can_repeat_is_a_finding() -> None:
    odd = COMMITTED.model_copy(update={"external_id": "\ud800"})
    assert wrong(bearing(odd, ref=REF)) == "no receipt can say what the rows hold"


@pytest.mark.parametrize("ref", [None, str(UUID(int=1)), str(UUID(int=2**128 - 1))])
def test_a_receipt_refers_to_the_result_of_its_fact(ref: str | None) -> None:
    assert wrong(bearing(COMMITTED, ref=ref)) == "the receipt refers to another fact's result"


# What a success rests on --------------------------------------------------------------------------

NOTHING: dict[str, Any] = {"external_id": None, "result_digest": None}
Case = tuple[tuple[Row, ...], dict[str, Any], str | None]


def seen(*ids: str, source: EvidenceSource = EvidenceSource.PROBE, **members: Any) -> Any:
    found = evidence(Verdict.COMMITTED, source, ids=ids)
    return found.model_copy(update=members)


def cases() -> dict[str, Case]:
    lost = attempt(1, Outcome.AMBIGUOUS, recorded=1)
    bare = attempt(1, Outcome.COMMITTED, recorded=1)
    second = attempt(2, Outcome.COMMITTED, recorded=2, external_id="a")
    probe, other, with_result = seen("p"), seen("q"), seen("p", result_digest=FAR)
    person = seen("q", source=EvidenceSource.OPERATOR)
    person_before = seen("p", source=EvidenceSource.OPERATOR)
    absent = evidence(Verdict.NOT_COMMITTED, ids=("z",))
    by_probe = {"source": "probe", "external_id": "p", "result_digest": None}
    by_person = {"source": "operator", "external_id": "q", "result_digest": None}
    return {
        "an answer": ((COMMITTED,), {}, REF),
        "an answer without a result": ((bare,), NOTHING, None),
        "the first of two answers": ((bare, second), NOTHING, None),
        "an answer before evidence": ((COMMITTED, seen("a")), {}, REF),
        "an attempt that is no success is passed over": (
            (attempt(1, Outcome.NOT_SENT, recorded=1), second),
            {"result_digest": None}, None,
        ),
        "a look-up": ((lost, probe), by_probe, None),
        "a look-up with a result": (
            (lost, with_result), by_probe | {"result_digest": FAR}, str(with_result.evidence_id),
        ),
        "a look-up without an id": ((lost, seen()), by_probe | {"external_id": None}, None),
        "the first of two look-ups": ((lost, probe, seen("p", result_digest=FAR)), by_probe, None),
        "evidence of something else is passed over": ((lost, absent, probe), by_probe, None),
        "of several objects a person's": ((lost, probe, other, person), by_person, None),
        "a person's against an answer": ((COMMITTED, person), by_person, None),
        "the latest of two persons": ((lost, person_before, person), by_person, None),
        "of several objects no look-up": (
            (lost, probe, other), {"source": "decision", **NOTHING}, None,
        ),
        "two objects in one look-up": ((lost, seen("p", "q")), {"source": "decision", **NOTHING},
                                       None),
        "the first id of a person's two": (
            (lost, seen("q", "p", source=EvidenceSource.OPERATOR)), by_person, None,
        ),
        "nothing at all": ((lost,), {"source": "decision", **NOTHING}, None),
    }  # fmt: skip


CASES = cases()


@pytest.mark.parametrize("name", CASES)
def test_a_success_names_the_fact_that_it_rests_on(name: str) -> None:
    rows, changes, ref = CASES[name]
    judge(bearing(*rows, ref=ref, **changes))


@pytest.mark.parametrize("state", [FAILED, EffectState.CANCELLED])
def test_what_is_no_success_rests_on_a_decision(state: EffectState) -> None:
    changes: dict[str, Any] = {"state": state.value, "source": "decision", **NOTHING}
    judge(bearing(COMMITTED, **changes), state)


# As a row -----------------------------------------------------------------------------------------


def standing(
    timeline: Timeline, change: Callable[[Timeline], None] | None = None, *, in_sight: bool = True
) -> list[str]:
    if change is not None:
        change(timeline)
    found = list(standing_findings(timeline, settled_in_sight=in_sight))
    assert {one.rule for one in found} <= {Rule.RECEIPT}
    return [one.what for one in found]


def without_receipt(timeline: Timeline) -> None:
    timeline.line = timeline.line.model_copy(update={"receipt": None})


def intent_of(**changes: Any) -> Callable[[Timeline], None]:
    def change(timeline: Timeline) -> None:
        intent = timeline.line.intent.model_copy(update=changes)
        timeline.line = timeline.line.model_copy(update={"intent": intent})

    return change


def good() -> Timeline:
    return bearing(COMMITTED, ref=REF)


NAMES = "the intent names a receipt exactly if it is final"
UNSETTLED = "there is a receipt of an effect that is not settled"
OTHER = "the intent names another receipt"


def test_a_final_effect_has_its_receipt_unless_it_may_have_been_pruned() -> None:
    assert standing(good()) == []
    assert standing(good(), without_receipt) == ["the receipt is missing"]
    assert standing(good(), without_receipt, in_sight=False) == []


def test_an_effect_that_is_not_final_has_no_receipt_and_names_none() -> None:
    open_still = intent_of(state=EffectState.PREPARED, receipt_digest=None)
    assert standing(known(), open_still) == []
    assert standing(known(), intent_of(state=EffectState.PREPARED, receipt_digest=FAR)) == [NAMES]
    assert standing(good(), intent_of(state=EffectState.PREPARED)) == [NAMES, UNSETTLED]
    assert standing(good(), open_still) == [UNSETTLED, OTHER]
    assert standing(good(), intent_of(receipt_digest=None)) == [NAMES, OTHER]


@pytest.mark.parametrize("digest", ["0" * 64, FAR])
def test_the_intent_names_the_receipt_that_is_there(digest: str) -> None:
    assert standing(good(), intent_of(receipt_digest=digest)) == [OTHER]

    def altered(timeline: Timeline) -> None:
        receipt = timeline.line.receipt
        assert receipt is not None
        other = receipt.model_copy(update={"digest": digest})
        timeline.line = timeline.line.model_copy(update={"receipt": other})

    unfit = "the receipt's digest does not fit its content"
    assert standing(good(), altered) == [unfit, OTHER]


# After pruning ------------------------------------------------------------------------------------


def test_a_receipt_whose_event_was_pruned_is_judged_by_the_facts_before_it() -> None:
    check_old_receipt(good())
    check_old_receipt(known(COMMITTED))  # it was pruned as well
    # What became known after the settlement is none of its.
    late = seen("z").model_copy(update={"recorded_at": after(SETTLED + TICK)})
    check_old_receipt(bearing(COMMITTED, late, ref=REF))
    what = refused(Rule.RECEIPT, check_old_receipt, bearing(COMMITTED, ref=REF, tool="x"))
    assert what == "the receipt says something else in: tool"


def test_an_old_receipt_names_the_state_that_was_settled() -> None:
    undone = good()
    intent_of(state=EffectState.COMPENSATED)(undone)
    check_old_receipt(undone)
    for state in (FAILED, EffectState.CANCELLED, EffectState.PREPARED):
        other = good()
        intent_of(state=state)(other)
        what = refused(Rule.RECEIPT, check_old_receipt, other)
        assert what == "the receipt names another state"
    failed: dict[str, Any] = {"state": "failed_final", "source": "decision", **NOTHING}
    check_old_receipt(bearing(attempt(1, Outcome.REJECTED, recorded=1), **failed))


@pytest.mark.parametrize("reason", [None, 1, ["committed"]])
def test_an_old_receipt_names_a_reason(reason: Any) -> None:
    what = refused(Rule.RECEIPT, check_old_receipt, bearing(COMMITTED, ref=REF, reason=reason))
    assert what == "the receipt names no reason"
