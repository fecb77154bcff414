"""A fork: what would be decided on the recorded facts of an effect under another contract.

Nothing is sent and nothing is looked up: the facts are those of the account
(`effect_contracts.trace`), and at each event of it `decide` is asked twice, under the contract that
the effect has pinned and under the other one. The facts came about under the pinned one. So the
first difference is what would have been done otherwise; from there on the other contract would have
met other facts, and what is shown is what it says of these.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from effect_contracts.canonical import JsonValue
from effect_contracts.decide import Decision, decide
from effect_contracts.document import ContractDocument
from effect_contracts.facts import FINAL_STATES, Facts, Hold, Policy
from effect_contracts.trace.findings import Broken
from effect_contracts.trace.kinds import EventKind, read_event
from effect_contracts.trace.log import EffectLine
from effect_contracts.trace.replay import Replay
from effect_contracts.trace.timeline import Timeline, any_certificate

_HOLDS = frozenset(hold.value for hold in Hold)
# Of what was decided because time had passed, and not because of a new fact: what the other
# contract says after it is too late to show that it would not have done it.
_IN_TIME = frozenset(
    kind.value for kind in (EventKind.ATTEMPT_STARTED, EventKind.PROBE_STARTED, EventKind.PARK)
)


@dataclass(frozen=True, slots=True)
class Step:
    """The two decisions on what was known after one event, or at its moment before it.

    Attributes:
        sequence: of the event; None for now.
        kind: of the event; `now` for now.
        pinned: under the contract that the effect has pinned.
        other: under the other one.
        before: without the event itself. Such a step is told only where it differs.
    """

    sequence: int | None
    kind: str
    at: datetime
    pinned: Decision
    other: Decision
    before: bool = False

    @property
    def differs(self) -> bool:
        """Whether the two would do something else, or say something else of the effect."""
        return _shown(self.pinned) != _shown(self.other)

    def to_json(self) -> dict[str, JsonValue]:
        """Return it for programs."""
        return {
            "sequence": self.sequence,
            "kind": self.kind,
            "before": self.before,
            "at": self.at.astimezone(UTC).isoformat(),
            "pinned": _shown(self.pinned),
            "other": _shown(self.other),
            "differs": self.differs,
        }


@dataclass(frozen=True, slots=True)
class Fork:
    """What was found.

    Attributes:
        broken: why the account could not be followed to its end; None where it could.
    """

    steps: tuple[Step, ...]
    broken: str | None

    @property
    def first_difference(self) -> Step | None:
        """The first event at which the other contract would have gone another way."""
        return next((step for step in self.steps if step.differs), None)


def fork(
    line: EffectLine,
    pinned: ContractDocument,
    other: ContractDocument,
    *,
    now: datetime,
    bounds_restart_at: datetime | None = None,
) -> Fork:
    """Return the decisions at every event of an account, and now where it has not ended."""
    steps: list[Step] = []
    broken: str | None = None
    try:
        for step in _steps(line, (pinned.policy(), other.policy()), now, bounds_restart_at):
            steps.append(step)
    except Broken as problem:
        # Each event that was followed is a step, so the next one is what it broke on.
        number = line.events[sum(not step.before for step in steps)].sequence
        broken = f"event {number} is not what the broker must have written: {problem.what}"
    return Fork(tuple(steps), broken)


def _steps(
    line: EffectLine,
    policies: tuple[Policy, Policy],
    now: datetime,
    bounds_restart_at: datetime | None,
) -> Iterator[Step]:
    timeline = Timeline(line, policies[0], bounds_restart_at)
    replay = Replay(timeline)
    if line.events and line.events[0].sequence > 1:
        replay.begin_before(line.events[0].at)
    for record in line.events:
        hold = Hold(record.reason) if record.reason in _HOLDS else None
        known = timeline.facts(record.at, hold)
        replay.step(read_event(record))
        if record.kind in _IN_TIME and record.sequence > line.events[0].sequence:
            pinned, other = (_decided(known, policy, record.at) for policy in policies)
            step = Step(record.sequence, record.kind, record.at, pinned, other, before=True)
            if step.differs:
                yield step
        facts = timeline.facts(record.at, hold)
        pinned, other = (_decided(facts, policy, record.at) for policy in policies)
        yield Step(record.sequence, record.kind, record.at, pinned, other)
        if record.to_state in {state.value for state in FINAL_STATES}:
            return
    facts = timeline.facts(now)
    pinned, other = (_decided(facts, policy, now) for policy in policies)
    yield Step(None, "now", now, pinned, other)


def _decided(facts: Facts, policy: Policy, at: datetime) -> Decision:
    """Decide as if whatever certificate the contract demands were in force: none is recorded."""
    return decide(replace(facts, certificates=any_certificate(policy, at)), policy, at)


def _shown(decision: Decision) -> dict[str, JsonValue]:
    at = decision.at
    return {
        "action": decision.action.value,
        "reason": decision.reason.value,
        "event": decision.event.value,
        "row": decision.row,
        "ordinal": decision.ordinal,
        "at": None if at is None else at.astimezone(UTC).isoformat(),
    }
