"""A second statement of the decide table, written from the design and not from `decide`.

It exists to disagree: `decide` is nested rules over a case, this is one flat list of rows, each a
condition and an answer, of which the first that holds counts. It shares no word of policy with
`effect_contracts.decide` but the names of the answers; only the jitter is taken from
`effect_contracts.backoff`, since a pseudo-random number has no second derivation. Slow and plain
on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import NamedTuple

from effect_contracts.backoff import jittered_seconds
from effect_contracts.decide import Action, Reason
from effect_contracts.facts import (
    CODE_ALREADY_EXISTS,
    CODE_OPERATION_GONE,
    CODE_REPLAYED_ERROR,
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

OWN_PROOFS = (Outcome.REJECTED, Outcome.NOT_SENT, Outcome.RETRYABLE)
MICROSECOND = timedelta(microseconds=1)


class Answer(NamedTuple):
    """What a row says; the parts of a `Decision` that the design fixes."""

    action: Action
    event: LifeEvent
    reason: Reason
    at: datetime | None = None
    ordinal: int | None = None
    freezes: bool = False


def review(reason: Reason, *, freezes: bool = False) -> Answer:
    return Answer(Action.PARK, LifeEvent.REVIEW_NEEDED, reason, freezes=freezes)


def failure(reason: Reason) -> Answer:
    return Answer(Action.SETTLE, LifeEvent.FAILURE_PROVED, reason)


def seconds(amount: float) -> timedelta:
    return timedelta(seconds=amount)


def grown(first: float, factor: float, cap: float, step: int) -> float:
    """An exponential wait, closed form."""
    return float(min(first * factor**step, cap))


@dataclass(frozen=True)
class World:
    """The facts, and every word of the design that the rows use."""

    facts: Facts
    policy: Policy
    now: datetime

    # Attempts -------------------------------------------------------------------------------

    def sending_ends(self, attempt: Attempt) -> datetime:
        """*deadline(a)*."""
        by_clock = attempt.deadline_at + seconds(self.policy.clock_margin_seconds)
        return attempt.recorded_at or by_clock

    @cached_property
    def open_now(self) -> list[Attempt]:
        attempts = self.facts.attempts
        return [a for a in attempts if a.outcome is None and self.now < self.sending_ends(a)]

    def has(self, outcome: Outcome) -> bool:
        return any(a.outcome is outcome for a in self.facts.attempts)

    @cached_property
    def lost(self) -> tuple[int, ...]:
        attempts = self.facts.attempts
        return tuple(a.ordinal for a in attempts if a.outcome is None and a not in self.open_now)

    def settled_by(self, attempts: Iterable[Attempt]) -> datetime | None:
        """*settled-by*, from a restore on if that is later."""
        ends = [self.sending_ends(a) for a in attempts if a.outcome is not Outcome.NOT_SENT]
        if not ends:
            return None
        restarted = self.facts.bounds_restart_at
        return max(ends + ([restarted] if restarted else []))

    # Commits --------------------------------------------------------------------------------

    @cached_property
    def commits(self) -> list[Attempt | Evidence]:
        answers = [a for a in self.facts.attempts if a.outcome is Outcome.COMMITTED]
        found = [e for e in self.facts.evidence if e.verdict is Verdict.COMMITTED]
        return [*answers, *found]

    @cached_property
    def committed_ids(self) -> set[str]:
        ids: set[str] = set()
        for commit in self.commits:
            if isinstance(commit, Evidence):
                ids.update(commit.external_ids)
            elif commit.external_id is not None:
                ids.add(commit.external_id)
        return ids

    # Absence --------------------------------------------------------------------------------

    @cached_property
    def named_existing(self) -> list[int]:
        """Ordinals at which the target said that an object of this name exists already."""
        return [a.ordinal for a in self.facts.attempts if a.code == CODE_ALREADY_EXISTS]

    @cached_property
    def conflict(self) -> bool:
        """ "Exists already" after an attempt whose own answer leaves a commit possible."""
        for named in self.named_existing:
            before = self.facts.attempts[: named - 1]
            if not all(a.outcome in OWN_PROOFS for a in before):
                return True
        return False

    def shows_absence(self, evidence: Evidence) -> bool:
        """Whether it is conclusive for the attempts that it covers."""
        if evidence.verdict is not Verdict.NOT_COMMITTED:
            return False
        match evidence.source:
            case EvidenceSource.WEBHOOK:
                return False  # a webhook can prove a commit only
            case EvidenceSource.TRANSACTION:
                return True
            case EvidenceSource.PROBE:
                if self.policy.safety is SafetyClass.TRANSACTIONAL:
                    return False  # absence is settled only by a fence row
                bound = self.policy.settlement_bound_seconds
            case EvidenceSource.OPERATOR:
                bound = self.policy.settlement_bound_seconds or 0.0
        settled = self.settled_by(self.facts.attempts[: evidence.covers_through])
        if bound is None or settled is None:
            return False
        sightings = [e.began_at for e in self.facts.evidence if e.verdict is Verdict.MISMATCH]
        seen_since = bool(sightings) and max(sightings) >= evidence.began_at
        return evidence.began_at > settled + seconds(bound) and not seen_since

    def absent_through(self, *sources: EvidenceSource) -> int:
        """The highest ordinal for which conclusive evidence shows no commit; 0 without any."""
        shown = [
            e.covers_through
            for e in self.facts.evidence
            if e.source in sources and self.shows_absence(e)
        ]
        return max(shown, default=0)

    @cached_property
    def failed_operations(self) -> set[int]:
        return {
            e.covers_through
            for e in self.facts.evidence
            if e.verdict is Verdict.REJECTED and e.source is not EvidenceSource.WEBHOOK
        }

    @cached_property
    def uncleared(self) -> list[Attempt]:
        reach = max([0, *self.named_existing])
        anybodys = self.absent_through(*EvidenceSource)
        # Nothing but a person can know how long an operation that was accepted may take.
        a_persons = self.absent_through(EvidenceSource.OPERATOR)
        anybodys, a_persons = (n if n >= reach else 0 for n in (anybodys, a_persons))
        return [
            a
            for a in self.facts.attempts
            if a.outcome not in OWN_PROOFS
            and a.ordinal not in self.failed_operations
            and a.ordinal > (a_persons if a.operation else anybodys)
        ]

    @property
    def cleared(self) -> bool:
        return bool(self.facts.attempts) and not self.uncleared

    @cached_property
    def own_answers_prove(self) -> bool:
        return all(a.outcome in OWN_PROOFS for a in self.facts.attempts)

    # Budget, back-off, key --------------------------------------------------------------------

    @cached_property
    def budget_left(self) -> bool:
        waiting = [a for a in self.facts.attempts if a.outcome is Outcome.IN_PROGRESS]
        spent = len(self.facts.attempts)
        if waiting:
            began = min(a.started_at for a in waiting)
            if self.now - began < seconds(self.policy.in_progress_bound_seconds):
                spent -= len(waiting)
        return spent < self.policy.attempts_max

    @cached_property
    def backed_off_at(self) -> datetime:
        last, policy = self.facts.attempts[-1], self.policy
        wait = jittered_seconds(
            grown(
                policy.backoff_initial_seconds,
                policy.backoff_factor,
                policy.backoff_cap_seconds,
                last.ordinal - 1,
            ),
            self.facts.jitter_seed,
            last.ordinal,
        )
        if last.retry_after_seconds is not None:
            wait = max(wait, min(last.retry_after_seconds, policy.retry_after_cap_seconds))
        return self.sending_ends(last) + seconds(wait)

    @cached_property
    def again_at(self) -> datetime:
        """When the same key may be sent again: after settled-by, with back-off."""
        sent = [a for a in self.facts.attempts if a.outcome is not Outcome.NOT_SENT]
        return max(self.backed_off_at, self.now, *(self.sending_ends(a) for a in sent))

    @cached_property
    def key_alive(self) -> bool:
        policy = self.policy
        if policy.key_retention_seconds is None:
            return False
        sent = [a for a in self.facts.attempts if a.outcome is not Outcome.NOT_SENT]
        forgotten_at = min(a.started_at for a in sent) + seconds(policy.key_retention_seconds)
        whole_attempt = seconds(policy.attempt_deadline_seconds)
        margin = seconds(policy.clock_margin_seconds)
        transit = seconds(policy.transit_seconds)
        return self.again_at + whole_attempt + margin + transit <= forgotten_at

    @property
    def key_unusable(self) -> Reason | None:
        """Why an idempotent effect cannot send its key again, if so."""
        replayed = [a for a in self.facts.attempts if a.code == CODE_REPLAYED_ERROR]
        if self.conflict:
            return Reason.CONFLICT_UNATTRIBUTED
        if len(replayed) >= self.policy.replayed_errors_max:
            return Reason.REPLAYED_ERROR
        if not self.budget_left:
            return Reason.RETRIES_EXHAUSTED
        return None if self.key_alive else Reason.KEY_EXPIRED

    @property
    def a_person_has_seen_it(self) -> bool:
        return any(
            e.verdict is Verdict.COMMITTED and e.source is EvidenceSource.OPERATOR
            for e in self.facts.evidence
        )

    def class_is(self, safety: SafetyClass) -> bool:
        return self.policy.safety is safety

    # Answers with a time ----------------------------------------------------------------------

    def unheld(self) -> Answer:
        """What the table would say if nothing held the effect."""
        return answer(World(replace(self.facts, holds=frozenset()), self.policy, self.now))

    def resting(self) -> LifeEvent:
        if not self.facts.attempts:
            return LifeEvent.NOTHING_SENT
        return LifeEvent.NO_COMMIT_PROVED if self.cleared else LifeEvent.OUTCOME_LOST

    def dispatch(self, reason: Reason) -> Answer:
        ordinal = len(self.facts.attempts) + 1
        return Answer(Action.DISPATCH, LifeEvent.ATTEMPT_STARTED, reason, ordinal=ordinal)

    def look_up(self, event: LifeEvent | None = None, give_up: Reason | None = None) -> Answer:
        """The probe schedule: probe, wait for the next probe, or give up."""
        policy, began = self.policy, self.facts.probe_began_at
        if event is None:
            asked = self.facts.probes_since_attempt > 0
            event = LifeEvent.EVIDENCE_SOUGHT if asked else LifeEvent.OUTCOME_LOST
        settled = self.settled_by(self.facts.attempts)
        assert settled is not None
        bound_at = settled
        if policy.settlement_bound_seconds is not None:
            bound_at = settled + seconds(policy.settlement_bound_seconds)
        if began is None:
            due = settled
        else:
            wait = grown(
                policy.probe_initial_seconds,
                policy.probe_factor,
                policy.probe_cap_seconds,
                max(self.facts.probes_since_attempt - 1, 0),
            )
            due = began + seconds(wait)
            if policy.settlement_bound_seconds is not None and began <= bound_at:
                due = min(due, bound_at + MICROSECOND)
        wished = self.facts.look_up_asked_at
        seen_since = began is not None and wished is not None and began >= wished
        if wished is not None and settled <= self.now and not seen_since:
            return Answer(Action.PROBE, event, Reason.LOOK_UP)
        horizon = settled + seconds(policy.probe_horizon_seconds)
        seen_after_bound = began is not None and began > bound_at
        if seen_after_bound and max(self.now, due) > horizon:
            return review(give_up or Reason.PROBE_HORIZON_PASSED)
        if self.now >= due:
            return Answer(Action.PROBE, event, Reason.LOOK_UP)
        return Answer(Action.WAIT, event, Reason.SETTLING, at=due)


def asks_or_sends(would: Answer) -> bool:
    return would.action in (Action.DISPATCH, Action.PROBE, Action.WAIT)


def sends(would: Answer) -> bool:
    waits_to_send = would.reason in (Reason.BACKOFF, Reason.IN_PROGRESS)
    return would.action is Action.DISPATCH or (would.action is Action.WAIT and waits_to_send)


def held(w: World) -> Answer:
    reason = next(Reason(h.value) for h in Hold if h in w.facts.holds)
    if w.facts.send_before is not None and not w.facts.attempts:
        return Answer(Action.WAIT, w.resting(), reason, at=w.facts.send_before)
    return Answer(Action.PARK, w.resting(), reason)


def key_unusable(w: World) -> Answer:
    reason = w.key_unusable
    assert reason is not None
    return w.look_up(give_up=reason) if w.policy.probes else review(reason)


def wait_for_key(w: World) -> Answer:
    in_progress = w.facts.attempts[-1].outcome is Outcome.IN_PROGRESS
    reason = Reason.IN_PROGRESS if in_progress else Reason.BACKOFF
    return Answer(Action.WAIT, LifeEvent.OUTCOME_LOST, reason, at=w.again_at)


def exhausted(w: World) -> Answer:
    never_sent = all(a.outcome is Outcome.NOT_SENT for a in w.facts.attempts)
    return failure(Reason.NEVER_SENT if never_sent else Reason.RETRIES_EXHAUSTED)


def accepted(w: World) -> Attempt | None:
    """The attempt whose operation is still followed: the latest that was known to stand."""
    attempts, found = w.facts.attempts, None
    for a in attempts:
        known = a.operation and a.recorded_at is not None
        left_behind = a is not attempts[-1] and not (
            a.recorded_at is not None and a.recorded_at >= attempts[-1].started_at
        )
        if known and not left_behind and a.ordinal not in w.failed_operations:
            found = a
    return found if w.policy.polls_operations and found in w.uncleared else None


def forgotten(w: World) -> bool:
    """Whether the target no longer knows the accepted operation."""
    attempt = accepted(w)
    if attempt is None or w.class_is(SafetyClass.TRANSACTIONAL):
        return False
    latest = w.facts.probe_began_at
    settled = w.settled_by(w.facts.attempts)
    asked, over = w.facts.look_up_asked_at, w.look_up().action is Action.PARK
    wished = asked is not None and (latest is None or latest < asked)
    if wished and settled is not None and settled <= w.now:
        return False
    lag_ends = w.sending_ends(attempt) + seconds(w.policy.transit_seconds)
    return any(
        e.verdict is Verdict.UNKNOWN
        and e.code == CODE_OPERATION_GONE
        and (e.covers_through, e.began_at) == (attempt.ordinal, latest)
        and (over or e.began_at > lag_ends)
        for e in w.facts.evidence
    )


def mismatched(w: World) -> bool:
    return any(e.verdict is Verdict.MISMATCH for e in w.facts.evidence)


def sent_again_after_it_was_forgotten(w: World) -> bool:
    """An idempotent effect is sent once more; a second forgotten operation is only a repetition."""
    forgotten_ones = {e.covers_through for e in w.facts.evidence if e.code == CODE_OPERATION_GONE}
    return w.class_is(SafetyClass.IDEMPOTENT) and len(forgotten_ones) < 2


def until_closed(w: World) -> Answer:
    return Answer(
        Action.WAIT,
        LifeEvent.ATTEMPT_OPEN,
        Reason.ATTEMPT_OPEN,
        at=max(map(w.sending_ends, w.open_now)),
    )


Row = tuple[str, Callable[[World], object], Callable[[World], Answer]]

ROWS: tuple[Row, ...] = (
    (
        "1 two objects, and a person ended it",
        lambda w: len(w.committed_ids) > 1 and w.facts.failed_by_operator,
        lambda w: failure(Reason.FAILED_BY_OPERATOR)._replace(freezes=True),
    ),
    (
        "1 two objects, and a person said which one counts",
        lambda w: len(w.committed_ids) > 1 and w.a_person_has_seen_it,
        lambda w: Answer(Action.SETTLE, LifeEvent.COMMIT_PROVED, Reason.COMMITTED, freezes=True),
    ),
    (
        "1 two objects, and an attempt is open",
        lambda w: len(w.committed_ids) > 1 and w.open_now,
        lambda w: until_closed(w)._replace(freezes=True),
    ),
    (
        "1 two objects",
        lambda w: len(w.committed_ids) > 1,
        lambda w: review(Reason.CONTRACT_VIOLATION, freezes=True),
    ),
    (
        "2 committed",
        lambda w: w.commits,
        lambda w: Answer(Action.SETTLE, LifeEvent.COMMIT_PROVED, Reason.COMMITTED),
    ),
    (
        "2b a person ended it",
        lambda w: w.facts.failed_by_operator,
        lambda w: failure(Reason.FAILED_BY_OPERATOR),
    ),
    (
        "3 key conflict",
        lambda w: w.has(Outcome.KEY_CONFLICT) and not w.open_now,
        lambda w: review(Reason.TARGET_KEY_CONFLICT),
    ),
    (
        "3 partial",
        lambda w: w.has(Outcome.PARTIAL) and not w.open_now,
        lambda w: review(Reason.PARTIAL_RESULT),
    ),
    (
        "4 open",
        lambda w: w.open_now,
        until_closed,
    ),
    (
        "5 cancelled",
        lambda w: w.facts.cancel_requested and not w.facts.attempts,
        lambda w: Answer(Action.SETTLE, LifeEvent.CANCEL_GRANTED, Reason.CANCELLED),
    ),
    (
        "6 target changed",
        lambda w: Hold.TARGET_CHANGED in w.facts.holds and asks_or_sends(w.unheld()),
        lambda w: review(Reason.TARGET_CHANGED),
    ),
    (
        "6 held",
        lambda w: w.facts.holds and sends(w.unheld()),
        held,
    ),
    (
        "7 too late for a first attempt",
        lambda w: (
            not w.facts.attempts
            and w.facts.send_before is not None
            and w.facts.send_before <= w.now
        ),
        lambda w: failure(Reason.EXPIRED),
    ),
    (
        "7 first attempt",
        lambda w: not w.facts.attempts,
        lambda w: w.dispatch(Reason.FIRST_ATTEMPT),
    ),
    (
        "8 cleared, but whose is the object that exists?",
        lambda w: w.cleared and w.conflict,
        lambda w: review(Reason.CONFLICT_UNATTRIBUTED),
    ),
    (
        "8 refused",
        lambda w: w.cleared and (w.has(Outcome.REJECTED) or w.failed_operations),
        lambda w: failure(Reason.REJECTED),
    ),
    (
        "9 unsafe, cleared by another's word",
        lambda w: w.cleared and w.class_is(SafetyClass.UNSAFE) and not w.own_answers_prove,
        lambda w: failure(Reason.PROVED_NOT_COMMITTED),
    ),
    (
        "9 back-off",
        lambda w: w.cleared and w.budget_left and w.now < w.backed_off_at,
        lambda w: Answer(
            Action.WAIT, LifeEvent.NO_COMMIT_PROVED, Reason.BACKOFF, at=w.backed_off_at
        ),
    ),
    (
        "9 again",
        lambda w: w.cleared and w.budget_left,
        lambda w: w.dispatch(Reason.NO_COMMIT_PROVED),
    ),
    ("10 spent", lambda w: w.cleared, exhausted),
    (
        "11 an object that may be another's",
        lambda w: mismatched(w) and w.conflict,
        lambda w: review(Reason.CONFLICT_UNATTRIBUTED),
    ),
    ("11 mismatch", mismatched, lambda w: review(Reason.AMBIGUOUS_PROBE)),
    (
        "11 accepted operation",
        lambda w: accepted(w) is not None and not forgotten(w),
        lambda w: w.look_up(LifeEvent.EVIDENCE_SOUGHT),
    ),
    (
        "11 forgotten operation, looked up by key",
        lambda w: forgotten(w) and w.policy.probes and not sent_again_after_it_was_forgotten(w),
        lambda w: w.look_up(LifeEvent.EVIDENCE_SOUGHT),
    ),
    (
        "11 forgotten operation, and nothing else to ask",
        lambda w: forgotten(w) and not sent_again_after_it_was_forgotten(w),
        lambda w: Answer(Action.PARK, LifeEvent.OUTCOME_LOST, Reason.OUTCOME_UNKNOWN),
    ),
    (
        "11 unsafe",
        lambda w: w.class_is(SafetyClass.UNSAFE),
        lambda w: Answer(Action.PARK, LifeEvent.OUTCOME_LOST, Reason.OUTCOME_UNKNOWN),
    ),
    (
        "11 look-up classes",
        lambda w: not w.class_is(SafetyClass.IDEMPOTENT),
        lambda w: w.look_up(),
    ),
    ("11 the key cannot go again", lambda w: w.key_unusable, key_unusable),
    ("11 the key must wait", lambda w: w.now < w.again_at, wait_for_key),
    (
        "11 the key goes again",
        lambda w: True,
        lambda w: w.dispatch(Reason.SAME_KEY_AGAIN),
    ),
)


def answer(world: World) -> Answer:
    """Return what the first row that holds says."""
    return next(then(world) for _, holds, then in ROWS if holds(world))


def row_name(world: World) -> str:
    """Return the name of the row that `answer` uses; for messages and coverage of the table."""
    return next(name for name, holds, _ in ROWS if holds(world))


def consult(facts: Facts, policy: Policy, now: datetime) -> tuple[Answer, tuple[int, ...]]:
    """Return the answer and the ordinals of attempts that are open past their deadline."""
    world = World(facts, policy, now)
    return answer(world), world.lost
