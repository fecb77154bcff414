"""The commands with which a person moves one effect on, complete but for what only a person knows.

Words in capitals are to be replaced; a line that was pasted unread is refused (`replaced`) and
records nothing. What the contract refuses is not offered.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from effect_broker.cli.output import complain
from effect_broker.protocol.ports import Snapshot
from effect_broker.protocol.resolution import permitted
from effect_broker.reading import EffectDetail
from effect_broker.resolving import ProposalRecord
from effect_contracts.decide import Reason, decide
from effect_contracts.facts import Conclusion, EffectState, Hold, SafetyClass
from effect_contracts.life import is_final

_ASKED: Final = frozenset({EffectState.OUTCOME_UNKNOWN, EffectState.MANUAL_REVIEW})
_SAYS: Final = {
    Conclusion.COMMITTED: "if you have seen it at the target",
    Conclusion.NOT_COMMITTED: "if you have looked and it is not there",
    Conclusion.FAILED: "if nobody needs it any more, whatever happened",
}
_DONE, _FILE, _HOLD, _ID, _MOMENT, _WHERE, _WHY = PLACEHOLDERS = (
    "WHAT_WAS_DONE", "FILE", "HOLD_ID", "THE_TARGETS_ID", "MOMENT", "WHERE", "WHY",
)  # fmt: skip
_LOOKED: Final = f"kind=dashboard,ref={_WHERE},observed={_MOMENT}"


@dataclass(frozen=True, slots=True)
class Command:
    """A line to paste, and what it is for."""

    says: str
    line: str


def next_commands(
    tenant: str, detail: EffectDetail, snapshot: Snapshot, new_id: Callable[[], UUID]
) -> tuple[Command, ...]:
    """Return what a person can run now; empty where the broker goes on by itself."""
    return tuple(_commands(tenant, detail, snapshot, new_id))


def confirmations(
    tenant: str, detail: EffectDetail, proposals: Sequence[ProposalRecord]
) -> Iterator[Command]:
    """Yield what a second person can run."""
    for proposal in proposals:
        words = ("effect-broker", "effects", "confirm", str(detail.intent.effect_id))
        line = shlex.join((*words, "--decision-id", proposal.decision_id, "--tenant", tenant))
        yield Command("if you are another person and have seen it too", line)


def holds_of(snapshot: Snapshot) -> frozenset[Hold]:
    """Return what keeps the effect from being sent, also where no worker has seen it yet."""
    decision = decide(snapshot.facts, snapshot.document.policy(), snapshot.now)
    return snapshot.facts.holds | {hold for hold in Hold if hold.value == decision.reason}


def _commands(
    tenant: str, detail: EffectDetail, snapshot: Snapshot, new_id: Callable[[], UUID]
) -> Iterator[Command]:
    intent, held = detail.intent, holds_of(snapshot)

    def of_effect(says: str, verb: str, *options: str) -> Command:
        words = ("effect-broker", "effects", verb, str(intent.effect_id), *options)
        return Command(says, shlex.join((*words, "--tenant", tenant)))

    if detail.alert is not None:
        yield of_effect(
            "once it was dealt with",
            "acknowledge", "--alert", detail.alert.value, "--reason", _DONE,
        )  # fmt: skip
    if is_final(intent.state):
        if intent.state is EffectState.SUCCEEDED:
            yield of_effect("to see the proof", "receipt")
        return
    if Hold.AWAITING_APPROVAL in held:
        judged = ("--request-hash", intent.request_hash.hex(), "--reason", _WHY)
        yield of_effect("to let it be sent", "approve", *judged)
        yield of_effect("to withdraw it for good", "deny", *judged)
    yield from _lifting(tenant, held)
    if detail.parked and intent.reason == Reason.RUN_FAILING:
        yield of_effect("once the cause is mended", "reconcile")
    if detail.parked and not snapshot.attempts:
        yield of_effect("to withdraw it; nothing was sent", "cancel")
        return
    if not (detail.parked or intent.state in _ASKED):
        return
    for one in permitted(snapshot):
        says = _SAYS[one.conclusion]
        options = ["--as", one.conclusion.value, "--version", str(intent.version)]
        if one.conclusion is Conclusion.COMMITTED:
            options += ["--external-id", _ID]
        if one.conclusion is Conclusion.NOT_COMMITTED:
            says += _what_follows(snapshot)
        options += ["--reason", _WHY, "--evidence", _LOOKED, "--decision-id", f"cli-{new_id()}"]
        yield of_effect(says, "resolve", *options)


def replaced(option: str, text: str | None) -> None:
    """End the command where a word of `PLACEHOLDERS` still stands for what it asks for."""
    if text is not None and text.strip() in PLACEHOLDERS:
        complain(f"{option} {text.strip()}: write what it stands for; nothing was recorded", 2)


def _lifting(tenant: str, held: frozenset[Hold]) -> Iterator[Command]:
    if held & {Hold.PAUSED, Hold.FROZEN}:
        yield Command("to see who holds it, and why", "effect-broker holds list")
        yield Command("to let it go on", f"effect-broker holds lift {_HOLD} --reason {_WHY}")
    if Hold.TENANT_DISABLED in held:
        yield Command("to let it go on", shlex.join(("effect-broker", "tenants", "enable", tenant)))
    if Hold.AWAITING_CERTIFICATE in held:
        yield Command("to see what has ended, and why", "effect-broker contracts certificate list")
    if Hold.AWAITING_CERTIFICATE in held:
        yield Command(
            "to certify the target",
            f"effect-broker contracts certify {_FILE} --arguments {_FILE}",
        )
    if Hold.DATABASE_RESTORED in held:
        yield Command(
            "once you know what may be lost",
            f"effect-broker database resume --lost-from {_MOMENT} --lost-to {_MOMENT} "
            f"--reason {_WHY}",
        )


def _what_follows(snapshot: Snapshot) -> str:
    if snapshot.intent.safety is SafetyClass.UNSAFE:
        return "; it ends as failed, since it is never sent twice"
    return "; the contract then decides whether it is sent again"
