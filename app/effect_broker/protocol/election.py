"""The changes of an effect that its caller performs: elect, extend, and record what it showed.

Plans like those of `effect_broker.protocol.changes`, under the same lock and with the same ends.
An election is an attempt whose sender is the caller; who may be elected is decided in
`effect_contracts.election`. The holder is known by the attempt's id, which is made of a token that
only the holder has (`attempt_id_of`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID

from effect_adapters.base import Answer
from effect_broker.protocol.changes import record_outcome
from effect_broker.protocol.conclusion import (
    Next,
    View,
    certificate_named,
    held_facts,
    losses,
    needs_writing,
    rows_removed,
    view,
    view_of,
    write_decision,
)
from effect_broker.protocol.ports import (
    Advance,
    AttemptRow,
    BindTarget,
    Change,
    ExtendAttempt,
    Intent,
    Sealed,
    Snapshot,
    StartAttempt,
    Write,
)
from effect_broker.protocol.submission import Elected
from effect_contracts.decide import Action, Decision, Reason, deadline, decide
from effect_contracts.document import ContractDocument
from effect_contracts.election import CALLER_PREFIX, election_decision, extended_deadline
from effect_contracts.facts import Attempt, Facts, Outcome
from effect_contracts.life import LifeEvent, is_final, move
from effect_contracts.receipts import receipt_time

# Separates this hash from every other use of SHA-256 in the project.
_ATTEMPT_DOMAIN: Final = b"effect-broker/election/1"


def attempt_id_of(tenant_id: UUID, effect_id: UUID, token: str) -> UUID:
    """Return the id of the attempt that belongs to a token.

    The id stands in the effect's history, where others read it; the token stands nowhere. 122 bits
    of SHA-256 are kept (RFC 9562, version 8), so that nobody finds another token for an id. Whoever
    asks again with the same token meets the same attempt, also after a lost answer.
    """
    text = b"".join((_ATTEMPT_DOMAIN, tenant_id.bytes, effect_id.bytes, token.encode()))
    raw = bytearray(hashlib.sha256(text).digest()[:16])
    raw[6] = raw[6] & 0x0F | 0x80
    raw[8] = raw[8] & 0x3F | 0x80
    return UUID(bytes=bytes(raw))


def caller_of(credential: str) -> str:
    """Return how a caller is named as the sender of an attempt."""
    return f"{CALLER_PREFIX}{credential}"


@dataclass(frozen=True, slots=True)
class Election:
    """The answer to whoever asks to be elected.

    Attributes:
        elected: the caller may perform the effect, and nobody else may.
        view: where the effect stands.
        ordinal: of the attempt, 0 for who is not elected.
        lease_seconds: how long the election lasts from the moment of this answer.
    """

    elected: bool
    view: View
    ordinal: int = 0
    lease_seconds: float = 0.0


def first_view(intent: Intent, lease_seconds: float) -> View:
    """Return where a new effect stands whose caller was elected at once."""
    at = intent.updated_at + timedelta(seconds=lease_seconds)
    return View(Next.WAIT, intent.version, intent.state, intent.reason, intent.updated_at, at=at)


def first_snapshot(elected: Elected, document: ContractDocument) -> Snapshot:
    """Return a new effect as its first election has left it: nothing else is known of it."""
    intent, first, granted_at = elected.intent, elected.first, elected.granted_at
    assert first is not None, "its caller was elected"
    assert granted_at is not None, "its caller was elected"
    attempt = Attempt(1, granted_at, granted_at + timedelta(seconds=first.lease_seconds))
    return Snapshot(
        intent=intent,
        facts=Facts(attempts=(attempt,), jitter_seed=intent.effect_id.int),
        attempts=(AttemptRow(attempt, first.attempt_id, first.caller),),
        evidence=(),
        document=document,
        now=granted_at,
        wire=None,
        operation=None,
        mutation_ordinal=None,
    )


def elect(
    snapshot: Snapshot, *, identity: str, attempt_id: UUID, caller: str, receipt_id: UUID
) -> Change[Election]:
    """Grant a caller the next attempt, or tell it where the effect stands.

    What has become due meanwhile (a lease that has run out, a settlement) is written on the way,
    so that the answer is what is stored and waits for no worker.
    """
    mine = _row(snapshot, attempt_id)
    if is_final(snapshot.intent.state):
        return Change(Election(False, view(snapshot, identity)[0]))
    facts, policy = held_facts(snapshot, identity), snapshot.document.policy()
    granted = election_decision(facts, policy, snapshot.now)
    if mine is None and granted.action is Action.DISPATCH:
        return _granted(snapshot, granted, identity, attempt_id, caller)
    decision = decide(facts, policy, snapshot.now)
    seen = view_of(snapshot, decision, snapshot.intent.version, snapshot.intent.state)
    left = 0.0 if mine is None else (mine.fact.deadline_at - snapshot.now).total_seconds()
    if mine is not None and mine.fact.outcome is None and left > 0:
        # The answer was lost, or the request was doubled on its way.
        return Change(Election(True, seen, mine.fact.ordinal, left))
    # Whoever asks beside an open lease changes nothing: its holder has the version it was given.
    if decision.reason is Reason.ATTEMPT_OPEN or not needs_writing(snapshot, decision):
        return Change(Election(False, seen))
    kind = decision.action.value
    change = write_decision(snapshot, facts, decision, receipt_id, caller, kind, {})
    return Change(Election(False, change.result), change.writes)


def _granted(
    snapshot: Snapshot, decision: Decision, identity: str, attempt_id: UUID, caller: str
) -> Change[Election]:
    intent, policy = snapshot.intent, snapshot.document.policy()
    assert decision.ordinal is not None, "a dispatch names its ordinal"
    lease = timedelta(seconds=policy.attempt_deadline_seconds)
    attempt = Attempt(decision.ordinal, snapshot.now, snapshot.now + lease)
    started = StartAttempt(
        attempt_id=attempt_id,
        ordinal=attempt.ordinal,
        executor_id=caller,
        started_at=attempt.started_at,
        deadline_at=attempt.deadline_at,
        target_identity=identity,
    )
    advance = Advance(
        event=decision.event,
        state=move(intent.state, decision.event),
        reason=decision.reason,
        next_action_at=deadline(attempt, policy),
        parked=False,
        actor=caller,
        kind="attempt_started",
        metadata={
            "ordinal": attempt.ordinal,
            "attempt_id": str(attempt_id),
            **certificate_named(held_facts(snapshot, identity), policy, snapshot.now),
        },
    )
    bind: tuple[Write, ...] = ()
    if intent.target_identity is None:
        bind = (BindTarget(identity),)
    seen = view_of(snapshot, decision, intent.version + 1, advance.state)
    election = Election(True, seen, attempt.ordinal, policy.attempt_deadline_seconds)
    return Change(election, (*losses(decision), started, *bind, advance))


@dataclass(frozen=True, slots=True)
class Extension:
    """The answer to whoever extends its lease.

    Attributes:
        held: the election still stands; `lease_seconds` is how long it lasts from now on.
    """

    held: bool
    lease_seconds: float = 0.0


def extend(snapshot: Snapshot, *, attempt_id: UUID, ordinal: int) -> Change[Extension]:
    """Let an open lease last longer, as far as the contract permits."""
    row = _row(snapshot, attempt_id)
    policy, now = snapshot.document.policy(), snapshot.now
    if row is None or row.fact.ordinal != ordinal:
        return Change(Extension(held=False))
    if row.fact.outcome is not None or row.fact.deadline_at <= now:
        return Change(Extension(held=False))
    left = (row.fact.deadline_at - now).total_seconds()
    until = extended_deadline(row.fact, snapshot.facts, policy, now)
    waits = decide(snapshot.facts, policy, now).reason is Reason.ATTEMPT_OPEN
    if until is None or not waits or is_final(snapshot.intent.state):
        return Change(Extension(True, left))
    advance = Advance(
        event=LifeEvent.ATTEMPT_OPEN,
        state=move(snapshot.intent.state, LifeEvent.ATTEMPT_OPEN),
        reason=Reason.ATTEMPT_OPEN,
        next_action_at=until + timedelta(seconds=policy.clock_margin_seconds),
        parked=False,
        actor=row.executor_id,
        kind="attempt_extended",
        metadata={"ordinal": row.fact.ordinal, "deadline_at": receipt_time(until)},
    )
    extension = Extension(True, (until - now).total_seconds())
    return Change(extension, (ExtendAttempt(attempt_id, until), advance))


class Telling(StrEnum):
    """What has become of an outcome that a caller tells."""

    RECORDED = "recorded"  # by the holder of the election
    LATE = "late"  # the election was over; kept as a fact, which `decide` honours
    REPEATED = "repeated"  # it stood already
    ANOTHER = "another"  # another outcome stands; nothing was changed
    NOBODY = "nobody"  # there is no such election


@dataclass(frozen=True, slots=True)
class Told:
    """The answer to whoever tells an outcome; `view` is where the effect stands now."""

    telling: Telling
    view: View

    @property
    def repeated(self) -> bool:
        """Whether the same was told before."""
        return self.telling is Telling.REPEATED


def tell(
    snapshot: Snapshot,
    *,
    attempt_id: UUID,
    ordinal: int,
    answer: Answer,
    result: Sealed | None,
    result_digest: bytes | None,
    receipt_id: UUID,
) -> Change[Told]:
    """Record what the caller's own call showed; the same again is a result."""
    row = _row(snapshot, attempt_id)
    seen = view(snapshot, snapshot.intent.target_identity or "")[0]
    if row is not None and row.fact.ordinal != ordinal:
        return Change(Told(Telling.NOBODY, seen))
    if row is None:
        removed = is_final(snapshot.intent.state) and rows_removed(snapshot)
        return Change(Told(Telling.LATE if removed else Telling.NOBODY, seen))
    known = row.fact.outcome
    if known not in {None, Outcome.PRESUMED_AMBIGUOUS}:
        stands = (known, row.fact.code, row.fact.external_id, row.result_digest)
        same = stands == (answer.outcome, answer.code, answer.external_id, result_digest)
        return Change(Told(Telling.REPEATED if same else Telling.ANOTHER, seen))
    change = record_outcome(
        snapshot,
        attempt_id=attempt_id,
        answer=answer,
        result=result,
        result_digest=result_digest,
        operation=None,
        receipt_id=receipt_id,
        executor_id=row.executor_id,
    )
    telling = Telling.RECORDED if known is None else Telling.LATE
    return Change(Told(telling, change.result), change.writes)


def _row(snapshot: Snapshot, attempt_id: UUID) -> AttemptRow | None:
    return next((a for a in snapshot.attempts if a.attempt_id == attempt_id), None)
