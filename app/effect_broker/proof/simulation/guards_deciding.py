"""The guards of evidence and of the safety classes, and how each is switched off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from effect_broker.proof.simulation.guard import (
    CROWD,
    LATEST,
    add,
    patched,
    scope_of,
    wrapping,
)
from effect_broker.proof.simulation.invariants import Invariant
from effect_broker.proof.simulation.scope import Fault
from effect_broker.protocol import changes, conclusion, resolution
from effect_broker.protocol.ports import (
    Snapshot,
)
from effect_contracts import decide as decisions
from effect_contracts.decide import Action, Decision, Reason
from effect_contracts.facts import (
    Attempt,
    Evidence,
    EvidenceSource,
    Facts,
    Policy,
    SafetyClass,
)
from effect_contracts.life import LifeEvent

_I = Invariant
_F = Fault
_IDEMPOTENT: Final = SafetyClass.IDEMPOTENT
_RECONCILABLE: Final = SafetyClass.RECONCILABLE
_UNSAFE: Final = SafetyClass.UNSAFE
_TRANSACTIONAL: Final = SafetyClass.TRANSACTIONAL

# Evidence -----------------------------------------------------------------------------------------


def _timeless(source: EvidenceSource) -> Callable[[], AbstractContextManager[None]]:
    def clears(original: Callable[..., bool], case: Any, evidence: Evidence, ordinal: int) -> bool:
        if evidence.source is source:
            evidence = replace(evidence, began_at=LATEST)
        return original(case, evidence, ordinal)

    return _method("_clears", clears)


def _method(name: str, wrapper: Callable[..., Any]) -> Callable[[], AbstractContextManager[None]]:
    """Switch off in the table of `decide`."""
    return wrapping(decisions._Case, name, wrapper)


def _covering_all(
    original: Callable[..., bool], case: Any, evidence: Evidence, ordinal: int
) -> bool:
    return original(case, evidence, min(ordinal, evidence.covers_through))


def _timed_at_the_end(add: Callable[..., Any], snapshot: Snapshot, **more: Any) -> Any:
    if more["source"] is EvidenceSource.PROBE:
        more["began_at"] = snapshot.now
    return add(snapshot, **more)


def _resolving_any_version(resolve: Callable[..., Any], snapshot: Snapshot, **more: Any) -> Any:
    stated = replace(more.pop("resolution"), expected_version=snapshot.intent.version)
    return resolve(snapshot, resolution=stated, **more)


LOOKED: Final = (_F.LOST_ANSWER, _F.LATE_LANDING, _F.LOST_REQUEST, _F.LAG)
add(
    "absence_begins_after_the_bound",
    "a second send on the word of a look-up that came too early",
    _I.ONE_EFFECT,
    switched_off=_timeless(EvidenceSource.PROBE),
    scope=scope_of(_RECONCILABLE, *LOOKED),
)
add(
    "absence_counts_from_its_beginning",
    "a second send on the word of a look-up whose answer was old when it came",
    _I.ONE_EFFECT,
    switched_off=wrapping(changes, "add_evidence", _timed_at_the_end),
    scope=scope_of(
        _RECONCILABLE,
        *LOOKED,
        _F.SLOW_LOOK_UP,
        _F.PAUSE,
        settlement_bound_seconds=20,
        transit_seconds=2,
    ),
)
add(
    "absence_covers_its_ordinals",
    "a third send on a look-up that was before the second",
    _I.ONE_EFFECT,
    _I.TRUE_RECEIPT,
    switched_off=_method("_clears", _covering_all),
    scope=scope_of(_RECONCILABLE, *LOOKED),
)
add(
    "an_operators_absence_waits",
    "a second send on the word of a person who looked too early",
    _I.ONE_EFFECT,
    _I.TRUE_RECEIPT,
    switched_off=_timeless(EvidenceSource.OPERATOR),
    scope=scope_of(_RECONCILABLE, *LOOKED, _F.OPERATOR),
    beside=("too_early_is_refused",),
)
add(
    "too_early_is_refused",
    "a person's observation that is taken although something may still be on its way",
    _I.ONE_EFFECT,
    _I.TRUE_RECEIPT,
    switched_off=wrapping(resolution, "absence_counts_from", lambda _original, _snapshot: None),
    scope=scope_of(_RECONCILABLE, *LOOKED, _F.OPERATOR),
    beside=("an_operators_absence_waits",),
)
add(
    "version_of_resolution",
    "a person's conclusion that is written on other facts than the person has seen",
    _I.FENCED,
    switched_off=wrapping(resolution, "resolve", _resolving_any_version),
    scope=scope_of(_RECONCILABLE, *CROWD, *LOOKED, _F.OPERATOR),
)


def _latest_only(
    original: Callable[..., datetime | None], attempts: tuple[Attempt, ...], *more: Any
) -> datetime | None:
    """What has been sent before the latest attempt counts as settled."""
    sent = tuple(a for a in attempts if a.may_have_sent)
    return original(sent[-1:], *more)


def _settled_by_the_latest() -> AbstractContextManager[None]:
    latest = wrapping(decisions, "conclusive_from", _latest_only)()

    @contextmanager
    def off() -> Iterator[None]:
        with latest, patched((resolution, "conclusive_from", decisions.conclusive_from)):
            yield

    return off()


add(
    "settled_by_all_attempts",
    "a further send on a look-up that came too early after what an older attempt had sent last",
    _I.ABSENCE_IS_SETTLED,
    switched_off=_settled_by_the_latest,
    # An answer that says nothing, and the wait before it is stored, are what this is about: the
    # numbers make it likely that the first attempt ends after the second.
    scope=scope_of(
        _RECONCILABLE,
        _F.PAUSE,
        _F.STALLED_WRITE,
        _F.HASTY_REPAIR,
        _F.LOST_REQUEST,
        _F.STORED_ERROR,
        _F.BUSY,
        processes=2,
        attempt_deadline_seconds=2,
        transit_seconds=1,
        retry={"attempts_max": 4, "backoff_initial_seconds": 80, "backoff_factor": 1.0},
        probe={"initial_seconds": 100.0, "horizon_seconds": 90.0},
    ),
)


# Answers that are left to a person ----------------------------------------------------------------


def _taken_for_lost(reason: Reason) -> Callable[[], AbstractContextManager[None]]:
    """The row has no say for this reason."""

    def refusal(original: Callable[..., Decision | None], case: Any) -> Decision | None:
        decision = original(case)
        return None if decision is not None and decision.reason is reason else decision

    return _method("_refusal_decision", refusal)


add(
    "key_conflict_is_reviewed",
    "a blind resend of a key that the target holds for another request",
    _I.NO_BLIND_RESEND,
    switched_off=_taken_for_lost(Reason.TARGET_KEY_CONFLICT),
    scope=scope_of(_IDEMPOTENT, _F.KEY_TAKEN),
)
add(
    "partial_result_is_reviewed",
    "a blind resend of what the target has done in part",
    _I.NO_BLIND_RESEND,
    switched_off=_taken_for_lost(Reason.PARTIAL_RESULT),
    scope=scope_of(_IDEMPOTENT, _F.PARTIAL),
)
add(
    "existing_object_after_doubt_is_reviewed",
    "a resend, or a refusal, of what may be the very object that the target says exists",
    _I.NO_BLIND_RESEND,
    switched_off=_method("_conflict_after_doubt", lambda _original, _case: False),
    scope=scope_of(
        _IDEMPOTENT,
        _F.LOST_ANSWER,
        _F.EXISTS,
        adapter={"kind": "simulated", "target": "target", "probes": True},
        probe={"horizon_seconds": 900},
    ),
)


# By class -----------------------------------------------------------------------------------------


def _always(_original: Callable[..., bool], *_: Any) -> bool:
    return True


def _daring(original: Callable[..., Decision], case: Any) -> Decision:
    if case.policy.safety is SafetyClass.UNSAFE and case._budget_left():
        return Decision(
            Action.DISPATCH,
            LifeEvent.ATTEMPT_STARTED,
            Reason.SAME_KEY_AGAIN,
            11,
            ordinal=len(case.facts.attempts) + 1,
        )
    return original(case)


def _reviving(original: Callable[..., Decision | None], case: Any) -> Decision | None:
    decision = original(case)
    if decision is None or decision.reason is not Reason.PROVED_NOT_COMMITTED:
        return decision
    revived = replace(case, policy=replace(case.policy, safety=SafetyClass.RECONCILABLE))
    return original(revived)


def _never_freezing(
    original: Callable[..., Decision], facts: Facts, policy: Policy, now: datetime
) -> Decision:
    return replace(original(facts, policy, now), freezes=False)


add(
    "key_retention",
    "a second send of a key that the target has forgotten",
    _I.ONE_EFFECT,
    switched_off=_method("_key_lives_through", _always),
    scope=scope_of(_IDEMPOTENT, _F.LOST_ANSWER, _F.PAUSE, _F.DEATH),
)
add(
    "unsafe_is_not_sent_again",
    "a second send of an unsafe effect after doubt",
    _I.UNSAFE_ONCE,
    switched_off=_method("_unknown_decision", _daring),
    scope=scope_of(_UNSAFE, _F.LOST_ANSWER),
)
add(
    "unsafe_is_spent_by_proof",
    "a second send of an unsafe effect on a person's word",
    _I.UNSAFE_ONCE,
    switched_off=_method("_cleared_decision", _reviving),
    scope=scope_of(_UNSAFE, _F.LOST_REQUEST, _F.OPERATOR),
)
add(
    "freeze_on_contract_violation",
    "more sends to a target that was seen to make two objects of one key",
    _I.FROZEN_AFTER_VIOLATION,
    switched_off=wrapping(conclusion, "decide", _never_freezing),
    scope=scope_of(_IDEMPOTENT, _F.KEYS_IGNORED, _F.LOST_ANSWER, _F.WEBHOOK, effects=3),
)
