"""What a caller may ask of an effect that is under way, as pure functions from snapshot to writes.

Neither wish is a second way to send. To reconcile is to look: whoever was parked because its runs
failed starts anew, a look-up comes now instead of by its schedule, and `decide` says the rest. To
cancel is to withdraw before a first attempt; afterwards nothing can be taken back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from uuid import UUID

from effect_broker.protocol.conclusion import write_decision
from effect_broker.protocol.ports import AskToCancel, AskToReconcile, Change, Snapshot
from effect_contracts.decide import Action, Reason, decide
from effect_contracts.facts import EffectState
from effect_contracts.life import is_final


@dataclass(frozen=True, slots=True)
class Granted:
    """Whether a wish changed anything; False where there was nothing to do."""

    changed: bool
    state: EffectState


def reconcile(snapshot: Snapshot, *, receipt_id: UUID, actor: str) -> Change[Granted]:
    """Look now. Nothing changes for an effect that is final, that is being sent, that is due
    already, or of which nobody but a person can know more."""
    intent = snapshot.intent
    nothing = Change(Granted(False, intent.state))
    if is_final(intent.state):
        return nothing
    facts = replace(snapshot.facts, look_up_asked_at=snapshot.now)
    decision = decide(facts, snapshot.document.policy(), snapshot.now)
    waits = decision.action in {Action.WAIT, Action.PARK}
    if waits and not (snapshot.parked and decision.reason != intent.reason):
        return nothing
    due = intent.next_action_at is not None and intent.next_action_at <= snapshot.now
    if due and intent.reason == decision.reason:
        return nothing
    written = write_decision(snapshot, facts, decision, receipt_id, actor, "reconcile_asked", {})
    state = written.result.state
    return Change(Granted(True, state), (AskToReconcile(snapshot.now), *written.writes))


def cancel(snapshot: Snapshot, *, receipt_id: UUID, actor: str) -> Change[Granted | None]:
    """Withdraw the effect; None where an attempt exists and nothing can be taken back.

    Asked again of a cancelled effect, it changes nothing.
    """
    intent = snapshot.intent
    if intent.state is EffectState.CANCELLED:
        return Change(Granted(False, intent.state))
    if is_final(intent.state) or snapshot.attempts:
        return Change(None)
    facts = replace(snapshot.facts, cancel_requested=True)
    decision = decide(facts, snapshot.document.policy(), snapshot.now)
    if decision.reason is not Reason.CANCELLED:
        return Change(None)  # a person or the target has said something else already
    written = write_decision(snapshot, facts, decision, receipt_id, actor, "cancelled", {})
    state = written.result.state
    return Change(Granted(True, state), (AskToCancel(snapshot.now), *written.writes))
