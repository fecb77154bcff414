"""After each event the replay stands where the broker has stood: what is next, and who is asked.

The broker's own writes are what it is compared with, for every event of every scene.
"""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from functools import cache
from typing import Any

import pytest

from effect_contracts.document import ContractDocument
from effect_contracts.facts import Alert, Outcome, Policy, SafetyClass
from effect_contracts.receipts import receipt_time
from effect_contracts.trace.findings import Broken
from effect_contracts.trace.kinds import DRILL_TAKEOVER_SECONDS_MAX, read_event
from effect_contracts.trace.log import EffectLine, EventRecord
from effect_contracts.trace.replay import NextAction, Replay
from effect_contracts.trace.timeline import Timeline
from protocol.world import World
from trace_check.asked_alone import after, attempt, nothing_known
from trace_check.forging import parsed
from trace_check.staged import SCENES, account
from trace_check.test_replay import ONE_EFFECT
from trace_check.test_timeline import timeline

LATE, TWICE = Alert.LATE_CONTRADICTION, Alert.DUPLICATE_DETECTED


@cache
def _played(scene: str) -> tuple[World, ContractDocument, EffectLine]:
    async def played() -> World:
        return await SCENES[scene]()

    world = asyncio.run(played())
    _, contract, effect, _ = parsed(account(world))
    line = EffectLine.model_validate_json(json.dumps(effect))
    return world, ContractDocument.from_canonical(contract["document"].encode()), line


def _fresh(line: EffectLine, document: ContractDocument) -> Replay:
    return Replay(Timeline(line, document.policy(), None))


@pytest.mark.parametrize("scene", ONE_EFFECT)
def test_after_each_event_the_replay_stands_where_the_broker_has_stood(scene: str) -> None:
    world, document, line = _played(scene)
    replay = _fresh(line, document)
    advances = [one.advance for one in world.memory.events(world.effect_id)]
    lasts = timedelta(seconds=document.attempt_deadline_seconds)
    replay.step(read_event(line.events[0]))
    at = line.events[0].at
    assert (replay.next_action, replay.parked) == (NextAction(at, at), False)
    for record, advance in zip(line.events[1:], advances, strict=True):
        replay.step(read_event(record))
        found = replay.next_action
        assert found is not None
        if record.kind in {"probe_started", "count_started"}:
            # A look-up's end is bounded by the worker that makes it.
            assert found == NextAction(record.at, record.at + lasts)
            assert advance.next_action_at is not None
            assert record.at <= advance.next_action_at <= record.at + lasts
        elif record.kind not in {"late_fact", "duplicate_detected", "acknowledged"}:
            assert found == NextAction(advance.next_action_at, advance.next_action_at), record
        assert replay.parked is advance.parked, record
    assert replay.alert is world.memory.alert(world.effect_id)
    settled = "settled_at" in (world.receipt or {})
    assert replay.settled_in_sight is settled


def _submitted(sequence: int = 1, **more: Any) -> EventRecord:
    intent = nothing_known().intent
    told = {"contract_digest": intent.contract_digest, "request_hash": intent.request_hash, **more}
    return EventRecord(
        sequence=sequence, kind="submitted", event="nothing_sent", from_state=None,
        to_state="prepared", reason="submitted", actor=intent.requested_by, at=intent.created_at,
        metadata=json.dumps(told, separators=(",", ":"), sort_keys=True),
        previous_digest="", digest="6" * 64,
    )  # fmt: skip


def _untold() -> Replay:
    return Replay(Timeline(nothing_known(), Policy(SafetyClass.RECONCILABLE), None))


def test_a_replay_begins_with_nothing() -> None:
    replay = _untold()
    assert (replay.next_action, replay.parked, replay.alert) == (None, None, None)
    assert replay.settled_in_sight is False


def test_an_effect_is_due_at_once_or_left_to_its_drill_for_ten_minutes() -> None:
    at = nothing_known().intent.created_at
    replay = _untold()
    replay.step(read_event(_submitted()))
    assert (replay.next_action, replay.parked) == (NextAction(at, at), False)
    replay = _untold()
    replay.step(read_event(_submitted(drill_id="00000000-0000-0000-0000-000000000001")))
    until = at + timedelta(seconds=DRILL_TAKEOVER_SECONDS_MAX)
    assert replay.next_action == NextAction(at, until)
    assert DRILL_TAKEOVER_SECONDS_MAX == 600


@pytest.mark.parametrize("sequence", [0, 2, 3])
def test_a_submit_is_the_first_event_and_only_that(sequence: int) -> None:
    with pytest.raises(Broken, match="an effect is submitted once"):
        _untold().step(read_event(_submitted(sequence)))


@pytest.mark.parametrize("sequence", [0, 1])
def test_no_other_event_is_the_first(sequence: int) -> None:
    waits = _submitted(sequence).model_copy(
        update={"kind": "wait", "metadata": '{"row":7}', "from_state": "prepared"}
    )
    actor = waits.model_copy(update={"actor": "worker:w"})
    with pytest.raises(Broken, match="an effect begins with its submit"):
        _untold().step(read_event(actor))


@pytest.mark.parametrize("raised", [None, LATE, TWICE])
@pytest.mark.parametrize("borne", [None, LATE, TWICE])
@pytest.mark.parametrize("pruned", [False, True])
def test_an_alert_is_the_one_that_was_raised_or_one_of_before(
    raised: Alert | None, borne: Alert | None, pruned: bool
) -> None:
    replay = _untold()
    if pruned:
        replay.begin_before(after(0))
    replay.alert = raised
    # A duplicate is not replaced by anything that is found later.
    older = pruned and (raised is None or borne is TWICE)
    assert replay.bears(borne) is (raised is borne or older)


@pytest.mark.parametrize("ordinal", [1, 2, 3])
def test_an_extension_is_of_its_own_attempt_and_ends_with_the_margin(ordinal: int) -> None:
    """Attempts half a minute apart, of which the latest is extended twenty seconds later."""
    policy = Policy(
        SafetyClass.UNSAFE, attempt_deadline_seconds=30.0, clock_margin_seconds=0.5,
        lease_seconds_max=600.0,
    )  # fmt: skip
    begun = 40.0 * ordinal
    ended = [attempt(n, Outcome.NOT_SENT, starts=40.0 * n, recorded=40.0 * n + 1)
             for n in range(1, ordinal)]  # fmt: skip
    held = attempt(ordinal, None, starts=begun, executor_id="caller:c")
    made = timeline(*ended, held, policy=policy)
    for row in (*ended, held):
        made.start(row)
    for row in ended:
        made.record(row)
    until = after(begun + 50)
    told = {"deadline_at": receipt_time(until), "ordinal": ordinal}
    extended = _submitted(2).model_copy(
        update={
            "kind": "attempt_extended", "event": "attempt_open", "reason": "attempt_open",
            "from_state": "dispatching", "to_state": "dispatching", "actor": "caller:c",
            "at": after(begun + 20), "metadata": json.dumps(told, separators=(",", ":")),
        }
    )  # fmt: skip
    replay = Replay(made)
    replay.step(read_event(extended))
    assert replay.next_action == NextAction(after(begun + 50.5), after(begun + 50.5))
    assert made.facts(after(begun + 21)).attempts[-1].deadline_at == until
