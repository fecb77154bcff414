"""A schedule as a story: who did what when, in plain words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from effect_broker.protocol.ports import (
    AddEvidence,
    AddReceipt,
    AddResolution,
    Advance,
    Change,
    FenceMutation,
    FreezeContract,
    LoseAttempt,
    RecordOutcome,
    Requeue,
    Snapshot,
    StartAttempt,
)


def change_words(before: Snapshot, after: Snapshot, change: Change[Any]) -> Iterator[str]:
    """Say what a commit has changed."""
    for write in change.writes:
        match write:
            case StartAttempt(ordinal=ordinal, deadline_at=deadline_at):
                seconds = (deadline_at - before.now).total_seconds()
                yield f"commits permission for attempt {ordinal}, {seconds:g} s from now"
            case LoseAttempt(ordinal=ordinal):
                yield f"presumes attempt {ordinal} lost"
            case RecordOutcome(outcome=outcome, code=code):
                yield f"records {outcome} ({code})"
            case AddEvidence(source=source, verdict=verdict, covers_through=through):
                began = (before.now - write.began_at).total_seconds()
                yield (
                    f"records evidence of a {source}: {verdict}, seen {began:g} s ago, "
                    f"of attempts up to {through}"
                )
            case AddResolution(conclusion=conclusion):
                yield f"concludes: {conclusion}"
            case FenceMutation(ordinal=ordinal):
                yield f"fences the key of attempt {ordinal}"
            case FreezeContract():
                yield "freezes the contract"
            case Requeue(expected_generation=generation):
                yield f"starts run {generation + 1} of the effect"
            case AddReceipt():
                yield "writes the receipt"
            case Advance(kind=kind, reason=reason):
                yield (
                    f"{kind}: {before.intent.state} becomes {after.intent.state} ({reason}), "
                    f"version {after.intent.version}"
                )
            case _:
                pass
