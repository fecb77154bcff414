"""What a drill has shown, for a person: the moments in order, with seconds, and a verdict."""

from __future__ import annotations

import json
from typing import Any, Final

from effect_broker.api.presentation import GUARANTEES, moment
from effect_broker.cli.desk import Desk
from effect_broker.cli.output import print_table
from effect_broker.drills import DrillRecord, DrillStatus, SettledBy, point_of_death
from effect_broker.reading import EventRecord
from effect_contracts.counting import counted

_COLUMNS: Final = ("at", "seconds", "what")

_SETTLED_BY: Final = {
    SettledBy.RECEIPT: "its receipt stood before the death",
    SettledBy.DISPATCH: "it had not been sent, and was sent by another worker",
    SettledBy.REDISPATCH: "the same request was sent again with the same key",
    SettledBy.PROBE: "a look-up at the target has found it",
    SettledBy.TRANSACTION: "the key of its own transaction tells",
    SettledBy.WEBHOOK: "the target has told by webhook",
    SettledBy.OPERATOR: "a person has concluded it",
    SettledBy.PERSON_NEEDED: "nobody can know without a person, so nothing more is sent",
    SettledBy.RULE: "its contract ends it",
}


async def moments(at: Desk, record: DrillRecord) -> list[dict[str, Any]]:
    """Return what has happened, in order: the drill's own moments and the effect's events."""
    happened = [(record.armed_at, 0, f"armed by {record.armed_by}: {record.reason}")]
    if record.cancelled_at is not None:
        happened.append((record.cancelled_at, 0, f"disarmed by {record.cancelled_by}"))
    if record.effect is not None:
        effect = record.effect
        what = f"effect {effect.effect_id} submitted: {effect.tool} {effect.operation_key}"
        events = await at.store.events(at.tenant.tenant_id, effect.effect_id)
        for event in events:
            told = what if event.sequence == 1 else _event_words(event, record)
            happened.append((event.at, event.sequence, told))
        if record.died_at is not None:
            point = point_of_death(record.point, effect.safety)
            died = f"the drill's worker is dead (SIGKILL at {point.value})"
            happened.append((record.died_at, 0, died))
    happened.sort(key=lambda one: (one[0], one[1]))
    began = record.matched_at or record.armed_at
    return [
        {"at": moment(when), "seconds": round((when - began).total_seconds(), 3), "what": words}
        for when, _, words in happened
    ]


def _event_words(event: EventRecord, record: DrillRecord) -> str:
    told = json.loads(event.metadata)
    actor = event.actor.partition(":")[2]
    if event.actor == f"worker:{record.executor_id}":
        actor = "the drill's worker"
    match event.kind:
        case "attempt_started":
            return f"attempt {told['ordinal']} begun by {actor}"
        case "outcome_recorded":
            what = f"attempt {told['ordinal']} {told['outcome']}"
        case "evidence_added":
            what = f"{told['source']} says {told['verdict']}"
        case kind:
            what = kind.replace("_", " ")
    return f"{what}: {event.to_state} ({event.reason}), by {actor}"


def print_report(record: DrillRecord, timeline: list[dict[str, Any]], at_point: bool) -> None:
    """Print the table of the moments and what they mean."""
    rows = [(one["at"][11:23], f"{one['seconds']:+.2f}", one["what"]) for one in timeline]
    print_table(f"drill {record.drill_id}", _COLUMNS, rows)
    effect = record.effect
    if effect is None:
        print(f"{record.status.value}: no effect has met it")
        return
    state = f"{effect.state.value} ({effect.reason})"
    sent = counted(len(effect.attempts), "attempt")
    if record.status is not DrillStatus.SETTLED or record.settled_by is None:
        print(f"{record.status.value}: the effect is {state}, {sent}")
        if record.status is DrillStatus.MISSED:
            print("The worker did not die: the run did not come by the fault point, or other "
                  "workers had taken the effect over. Nothing was proved.")  # fmt: skip
        return
    print(f"settled {record.settlement_seconds:.1f} s after the death: {state}, {sent}; "
          f"{_SETTLED_BY[record.settled_by]}.")  # fmt: skip
    if not at_point:
        print("The worker was lost elsewhere than at the fault point.")
    kept = "holds" if record.promise_kept else "IS BROKEN"
    print(f"The broker's part of the promise {kept}: {GUARANTEES[effect.safety]}.")
    print(f"Count at the target yourself; its key of this effect is {effect.downstream_key}")
