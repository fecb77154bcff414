"""Contracts, submissions and writes that the tests of the store are made of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from effect_broker.protocol.ports import (
    AddEvidence,
    AddReceipt,
    Advance,
    RecordOutcome,
    Sealed,
    Snapshot,
    StartAttempt,
)
from effect_broker.protocol.submission import Submission
from effect_contracts.canonical import canonical_bytes
from effect_contracts.document import ContractDocument
from effect_contracts.facts import EffectState, EvidenceSource, Outcome, SafetyClass, Verdict
from effect_contracts.life import LifeEvent
from effect_contracts.receipts import receipt_digest

TARGET = "https://api.example.com#acct_1"


def contract(safety: str, version: str = "1", **changes: Any) -> ContractDocument:
    """A contract of the simulated target, named after its safety class."""
    fields: dict[str, Any] = {
        "name": safety,
        "version": version,
        "tool": f"tool.{safety}",
        "safety": safety,
        "account": "acct_1",
        "arguments": {"type": "object"},
        "adapter": {"kind": "simulated", "target": "ledger", "probes": safety == "reconcilable"},
    }
    if safety == "idempotent":
        fields["key_retention_seconds"] = 86400
    if safety == "reconcilable":
        fields["settlement_bound_seconds"] = 60
    if safety == "transactional":
        fields["adapter"] = {"kind": "postgres", "function": "ledger.post_entry"}
    return ContractDocument.parse_yaml(json.dumps({**fields, **changes}))


def submission(
    tenant_id: UUID, key: str = "order-1", safety: str = "idempotent", **changes: Any
) -> Submission:
    """A submission under the sample contract of the class."""
    document = contract(safety)
    made = Submission(
        effect_id=effect_id_of(tenant_id, key),
        tenant_id=tenant_id,
        operation_key=key,
        tool=document.tool,
        request_hash=hashlib.sha256(key.encode()).digest(),
        contract_name=document.name,
        contract_version=document.version,
        contract_digest=document.digest(),
        safety=SafetyClass(safety),
        downstream_key=f"dk-{key}",
        hmac_key_id="hmac-1",
        arguments=Sealed("k1", b"sealed arguments"),
        wire=Sealed("k1", b"sealed wire"),
        wire_digest=hashlib.sha256(b"wire").digest(),
        requested_by="caller:test",
        trace_id="trace-1",
        preview={"amount": 5},
    )
    return replace(made, **changes)


def effect_id_of(tenant_id: UUID, key: str) -> UUID:
    """A pure function of both, as the protocol demands; not the protocol's own."""
    return UUID(bytes=hashlib.sha256(tenant_id.bytes + key.encode()).digest()[:16])


def start(snapshot: Snapshot, ordinal: int = 1, **changes: Any) -> StartAttempt:
    """Grant an attempt now, with a deadline of 30 seconds."""
    made = StartAttempt(
        attempt_id=uuid4(),
        ordinal=ordinal,
        executor_id="executor-1",
        started_at=snapshot.now,
        deadline_at=snapshot.now + timedelta(seconds=30),
        target_identity=TARGET,
    )
    return replace(made, **changes)


def outcome(attempt_id: UUID, at: datetime, result: Outcome, **changes: Any) -> RecordOutcome:
    """What the sender saw."""
    made = RecordOutcome(
        attempt_id=attempt_id,
        outcome=result,
        code="code",
        recorded_at=at,
        external_id=None,
        retry_after_seconds=None,
        operation=False,
        bytes_may_have_left=result is not Outcome.NOT_SENT,
        response_digest=None,
        status=None,
        result_digest=None,
    )
    return replace(made, **changes)


def evidence(snapshot: Snapshot, verdict: Verdict, **changes: Any) -> AddEvidence:
    """What a probe found that began just now."""
    made = AddEvidence(
        evidence_id=uuid4(),
        source=EvidenceSource.PROBE,
        verdict=verdict,
        code="code",
        began_at=snapshot.now,
        covers_through=len(snapshot.attempts),
        external_ids=(),
        target_identity=TARGET,
        response_digest=None,
        result_digest=None,
    )
    return replace(made, **changes)


def advance(
    event: LifeEvent, state: EffectState, next_action_at: datetime | None, **changes: Any
) -> Advance:
    """A move with its event."""
    metadata: Mapping[str, str | int | float | bool | None] = {"ordinal": 1, "ünï": None}
    made = Advance(
        event=event,
        state=state,
        reason="reason",
        next_action_at=next_action_at,
        parked=False,
        actor="worker:executor-1",
        kind="kind",
        metadata=metadata,
    )
    return replace(made, **changes)


def receipt(result_ref: str | None = None) -> AddReceipt:
    """A receipt with some content."""
    content = canonical_bytes({"receipt": str(uuid4())})
    return AddReceipt(uuid4(), content, receipt_digest(content), result_ref)
