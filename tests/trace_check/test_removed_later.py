"""What has come since an effect's rows were removed is told by events, and by their rows alone."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import Any

import pytest

from effect_contracts.canonical import canonical_bytes
from effect_contracts.trace.findings import Rule
from effect_contracts.trace.kinds import AFTER_END
from effect_contracts.trace.log import EffectLine
from effect_contracts.trace.removed import is_removed, removed_findings
from trace_check.forging import Line, parsed, rechained
from trace_check.staged import SCENES, account

Forge = Callable[[Line], Any]
Found = list[tuple[Rule, str, int | None]]
LATER = datetime(2100, 1, 1, tzinfo=UTC)
SOME = (Rule.PRUNED, "its rows were removed, and there are some", None)
LOOKED = (Rule.PRUNED, "its rows were removed, and a person had to look at it, or not", None)
UNTOLD = (Rule.PRUNED, "its rows were removed, and an event tells of one", None)
UNSETTLED = (Rule.PRUNED, "its rows were removed, and it is not settled", None)
OTHER_RECEIPT = (Rule.RECEIPT, "the receipt is not the one that the intent names", None)


@cache
def _left(scene: str) -> Line:
    """What retention leaves of a scene: the events after the end, and the rows they tell of."""

    async def played() -> list[bytes]:
        return account(await SCENES[scene]())

    effect: Line = parsed(asyncio.run(played()))[2]
    events = [one for one in effect["events"] if one["kind"] in {kind.value for kind in AFTER_END}]
    told = {json.loads(one["metadata"]).get("evidence_id") for one in events}
    said = {one["evidence_id"] for one in effect["resolutions"]}
    intent = {**effect["intent"], "retention_stage": 3, "next_action_at": None}
    rows = [one for one in effect["evidence"] if one["evidence_id"] in told | said]
    return {**effect, "intent": intent, "events": events, "attempts": [], "evidence": rows}


def left(scene: str = "acknowledged") -> Line:
    """The same, to be forged."""
    return copy.deepcopy(_left(scene))


def found(
    effect: Line, forge: Forge | None = None, *, rechain: bool = True, at: datetime = LATER
) -> Found:
    if forge is not None:
        forge(effect)
    if rechain:
        rechained(effect)
    line = EffectLine.model_validate_json(json.dumps(effect))
    return [(f.rule, f.what, f.sequence) for f in removed_findings(line, at)]


def intent(**members: Any) -> Forge:
    return lambda effect: effect["intent"].update(members)


def metadata(place: int, **members: Any) -> Forge:
    """Change what an event tells."""

    def forge(effect: Line) -> None:
        event = effect["events"][place]
        event["metadata"] = canonical_bytes(json.loads(event["metadata"]) | members).decode()

    return forge


@pytest.mark.parametrize(
    "scene",
    [
        "acknowledged", "counted_twice", "counted_as_absent", "undone_while_it_is_counted",
        "not_counted", "told_by_a_webhook", "resolved_as_failed",
    ],
)  # fmt: skip
def test_what_came_later_is_whole(scene: str) -> None:
    assert found(left(scene)) == []


def test_an_effect_is_removed_at_the_last_stage_of_retention() -> None:
    for stage in range(6):
        effect = left()
        effect["intent"]["retention_stage"] = stage
        assert is_removed(EffectLine.model_validate_json(json.dumps(effect))) is (stage == 3)


@pytest.mark.parametrize(
    "change",
    [{"parked": True}, {"next_action_at": LATER.isoformat()}, {"state": "outcome_unknown"}],
)
def test_only_what_is_settled_and_waits_for_nothing_is_removed(change: dict[str, Any]) -> None:
    assert UNSETTLED in found(left(), intent(**change))


def test_what_is_removed_has_the_receipt_that_its_intent_names() -> None:
    none = (Rule.RECEIPT, "it is settled, and has no receipt", None)
    assert found(left(), lambda effect: effect.update(receipt=None)) == [none]
    for other in ("0" * 64, "f" * 64):
        assert found(left(), intent(receipt_digest=other)) == [OTHER_RECEIPT]
        forge = partial(_receipt, digest=other)
        assert found(left(), forge) == [OTHER_RECEIPT]
    for content in ("", "zz"):
        assert found(left(), partial(_receipt, content=content)) == [OTHER_RECEIPT]


def _receipt(effect: Line, **members: Any) -> None:
    effect["receipt"].update(members)


def test_the_later_events_are_a_chain_in_time() -> None:
    effect = left()
    last = datetime.fromisoformat(effect["events"][-1]["at"])
    younger = (Rule.TIME, "it is younger than the export", effect["events"][-1]["sequence"])
    assert younger in found(effect, at=last - timedelta(microseconds=1))

    def reworded(forged: Line) -> None:
        forged["events"][0]["reason"] = "x"

    assert any(rule is Rule.CHAIN for rule, _, _ in found(left(), reworded, rechain=False))


def test_every_event_that_cannot_be_read_is_named_and_the_others_are_judged() -> None:
    def unreadable(effect: Line) -> None:
        for place in (0, 2):
            effect["events"][place]["kind"] = "of_tomorrow"
        effect["events"][-1]["kind"] = "wait"

    numbers = [event["sequence"] for event in left()["events"]]
    kinds = [one[2] for one in found(left(), unreadable) if one[0] is Rule.KIND]
    assert kinds[:2] == [numbers[0], numbers[2]]
    assert LOOKED in found(left(), unreadable)


def test_an_event_from_before_the_end_is_one_of_a_removed_row() -> None:
    def before(effect: Line) -> None:
        for place in (0, 1):
            effect["events"][place].update(
                kind="wait", metadata='{"row":"7"}', actor="worker:w-1"
            )  # fmt: skip

    numbers = [event["sequence"] for event in left()["events"]]
    some = [(Rule.PRUNED, SOME[1], number) for number in numbers[:2]]
    assert [one for one in found(left(), before) if one[1] == SOME[1] and one[2]] == some


def test_an_alert_stands_exactly_while_nobody_has_looked_at_what_contradicts() -> None:
    assert found(left(), intent(alert="duplicate_detected")) == [LOOKED]
    for scene in ("counted_twice", "told_by_a_webhook", "resolved_as_failed", "counted_as_absent"):
        assert found(left(scene), intent(alert=None)) == [LOOKED]
    assert found(left("not_counted"), intent(alert="late_contradiction")) == [LOOKED]
    effect = left()
    assert effect["events"][-1]["kind"] == "acknowledged"
    effect["events"].reverse()
    assert LOOKED in found(effect, rechain=False)


def test_rows_that_no_later_event_tells_of_are_somebody_elses() -> None:
    def stranger(effect: Line) -> None:
        effect["evidence"].append({**effect["evidence"][0], "evidence_id": STRANGER})

    assert found(left(), stranger) == [SOME]
    # Not even where as many are missing.
    fact = json.loads(left("told_by_a_webhook")["events"][0]["metadata"])["evidence_id"]

    def exchanged(effect: Line) -> None:
        (row,) = effect["evidence"]
        assert row["evidence_id"] == fact
        row["evidence_id"] = STRANGER

    assert found(left("told_by_a_webhook"), exchanged) == [SOME, UNTOLD]

    def attempted(effect: Line) -> None:
        effect["attempts"] = [ATTEMPT]

    assert found(left(), attempted) == [SOME]


STRANGER = "00000000-0000-0000-0000-00000000000f"
ATTEMPT = {
    "attempt_id": STRANGER, "ordinal": 1, "executor_id": "w", "outcome": None, "code": None,
    "started_at": "2026-01-01T00:00:00Z", "deadline_at": "2026-01-01T00:00:30Z",
    "target_identity": "t", "recorded_at": None, "lost_at": None, "external_id": None,
    "retry_after_seconds": None, "operation": False, "result_digest": None,
}  # fmt: skip


def test_a_later_fact_has_its_row_and_the_row_its_words() -> None:
    def without_rows(effect: Line) -> None:
        effect["evidence"] = []

    untold = found(left("counted_twice"), without_rows)
    assert untold == [UNTOLD, UNTOLD]
    words = (Rule.FACTS, "the row of a fact says something else than it did", None)

    def altered(effect: Line) -> None:
        effect["evidence"][-1]["code"] = "altered"

    assert found(left("counted_twice"), altered) == [words]
    for digest in ("0" * 64, "f" * 64):
        assert found(left("told_by_a_webhook"), metadata(0, fact_digest=digest)) == [words]
