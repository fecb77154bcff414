"""The format of a trace: JSON lines, each with a digest that is chained to the line before.

    header     one, first: format, moment of the export, restart of the bounds, what was selected
    contract   one for each contract document, before the first effect that it governs
    effect     one for each effect, ascending by tenant and id: the whole account of it
    end        one, last: how many there were

This module owns the members of every line. They hold identities, ordinals, states, codes, times
and digests; no arguments, no answers, no secrets. A line begins with its digest, which is SHA-256
of the digest before (64 hex digits; empty for the first line) and of the line without it, byte for
byte, so that a line that was changed, dropped, doubled or moved by accident is found and named.
Times are RFC 3339 in UTC with microseconds, digests lower-case hex. A change of this format that a
reader of it would trip over gets another number.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from effect_contracts.facts import (
    Alert,
    Conclusion,
    EffectState,
    EvidenceSource,
    Outcome,
    SafetyClass,
    Verdict,
)

TRACE_FORMAT: Final = "effect-broker/trace/1"

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

_LINE: Final = re.compile(rb'\{"digest":"([0-9a-f]{64})",')


class Record(BaseModel):
    """A part of a line: strict, frozen, unknown members refused."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", hide_input_in_errors=True)


class Selection(Record):
    """What the export was asked for; None means all."""

    tenant_id: UUID | None
    effect_id: UUID | None
    changed_since: AwareDatetime | None


class HeaderLine(Record):
    """The first line.

    Attributes:
        exported_at: database clock, after the snapshot was taken.
        bounds_restart_at: running bounds count from here since the latest restore.
    """

    type: Literal["header"]
    format: Literal["effect-broker/trace/1"]
    exported_at: AwareDatetime
    bounds_restart_at: AwareDatetime | None
    selection: Selection


class ContractLine(Record):
    """A contract document in canonical form, and its SHA-256."""

    type: Literal["contract"]
    contract_digest: Digest
    document: str


class IntentRecord(Record):
    """Identity and standing of an effect; the columns of `effect_intents` that rules need."""

    tenant_id: UUID
    effect_id: UUID
    operation_key: str
    tool: str
    request_hash: Digest
    contract_name: str
    contract_version: str
    contract_digest: Digest
    safety: SafetyClass
    downstream_key_digest: Digest
    target_identity: str | None
    wire_digest: Digest | None
    requested_by: str
    send_before: AwareDatetime | None
    cancel_requested_at: AwareDatetime | None
    reconcile_asked_at: AwareDatetime | None
    approved_at: AwareDatetime | None
    failed_by_operator_at: AwareDatetime | None
    created_at: AwareDatetime
    updated_at: AwareDatetime
    state: EffectState
    reason: str
    version: int
    latest_ordinal: int
    retention_stage: int
    next_action_at: AwareDatetime | None
    parked: bool
    alert: Alert | None
    receipt_digest: Digest | None
    event_digest: Digest


class AttemptRecord(Record):
    """One attempt; `lost_at` is when a successor presumed it lost."""

    attempt_id: UUID
    ordinal: int
    executor_id: str
    started_at: AwareDatetime
    deadline_at: AwareDatetime
    target_identity: str
    outcome: Outcome | None
    code: str | None
    recorded_at: AwareDatetime | None
    lost_at: AwareDatetime | None
    external_id: str | None
    retry_after_seconds: float | None
    operation: bool
    result_digest: Digest | None


class EvidenceRecord(Record):
    """One piece of evidence, decisive or not."""

    evidence_id: UUID
    source: EvidenceSource
    verdict: Verdict
    code: str
    began_at: AwareDatetime
    recorded_at: AwareDatetime
    covers_through: int
    external_ids: tuple[str, ...]
    target_identity: str | None
    result_digest: Digest | None


class MutationRecord(Record):
    """The key of a transactional mutation, or the fence that stands on it."""

    ordinal: int
    kind: Literal["mutation", "fence"]


class ResolutionRecord(Record):
    """What a person concluded; the statement itself may hold notes and is left out."""

    decision_id: str
    evidence_id: UUID
    conclusion: Conclusion
    digest: Digest
    actor: str
    recorded_at: AwareDatetime


class ReceiptRecord(Record):
    """The receipt: its content as the text that was digested."""

    receipt_id: UUID
    content: str
    digest: Digest
    result_ref: str | None
    recorded_at: AwareDatetime


class EventRecord(Record):
    """One event as stored. Words are read as text, so that a wrong one is a rule's to find."""

    sequence: int
    kind: str
    event: str
    from_state: str | None
    to_state: str
    reason: str
    actor: str
    at: AwareDatetime
    metadata: str
    previous_digest: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
    digest: Digest


class EffectLine(Record):
    """The account of one effect: attempts by ordinal, evidence by time, events by sequence."""

    type: Literal["effect"]
    intent: IntentRecord
    attempts: tuple[AttemptRecord, ...]
    evidence: tuple[EvidenceRecord, ...]
    mutations: tuple[MutationRecord, ...]
    resolutions: tuple[ResolutionRecord, ...]
    receipt: ReceiptRecord | None
    events: tuple[EventRecord, ...]


class EndLine(Record):
    """The last line: how many lines of each kind there were, and how many events."""

    type: Literal["end"]
    contracts: int
    effects: int
    events: int


class TraceWriter:
    """Turns the members of lines into text, and counts them for the last line.

    It checks nothing: an export of rows that break a rule is what the check has to see.
    """

    def __init__(self) -> None:
        self._previous = b""
        self.contracts = 0
        self.effects = 0
        self.events = 0

    def header(
        self,
        *,
        exported_at: datetime,
        bounds_restart_at: datetime | None = None,
        tenant_id: UUID | None = None,
        effect_id: UUID | None = None,
        changed_since: datetime | None = None,
    ) -> bytes:
        """Return the first line."""
        selection = {
            "tenant_id": tenant_id,
            "effect_id": effect_id,
            "changed_since": changed_since,
        }
        return self._line(
            {
                "type": "header",
                "format": TRACE_FORMAT,
                "exported_at": exported_at,
                "bounds_restart_at": bounds_restart_at,
                "selection": selection,
            }
        )

    def contract(self, digest: bytes, document: str) -> bytes:
        """Return the line of a contract; it comes before the first effect that it governs."""
        self.contracts += 1
        return self._line({"type": "contract", "contract_digest": digest, "document": document})

    def effect(self, members: Mapping[str, Any]) -> bytes:
        """Return the line of an effect, from the members of `EffectLine` without its type.

        Values are as a database gives them: UUID, datetime, bytes, str, numbers, None.
        """
        self.effects += 1
        self.events += len(members["events"])
        return self._line({"type": "effect", **members})

    def end(self) -> bytes:
        """Return the last line."""
        counts = {"contracts": self.contracts, "effects": self.effects, "events": self.events}
        return self._line({"type": "end", **counts})

    def _line(self, members: Mapping[str, Any]) -> bytes:
        body = json.dumps(
            members, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_spelled
        ).encode("utf-8", "surrogatepass")
        self._previous = line_digest(self._previous, body)
        return b'{"digest":"%s",%s\n' % (self._previous, body[1:])


def line_digest(previous: bytes, body: bytes) -> bytes:
    """Return the digest (64 hex digits) of a line, given that of the line before and its body."""
    return hashlib.sha256(previous + body).hexdigest().encode()


def parted_line(line: bytes) -> tuple[bytes, bytes] | None:
    """Return the digest that a line bears, and its body; None where it does not begin with one."""
    found = _LINE.match(line)
    if found is None:
        return None
    return found[1], b"{" + line[found.end() :].rstrip(b"\r\n")


def _spelled(value: object) -> str:
    """The one spelling of what JSON has no form for."""
    match value:
        case UUID():
            return str(value)
        case datetime():
            return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        case bytes():
            return value.hex()
        case _:
            raise TypeError(f"a trace has no spelling for {type(value).__name__}")
