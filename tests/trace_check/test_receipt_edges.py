"""A receipt whose settling event was pruned, and that names a state which was never settled."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest

from effect_contracts.facts import EffectState
from effect_contracts.trace.findings import Rule
from effect_contracts.trace.log import ReceiptRecord
from effect_contracts.trace.receipt import check_old_receipt
from trace_check.asked_alone import BEGAN_AT, known, refused


@pytest.mark.parametrize("state", ["cancelled", "succeeded", "", "zz", None, 1])
def test_an_old_receipt_of_another_state_is_found_whichever_it_is(state: Any) -> None:
    timeline = known()
    receipt = ReceiptRecord(
        receipt_id=UUID(int=7), content=json.dumps({"state": state, "reason": "r"}),
        digest="0" * 64, result_ref=None, recorded_at=BEGAN_AT,
    )  # fmt: skip
    intent = timeline.line.intent.model_copy(update={"state": EffectState.FAILED_FINAL})
    timeline.line = timeline.line.model_copy(update={"receipt": receipt, "intent": intent})
    what = refused(Rule.RECEIPT, check_old_receipt, timeline)
    assert what == "the receipt names another state"
