"""From rows to the protocol's types: the only place that knows both names.

`INTENT_COLUMNS` is the one list of an intent's columns that queries select.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from effect_broker.protocol.ports import AttemptRow, EvidenceRow, Intent, Sealed, Urgency
from effect_broker.protocol.submission import Standing
from effect_contracts.decision import Reason
from effect_contracts.facts import (
    Alert,
    Attempt,
    EffectState,
    Evidence,
    EvidenceSource,
    Facts,
    Hold,
    Outcome,
    SafetyClass,
    Verdict,
)

Row = Mapping[str, Any]

INTENT_COLUMNS: Final = (
    "effect_id",
    "tenant_id",
    "operation_key",
    "tool",
    "request_hash",
    "contract_name",
    "contract_version",
    "contract_digest",
    "safety",
    "downstream_key",
    "state",
    "version",
    "reason",
    "generation",
    "progress_generation",
    "next_action_at",
    "target_identity",
    "wire_digest",
    "created_at",
    "updated_at",
)


@dataclass(frozen=True, slots=True)
class StoredEffect:
    """The rows of one effect as one transaction read them."""

    intent: Row
    attempts: Sequence[Row]
    evidence: Sequence[Row]
    context: Row


def intent_of(row: Row) -> Intent:
    """Return the intent of a row that has at least `INTENT_COLUMNS`."""
    return Intent(
        **{
            **{name: row[name] for name in INTENT_COLUMNS},
            "safety": SafetyClass(row["safety"]),
            "state": EffectState(row["state"]),
        }
    )


def standing_of(row: Row) -> Standing:
    """Return what a submit's row says beside its intent."""
    return Standing(
        parked=row["parked"],
        requested_by=row["requested_by"],
        trace_id=row["trace_id"],
        preview=row["preview"] or {},
        receipt_digest=row["receipt_digest"],
        alert=Alert(row["alert"]) if row["alert"] else None,
        now=row["now"],
    )


def urgency_of(row: Row) -> Urgency:
    """Return what an intent's row keeps of its urgency."""
    return Urgency(row["key_expires_at"], row["attempt_open_until"], row["sender_lost"])


def attempt_of(row: Row) -> AttemptRow:
    """Return an attempt with its identity."""
    outcome = row["outcome"]
    fact = Attempt(
        ordinal=row["ordinal"],
        started_at=row["started_at"],
        deadline_at=row["deadline_at"],
        outcome=None if outcome is None else Outcome(outcome),
        recorded_at=row["recorded_at"],
        code=row["code"],
        external_id=row["external_id"],
        retry_after_seconds=row["retry_after_seconds"],
        operation=row["operation"],
    )
    return AttemptRow(fact, row["attempt_id"], row["executor_id"], row["result_digest"])


def evidence_of(row: Row) -> EvidenceRow:
    """Return evidence with the digest of its result."""
    fact = Evidence(
        evidence_id=str(row["evidence_id"]),
        source=EvidenceSource(row["source"]),
        verdict=Verdict(row["verdict"]),
        began_at=row["began_at"],
        covers_through=row["covers_through"],
        external_ids=tuple(row["external_ids"]),
        code=row["code"],
    )
    return EvidenceRow(fact, row["result_digest"])


def facts_of(stored: StoredEffect) -> Facts:
    """Return what `decide` reads."""
    intent, context = stored.intent, stored.context
    return Facts(
        attempts=tuple(attempt_of(row).fact for row in stored.attempts),
        evidence=tuple(evidence_of(row).fact for row in stored.evidence),
        probes_since_attempt=context["probes_since_attempt"],
        probe_began_at=context["probe_began_at"],
        look_up_asked_at=intent["reconcile_asked_at"],
        cancel_requested=intent["cancel_requested_at"] is not None,
        failed_by_operator=intent["failed_by_operator_at"] is not None,
        holds=_holds(intent, context),
        send_before=intent["send_before"],
        approved_at=intent["approved_at"],
        turn_at=turn_given(intent["reason"], intent["next_action_at"]),
        jitter_seed=jitter_seed(intent["effect_id"]),
        bounds_restart_at=context["bounds_restart_at"],
    )


def turn_given(reason: str, next_action_at: datetime | None) -> datetime | None:
    """Return the turn at a limited target that an intent waits for, or has waited for."""
    return next_action_at if reason == Reason.TARGET_BUSY else None


def jitter_seed(effect_id: UUID) -> int:
    """Return the seed that spreads the back-off of many effects; the same for one, always."""
    return effect_id.int


def sealed_of(row: Row, prefix: str) -> Sealed | None:
    """Return the ciphertext of `<prefix>_key_id` and `<prefix>_ciphertext`, None without one."""
    ciphertext = row[f"{prefix}_ciphertext"]
    if ciphertext is None:
        return None
    return Sealed(row[f"{prefix}_key_id"], bytes(ciphertext))


def _holds(intent: Row, context: Row) -> frozenset[Hold]:
    holds = set()
    if context["tenant_disabled"]:
        holds.add(Hold.TENANT_DISABLED)
    if context["paused"]:
        holds.add(Hold.PAUSED)
    if context["frozen"]:
        holds.add(Hold.FROZEN)
    # A restored database may have forgotten attempts. Only a target that de-duplicates by our key
    # can be sent to without knowing.
    if context["halted"] and intent["safety"] != SafetyClass.IDEMPOTENT:
        holds.add(Hold.DATABASE_RESTORED)
    return frozenset(holds)
