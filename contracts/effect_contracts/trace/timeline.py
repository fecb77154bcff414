"""What was known of one effect at each moment: its rows, taken apart again by time.

A row shows the last word only: an attempt's row holds its outcome, and no longer that it was open
for a while and then presumed lost. The replay tells this module what each event added; it gives
back the facts as `decide` saw them then, and in the end it names the rows that no event told of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

from effect_contracts.fact_digests import evidence_digest, outcome_digest
from effect_contracts.facts import (
    CODE_ALREADY_EXISTS,
    Attempt,
    Certified,
    Conclusion,
    Evidence,
    EvidenceSource,
    Facts,
    Hold,
    Outcome,
    Policy,
    Verdict,
)
from effect_contracts.trace.findings import Finding, Rule, require
from effect_contracts.trace.log import AttemptRecord, EffectLine, EvidenceRecord


class Timeline:
    """The facts of one effect, as they became known.

    Args:
        restarted_at: when running bounds began again, after the latest restore.

    Attributes:
        resolved: the decision ids of the resolutions that were told.
        look_up_asked_at: when somebody last asked for a look-up.
        approved_at: when somebody last approved the first attempt.
        cancelled: somebody has withdrawn the effect, in the event that is replayed.
    """

    def __init__(self, line: EffectLine, policy: Policy, restarted_at: datetime | None) -> None:
        self.line = line
        self.policy = policy
        self._restarted_at = restarted_at
        self._rows = {row.ordinal: row for row in line.attempts}
        self._known: dict[int, Attempt] = {}
        self._lost: set[int] = set()
        self._evidence: list[EvidenceRecord] = []
        self._untold = list(line.evidence)
        self.resolved: set[str] = set()
        self.look_up_asked_at: datetime | None = None
        self.approved_at: datetime | None = None
        self.cancelled = False

    # What is known ------------------------------------------------------------------------------

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The attempts known now, by ordinal."""
        return tuple(self._known[ordinal] for ordinal in sorted(self._known))

    @property
    def evidence(self) -> tuple[EvidenceRecord, ...]:
        """The evidence known now, in the order in which it was stored."""
        return tuple(self._evidence)

    @property
    def latest_ordinal(self) -> int:
        """The highest ordinal known now, 0 without an attempt."""
        return max(self._known, default=0)

    @property
    def given_up(self) -> bool:
        """Whether a resolution that was told has ended the effect as failed."""
        return any(
            one.decision_id in self.resolved and one.conclusion is Conclusion.FAILED
            for one in self.line.resolutions
        )

    def row(self, ordinal: int) -> AttemptRecord:
        """Return the attempt's row.

        Raises:
            Broken: there is none.
        """
        row = self._rows.get(ordinal)
        require(row is not None, Rule.FACTS, f"there is no attempt {ordinal}")
        assert row is not None
        return row

    def outcome(self, ordinal: int) -> Outcome | None:
        """Return what is known of an attempt's outcome.

        Raises:
            Broken: the attempt has not started.
        """
        require(ordinal in self._known, Rule.FACTS, f"attempt {ordinal} has not started")
        return self._known[ordinal].outcome

    def restarted_at(self, at: datetime) -> datetime | None:
        """Return when bounds began again, as it was known then.

        The store keeps the latest restart only: what was decided between two of them is judged
        as if there had been none.
        """
        known = self._restarted_at is not None and self._restarted_at <= at
        return self._restarted_at if known else None

    def facts(
        self, at: datetime, hold: Hold | None = None, turn_at: datetime | None = None
    ) -> Facts:
        """Return what `decide` saw at this moment, under a hold or under none.

        `turn_at` is the turn at a limited target that the effect had been given.
        """
        intent = self.line.intent
        latest_start = max((a.started_at for a in self._known.values()), default=None)
        probes = [
            row.began_at
            for row in self._evidence
            if row.source is EvidenceSource.PROBE
            and latest_start is not None
            and row.began_at > latest_start
        ]
        # A cancel tells of itself; where it was recorded before, others find it.
        asked_at = intent.cancel_requested_at
        cancelled = self.cancelled or (asked_at is not None and asked_at < at)
        return Facts(
            attempts=self.attempts,
            evidence=tuple(fact for fact in map(fact_of, self._evidence) if fact.decisive),
            probes_since_attempt=len(probes),
            probe_began_at=max(probes, default=None),
            look_up_asked_at=self.look_up_asked_at,
            cancel_requested=cancelled,
            failed_by_operator=self.given_up,
            holds=frozenset() if hold is None else frozenset({hold}),
            send_before=intent.send_before,
            approved_at=self.approved_at,
            certificates=any_certificate(self.policy, at),
            turn_at=turn_at,
            jitter_seed=intent.effect_id.int,
            bounds_restart_at=self.restarted_at(at),
        )

    # What becomes known -------------------------------------------------------------------------

    def begin_before(self, first_at: datetime) -> None:
        """Take for known what is older than the first kept event: its own events were pruned."""
        self._begin(lambda at: at < first_at)

    def begin_through(self, last_at: datetime) -> None:
        """Take for known what was there at a moment whose event was pruned."""
        self._begin(lambda at: at <= last_at)

    def _begin(self, known: Callable[[datetime], bool]) -> None:
        for row in self._rows.values():
            if not known(row.started_at):
                continue
            self.start(row)
            if row.lost_at is not None and known(row.lost_at):
                self._presume(row.ordinal)
            if row.recorded_at is not None and known(row.recorded_at):
                self.record(row)
        self._evidence = [row for row in self._untold if known(row.recorded_at)]
        self._untold = [row for row in self._untold if not known(row.recorded_at)]
        self.resolved = {r.decision_id for r in self.line.resolutions if known(r.recorded_at)}
        asked_at = self.line.intent.reconcile_asked_at
        self.look_up_asked_at = asked_at if asked_at is not None and known(asked_at) else None
        approved_at = self.line.intent.approved_at
        self.approved_at = approved_at if approved_at is not None and known(approved_at) else None

    def approve(self, at: datetime) -> None:
        """Somebody has approved the first attempt.

        Raises:
            Broken: the intent says that nobody has, or only before.
        """
        latest = self.line.intent.approved_at
        require(latest is not None and latest >= at, Rule.FACTS, "the intent was not approved here")
        self.approved_at = at

    def start(self, row: AttemptRecord, deadline_at: datetime | None = None) -> None:
        """An attempt was granted, until this moment at first; the row knows the last one."""
        until = row.deadline_at if deadline_at is None else deadline_at
        self._known[row.ordinal] = Attempt(row.ordinal, row.started_at, until)

    def extend(self, ordinal: int, deadline_at: datetime) -> None:
        """The lease of an attempt was extended."""
        self._known[ordinal] = replace(self._known[ordinal], deadline_at=deadline_at)

    def lose(self, ordinals: tuple[int, ...], at: datetime) -> None:
        """Open attempts past their deadline were closed, by whoever wrote this event.

        Raises:
            Broken: the row says otherwise.
        """
        for ordinal in ordinals:
            lost = self.row(ordinal).lost_at == at
            require(lost, Rule.FACTS, f"attempt {ordinal} was lost here, its row does not say so")
            self._presume(ordinal)

    def record(self, row: AttemptRecord) -> None:
        """The sender recorded an outcome; how long its lease lasts is told by other events."""
        told = self._known[row.ordinal].deadline_at
        self._known[row.ordinal] = replace(_recorded(row), deadline_at=told)

    def tell(self, wanted: EvidenceRecord) -> None:
        """Evidence was added."""
        self._untold.remove(wanted)
        self._evidence.append(wanted)

    def untold(self) -> tuple[EvidenceRecord, ...]:
        """Return the evidence that no event has told of yet."""
        return tuple(self._untold)

    def untold_evidence(self, evidence_id: UUID) -> EvidenceRecord:
        """Return evidence that no event has told of yet.

        Raises:
            Broken: there is none of this id.
        """
        row = next((row for row in self._untold if row.evidence_id == evidence_id), None)
        require(row is not None, Rule.FACTS, "there is no such evidence, or it was told before")
        assert row is not None
        return row

    def leftovers(self) -> Iterator[Finding]:
        """Yield what the rows hold and no event has told."""
        for ordinal, row in sorted(self._rows.items()):
            known = self._known.get(ordinal)
            if known is None:
                yield Finding(Rule.FACTS, f"no event tells that attempt {ordinal} started")
                continue
            if row.deadline_at != known.deadline_at:
                yield Finding(Rule.FACTS, f"no event tells how long attempt {ordinal} lasts")
            if row.outcome is not known.outcome:
                yield Finding(Rule.FACTS, f"no event tells the outcome of attempt {ordinal}")
            if (row.lost_at is not None) != (ordinal in self._lost):
                yield Finding(Rule.FACTS, f"no event tells that attempt {ordinal} was lost")
            yield from _row_findings(row)
        for evidence in self._evidence:
            yield from _evidence_findings(evidence)
        for evidence in self._untold:
            yield Finding(Rule.FACTS, f"no event tells of evidence {evidence.evidence_id}")
        if self.approved_at != self.line.intent.approved_at:
            yield Finding(Rule.FACTS, "no event tells when it was last approved")
        if self.look_up_asked_at != self.line.intent.reconcile_asked_at:
            yield Finding(Rule.FACTS, "no event tells when a look-up was last asked for")
        for resolution in self.line.resolutions:
            if resolution.decision_id not in self.resolved:
                yield Finding(Rule.FACTS, f"no event tells of the resolution of {resolution.actor}")

    def _presume(self, ordinal: int) -> None:
        self._lost.add(ordinal)
        known = self._known[ordinal]
        self._known[ordinal] = replace(known, outcome=Outcome.PRESUMED_AMBIGUOUS)


def any_certificate(policy: Policy, at: datetime) -> tuple[Certified, ...]:
    """Return a certificate that fits: like a hold, those in force are no part of an account.

    That one was is told by the attempt's own event, and judged there (`guards.check_certificate`).
    """
    demand = policy.certificate
    if demand is None:
        return ()
    expires_at = at + timedelta(seconds=1)
    return (Certified("", "", demand.trials, at, expires_at),)


def _recorded(row: AttemptRecord) -> Attempt:
    return Attempt(
        ordinal=row.ordinal,
        started_at=row.started_at,
        deadline_at=row.deadline_at,
        outcome=row.outcome,
        recorded_at=row.recorded_at,
        code=row.code,
        external_id=row.external_id,
        retry_after_seconds=row.retry_after_seconds,
        operation=row.operation,
    )


def _row_findings(row: AttemptRecord) -> Iterator[Finding]:
    """What a row must not hold; no event binds these columns, so only the absurd is found."""
    by_sender = row.outcome is not None and row.outcome is not Outcome.PRESUMED_AMBIGUOUS
    if by_sender != (row.recorded_at is not None):
        yield Finding(Rule.FACTS, f"attempt {row.ordinal} is recorded, or not, by nobody")
    answer = (row.code, row.external_id, row.retry_after_seconds, row.result_digest)
    if row.recorded_at is None and (row.operation or answer != (None, None, None, None)):
        what = f"attempt {row.ordinal} has an answer and nobody recorded it"
        yield Finding(Rule.FACTS, what)
    named = row.outcome is Outcome.COMMITTED or row.code == CODE_ALREADY_EXISTS
    answered = row.outcome in {Outcome.COMMITTED, Outcome.PARTIAL}
    odd = {
        "external id": row.external_id is not None and not named,
        "result": row.result_digest is not None and not answered,
        "operation": row.operation and row.outcome is not Outcome.IN_PROGRESS,
    }
    for name in (name for name, found in odd.items() if found):
        yield Finding(Rule.FACTS, f"no outcome as that of attempt {row.ordinal} has its {name}")


def _evidence_findings(row: EvidenceRecord) -> Iterator[Finding]:
    """Likewise for evidence."""
    if row.external_ids and row.verdict not in {Verdict.COMMITTED, Verdict.MISMATCH}:
        yield Finding(Rule.FACTS, f"evidence {row.evidence_id} names an object, and saw none")
    if row.result_digest is not None and row.verdict is not Verdict.COMMITTED:
        yield Finding(Rule.FACTS, f"evidence {row.evidence_id} has a result, and saw no commit")


def outcome_fact_digest(row: AttemptRecord) -> str:
    """Return the digest that the event of the attempt's outcome holds."""
    assert row.outcome is not None, "asked of a recorded outcome only"
    assert row.recorded_at is not None
    return outcome_digest(
        attempt_id=row.attempt_id,
        ordinal=row.ordinal,
        outcome=row.outcome,
        code=row.code,
        recorded_at=row.recorded_at,
        external_id=row.external_id,
        retry_after_seconds=row.retry_after_seconds,
        operation=row.operation,
        result_digest=row.result_digest,
    )


def evidence_fact_digest(row: EvidenceRecord) -> str:
    """Return the digest that the event of the evidence holds."""
    return evidence_digest(
        evidence_id=row.evidence_id,
        source=row.source,
        verdict=row.verdict,
        code=row.code,
        began_at=row.began_at,
        covers_through=row.covers_through,
        external_ids=row.external_ids,
        target_identity=row.target_identity,
        result_digest=row.result_digest,
    )


def fact_of(row: EvidenceRecord) -> Evidence:
    """Return evidence as `decide` reads it."""
    return Evidence(
        evidence_id=str(row.evidence_id),
        source=row.source,
        verdict=row.verdict,
        began_at=row.began_at,
        covers_through=row.covers_through,
        external_ids=row.external_ids,
        code=row.code,
    )
