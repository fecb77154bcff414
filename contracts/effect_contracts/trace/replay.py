"""One effect's events, written a second time: at each, what the broker must have written.

An event is a pure function of the facts known then, of what it adds to them, of the contract and
of its own moment. So the replay adds the fact, asks `decide`, and compares: move, reason, row,
attempts closed as lost, receipt, alert, next action. Holds (a pause, a freeze, …) are not part of
an effect's account; a decision that names a hold as its reason is judged as if that hold stood.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, assert_never
from uuid import UUID

from effect_contracts.audit import first_count_at, is_count, late_count_at, next_count_at
from effect_contracts.decide import Action, Decision, Reason, decide
from effect_contracts.election import election_decision, extended_deadline, sender_actor
from effect_contracts.facts import (
    CODE_FAILURE_NOTICE,
    CODE_OPERATION_GONE,
    CODE_SEVERAL_MATCHES,
    FINAL_STATES,
    PROVES_NO_COMMIT,
    Alert,
    Conclusion,
    EffectState,
    EvidenceSource,
    Hold,
    Outcome,
    Verdict,
)
from effect_contracts.life import LifeEvent
from effect_contracts.receipts import receipt_time
from effect_contracts.trace import guards
from effect_contracts.trace.findings import Rule, require
from effect_contracts.trace.kinds import (
    AFTER_END,
    CERTIFICATE_MEMBER,
    CERTIFIED_MEMBER,
    DEADLINE_MEMBER,
    DRILL_MEMBER,
    DRILL_TAKEOVER_SECONDS_MAX,
    EVIDENCE_ID_MEMBER,
    FACT_MEMBER,
    RECEIPT_MEMBER,
    SOURCE_ROLES,
    TURN_MEMBER,
    WIRE_MEMBER,
    EventKind,
    ReadEvent,
)
from effect_contracts.trace.log import AttemptRecord, EvidenceRecord
from effect_contracts.trace.receipt import check_receipt
from effect_contracts.trace.timeline import Timeline, evidence_fact_digest, outcome_fact_digest

_HOLDS: Final = frozenset(hold.value for hold in Hold)
_GIVEN_UP: Final = frozenset({Reason.RUN_FAILING.value, Reason.TARGET_CHANGED.value})

# Where a person is asked; one may also speak of a parked effect in any state.
_RESOLVABLE: Final = frozenset(
    {
        EffectState.OUTCOME_UNKNOWN.value,
        EffectState.MANUAL_REVIEW.value,
        EffectState.RECONCILING.value,
    }
)
_VERDICTS: Final[Mapping[Conclusion, Verdict]] = {
    Conclusion.COMMITTED: Verdict.COMMITTED,
    Conclusion.NOT_COMMITTED: Verdict.NOT_COMMITTED,
    Conclusion.FAILED: Verdict.UNKNOWN,
}

# The move with which a coming dispatch is written; `attempt_started` then makes its own.
_COMING_DISPATCH: Final[Mapping[Reason, LifeEvent]] = {
    Reason.FIRST_ATTEMPT: LifeEvent.NOTHING_SENT,
    Reason.NO_COMMIT_PROVED: LifeEvent.NO_COMMIT_PROVED,
    Reason.SAME_KEY_AGAIN: LifeEvent.OUTCOME_LOST,
}


@dataclass(frozen=True, slots=True)
class NextAction:
    """What the latest event says of the next action; both None where nothing follows by itself.

    A look-up's end is bounded by the worker that makes it, so its next action is a range.
    """

    earliest_at: datetime | None
    latest_at: datetime | None


NOTHING: Final = NextAction(None, None)


@dataclass(frozen=True, slots=True)
class _Look:
    """A look-up that was begun: when, by whom, and how far it speaks."""

    began_at: datetime
    actor: str
    covers_through: int


class Replay:
    """The replay of one effect.

    Attributes:
        next_action: after the latest event; None while the events that say it were pruned.
        parked: likewise.
        alert: the latest alert that an event raised.
        settled_in_sight: the event that settled it was replayed.
    """

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.next_action: NextAction | None = None
        self.parked: bool | None = None
        self.alert: Alert | None = None
        self.settled_in_sight = False
        self._pruned_before: datetime | None = None
        # One that a pruned event has raised may stand until somebody deals with it.
        self._older_alert = False
        self._looks: list[_Look] = []
        self._reason: str | None = None

    def begin_before(self, first_at: datetime) -> None:
        """The events before this moment were pruned."""
        self._pruned_before = first_at
        self._older_alert = True
        self.timeline.begin_before(first_at)

    def bears(self, alert: Alert | None) -> bool:
        """Whether this may be the alert that the effect bears after the latest event."""
        if alert is self.alert:
            return True
        # A duplicate is not replaced by anything that is found later.
        return self._older_alert and (self.alert is None or alert is Alert.DUPLICATE_DETECTED)

    def step(self, event: ReadEvent) -> None:
        """Replay one event.

        Raises:
            Broken: it is not what the broker must have written.
        """
        state = event.record.from_state
        final = state is not None and EffectState(state) in FINAL_STATES
        after_end = event.kind in AFTER_END
        what = f"{event.kind} after the end" if final else f"{event.kind} before the end"
        require(final == after_end, Rule.AFTER_END, what)
        if after_end and self._reason is not None:
            kept = event.record.reason == self._reason
            require(kept, Rule.AFTER_END, "the reason of a final effect stays")
        if event.kind is not EventKind.SUBMITTED:
            require(event.record.sequence > 1, Rule.KIND, "an effect begins with its submit")
        _STEPS[event.kind](self, event)
        self._reason = event.record.reason

    # Before the end -----------------------------------------------------------------------------

    def _submitted(self, event: ReadEvent) -> None:
        intent, record = self.timeline.line.intent, event.record
        require(record.sequence == 1, Rule.KIND, "an effect is submitted once")
        told = {"contract_digest": intent.contract_digest, "request_hash": intent.request_hash}
        drill_id = event.metadata.get(DRILL_MEMBER)
        if DRILL_MEMBER in event.metadata:
            require(_is_id(drill_id), Rule.KIND, "the drill's id is none")
            told[DRILL_MEMBER] = str(drill_id)
        require(event.metadata == told, Rule.IDENTITY, "it was submitted as something else")
        require(record.actor == intent.requested_by, Rule.IDENTITY, "somebody else asked for it")
        require(record.at == intent.created_at, Rule.IDENTITY, "it was submitted at another time")
        require(record.reason == "submitted", Rule.DECISION, "a submit has no other reason")
        self._stand(record.at)
        if drill_id is not None:
            latest_at = record.at + timedelta(seconds=DRILL_TAKEOVER_SECONDS_MAX)
            self.next_action = NextAction(record.at, latest_at)

    def _attempt_started(self, event: ReadEvent) -> None:
        timeline, at = self.timeline, event.record.at
        row = timeline.row(event.number("ordinal"))
        require(str(row.attempt_id) == event.metadata["attempt_id"], Rule.FACTS, "another attempt")
        wire = event.metadata.get(WIRE_MEMBER, timeline.line.intent.wire_digest)
        same = wire == timeline.line.intent.wire_digest
        require(same, Rule.FACTS, "the intent holds another wire request than this attempt had")
        require(row.started_at == at, Rule.FACTS, "the attempt started at another time")
        _require_executor(event, row)
        # A caller that is elected stands ready to send, whatever workers may.
        rules = election_decision if event.role == "caller" else decide
        decision = rules(timeline.facts(at), timeline.policy, at)
        granted = decision.action is Action.DISPATCH and decision.ordinal == row.ordinal
        # The rules of §4 come first: they say best what is wrong.
        timeline.lose(decision.lost, at)
        guards.check_grant(timeline, at)
        named = (event.metadata.get(CERTIFICATE_MEMBER), event.metadata.get(CERTIFIED_MEMBER))
        guards.check_certificate(timeline, at, *named)
        require(
            granted, Rule.DECISION, f"the facts said {decision.action} ({decision.reason}) instead"
        )
        self._require_move(event, decision.event, decision.reason)
        until = at + timedelta(seconds=timeline.policy.attempt_deadline_seconds)
        extended = event.role == "caller" and row.deadline_at > until
        fits = extended or row.deadline_at == until
        require(fits, Rule.FACTS, "the attempt has another deadline")
        timeline.start(row, until)
        margin = timedelta(seconds=timeline.policy.clock_margin_seconds)
        self._stand(until + margin)

    def _attempt_extended(self, event: ReadEvent) -> None:
        """A caller goes on to hold its election: as long as the contract allows, and no longer."""
        timeline, record = self.timeline, event.record
        row = timeline.row(event.number("ordinal"))
        _require_executor(event, row)
        require(timeline.outcome(row.ordinal) is None, Rule.FACTS, "the attempt is not open")
        told = event.metadata[DEADLINE_MEMBER]
        if self._pruned_before is not None and row.started_at < self._pruned_before:
            # The extensions before are not told any more; the row knows where they have led.
            self._stand(None)
            self.next_action = None
            return
        facts = timeline.facts(record.at)
        attempt = facts.attempts[row.ordinal - 1]
        until = extended_deadline(attempt, facts, timeline.policy, record.at)
        require(until is not None, Rule.DECISION, "this lease could not be extended")
        assert until is not None
        require(told == receipt_time(until), Rule.FACTS, "the lease lasts until another moment")
        move = (record.event, record.reason)
        stays = move == (LifeEvent.ATTEMPT_OPEN.value, Reason.ATTEMPT_OPEN.value)
        require(stays, Rule.DECISION, "an extension changes nothing else")
        timeline.extend(row.ordinal, until)
        margin = timedelta(seconds=timeline.policy.clock_margin_seconds)
        self._stand(until + margin)

    def _outcome_recorded(self, event: ReadEvent) -> None:
        self._add_outcome(event)
        self._conclude(event, None)

    def _probe_started(self, event: ReadEvent) -> None:
        timeline, at = self.timeline, event.record.at
        decision = decide(timeline.facts(at), timeline.policy, at)
        require(
            decision.action is Action.PROBE,
            Rule.DECISION,
            f"the facts said {decision.action} ({decision.reason}) instead",
        )
        self._require_move(event, LifeEvent.EVIDENCE_SOUGHT, decision.reason)
        timeline.lose(decision.lost, at)
        self._look(event)

    def _evidence_added(self, event: ReadEvent) -> None:
        self._add_evidence(event)
        self._conclude(event, None)

    def _resolved(self, event: ReadEvent) -> None:
        """What a person concluded, and what the contract makes of it."""
        told, record, timeline = event.metadata, event.record, self.timeline
        asked = record.from_state in _RESOLVABLE or self.parked is not False
        require(asked, Rule.DECISION, "nobody was asked")
        rows = timeline.line.resolutions
        said = next((one for one in rows if one.decision_id == told["decision_id"]), None)
        require(said is not None, Rule.FACTS, "there is no resolution of this decision")
        assert said is not None
        fits = (told["conclusion"], told["digest"], told["evidence_id"], record.actor, record.at)
        wanted = (
            said.conclusion, said.digest, str(said.evidence_id), said.actor, said.recorded_at,
        )  # fmt: skip
        require(fits == wanted, Rule.FACTS, "the resolution says something else")
        row = timeline.untold_evidence(said.evidence_id)
        shape = (row.source, row.verdict, row.code, row.recorded_at, row.covers_through)
        form = (
            EvidenceSource.OPERATOR, _VERDICTS[said.conclusion], f"resolved_{said.conclusion}",
            record.at, event.number("covers_through"),
        )  # fmt: skip
        require(shape == form, Rule.FACTS, "its evidence says something else")
        require(row.covers_through == timeline.latest_ordinal, Rule.FACTS, "it covers all attempts")
        require(row.began_at <= record.at, Rule.TIME, "the observation ended before it began")
        _require_fact(event, lambda: evidence_fact_digest(row))
        if said.conclusion is Conclusion.NOT_COMMITTED:
            guards.check_absence(timeline, row, record.at)
        if said.conclusion is Conclusion.FAILED:
            marked = timeline.line.intent.failed_by_operator_at == record.at
            require(marked, Rule.FACTS, "the intent does not bear that it was given up")
        timeline.tell(row)
        timeline.resolved.add(said.decision_id)
        self._conclude(event, None)

    def _reconcile_asked(self, event: ReadEvent) -> None:
        self.timeline.look_up_asked_at = event.record.at
        self._conclude(event, None)

    def _cancelled(self, event: ReadEvent) -> None:
        asked_at = self.timeline.line.intent.cancel_requested_at
        require(asked_at == event.record.at, Rule.FACTS, "the intent was withdrawn otherwise")
        self.timeline.cancelled = True
        self._conclude(event, Action.SETTLE)

    def _approved(self, event: ReadEvent) -> None:
        self.timeline.approve(event.record.at)
        self._conclude(event, None)

    def _concluded(self, event: ReadEvent) -> None:
        self._conclude(event, Action(event.kind.value))

    def _conclude(self, event: ReadEvent, action: Action | None) -> None:
        """What every change ends with: the decision over the facts as they are now."""
        timeline, record = self.timeline, event.record
        hold = Hold(record.reason) if record.reason in _HOLDS else None
        turn_at = self._turn_at(event)
        decision = decide(timeline.facts(record.at, hold, turn_at), timeline.policy, record.at)
        if action is not None:
            what = f"the facts said {decision.action} ({decision.reason}) instead"
            require(decision.action is action, Rule.DECISION, what)
        if decision.action is Action.SETTLE:
            # Whatever is wrong with a settlement, this says it best.
            timeline.lose(decision.lost, record.at)
            self._settle(event, decision)
            return
        move = decision.event
        if decision.action is Action.DISPATCH:
            move = _COMING_DISPATCH[decision.reason]
        claims_end = record.to_state in {state.value for state in FINAL_STATES}
        if claims_end:
            guards.check_settlement(timeline, EffectState(record.to_state), record.at)
        self._require_move(event, move, decision.reason)
        self._require_row(event, decision)
        require(RECEIPT_MEMBER not in event.metadata, Rule.RECEIPT, "nothing is settled here")
        timeline.lose(decision.lost, record.at)
        match decision.action:
            case Action.WAIT:
                self._stand(decision.at)
            case Action.DISPATCH | Action.PROBE:
                self._stand(record.at)
            case Action.PARK:
                self._stand(None, parked=True)
            case never:
                assert_never(never)

    def _turn_at(self, event: ReadEvent) -> datetime | None:
        """The turn for which an effect of a limited contract waits; when, the target's pace said.

        That pace is of many effects and no part of this one's account. What can be judged is that
        the contract has limits, and that the turn was still to come.
        """
        waits = event.record.reason == Reason.TARGET_BUSY
        told = event.metadata.get(TURN_MEMBER)
        require(waits == (told is not None), Rule.KIND, "only who waits for a turn names one")
        if not waits:
            return None
        limited = self.timeline.policy.limits is not None
        require(limited, Rule.DECISION, "the contract limits nothing")
        turn_at = _moment(told)
        require(turn_at is not None, Rule.KIND, "the turn is no moment")
        assert turn_at is not None
        require(turn_at > event.record.at, Rule.TIME, "the turn had come already")
        return turn_at

    def _settle(self, event: ReadEvent, decision: Decision) -> None:
        timeline, record = self.timeline, event.record
        state = EffectState(record.to_state)
        if state in FINAL_STATES:
            guards.check_settlement(timeline, state, record.at)
        self._require_move(event, decision.event, decision.reason)
        self._require_row(event, decision)
        check_receipt(timeline, state, record.reason, record.at)
        receipt = timeline.line.receipt
        told = event.metadata.get(RECEIPT_MEMBER)
        bound = told is None or receipt is None or told == receipt.digest
        require(bound, Rule.RECEIPT, "the settling event names another receipt")
        self.settled_in_sight = True
        facts = timeline.facts(record.at)
        self._stand(first_count_at(facts, timeline.policy, state, record.at))

    def _parked(self, event: ReadEvent) -> None:
        record = event.record
        self._require_move(event, LifeEvent.REVIEW_NEEDED, Reason.RUN_FAILING)
        event.number("generation")
        require(record.to_state == EffectState.MANUAL_REVIEW.value, Rule.LIFE, "parked elsewhere")
        self._stand(None, parked=True)

    # After the end ------------------------------------------------------------------------------

    def _late_fact(self, event: ReadEvent) -> None:
        """A fact on a final effect: it rewrites nothing, and may raise an alert."""
        timeline, record = self.timeline, event.record
        state, policy, at = EffectState(record.to_state), timeline.policy, record.at
        before = timeline.facts(at)
        seen = None if event.of_outcome() else self._add_evidence(event)
        if seen is None:
            self._add_outcome(event)
        counts = (
            seen is not None
            and seen.source is EvidenceSource.PROBE
            and state is not EffectState.COMPENSATED
            and is_count(before, policy, seen.began_at)
        )
        facts = timeline.facts(at)
        decision = decide(facts, policy, at)
        succeeded = state in {EffectState.SUCCEEDED, EffectState.COMPENSATED}
        differs = (decision.event is LifeEvent.COMMIT_PROVED) != succeeded
        kind = EventKind.LATE_FACT
        if seen is not None and counts:
            there = seen.verdict in {Verdict.COMMITTED, Verdict.MISMATCH}
            differs |= seen.verdict is not Verdict.UNKNOWN and there is not succeeded
            differs |= seen.verdict is Verdict.MISMATCH
            kind = EventKind.COUNTED
            self._stand(next_count_at(facts, policy, state, seen.verdict, at))
        if seen is not None and seen.source is EvidenceSource.WEBHOOK:
            # What the target tells unasked: not as it was sent, or a failure of a success.
            failure = seen.code == CODE_FAILURE_NOTICE
            differs |= seen.verdict is Verdict.MISMATCH or (failure and succeeded)
        raised: Alert | None = Alert.LATE_CONTRADICTION if differs else None
        if decision.freezes or (seen is not None and seen.code == CODE_SEVERAL_MATCHES):
            raised, kind = Alert.DUPLICATE_DETECTED, EventKind.DUPLICATE_DETECTED
        if raised is not None and self.alert is not Alert.DUPLICATE_DETECTED:
            self.alert = raised
        told = timeline.outcome(event.number("ordinal")) if event.of_outcome() else None
        sent = told not in {None, *PROVES_NO_COMMIT} and raised is not Alert.DUPLICATE_DETECTED
        if sent and (owed_at := late_count_at(facts, policy, state, at)) is not None:
            self._stand(owed_at)
        require(event.kind is kind, Rule.DECISION, f"the fact says {kind} instead")
        contradicts = event.metadata["contradicts"]
        require(
            contradicts is (raised is not None),
            Rule.DECISION,
            "whether it contradicts the receipt is told wrongly",
        )

    def _count_started(self, event: ReadEvent) -> None:
        self._require_count_owed(event)
        self._look(event)

    def _compensated(self, event: ReadEvent) -> None:
        """Another effect has undone it. Nothing is owed any more; its receipt stays."""
        require(_is_id(event.metadata["by"]), Rule.KIND, "by is no effect's id")
        undone = event.record.event == LifeEvent.UNDONE.value
        require(undone, Rule.DECISION, f"the event says {LifeEvent.UNDONE}")
        self._stand(None)

    def _acknowledged(self, event: ReadEvent) -> None:
        """A person has dealt with the alert; nothing else has changed."""
        named = next((one for one in Alert if one.value == event.metadata["alert"]), None)
        fits = named is not None and self.bears(named)
        require(fits, Rule.DECISION, "no such alert was raised")
        self.alert, self._older_alert = None, False

    def _count_given_up(self, event: ReadEvent) -> None:
        self._require_count_owed(event)
        require(event.metadata["why"] in _GIVEN_UP, Rule.DECISION, "no count ends for this reason")
        event.number("generation")
        self._stand(None)

    def _require_count_owed(self, event: ReadEvent) -> None:
        if self.next_action is None:
            return  # the events that say so were pruned
        owed_at = self.next_action.earliest_at
        require(owed_at is not None, Rule.AFTER_END, "no count is owed")
        assert owed_at is not None
        require(event.record.at >= owed_at, Rule.AFTER_END, "the count is not due yet")

    # Facts --------------------------------------------------------------------------------------

    def _add_outcome(self, event: ReadEvent) -> None:
        told, timeline = event.metadata, self.timeline
        row = timeline.row(event.number("ordinal"))
        before = timeline.outcome(row.ordinal)
        presumed = before is Outcome.PRESUMED_AMBIGUOUS
        require(
            before is None or presumed, Rule.FACTS, f"attempt {row.ordinal} has its outcome already"
        )
        require(told["late"] is presumed, Rule.FACTS, "late is told of an outcome in time, or not")
        fits = (told["outcome"], told["code"]) == (row.outcome, row.code)
        require(fits, Rule.FACTS, f"attempt {row.ordinal} has another outcome or code")
        what = f"attempt {row.ordinal} was recorded at another time"
        require(row.recorded_at == event.record.at, Rule.FACTS, what)
        _require_fact(event, lambda: outcome_fact_digest(row))
        _require_executor(event, row)
        timeline.record(row)

    def _add_evidence(self, event: ReadEvent) -> EvidenceRecord:
        told, at = event.metadata, event.record.at
        wanted = (told["source"], told["verdict"], told["code"], event.number("covers_through"))
        named = told.get(EVIDENCE_ID_MEMBER)
        for row in self.timeline.untold():
            said = (row.source, row.verdict, row.code, row.covers_through)
            meant = named is None or named == str(row.evidence_id)
            if meant and row.recorded_at == at and said == wanted:
                break
        else:
            require(False, Rule.FACTS, "no evidence of this moment says this")
            raise AssertionError
        _require_fact(event, lambda: evidence_fact_digest(row))
        require(event.role in SOURCE_ROLES[row.source], Rule.ACTOR, "who says this?")
        latest = self.timeline.latest_ordinal
        require(0 <= row.covers_through <= latest, Rule.FACTS, "it covers attempts of the future")
        require(row.began_at <= at, Rule.TIME, "the observation ended before it began")
        self._require_look(event, row)
        self.timeline.tell(row)
        return row

    def _look(self, event: ReadEvent) -> None:
        timeline, record = self.timeline, event.record
        covers = event.number("covers_through")
        require(
            covers == timeline.latest_ordinal, Rule.FACTS, "a look-up covers all attempts so far"
        )
        self._looks.append(_Look(record.at, record.actor, covers))
        lasts = timedelta(seconds=timeline.policy.attempt_deadline_seconds)
        self.next_action, self.parked = NextAction(record.at, record.at + lasts), False

    def _require_look(self, event: ReadEvent, row: EvidenceRecord) -> None:
        """What a look-up found goes back to the event that began it."""
        if row.source is EvidenceSource.TRANSACTION:
            require(row.began_at == event.record.at, Rule.FACTS, "it was seen at another time")
        if row.source is not EvidenceSource.PROBE:
            return
        if self._pruned_before is not None and row.began_at < self._pruned_before:
            return
        look = next((one for one in self._looks if one.began_at == row.began_at), None)
        require(look is not None, Rule.FACTS, "no look-up began when this one did")
        assert look is not None
        require(look.actor == event.record.actor, Rule.ACTOR, "another worker began the look-up")
        # An operation that failed, or is no longer known, speaks of its own attempt only.
        operations = {a.ordinal for a in self.timeline.line.attempts if a.operation}
        gone = row.verdict is Verdict.UNKNOWN and row.code == CODE_OPERATION_GONE
        polled = (gone or row.verdict is Verdict.REJECTED) and row.covers_through in operations
        covers = row.covers_through == look.covers_through or polled
        require(covers, Rule.FACTS, "it covers other attempts than its look-up did")

    # Shapes -------------------------------------------------------------------------------------

    def _stand(self, at: datetime | None, *, parked: bool = False) -> None:
        self.next_action, self.parked = NextAction(at, at), parked

    @staticmethod
    def _require_move(event: ReadEvent, move: LifeEvent, reason: Reason) -> None:
        record = event.record
        fits = (record.event, record.reason) == (move.value, reason.value)
        require(fits, Rule.DECISION, f"the facts said {move} ({reason})")

    @staticmethod
    def _require_row(event: ReadEvent, decision: Decision) -> None:
        what = f"row {decision.row} of the table applied"
        require(event.number("row") == decision.row, Rule.DECISION, what)


def _moment(told: object) -> datetime | None:
    """Return the moment that `receipt_time` has spelt; None of anything else."""
    try:
        moment = datetime.fromisoformat(str(told))
    except ValueError:
        return None
    return moment if moment.tzinfo is not None and receipt_time(moment) == told else None


def _is_id(value: object) -> bool:
    try:
        return isinstance(value, str) and str(UUID(value)) == value
    except ValueError:
        return False


def _require_fact(event: ReadEvent, computed: Callable[[], str]) -> None:
    """The row of a fact says what it said when its event was written."""
    if FACT_MEMBER not in event.metadata:
        return
    same = computed() == event.metadata[FACT_MEMBER]
    require(same, Rule.FACTS, "the row of this fact says something else than it did")


def _require_executor(event: ReadEvent, row: AttemptRecord) -> None:
    wanted = sender_actor(row.executor_id)
    require(event.record.actor == wanted, Rule.ACTOR, "only the process that sends writes this")


_STEPS: Final[Mapping[EventKind, Callable[[Replay, ReadEvent], None]]] = {
    EventKind.SUBMITTED: Replay._submitted,
    EventKind.ATTEMPT_STARTED: Replay._attempt_started,
    EventKind.ATTEMPT_EXTENDED: Replay._attempt_extended,
    EventKind.OUTCOME_RECORDED: Replay._outcome_recorded,
    EventKind.PROBE_STARTED: Replay._probe_started,
    EventKind.EVIDENCE_ADDED: Replay._evidence_added,
    EventKind.RESOLVED: Replay._resolved,
    EventKind.RECONCILE_ASKED: Replay._reconcile_asked,
    EventKind.APPROVED: Replay._approved,
    # A denial withdraws the effect, and the same has to hold.
    EventKind.DENIED: Replay._cancelled,
    EventKind.CANCELLED: Replay._cancelled,
    EventKind.WAIT: Replay._concluded,
    EventKind.PARK: Replay._concluded,
    EventKind.SETTLE: Replay._concluded,
    EventKind.PARKED: Replay._parked,
    EventKind.LATE_FACT: Replay._late_fact,
    EventKind.COMPENSATED: Replay._compensated,
    EventKind.ACKNOWLEDGED: Replay._acknowledged,
    EventKind.COUNT_STARTED: Replay._count_started,
    EventKind.COUNTED: Replay._late_fact,
    EventKind.DUPLICATE_DETECTED: Replay._late_fact,
    EventKind.COUNT_GIVEN_UP: Replay._count_given_up,
}
