"""What the store in memory makes of writes and of mutations that did not run."""

from __future__ import annotations

from effect_adapters.base import Answer
from effect_broker.protocol.ports import AddEvidence, EvidenceRow
from effect_contracts.facts import Evidence, Outcome


def unrun(standing: int | None, ordinal: int) -> Answer:
    """The answer of a mutation that did not run, since its key could not be inserted."""
    if standing == ordinal:
        return Answer(Outcome.COMMITTED, "already_mutated")
    code = "fenced" if standing is None else "already_mutated"
    return Answer(Outcome.NOT_SENT, code, bytes_may_have_left=False)


def evidence_row(write: AddEvidence) -> EvidenceRow:
    """Return evidence as the next reader sees it."""
    fact = Evidence(
        evidence_id=str(write.evidence_id),
        source=write.source,
        verdict=write.verdict,
        began_at=write.began_at,
        covers_through=write.covers_through,
        external_ids=write.external_ids,
        code=write.code,
    )
    return EvidenceRow(fact, write.result_digest)
