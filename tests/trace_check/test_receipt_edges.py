"""A receipt at its edges: what it lacks, objects that several facts name, states never settled."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest

from effect_contracts.facts import EffectState, Outcome, Verdict
from effect_contracts.trace.findings import Rule
from effect_contracts.trace.log import AttemptRecord, EvidenceRecord, ReceiptRecord
from effect_contracts.trace.receipt import check_old_receipt, check_receipt
from effect_contracts.trace.timeline import Timeline
from trace_check.asked_alone import BEGAN_AT, attempt, evidence, known, refused


def bearing(content: object, *rows: AttemptRecord | EvidenceRecord) -> Timeline:
    """A timeline whose effect has failed, with a receipt that says this."""
    timeline = known(*rows)
    receipt = ReceiptRecord(
        receipt_id=UUID(int=7), content=json.dumps(content), digest="0" * 64, result_ref=None,
        recorded_at=BEGAN_AT,
    )  # fmt: skip
    intent = timeline.line.intent.model_copy(update={"state": EffectState.FAILED_FINAL})
    timeline.line = timeline.line.model_copy(update={"receipt": receipt, "intent": intent})
    return timeline


def different(content: object, *rows: AttemptRecord | EvidenceRecord) -> set[str]:
    """The names of what the receipt of a success says otherwise."""
    what = refused(
        Rule.RECEIPT, check_receipt, bearing(content, *rows), EffectState.SUCCEEDED, "r", BEGAN_AT
    )
    return set(what.removeprefix("the receipt says something else in: ").split(", "))


@pytest.mark.parametrize("state", ["cancelled", "succeeded", "", "zz", None, 1])
def test_an_old_receipt_of_another_state_is_found_whichever_it_is(state: Any) -> None:
    timeline = bearing({"state": state, "reason": "r"})
    what = refused(Rule.RECEIPT, check_old_receipt, timeline)
    assert what == "the receipt names another state"


def test_a_member_that_a_receipt_lacks_is_no_foreign_one() -> None:
    assert "members that it does not have" in different({"more": 1})
    lacks = different({"reason": "r"})
    assert "tool" in lacks
    assert not lacks & {"reason", "members that it does not have"}


def test_an_object_that_several_facts_name_is_one_object() -> None:
    answer = attempt(1, Outcome.COMMITTED, recorded=0, external_id="a")
    by_answer = {"source": "response", "external_id": "a"}
    by_nobody = {"source": "decision", "external_id": None}
    same, more = (evidence(Verdict.COMMITTED, ids=ids) for ids in (("a",), ("a", "b")))
    assert not different(by_answer, answer, same) & by_answer.keys()
    assert not different(by_nobody, answer, more) & by_nobody.keys()
