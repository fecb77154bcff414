"""The chain of events at its edges: what may change after the last event, and numbers below 1."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from effect_contracts.events import Event, event_digest
from effect_contracts.trace.chain import chain_findings
from effect_contracts.trace.findings import Rule
from effect_contracts.trace.log import EffectLine, EventRecord
from trace_check.asked_alone import BEGAN_AT, after, nothing_known


def submitted(previous_digest: str = "", later_seconds: float = 0.0, **changes: Any) -> EffectLine:
    """An effect that was submitted; its row was changed so many seconds after that."""
    line = nothing_known()
    intent = line.intent
    words: dict[str, Any] = {
        "sequence": 1, "kind": "submitted", "event": "submitted", "from_state": None,
        "to_state": "prepared", "reason": "submitted", "actor": "caller:c", "at": BEGAN_AT,
        "metadata": "{}", **changes,
    }  # fmt: skip
    event = Event(tenant_id=intent.tenant_id, effect_id=intent.effect_id, **words)
    digest = event_digest(bytes.fromhex(previous_digest), event).hex()
    record = EventRecord(**words, previous_digest=previous_digest, digest=digest)
    head = {
        "event_digest": digest, "version": record.sequence, "updated_at": after(later_seconds),
    }  # fmt: skip
    return line.model_copy(
        update={"intent": intent.model_copy(update=head), "events": (record,)}
    )  # fmt: skip


def found(line: EffectLine) -> list[tuple[Rule, str]]:
    return [(one.rule, one.what) for one in chain_findings(line, BEGAN_AT + timedelta(hours=1))]


def test_the_row_of_an_effect_may_change_after_its_last_event() -> None:
    """A lease, a wait and a parked run move it, and no event tells of them."""
    for seconds in (0.0, 0.000001, 3600.0):
        assert found(submitted(later_seconds=seconds)) == []


@pytest.mark.parametrize("number", [0, -1])
def test_an_event_that_is_numbered_below_one_is_no_first_event(number: int) -> None:
    line = submitted("0" * 64, sequence=number)
    assert found(line) == [
        (Rule.SEQUENCE, "the first event is numbered below 1"),
        (Rule.LIFE, "an unknown state or move"),
    ]
