"""A settled effect whose rows retention has removed: what is left of it has to be whole.

Nothing of how it came about can be replayed. Its identity, its final state, its receipt and what
persons have said stay, and fit each other; rows that stand there all the same are of somebody else.
What has come since (it was compensated, its target has said something more) is told by events that
lead on, in one chain, to where the effect stands.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from effect_contracts.facts import FINAL_STATES
from effect_contracts.trace.chain import chain_findings
from effect_contracts.trace.findings import Broken, Finding, Rule
from effect_contracts.trace.kinds import (
    AFTER_END,
    EVIDENCE_ID_MEMBER,
    FACT_MEMBER,
    EventKind,
    read_event,
)
from effect_contracts.trace.log import EffectLine
from effect_contracts.trace.timeline import evidence_fact_digest

# `effect_intents.retention_stage` once attempts, evidence and events are gone.
ROWS_REMOVED: Final = 3


def is_removed(line: EffectLine) -> bool:
    """Whether retention has removed the rows of this effect."""
    return line.intent.retention_stage == ROWS_REMOVED


def removed_findings(line: EffectLine, exported_at: datetime) -> Iterator[Finding]:
    """Yield what is wrong with the rest of such an effect."""
    intent, receipt = line.intent, line.receipt
    if intent.state not in FINAL_STATES or intent.next_action_at is not None or intent.parked:
        yield Finding(Rule.PRUNED, "its rows were removed, and it is not settled")
    yield from _later_findings(line, exported_at)
    if receipt is None:
        yield Finding(Rule.RECEIPT, "it is settled, and has no receipt")
        return
    computed = hashlib.sha256(receipt.content.encode()).hexdigest()
    if {computed, receipt.digest} != {intent.receipt_digest}:
        yield Finding(Rule.RECEIPT, "the receipt is not the one that the intent names")


def _later_findings(line: EffectLine, exported_at: datetime) -> Iterator[Finding]:
    """Yield what is wrong with what has come since the rows were removed."""
    yield from chain_findings(line, exported_at)
    told: dict[str, dict[str, Any]] = {}
    alarmed = False
    for record in line.events:
        try:
            event = read_event(record)
        except Broken as broken:
            yield Finding(broken.rule, broken.what, record.sequence)
            continue
        if event.kind not in AFTER_END:
            yield Finding(Rule.PRUNED, "its rows were removed, and there are some", record.sequence)
            continue
        if event.kind is EventKind.ACKNOWLEDGED:
            alarmed = False
        alarmed |= event.metadata.get("contradicts") is True
        if EVIDENCE_ID_MEMBER in event.metadata:
            told[str(event.metadata[EVIDENCE_ID_MEMBER])] = dict(event.metadata)
    if alarmed is not (line.intent.alert is not None):
        yield Finding(Rule.PRUNED, "its rows were removed, and a person had to look at it, or not")
    kept = {str(resolution.evidence_id) for resolution in line.resolutions}
    rows = {str(row.evidence_id): row for row in line.evidence}
    if line.attempts or rows.keys() - kept - told.keys():
        yield Finding(Rule.PRUNED, "its rows were removed, and there are some")
    for evidence_id, metadata in told.items():
        row = rows.get(evidence_id)
        if row is None:
            yield Finding(Rule.PRUNED, "its rows were removed, and an event tells of one")
        elif metadata.get(FACT_MEMBER) != evidence_fact_digest(row):
            yield Finding(Rule.FACTS, "the row of a fact says something else than it did")
