"""What must hold in every simulated world, and how often each of these was really tried.

The judge is told of every load, commit, send and answer, and looks at the store and at the
target's ledger; it takes no part. An invariant counts as tried only where it could have been
broken: a second send for "the same bytes", a write after the end for "the receipt stays". One
that a campaign never tries is reported, since it was then not tested.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from effect_adapters.base import Answer, DispatchCall
from effect_broker.proof.simulation.grounds import left_to_a_person, unsettled_absence
from effect_broker.proof.simulation.scope import Fault
from effect_broker.protocol import conclusion
from effect_broker.protocol.conclusion import Next, View
from effect_broker.protocol.ports import (
    AddEvidence,
    AddReceipt,
    Advance,
    Change,
    Intent,
    Requeue,
    Snapshot,
    StartAttempt,
)
from effect_contracts.counting import counted
from effect_contracts.decide import Action, Reason, deadline
from effect_contracts.facts import (
    Alert,
    EffectState,
    EvidenceSource,
    Hold,
    Outcome,
    SafetyClass,
    Verdict,
)
from effect_contracts.life import is_final

if TYPE_CHECKING:
    from effect_broker.proof.simulation.processes import Actor, SimulatedProcess
    from effect_broker.proof.simulation.world import World


class Invariant(StrEnum):
    """What must hold; the value is its name in reports."""

    ONE_EFFECT = "one_effect"
    TRUE_RECEIPT = "true_receipt"
    RECEIPT_STAYS = "receipt_stays"
    END_STAYS = "end_stays"
    NOTHING_STUCK = "nothing_stuck"
    NOTHING_LOST = "nothing_lost"
    ONE_OPEN_ATTEMPT = "one_open_attempt"
    NO_BYTE_WITHOUT_PERMISSION = "no_byte_without_permission"
    ONE_SEND_PER_ATTEMPT = "one_send_per_attempt"
    SENT_WITHIN_BUDGET = "sent_within_budget"
    SAME_BYTES = "same_bytes"
    SAME_TARGET = "same_target"
    UNSAFE_ONCE = "unsafe_once"
    NO_BLIND_RESEND = "no_blind_resend"
    ABSENCE_IS_SETTLED = "absence_is_settled"
    HELD_NOT_SENT = "held_not_sent"
    CERTIFIED = "certified"
    WITHIN_LIMITS = "within_limits"
    SEND_BEFORE_KEPT = "send_before_kept"
    FROZEN_AFTER_VIOLATION = "frozen_after_violation"
    UNFIT_STARTS_NOTHING = "unfit_starts_nothing"
    SUPERSEDED_RUN_ENDS = "superseded_run_ends"
    ONE_RUN_PER_DUE = "one_run_per_due"
    FENCED = "fenced"
    TOLD_IS_STORED = "told_is_stored"
    STATE_FOLLOWS_FACTS = "state_follows_facts"
    EVENTS_GAPLESS = "events_gapless"
    NO_FALSE_ALERT = "no_false_alert"
    NO_SURPRISE = "no_surprise"


MEANINGS: Final[Mapping[Invariant, str]] = {
    Invariant.ONE_EFFECT: "the target holds at most one object of an effect",
    Invariant.TRUE_RECEIPT: "success is an object at the target, failure is none",
    Invariant.RECEIPT_STAYS: "a receipt is never changed",
    Invariant.END_STAYS: "a final state is never left",
    Invariant.NOTHING_STUCK: "what is not final has a next action or waits for a person",
    Invariant.NOTHING_LOST: "what a living process has seen is stored",
    Invariant.ONE_OPEN_ATTEMPT: "no two attempts are open, and none stays open",
    Invariant.NO_BYTE_WITHOUT_PERMISSION: "every send has a committed row of its own process",
    Invariant.ONE_SEND_PER_ATTEMPT: "an attempt is sent at most once",
    Invariant.SENT_WITHIN_BUDGET: "nothing is sent after the attempt's deadline and margin",
    Invariant.SAME_BYTES: "every send has the stored key and the stored bytes",
    Invariant.SAME_TARGET: "no effect is sent to another account than its first",
    Invariant.UNSAFE_ONCE: "an unsafe effect is not sent again once it may have happened",
    Invariant.NO_BLIND_RESEND: "a key conflict, a part, or a clash after doubt ends all sending",
    Invariant.ABSENCE_IS_SETTLED: "what is sent again was looked for when all before had settled",
    Invariant.HELD_NOT_SENT: "nothing is granted while the effect is held",
    Invariant.CERTIFIED: "nothing is granted while a demanded certificate is not in force",
    Invariant.WITHIN_LIMITS: "no more is under way, and begun in time, than the contract permits",
    Invariant.SEND_BEFORE_KEPT: "no first attempt starts after its moment",
    Invariant.FROZEN_AFTER_VIOLATION: "a contract that was seen broken grants nothing",
    Invariant.UNFIT_STARTS_NOTHING: "a process that drains or cannot beat starts nothing",
    Invariant.SUPERSEDED_RUN_ENDS: "a run that has seen a younger one writes nothing more",
    Invariant.ONE_RUN_PER_DUE: "one due moment starts one run",
    Invariant.FENCED: "a decision is written on the version that it was made on",
    Invariant.TOLD_IS_STORED: "what a step tells is what the next reader finds",
    Invariant.STATE_FOLLOWS_FACTS: "at rest, the stored state is the one the facts give",
    Invariant.EVENTS_GAPLESS: "every version has its event",
    Invariant.NO_FALSE_ALERT: "a target that keeps its promises is not accused",
    Invariant.NO_SURPRISE: "nothing but the store's own errors leaves a step",
}


class Violation(Exception):
    """An invariant is broken."""

    def __init__(self, invariant: Invariant, text: str) -> None:
        super().__init__(invariant, text)  # in this form it can be sent between processes
        self.invariant = invariant
        self.text = text

    def __str__(self) -> str:
        return f"{self.invariant.value}: {self.text}"


# Events whose writer compares the version that it decided on.
_FENCED_KINDS: Final = frozenset(
    {"attempt_started", "probe_started", "count_started", "resolved", "wait", "park", "settle"}
)

_HOLDS: Final = frozenset(Hold)


@dataclass(slots=True)
class _Known:
    """What the judge remembers of one effect."""

    sends: dict[UUID, int] = field(default_factory=dict)
    doubtful: bool = False
    granted_to: dict[UUID, str] = field(default_factory=dict)
    answers: dict[UUID, tuple[SimulatedProcess, Answer]] = field(default_factory=dict)
    receipt: AddReceipt | None = None
    identity: str | None = None
    shown_strange: bool = False


class Judge:
    """The judge of one world.

    Attributes:
        tried: how often each invariant could have been broken.
        violation: the first that broke.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._known: dict[UUID, _Known] = {}
        self._violated = False
        self.violation: Violation | None = None
        self.tried: Counter[Invariant] = Counter()

    def knows(self, effect_id: UUID) -> _Known:
        """Return what is remembered of an effect."""
        known = self._known.get(effect_id)
        if known is None:
            known = self._known[effect_id] = _Known()
        return known

    def fingerprint(self) -> tuple[object, ...]:
        """Return what later judgements depend on, for the exploration."""
        return (
            self._violated,
            tuple(
                (
                    effect_id,
                    tuple(known.sends.values()),
                    known.doubtful,
                    tuple(process.number for process, _ in known.answers.values()),
                    known.identity,
                )
                for effect_id, known in self._known.items()
            ),
        )

    def _broken(self, invariant: Invariant, text: str) -> None:
        if invariant.value in self._world.scope.unjudged:
            return
        # Kept as well as raised: an adapter lets no exception out, ours included.
        if self.violation is None:
            self.violation = Violation(invariant, text)
        raise self.violation

    # The store ------------------------------------------------------------------------------

    def loaded(self, actor: Actor, snapshot: Snapshot) -> None:
        """A run has read its effect."""
        if actor.step == "reserve" and snapshot.intent.generation > actor.generation > 0:
            self.tried[Invariant.SUPERSEDED_RUN_ENDS] += 1
            actor.superseded = True
        if self._violated and actor.step == "reserve" and not is_final(snapshot.intent.state):
            self.tried[Invariant.FROZEN_AFTER_VIOLATION] += 1

    def changed(self, actor: Actor, before: Snapshot, change: Change[Any]) -> None:
        """A change has been committed, perhaps without a write."""
        if actor.step == "dispatch" and before.facts.holds & _HOLDS:
            self.tried[Invariant.HELD_NOT_SENT] += 1
        if not change.writes:
            return
        effect_id = before.intent.effect_id
        world, known = self._world, self.knows(effect_id)
        after = world.store.snapshot(effect_id)
        if world.telling:
            world.tell_change(before, after, change)
        advances = 0
        for write in change.writes:
            match write:
                case StartAttempt():
                    self._granted(actor, before, write, known)
                case Requeue():
                    self._requeued(actor, before)
                case Advance():
                    advances += 1
                    self._advanced(actor, before, write, change)
                case AddReceipt():
                    self._settled(write, known)
                case _:
                    pass
        self._rests_well(before, after, advances, known)
        if isinstance(change.result, View):
            self._told(actor, change.result, after)
        if not self._violated and _contradicts(after):
            self._violated = True

    def _granted(self, actor: Actor, before: Snapshot, write: StartAttempt, known: _Known) -> None:
        if before.attempts:
            self.tried[Invariant.ONE_OPEN_ATTEMPT] += 1
            self._sent_again_then(before)
        if before.facts.holds & _HOLDS:
            held = ", ".join(sorted(hold.value for hold in before.facts.holds))
            self._broken(Invariant.HELD_NOT_SENT, f"an attempt was granted while held: {held}")
        if self._violated:
            self._broken(
                Invariant.FROZEN_AFTER_VIOLATION, "an attempt was granted on a broken contract"
            )
        self._certified_then(actor, before)
        self._within_limits_then(actor, before)
        limit = before.facts.send_before
        if limit is not None and write.ordinal == 1:
            self.tried[Invariant.SEND_BEFORE_KEPT] += 1
            if before.now >= limit:
                self._broken(Invariant.SEND_BEFORE_KEPT, "a first attempt began too late")
        if actor.unfit:
            self._broken(
                Invariant.UNFIT_STARTS_NOTHING, "a process that may not dispatch was granted one"
            )
        known.granted_to[write.attempt_id] = actor.process.executor_id

    def _sent_again_then(self, before: Snapshot) -> None:
        """What was answered, and looked for, permits a further attempt."""
        if (why := left_to_a_person(before)) is not None:
            self._broken(Invariant.NO_BLIND_RESEND, f"an attempt was granted although {why}")
        if before.document.safety is SafetyClass.RECONCILABLE:
            self.tried[Invariant.ABSENCE_IS_SETTLED] += 1
        if (which := unsettled_absence(before)) is not None:
            self._broken(Invariant.ABSENCE_IS_SETTLED, f"{which} was found absent too early")

    def _certified_then(self, actor: Actor, before: Snapshot) -> None:
        """A contract that demands a certificate of its target has one at the moment of a grant."""
        demand = before.document.policy().certificate
        if demand is None:
            return
        self.tried[Invariant.CERTIFIED] += 1
        stored = self._world.store.certificates.in_force(before.intent.contract_digest)
        if all(one.target_identity != actor.process.identity for one in stored):
            self._broken(Invariant.CERTIFIED, "an attempt was granted without a certificate")

    def _within_limits_then(self, actor: Actor, before: Snapshot) -> None:
        """What a contract permits at its target holds over all effects, by their own rows."""
        limits, policy = before.document.policy().limits, before.document.policy()
        if limits is None:
            return
        self.tried[Invariant.WITHIN_LIMITS] += 1
        sends = [
            (snapshot.attempts[-1].fact, snapshot.attempts)
            for snapshot in map(self._world.store.snapshot, self._world.effects)
            if snapshot.attempts and snapshot.intent.target_identity == actor.process.identity
        ]
        open_ = [a for a, _ in sends if a.outcome is None and deadline(a, policy) > before.now]
        if limits.concurrency_max is not None and len(open_) > limits.concurrency_max:
            self._broken(Invariant.WITHIN_LIMITS, f"{counted(len(open_), 'attempt')} at once")
        if limits.per_second_max is None:
            return
        starts = sorted(a.fact.started_at for _, rows in sends for a in rows)
        for count, start in enumerate(reversed(starts), 1):
            span = (before.now - start).total_seconds()
            if count > limits.per_second_max * span + limits.burst_max + 1e-6:
                self._broken(Invariant.WITHIN_LIMITS, f"{count} begun within {span:g} s")

    def _requeued(self, actor: Actor, before: Snapshot) -> None:
        self.tried[Invariant.ONE_RUN_PER_DUE] += 1
        if actor.generation and before.intent.generation != actor.generation:
            self._broken(
                Invariant.ONE_RUN_PER_DUE,
                f"generation {actor.generation} was found due, "
                f"generation {before.intent.generation} was superseded",
            )

    def _advanced(
        self, actor: Actor, before: Snapshot, write: Advance, change: Change[Any]
    ) -> None:
        if actor.superseded and actor.step == "reserve":
            self._broken(
                Invariant.SUPERSEDED_RUN_ENDS, f"a superseded run has written {write.kind}"
            )
        fenced = write.kind in _FENCED_KINDS or any(
            isinstance(w, AddEvidence) and w.source is EvidenceSource.TRANSACTION
            for w in change.writes
        )
        if fenced and actor.step:
            self.tried[Invariant.FENCED] += 1
            if before.intent.version != actor.known_version:
                self._broken(
                    Invariant.FENCED,
                    f"{write.kind} was decided on version {actor.known_version} and written on "
                    f"version {before.intent.version}",
                )

    def _settled(self, write: AddReceipt, known: _Known) -> None:
        if hashlib.sha256(write.content).digest() != write.digest:
            self._broken(Invariant.TRUE_RECEIPT, "a receipt's digest is not of its content")
        known.receipt = write

    def _rests_well(self, before: Snapshot, after: Snapshot, advances: int, known: _Known) -> None:
        intent = after.intent
        tried = self.tried
        tried[Invariant.EVENTS_GAPLESS] += 1
        events = self._world.store.events(intent.effect_id)
        version = before.intent.version + advances
        if intent.version != version or len(events) != version - 1:
            self._broken(Invariant.EVENTS_GAPLESS, f"version {intent.version} lacks its event")
        if events and events[-1].sequence != version:
            self._broken(Invariant.EVENTS_GAPLESS, f"event {version} is missing")
        if is_final(before.intent.state):
            tried[Invariant.END_STAYS] += 1
            tried[Invariant.RECEIPT_STAYS] += 1
            if intent.state is not before.intent.state:
                self._broken(Invariant.END_STAYS, f"{before.intent.state} became {intent.state}")
            if self._world.store.receipt(intent.effect_id) is not known.receipt:
                self._broken(Invariant.RECEIPT_STAYS, "a receipt was replaced")
        elif not is_final(intent.state):
            tried[Invariant.NOTHING_STUCK] += 1
            waits = intent.next_action_at is not None
            if waits == self._world.store.parked(intent.effect_id):
                self._broken(
                    Invariant.NOTHING_STUCK, "an effect has no next action and waits for nobody"
                )
        if (why := left_to_a_person(after)) is not None:
            tried[Invariant.NO_BLIND_RESEND] += 1
            ends = not is_final(before.intent.state) and intent.state is EffectState.FAILED_FINAL
            if ends and not given_up(intent):
                self._broken(
                    Invariant.NO_BLIND_RESEND, f"it ended ({intent.reason}) although {why}"
                )
        if sum(a.fact.outcome is None for a in after.attempts) > 1:
            self._broken(Invariant.ONE_OPEN_ATTEMPT, "two attempts are open")

    def _told(self, actor: Actor, told: View, after: Snapshot) -> None:
        """What a change has told its run is what the next reader finds."""
        self.tried[Invariant.TOLD_IS_STORED] += 1
        problem = _untold(told, after, after.intent.target_identity or "")
        if problem is not None and actor.process.identity != after.intent.target_identity:
            # A process that is set up for another account decides for that one.
            problem = _untold(told, after, actor.process.identity)
        if problem is not None:
            self._broken(Invariant.TOLD_IS_STORED, problem)

    # The target -----------------------------------------------------------------------------

    def sent(self, process: SimulatedProcess, key: str, call: DispatchCall) -> None:
        """A request is leaving a process; the ledger does not hold it yet."""
        tried, world = self.tried, self._world
        known = self.knows(call.effect_id)
        snapshot = world.store.snapshot(call.effect_id)
        tried[Invariant.NO_BYTE_WITHOUT_PERMISSION] += 1
        row = next((a for a in snapshot.attempts if a.attempt_id == call.attempt_id), None)
        if row is None:
            self._broken(Invariant.NO_BYTE_WITHOUT_PERMISSION, f"attempt {call.ordinal} has no row")
            return
        if row.executor_id != process.executor_id:
            self._broken(
                Invariant.NO_BYTE_WITHOUT_PERMISSION,
                f"attempt {call.ordinal} is of another process",
            )
        tried[Invariant.ONE_SEND_PER_ATTEMPT] += 1
        known.sends[call.attempt_id] = known.sends.get(call.attempt_id, 0) + 1
        if known.sends[call.attempt_id] > 1:
            self._broken(Invariant.ONE_SEND_PER_ATTEMPT, f"attempt {call.ordinal}, twice")
        margin = snapshot.document.clock_margin_seconds
        if snapshot.now > row.fact.started_at:
            tried[Invariant.SENT_WITHIN_BUDGET] += 1
        late = (snapshot.now - row.fact.deadline_at).total_seconds() - margin
        if late > 0.01 and world.scope.keeps_promises:
            self._broken(
                Invariant.SENT_WITHIN_BUDGET, f"attempt {call.ordinal} left {late:.3f} s too late"
            )
        self._identity_sent(process, key, call, snapshot, known)
        if world.scope.safety is SafetyClass.UNSAFE:
            if len(known.sends) > 1:
                tried[Invariant.UNSAFE_ONCE] += 1
            if known.doubtful:
                self._broken(Invariant.UNSAFE_ONCE, f"attempt {call.ordinal} after doubt")

    def _identity_sent(
        self,
        process: SimulatedProcess,
        key: str,
        call: DispatchCall,
        snapshot: Snapshot,
        known: _Known,
    ) -> None:
        tried = self.tried
        tried[Invariant.SAME_BYTES] += len(known.sends) > 1
        intent = snapshot.intent
        if key != intent.downstream_key or call.downstream_key != key:
            self._broken(Invariant.SAME_BYTES, f"attempt {call.ordinal} has another key")
        if hashlib.sha256(call.wire).digest() != intent.wire_digest:
            self._broken(Invariant.SAME_BYTES, f"attempt {call.ordinal} has other bytes")
        if known.identity is None:
            known.identity = process.identity
        tried[Invariant.SAME_TARGET] += len(known.sends) > 1
        if known.identity != process.identity:
            self._broken(Invariant.SAME_TARGET, f"attempt {call.ordinal} to another account")

    def landed(self, effect_id: UUID, doubtful: bool) -> None:
        """The ledger holds what was sent last."""
        known = self.knows(effect_id)
        known.doubtful = known.doubtful or doubtful
        if len(known.sends) > 1:
            self._count(effect_id)

    def answered(self, process: SimulatedProcess, call: DispatchCall, answer: Answer) -> None:
        """A process has seen the answer to its request."""
        self.knows(call.effect_id).answers[call.attempt_id] = (process, answer)

    def shown_strange(self, effect_id: UUID) -> None:
        """A look-up has shown an object under our key that is not clearly ours."""
        self.knows(effect_id).shown_strange = True

    def vetoed(self, process: SimulatedProcess, call: DispatchCall) -> None:
        """The last gate has let nothing through."""
        self.tried[Invariant.SENT_WITHIN_BUDGET] += 1

    # Processes ------------------------------------------------------------------------------

    def entered_unfit(self) -> None:
        """A process that may not dispatch was asked to."""
        self.tried[Invariant.UNFIT_STARTS_NOTHING] += 1

    def died(self, process: SimulatedProcess) -> None:
        """What a process has seen and not stored dies with it."""
        for known in self._known.values():
            known.answers = {a: x for a, x in known.answers.items() if x[0] is not process}

    # The end --------------------------------------------------------------------------------

    def _count(self, effect_id: UUID) -> None:
        self.tried[Invariant.ONE_EFFECT] += 1
        if not self._world.scope.keeps_promises:
            return
        held = self._world.objects_in_the_end(effect_id)
        if held > 1:
            self._broken(Invariant.ONE_EFFECT, f"the target holds {counted(held, 'object')}")

    def end(self, effect_id: UUID) -> None:
        """All is at rest and everything that was on its way has landed."""
        world, tried = self._world, self.tried
        known, snapshot = self.knows(effect_id), world.store.snapshot(effect_id)
        intent = snapshot.intent
        if known.sends or snapshot.attempts:
            self._count(effect_id)
        if not is_final(intent.state) and not world.store.parked(effect_id):
            self._broken(Invariant.NOTHING_STUCK, f"{intent.state} at rest")
        moved = Fault.MOVED_TARGET in world.scope.faults  # such a process finds no certificate
        if intent.reason == Reason.AWAITING_CERTIFICATE and not moved:
            self._broken(Invariant.NOTHING_STUCK, "it waits for a certificate that is there")
        if world.scope.keeps_promises:
            self._true_end(effect_id, snapshot, known)
        tried[Invariant.ONE_OPEN_ATTEMPT] += len(snapshot.attempts) > 1
        if any(a.fact.outcome is None for a in snapshot.attempts) and not is_final(intent.state):
            self._broken(Invariant.ONE_OPEN_ATTEMPT, "an attempt is open for ever")
        self._kept(snapshot, known)
        self._follows(snapshot)
        if world.scope.keeps_promises and is_final(intent.state) and not given_up(intent):
            kinds = {event.advance.kind for event in world.store.events(effect_id)}
            tried[Invariant.NO_FALSE_ALERT] += bool(kinds & {"late_fact", "counted"})
            # An object that is not clearly ours is no accusation: a person has to look at it.
            told = {Alert.LATE_CONTRADICTION} if known.shown_strange else set()
            if (alert := world.store.alert(effect_id)) is not None and alert not in told:
                self._broken(Invariant.NO_FALSE_ALERT, alert)

    def _true_end(self, effect_id: UUID, snapshot: Snapshot, known: _Known) -> None:
        held = self._world.objects_in_the_end(effect_id)
        intent = snapshot.intent
        if not is_final(intent.state) or (given_up(intent) and self._world.on_wire):
            return
        self.tried[Invariant.TRUE_RECEIPT] += 1
        assert known.receipt is not None, "the store refuses an end without a receipt"
        content = json.loads(known.receipt.content)
        succeeded = intent.state is EffectState.SUCCEEDED
        if content["state"] != intent.state.value:
            self._broken(Invariant.TRUE_RECEIPT, "a receipt tells another end")
        if succeeded != (held == 1):
            self._broken(
                Invariant.TRUE_RECEIPT,
                f"{intent.state}, and the target holds {counted(held, 'object')}",
            )
        if succeeded and content["external_id"] not in {None, "sim_1"}:
            self._broken(Invariant.TRUE_RECEIPT, "a receipt names another object")

    def _kept(self, snapshot: Snapshot, known: _Known) -> None:
        rows = {row.attempt_id: row.fact for row in snapshot.attempts}
        for attempt_id, (_, answer) in known.answers.items():
            self.tried[Invariant.NOTHING_LOST] += 1
            if rows[attempt_id].outcome is not answer.outcome:
                self._broken(
                    Invariant.NOTHING_LOST,
                    f"attempt {rows[attempt_id].ordinal} showed {answer.outcome}, and "
                    f"{rows[attempt_id].outcome} is stored",
                )

    def _follows(self, snapshot: Snapshot) -> None:
        """A parked effect would be parked again; the reason may have changed with the time."""
        intent = snapshot.intent
        if is_final(intent.state) or intent.reason in {*_HOLDS, "run_failing"}:
            return
        self.tried[Invariant.STATE_FOLLOWS_FACTS] += 1
        _, decision = conclusion.view(snapshot, intent.target_identity or "")
        if decision is None or decision.lost or decision.action is not Action.PARK:
            self._broken(
                Invariant.STATE_FOLLOWS_FACTS,
                f"{intent.state} ({intent.reason}) is stored, and the facts say "
                f"{decision.reason if decision else 'the end'}",
            )


def given_up(intent: Intent) -> bool:
    """Whether a person has ended the effect, so that its end says nothing of the target."""
    return intent.reason == Reason.FAILED_BY_OPERATOR


def _untold(told: View, after: Snapshot, identity: str) -> str | None:
    """Say in what the next reader finds something else than was told."""
    fresh, decision = conclusion.view(after, identity)
    if (told.next, told.version, told.state, told.ordinal, told.at) != (
        fresh.next,
        fresh.version,
        fresh.state,
        fresh.ordinal,
        fresh.at,
    ):
        return (
            f"told {told.next} on version {told.version}, "
            f"the next reader finds {fresh.next} on version {fresh.version}"
        )
    if decision is not None and conclusion.needs_writing(after, decision):
        return f"{decision.reason} was decided, not stored"
    due_at = after.intent.next_action_at
    if fresh.next in {Next.DISPATCH, Next.PROBE} and (due_at is None or due_at > after.now):
        return f"{fresh.next} is next, and is not due"
    return None


def _contradicts(snapshot: Snapshot) -> bool:
    """Whether the target has shown two objects of one effect."""
    facts = snapshot.facts
    ids = {
        a.external_id
        for a in facts.attempts
        if a.outcome is Outcome.COMMITTED and a.external_id is not None
    }
    for evidence in facts.evidence:
        if evidence.verdict is Verdict.COMMITTED:
            ids.update(evidence.external_ids)
    return len(ids) > 1
