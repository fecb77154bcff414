"""Traces of the in-memory store: what a schedule of the protocol's real steps would have exported.

The store in memory keeps less than the tables do. What it forgets (when evidence was stored, when
an attempt was presumed lost, who submitted) is written down here as it happens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from effect_broker.proof.memory_store import MemoryStore
from effect_broker.proof.simulation.store import SimulationStore
from effect_broker.protocol.ports import (
    AddEvidence,
    AddReceipt,
    AddResolution,
    AskToCancel,
    AskToReconcile,
    Intent,
    LoseAttempt,
    Write,
)
from effect_broker.protocol.submission import Submission, Submitted
from effect_contracts.canonical import canonical_bytes
from effect_contracts.events import Event, event_digest
from effect_contracts.facts import Conclusion
from effect_contracts.trace import TraceWriter
from effect_contracts.trace.log import (
    AttemptRecord,
    EvidenceRecord,
    IntentRecord,
    Record,
    ResolutionRecord,
)


@dataclass
class _Kept:
    """What the store forgets of one effect."""

    submission: Submission
    created_at: datetime
    updated_at: datetime
    evidence: list[tuple[AddEvidence, datetime]] = field(default_factory=list)
    resolutions: list[tuple[AddResolution, datetime]] = field(default_factory=list)
    lost_at: dict[int, datetime] = field(default_factory=dict)
    targets: dict[int, str] = field(default_factory=dict)
    receipt: tuple[AddReceipt, datetime] | None = None
    cancel_requested_at: datetime | None = None
    reconcile_asked_at: datetime | None = None


class LoggedStore(MemoryStore):
    """A `MemoryStore` whose effects can be exported."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._kept: dict[UUID, _Kept] = {}

    async def submit(self, submission: Submission) -> Submitted:
        """See `MemoryStore.submit`."""
        now = self._now()
        self._kept.setdefault(submission.effect_id, _Kept(submission, now, now))
        return await super().submit(submission)

    def _apply(
        self, row: Any, writes: tuple[Write, ...], mutated: Mapping[int, str] | None = None
    ) -> None:
        super()._apply(row, writes, mutated)
        kept, now = self._kept[row.intent.effect_id], self._now()
        if writes:
            kept.updated_at = now
        for write in writes:
            match write:
                case AddEvidence():
                    kept.evidence.append((write, now))
                case AddResolution():
                    kept.resolutions.append((write, now))
                case AskToCancel():
                    kept.cancel_requested_at = kept.cancel_requested_at or now
                case AskToReconcile():
                    kept.reconcile_asked_at = now
                case LoseAttempt(ordinal=ordinal):
                    kept.lost_at[ordinal] = now
                case AddReceipt():
                    kept.receipt = (write, now)
                case _:
                    pass

    def trace(self) -> list[bytes]:
        """Return the lines of an export of everything."""
        writer = TraceWriter()
        lines = [writer.header(exported_at=self._now() + timedelta(days=1))]
        shown: set[bytes] = set()
        for intent in sorted(self.intents(), key=lambda i: (i.tenant_id, i.effect_id)):
            if intent.contract_digest not in shown:
                shown.add(intent.contract_digest)
                document = self._documents[intent.contract_digest]
                lines.append(writer.contract(intent.contract_digest, document.canonical().decode()))
            lines.append(writer.effect(self._members(intent)))
        return [*lines, writer.end()]

    def _members(self, intent: Intent) -> dict[str, Any]:
        kept, effect_id = self._kept[intent.effect_id], intent.effect_id
        events = self._events(intent, kept)
        receipt = None
        if kept.receipt is not None:
            write, at = kept.receipt
            receipt = {**asdict(write), "content": write.content.decode(), "recorded_at": at}
        attempts = self.snapshot(effect_id).attempts
        return {
            "intent": self._intent(intent, kept, events[-1]["digest"], len(attempts)),
            "attempts": [
                {
                    "attempt_id": a.attempt_id,
                    "executor_id": a.executor_id,
                    **_only(AttemptRecord, asdict(a.fact)),
                    "target_identity": intent.target_identity,
                    "lost_at": kept.lost_at.get(a.fact.ordinal),
                    "result_digest": a.result_digest,
                }
                for a in attempts
            ],
            "evidence": [
                {**_only(EvidenceRecord, asdict(write)), "recorded_at": at}
                for write, at in kept.evidence
            ],
            "mutations": [
                {"ordinal": ordinal, "kind": kind}
                for ordinal, kind in sorted(self._rows[effect_id].mutations.items())
            ],
            "resolutions": [
                {**_only(ResolutionRecord, asdict(write)), "recorded_at": at}
                for write, at in kept.resolutions
            ],
            "receipt": receipt,
            "events": events,
        }

    def _intent(
        self, intent: Intent, kept: _Kept, event_digest: bytes, attempts: int
    ) -> dict[str, Any]:
        receipt = self.receipt(intent.effect_id)
        key_digest = hashlib.sha256(intent.downstream_key.encode()).digest()
        return {
            **_only(IntentRecord, asdict(intent)),
            "downstream_key_digest": key_digest,
            "requested_by": kept.submission.requested_by,
            # Simulated worlds set it after the submit.
            "send_before": self._rows[intent.effect_id].send_before,
            "cancel_requested_at": kept.cancel_requested_at,
            "reconcile_asked_at": kept.reconcile_asked_at,
            "approved_at": self._rows[intent.effect_id].approved_at,
            "retention_stage": 0,
            "failed_by_operator_at": next(
                (at for write, at in kept.resolutions if write.conclusion is Conclusion.FAILED),
                None,
            ),
            "created_at": kept.created_at,
            "updated_at": kept.updated_at,
            "latest_ordinal": attempts,
            "parked": self.parked(intent.effect_id),
            "alert": self.alert(intent.effect_id),
            "receipt_digest": receipt.digest if receipt else None,
            "event_digest": event_digest,
        }

    def _events(self, intent: Intent, kept: _Kept) -> list[dict[str, Any]]:
        submitted = {
            "contract_digest": intent.contract_digest.hex(),
            "request_hash": intent.request_hash.hex(),
        }
        told: list[dict[str, Any]] = [
            {
                "sequence": 1,
                "kind": "submitted",
                "event": "submitted",
                "from_state": None,
                "to_state": "prepared",
                "reason": "submitted",
                "actor": kept.submission.requested_by,
                "at": kept.created_at,
                "metadata": canonical_bytes(submitted).decode(),
            }
        ]
        for event in self.events(intent.effect_id):
            write = event.advance
            told.append(
                {
                    "sequence": event.sequence,
                    "kind": write.kind,
                    "event": write.event.value,
                    "from_state": told[-1]["to_state"],
                    "to_state": write.state.value,
                    "reason": str(write.reason),
                    # A simulated repair loop has no role before its name.
                    "actor": write.actor if ":" in write.actor else f"reconciler:{write.actor}",
                    "at": event.at,
                    "metadata": canonical_bytes(dict(write.metadata)).decode(),
                }
            )
        return chained(intent.tenant_id, intent.effect_id, told)


class LoggedSimulationStore(LoggedStore, SimulationStore):
    """The store of a simulated world, likewise."""


def chained(tenant_id: UUID, effect_id: UUID, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events with their digests, as the database computes them."""
    previous = b""
    for event in events:
        event["previous_digest"] = previous
        fields = _without(event, "previous_digest", "digest")
        previous = event_digest(previous, Event(tenant_id, effect_id, **fields))
        event["digest"] = previous
    return events


def _only(record: type[Record], members: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that a line has."""
    return {name: value for name, value in members.items() if name in record.model_fields}


def _without(members: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in members.items() if name not in names}
