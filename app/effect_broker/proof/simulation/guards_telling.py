"""The guards of what the target tells unasked, and of repair, and how each is switched off."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final

from effect_adapters.base import Finding
from effect_broker import repair
from effect_broker.proof.simulation.guard import add, patched, scope_of, wrapping
from effect_broker.proof.simulation.invariants import Invariant
from effect_broker.proof.simulation.scope import Fault
from effect_broker.protocol import changes, webhook
from effect_contracts import decide as decisions
from effect_contracts.facts import (
    CODE_FAILURE_NOTICE,
    Evidence,
    EvidenceSource,
    SafetyClass,
    Verdict,
)

_I = Invariant
_F = Fault
_IDEMPOTENT: Final = SafetyClass.IDEMPOTENT
_RECONCILABLE: Final = SafetyClass.RECONCILABLE
_UNSAFE: Final = SafetyClass.UNSAFE

# Deliveries ---------------------------------------------------------------------------------------


def _any_key(
    find: Callable[..., Finding | None], document: Any, _key: str, arguments: Any, body: Any
) -> Finding | None:
    """Whatever key a delivery shows is ours."""
    assert document.webhook is not None
    return find(document, webhook.read(document.webhook, body).key or "", arguments, body)


def _clearing(find: Callable[..., Finding | None], *args: Any) -> Finding | None:
    """A notice of failure is taken for a proof of absence."""
    finding = find(*args)
    if finding is None or finding.code != CODE_FAILURE_NOTICE:
        return finding
    return Finding(Verdict.NOT_COMMITTED, finding.code)


def _believing(clears: Callable[..., bool], case: Any, evidence: Evidence, ordinal: int) -> bool:
    """What a delivery says of an absence is believed as a fence is."""
    if evidence.source is EvidenceSource.WEBHOOK:
        evidence = replace(evidence, source=EvidenceSource.TRANSACTION)
    return clears(case, evidence, ordinal)


add(
    "key_of_a_delivery",
    "a success on the word of a delivery about somebody else's object",
    _I.TRUE_RECEIPT,
    switched_off=wrapping(webhook, "find", _any_key),
    scope=scope_of(_UNSAFE, _F.LOST_REQUEST, _F.STRANGE_NOTICE),
)
add(
    "payload_of_a_delivery",
    "a success on the word of a delivery about an object with other content",
    _I.TRUE_RECEIPT,
    switched_off=wrapping(webhook, "disagreeing", lambda _original, *_: ()),
    scope=scope_of(_UNSAFE, _F.LOST_REQUEST, _F.STRANGE_NOTICE),
)
add(
    "a_delivery_needs_a_send",
    "a success of which nothing was sent",
    _I.TRUE_RECEIPT,
    switched_off=lambda: patched((webhook, "rows_removed", lambda _snapshot: True)),
    scope=scope_of(_UNSAFE, _F.UNREACHED, _F.STRANGE_NOTICE),
)
add(
    "a_failure_notice_proves_nothing",
    "a second send on the word of a delivery that tells of a failure",
    _I.ONE_EFFECT,
    switched_off=wrapping(webhook, "find", _clearing),
    scope=scope_of(_RECONCILABLE, _F.LOST_ANSWER, _F.LAG, _F.STRANGE_NOTICE),
    beside=("a_delivery_clears_nothing",),
)
add(
    "a_delivery_clears_nothing",
    "a second send on the word of a delivery that tells of an absence",
    _I.ONE_EFFECT,
    switched_off=wrapping(decisions._Case, "_clears", _believing),
    scope=scope_of(_RECONCILABLE, _F.LOST_ANSWER, _F.LAG, _F.STRANGE_NOTICE),
    beside=("a_failure_notice_proves_nothing",),
)


# Repair -------------------------------------------------------------------------------------------


async def _idle(*_args: Any, **_more: Any) -> int:
    return 0


def _runs_for_ever() -> AbstractContextManager[None]:
    return patched((changes, "IDLE_GENERATIONS_MAX", 10**9))


add(
    "due_effects_are_taken_up",
    "an effect whose process has died and which nobody drives any more",
    _I.NOTHING_STUCK,
    switched_off=lambda: patched((repair, "reconcile", _idle)),
    scope=scope_of(_IDEMPOTENT, _F.DEATH),
)
add(
    "run_failing",
    "an effect whose runs break, again and again for ever, and which no person is shown",
    _I.NOTHING_STUCK,
    switched_off=_runs_for_ever,
    scope=scope_of(_IDEMPOTENT, _F.SPOILED_REQUEST, _F.LOST_ANSWER),
)
