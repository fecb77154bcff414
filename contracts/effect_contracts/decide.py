"""What is next for an effect: one pure, total function over its facts, its contract and a time.

`decide` is the only policy of the broker. It is a table whose rows apply from top to bottom; each
row is one function below and carries its number. It is asked after every new fact, and asked
again inside the transaction that grants an attempt, on the database clock.

    row  facts                                              decision
    1    committed with different external ids              freeze; review `contract_violation`,
                                                            or what a person has said since
    2    any attempt or evidence committed                  settle: succeeded
    2b   an operator recorded final failure                 settle: failed_final
    3    any key_conflict, any partial                      review
    4    an attempt is open within its deadline             wait until then; a review of row 1 or
                                                            3 waits too, its freeze does not
    5    cancelled before any attempt                       settle: cancelled
    6    held (paused, frozen, no certificate, …)           no dispatch; probes go on
    7    no attempt                                         dispatch, or fail `expired`
    8    all cleared, any of them rejected                  settle: failed_final (but an "exists
                                                            already" after doubt: review)
    9    all cleared, budget left                           wait, then dispatch
    10   all cleared, budget spent                          settle: failed_final
    11   otherwise                                          unknown: an accepted operation is
                                                            polled; else by safety class

Where a contract leaves the sending to callers, a dispatch of row 7, 9 or 11 is not the broker's to
make: it waits for a caller (`effect_contracts.election` says who may be elected). Where it limits
how hard its target is driven, a dispatch that does not fit waits for its turn (`pacing`).

Words: *deadline(a)* is the latest moment at which attempt a may still put bytes on the wire; an
attempt is *cleared* if its own outcome, or conclusive evidence that covers its ordinal, proves
that it did not commit; *settled-by* is the maximum of deadline(a) over all attempts that may
have sent; *first* is the start of the first of those.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import assert_never

from effect_contracts import operations
from effect_contracts.backoff import exponential_seconds, jittered_seconds
from effect_contracts.certified import standing_certificate
from effect_contracts.decision import Action, Decision, Reason
from effect_contracts.facts import (
    CODE_ALREADY_EXISTS,
    CODE_REPLAYED_ERROR,
    PROVES_NO_COMMIT,
    Attempt,
    Evidence,
    EvidenceSource,
    Facts,
    Hold,
    Outcome,
    Policy,
    SafetyClass,
    Verdict,
)
from effect_contracts.life import LifeEvent
from effect_contracts.retention import latest_start_at
from effect_contracts.turn import turn_of

__all__ = [
    "Action",
    "Decision",
    "Reason",
    "conclusive_from",
    "deadline",
    "decide",
    "settled_by",
]


def deadline(attempt: Attempt, policy: Policy) -> datetime:
    """Return the latest moment at which the attempt may still put bytes on the wire.

    The sender's own record ends the attempt; without one its deadline plus the clock margin
    does. A record that came later than the deadline counts as it is: the sender was stopped
    between its last gate and the socket, and did send then.
    """
    if attempt.recorded_at is not None:
        return attempt.recorded_at
    return attempt.deadline_at + timedelta(seconds=policy.clock_margin_seconds)


def settled_by(attempts: tuple[Attempt, ...], policy: Policy) -> datetime | None:
    """Return the maximum of `deadline` over all attempts that may have sent; None without one."""
    return max((deadline(a, policy) for a in attempts if a.may_have_sent), default=None)


def conclusive_from(
    attempts: tuple[Attempt, ...], policy: Policy, restarted_at: datetime | None = None
) -> datetime | None:
    """Return the moment after which an observation of absence must begin to be conclusive.

    None where it never is (the contract declares no settlement bound) or nothing was sent.
    """
    settled_at = settled_by(attempts, policy)
    if settled_at is None or policy.settlement_bound_seconds is None:
        return None
    if restarted_at is not None:
        settled_at = max(settled_at, restarted_at)
    return settled_at + timedelta(seconds=policy.settlement_bound_seconds)


def decide(facts: Facts, policy: Policy, now: datetime) -> Decision:
    """Return what is next for the effect at `now` (database clock).

    Total over every combination of facts. Attempts that are open past their deadline are judged
    as `presumed_ambiguous` and named in `Decision.lost`.
    """
    open_ = [a for a in facts.attempts if a.outcome is None]
    lost = tuple(a.ordinal for a in open_ if deadline(a, policy) <= now)
    judged = replace(
        facts,
        attempts=tuple(
            replace(a, outcome=Outcome.PRESUMED_AMBIGUOUS) if a.ordinal in lost else a
            for a in facts.attempts
        ),
    )
    return replace(_Case(judged, policy, now).decision(), lost=lost)


@dataclass(frozen=True, slots=True)
class _Case:
    """The table over one set of facts; every method is a row or a word of it."""

    facts: Facts
    policy: Policy
    now: datetime

    def decision(self) -> Decision:
        decided = (
            self._watched(self._commit_decision() or self._refusal_decision())
            or self._open_decision()
            or self._cancel_decision()
            or self._held(self._first_decision() or self._cleared_decision())
            or self._held(self._unknown_decision())
            or self._unreachable()
        )
        awaits = self.policy.awaits_caller and decided.action is Action.DISPATCH
        return self._awaiting_caller(decided) if awaits else self._in_turn(decided)

    # Rows 1, 2 and 2b ---------------------------------------------------------------------

    def _commit_decision(self) -> Decision | None:
        answers = [a for a in self.facts.attempts if a.outcome is Outcome.COMMITTED]
        findings = [e for e in self.facts.evidence if e.verdict is Verdict.COMMITTED]
        ids = {a.external_id for a in answers if a.external_id is not None}
        ids |= {i for e in findings for i in e.external_ids}
        if len(ids) > 1:
            return self._violation_decision(findings)
        if answers or findings:
            # The target's own answer says more than a look-up; the first of a kind is kept.
            winner: Attempt | Evidence = answers[0] if answers else findings[0]
            return Decision(
                Action.SETTLE, LifeEvent.COMMIT_PROVED, Reason.COMMITTED, 2, winner=winner
            )
        if self.facts.failed_by_operator:
            return self._fail(Reason.FAILED_BY_OPERATOR, 2)
        return None

    def _violation_decision(self, findings: list[Evidence]) -> Decision:
        """Two objects of one key: a person has to say which one counts, or that none does."""
        if self.facts.failed_by_operator:
            return replace(self._fail(Reason.FAILED_BY_OPERATOR, 1), freezes=True)
        said = [e for e in findings if e.source is EvidenceSource.OPERATOR]
        if not said:
            return self._park(Reason.CONTRACT_VIOLATION, 1, freezes=True)
        event, winner = LifeEvent.COMMIT_PROVED, said[-1]
        return Decision(Action.SETTLE, event, Reason.COMMITTED, 1, winner=winner, freezes=True)

    # Row 3 --------------------------------------------------------------------------------

    def _refusal_decision(self) -> Decision | None:
        outcomes = {a.outcome for a in self.facts.attempts}
        if Outcome.KEY_CONFLICT in outcomes:
            return self._park(Reason.TARGET_KEY_CONFLICT, 3)
        if Outcome.PARTIAL in outcomes:
            return self._park(Reason.PARTIAL_RESULT, 3)
        return None

    # Row 4 --------------------------------------------------------------------------------

    def _watched(self, decision: Decision | None) -> Decision | None:
        """What would wait for a person waits for the open attempt first.

        A parked effect is looked at by nobody: an attempt whose process is lost would stay open
        in it for ever, and what a living one is about to learn may decide the case.
        """
        waits = self._open_decision()
        if decision is None or decision.action is not Action.PARK or waits is None:
            return decision
        return replace(waits, freezes=decision.freezes)

    def _open_decision(self) -> Decision | None:
        open_until = [deadline(a, self.policy) for a in self.facts.attempts if a.outcome is None]
        if not open_until:
            return None
        return Decision(
            Action.WAIT, LifeEvent.ATTEMPT_OPEN, Reason.ATTEMPT_OPEN, 4, at=max(open_until)
        )

    # Row 5 --------------------------------------------------------------------------------

    def _cancel_decision(self) -> Decision | None:
        if not self.facts.cancel_requested or self.facts.attempts:
            return None
        return Decision(Action.SETTLE, LifeEvent.CANCEL_GRANTED, Reason.CANCELLED, 5)

    # Row 6: a filter on every row that would dispatch -----------------------------------------

    def _held(self, decision: Decision | None) -> Decision | None:
        holds = self._holds()
        if decision is None or not holds:
            return decision
        if Hold.TARGET_CHANGED in holds:
            # Another origin or account: its answers say nothing about our attempts, so it is
            # not even asked.
            touches = decision.action in {Action.DISPATCH, Action.PROBE, Action.WAIT}
            return self._park(Reason.TARGET_CHANGED, 6) if touches else decision
        if not _leads_to_dispatch(decision):
            return decision
        hold = next(h for h in Hold if h in holds)  # in the order of the enum
        reason, event = Reason(hold.value), self._resting_event()
        if not self.facts.attempts and self.facts.send_before is not None:
            # Held, it still expires: the caller was told that nothing starts after this.
            return Decision(Action.WAIT, event, reason, 6, at=self.facts.send_before)
        return Decision(Action.PARK, event, reason, 6)

    def _holds(self) -> frozenset[Hold]:
        """What is held by a row of its own, and what waits for a certificate or an approval."""
        holds = self.facts.holds
        if not self._certified():
            holds |= {Hold.AWAITING_CERTIFICATE}
        if not self._approved():
            holds |= {Hold.AWAITING_APPROVAL}
        return holds

    def _certified(self) -> bool:
        """Whether the contract's target is certified as the contract demands, now.

        Every attempt asks anew: a target that was found to lie is not sent anything again.
        """
        demand = self.policy.certificate
        if demand is None:
            return True
        return standing_certificate(self.facts.certificates, demand, self.now) is not None

    def _approved(self) -> bool:
        """Whether the first attempt is approved, or needs no approval.

        An approval is used up by that attempt: what follows it is the same effect, under the same
        key, and goes by the contract.
        """
        valid_seconds = self.policy.approval_valid_seconds
        if valid_seconds is None or self.facts.attempts:
            return True
        approved_at = self.facts.approved_at
        return approved_at is not None and self.now < approved_at + timedelta(seconds=valid_seconds)

    def _resting_event(self) -> LifeEvent:
        if not self.facts.attempts:
            return LifeEvent.NOTHING_SENT
        if self._uncleared():
            return LifeEvent.OUTCOME_LOST
        return LifeEvent.NO_COMMIT_PROVED

    # Row 7 --------------------------------------------------------------------------------

    def _first_decision(self) -> Decision | None:
        if self.facts.attempts:
            return None
        if self.facts.send_before is not None and self.now >= self.facts.send_before:
            return self._fail(Reason.EXPIRED, 7)
        return self._dispatch(Reason.FIRST_ATTEMPT, 7)

    # Rows 8 to 10 ---------------------------------------------------------------------------

    def _cleared_decision(self) -> Decision | None:
        if self._uncleared():
            return None
        attempts = self.facts.attempts
        if self._conflict_after_doubt():
            # "It exists already" after an attempt that may have committed is no refusal.
            return self._park(Reason.CONFLICT_UNATTRIBUTED, 8)
        if any(
            a.outcome is Outcome.REJECTED or operations.has_failed(self.facts, a) for a in attempts
        ):
            return self._fail(Reason.REJECTED, 8)
        if self.policy.safety is SafetyClass.UNSAFE and not all(
            a.outcome in PROVES_NO_COMMIT for a in attempts
        ):
            # A person has proved that nothing was committed. The operation key is spent all the
            # same: an unsafe effect is sent again only on the target's own word.
            return self._fail(Reason.PROVED_NOT_COMMITTED, 9)
        if self._budget_left():
            at = self._after_backoff()
            if self.now < at:
                return Decision(Action.WAIT, LifeEvent.NO_COMMIT_PROVED, Reason.BACKOFF, 9, at=at)
            return self._dispatch(Reason.NO_COMMIT_PROVED, 9)
        if all(a.outcome is Outcome.NOT_SENT for a in attempts):
            return self._fail(Reason.NEVER_SENT, 10)
        return self._fail(Reason.RETRIES_EXHAUSTED, 10)

    def _awaiting_caller(self, granted: Decision) -> Decision:
        """An attempt would be granted, and only a caller can make it: wait for one.

        What has to be sent before a moment is looked at again then: a first attempt expires, and
        a key that is forgotten leaves only a look-up or a person.
        """
        at: datetime | None = None
        if not self.facts.attempts:
            at = self.facts.send_before
        elif granted.reason is Reason.SAME_KEY_AGAIN:
            at = self._key_ends_at()
        action = Action.PARK if at is None else Action.WAIT
        event = self._resting_event()
        return Decision(action, event, Reason.AWAITING_CALLER, granted.row, at=at)

    def _in_turn(self, granted: Decision) -> Decision:
        """A turn to come is waited for, but not beyond the key's end: another way is taken then."""
        at = turn_of(self.facts, self.policy, self.now)
        if at is None or granted.action is not Action.DISPATCH:
            return granted
        if granted.reason is Reason.SAME_KEY_AGAIN:
            at = min(at, self._key_ends_at())
        event = self._resting_event()
        return Decision(Action.WAIT, event, Reason.TARGET_BUSY, granted.row, at=at)

    # Row 11 -------------------------------------------------------------------------------

    def _unknown_decision(self) -> Decision:
        if any(e.verdict is Verdict.MISMATCH for e in self.facts.evidence):
            conflict = self._conflict_after_doubt()
            return self._park(
                Reason.CONFLICT_UNATTRIBUTED if conflict else Reason.AMBIGUOUS_PROBE, 11
            )
        polled = operations.open_operation(self.facts)
        if self.policy.polls_operations and polled is not None and not self._cleared(polled):
            return self._operation_decision(polled)
        match self.policy.safety:
            case SafetyClass.IDEMPOTENT:
                return self._idempotent_decision()
            case SafetyClass.RECONCILABLE:
                return self._reconcilable_decision()
            case SafetyClass.TRANSACTIONAL:
                return self._probe(self._seeking_event())
            case SafetyClass.UNSAFE:
                return Decision(Action.PARK, LifeEvent.OUTCOME_LOST, Reason.OUTCOME_UNKNOWN, 11)
            case never:
                assert_never(never)

    def _operation_decision(self, attempt: Attempt) -> Decision:
        """Poll; once the target no longer knows the operation, go on by what else may tell.

        How it ended is not known then: targets forget operations, done or not. An idempotent
        effect is sent again under its key, once: a target that then accepts, and forgets again,
        only repeats its answer. What is looked up by key goes on with that (the look-up is part
        of the poll), and what nothing else can tell of stays unknown, for a person.
        """
        polling = self._probe(LifeEvent.EVIDENCE_SOUGHT)
        asked = polling.action is Action.PROBE and self._asked_to_look()
        # An early look counts only where none will follow.
        late = deadline(attempt, self.policy) + timedelta(seconds=self.policy.transit_seconds)
        known_from = None if polling.action is Action.PARK else late
        if asked or not operations.is_gone(self.facts, attempt, known_from):
            return polling
        once = operations.forgotten_operations(self.facts) < 2
        if self.policy.safety is SafetyClass.IDEMPOTENT and once:
            return self._idempotent_decision()
        if self.policy.probes or self.policy.safety is SafetyClass.TRANSACTIONAL:
            return polling
        return Decision(Action.PARK, LifeEvent.OUTCOME_LOST, Reason.OUTCOME_UNKNOWN, 11)

    def _idempotent_decision(self) -> Decision:
        attempts = self.facts.attempts
        if self._conflict_after_doubt():
            return self._probe_or_park(Reason.CONFLICT_UNATTRIBUTED)
        replays = sum(a.code == CODE_REPLAYED_ERROR for a in attempts)
        if replays >= self.policy.replayed_errors_max:
            return self._probe_or_park(Reason.REPLAYED_ERROR)
        if not self._budget_left():
            return self._probe_or_park(Reason.RETRIES_EXHAUSTED)
        settled_at = settled_by(attempts, self.policy)
        assert settled_at is not None, "row 11 holds only where an attempt may have sent"
        at = max(settled_at, self._after_backoff(), self.now)
        if not self._key_lives_through(at):
            return self._probe_or_park(Reason.KEY_EXPIRED)
        if self.now < at:
            in_progress = attempts[-1].outcome is Outcome.IN_PROGRESS
            reason = Reason.IN_PROGRESS if in_progress else Reason.BACKOFF
            return Decision(Action.WAIT, LifeEvent.OUTCOME_LOST, reason, 11, at=at)
        return self._dispatch(Reason.SAME_KEY_AGAIN, 11)

    def _reconcilable_decision(self) -> Decision:
        if not self.policy.probes:
            return self._park(Reason.PROBE_HORIZON_PASSED, 11)
        return self._probe(self._seeking_event())

    def _probe_or_park(self, reason: Reason) -> Decision:
        """The last resort of an idempotent effect: look up where the contract can, else review."""
        if self.policy.probes:
            return self._probe(self._seeking_event(), reason)
        return self._park(reason, 11)

    def _probe(self, event: LifeEvent, horizon_reason: Reason | None = None) -> Decision:
        """Probe now, wait for the next probe of the schedule, or give up at the horizon."""
        settled_at = self._settled_at()
        if self._asked_to_look():
            return Decision(Action.PROBE, event, Reason.LOOK_UP, 11)
        horizon_at = settled_at + timedelta(seconds=self.policy.probe_horizon_seconds)
        at = self._next_probe_at(settled_at)
        if at > horizon_at or self.now > horizon_at:
            # One probe always runs after the bound, however late its turn comes: an effect that
            # nobody looked at during an outage is not given up unseen.
            conclusive_at = self._conclusive_at()
            began_at = self.facts.probe_began_at
            if began_at is not None and began_at > (conclusive_at or settled_at):
                return self._park(horizon_reason or Reason.PROBE_HORIZON_PASSED, 11)
        if self.now < at:
            return Decision(Action.WAIT, event, Reason.SETTLING, 11, at=at)
        return Decision(Action.PROBE, event, Reason.LOOK_UP, 11)

    def _settled_at(self) -> datetime:
        """Return *settled-by*, from a restore on if that is later."""
        settled_at = settled_by(self.facts.attempts, self.policy)
        assert settled_at is not None, "row 11 holds only where an attempt may have sent"
        return max(settled_at, self.facts.bounds_restart_at or settled_at)

    def _asked_to_look(self) -> bool:
        """Whether somebody has asked for a look-up that has not been begun since.

        It may come before the schedule and after the horizon, but not while something of ours can
        still be on its way.
        """
        asked_at, began_at = self.facts.look_up_asked_at, self.facts.probe_began_at
        if asked_at is None or self.now < self._settled_at():
            return False
        return began_at is None or began_at < asked_at

    def _next_probe_at(self, settled_at: datetime) -> datetime:
        began_at = self.facts.probe_began_at
        if began_at is None:
            # A positive look-up counts at any time, so the first one does not wait for the
            # bound; it waits only until nothing can be on its way from us any more.
            return settled_at
        wait = exponential_seconds(
            max(self.facts.probes_since_attempt - 1, 0),
            self.policy.probe_initial_seconds,
            self.policy.probe_factor,
            self.policy.probe_cap_seconds,
        )
        at = began_at + timedelta(seconds=wait)
        conclusive_at = self._conclusive_at()
        if conclusive_at is not None and began_at <= conclusive_at < at:
            # The first conclusive moment is worth a probe of its own. One microsecond, since
            # the observation has to begin after the bound, and that is the clock's resolution.
            return conclusive_at + timedelta(microseconds=1)
        return at

    def _conclusive_at(self) -> datetime | None:
        return conclusive_from(self.facts.attempts, self.policy, self.facts.bounds_restart_at)

    def _seeking_event(self) -> LifeEvent:
        if self.facts.probes_since_attempt:
            return LifeEvent.EVIDENCE_SOUGHT
        return LifeEvent.OUTCOME_LOST

    def _unreachable(self) -> Decision:
        raise AssertionError("row 11 is total")

    # Words ----------------------------------------------------------------------------------

    def _uncleared(self) -> tuple[Attempt, ...]:
        return tuple(a for a in self.facts.attempts if not self._cleared(a))

    def _cleared(self, attempt: Attempt) -> bool:
        if attempt.outcome in PROVES_NO_COMMIT or operations.has_failed(self.facts, attempt):
            return True
        # An "exists already" that came later makes older evidence of absence worthless.
        conflicts = (a.ordinal for a in self.facts.attempts if a.code == CODE_ALREADY_EXISTS)
        through = max(attempt.ordinal, *conflicts, 0)
        return any(
            self._clears(e, through)
            # Nothing says how long an accepted operation may still take, so that no look-up finds
            # it absent; a person may know.
            and (not attempt.operation or e.source is EvidenceSource.OPERATOR)
            for e in self.facts.evidence
        )

    def _clears(self, evidence: Evidence, ordinal: int) -> bool:
        """Whether this is conclusive evidence of absence for the attempt of this ordinal."""
        if evidence.verdict is not Verdict.NOT_COMMITTED or ordinal > evidence.covers_through:
            return False
        if evidence.source is EvidenceSource.TRANSACTION:
            return True  # a fence row stands on the key: an older transaction cannot commit
        if evidence.source is EvidenceSource.WEBHOOK:
            return False  # it can prove a commit only
        if any(
            e.verdict is Verdict.MISMATCH and e.began_at >= evidence.began_at
            for e in self.facts.evidence
        ):
            return False  # something under our key was seen since: absence is in doubt again
        if (
            evidence.source is EvidenceSource.PROBE
            and self.policy.safety is SafetyClass.TRANSACTIONAL
        ):
            return False  # however late, a mere look-up does not stop an older transaction
        covered = tuple(a for a in self.facts.attempts if a.ordinal <= evidence.covers_through)
        policy = self.policy
        if evidence.source is EvidenceSource.OPERATOR and policy.settlement_bound_seconds is None:
            # A person's observation needs no declared bound, but what may still be on the wire
            # has to have ended before it began.
            policy = replace(policy, settlement_bound_seconds=0.0)
        conclusive_at = conclusive_from(covered, policy, self.facts.bounds_restart_at)
        return conclusive_at is not None and evidence.began_at > conclusive_at

    def _budget_left(self) -> bool:
        free_until = self._in_progress_free_until()
        free = free_until is not None and self.now < free_until
        spent = sum(not (free and a.outcome is Outcome.IN_PROGRESS) for a in self.facts.attempts)
        return spent < self.policy.attempts_max

    def _in_progress_free_until(self) -> datetime | None:
        starts = [a.started_at for a in self.facts.attempts if a.outcome is Outcome.IN_PROGRESS]
        if not starts:
            return None
        return min(starts) + timedelta(seconds=self.policy.in_progress_bound_seconds)

    def _after_backoff(self) -> datetime:
        """Return the earliest moment of the next attempt by back-off and Retry-After."""
        last = self.facts.attempts[-1]
        wait = jittered_seconds(
            exponential_seconds(
                last.ordinal - 1,
                self.policy.backoff_initial_seconds,
                self.policy.backoff_factor,
                self.policy.backoff_cap_seconds,
            ),
            self.facts.jitter_seed,
            last.ordinal,
        )
        if last.retry_after_seconds is not None:
            # The target's word may lengthen a wait, up to the cap; it never shortens ours.
            asked = min(max(last.retry_after_seconds, 0.0), self.policy.retry_after_cap_seconds)
            wait = max(wait, asked)
        return deadline(last, self.policy) + timedelta(seconds=wait)

    def _key_lives_through(self, at: datetime) -> bool:
        """Whether a whole attempt that starts at `at` ends before the target forgets the key."""
        latest_at = latest_start_at(self.facts.attempts, self.policy)
        return latest_at is not None and at <= latest_at

    def _key_ends_at(self) -> datetime:
        """Return the first moment at which no whole attempt fits into the key's life any more."""
        latest_at = latest_start_at(self.facts.attempts, self.policy)
        assert latest_at is not None, "the key lives through the attempt that was granted"
        return latest_at + timedelta(microseconds=1)  # the clock's resolution

    def _conflict_after_doubt(self) -> bool:
        """Whether the target named an existing object after an attempt that may have made it."""
        doubtful = [a.ordinal for a in self.facts.attempts if a.outcome not in PROVES_NO_COMMIT]
        return any(
            a.code == CODE_ALREADY_EXISTS and any(o < a.ordinal for o in doubtful)
            for a in self.facts.attempts
        )

    # Shapes ---------------------------------------------------------------------------------

    def _dispatch(self, reason: Reason, row: int) -> Decision:
        ordinal = len(self.facts.attempts) + 1
        return Decision(Action.DISPATCH, LifeEvent.ATTEMPT_STARTED, reason, row, ordinal=ordinal)

    @staticmethod
    def _park(reason: Reason, row: int, freezes: bool = False) -> Decision:
        return Decision(Action.PARK, LifeEvent.REVIEW_NEEDED, reason, row, freezes=freezes)

    @staticmethod
    def _fail(reason: Reason, row: int) -> Decision:
        return Decision(Action.SETTLE, LifeEvent.FAILURE_PROVED, reason, row)


def _leads_to_dispatch(decision: Decision) -> bool:
    match decision.action:
        case Action.DISPATCH:
            return True
        case Action.WAIT:
            return decision.reason in {Reason.BACKOFF, Reason.IN_PROGRESS}
        case Action.PROBE | Action.PARK | Action.SETTLE:
            return False
        case never:
            assert_never(never)
