"""A settled effect whose rows retention has removed: what is left of it has to be whole.

Nothing of how it came about can be replayed. Its identity, its final state, its receipt and what
persons have said stay, and fit each other; rows that stand there all the same are of somebody else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

from effect_contracts.facts import FINAL_STATES
from effect_contracts.trace.findings import Finding, Rule
from effect_contracts.trace.log import EffectLine

# `effect_intents.retention_stage` once attempts, evidence and events are gone.
ROWS_REMOVED: Final = 3


def is_removed(line: EffectLine) -> bool:
    """Whether retention has removed the rows of this effect."""
    return line.intent.retention_stage == ROWS_REMOVED


def removed_findings(line: EffectLine) -> Iterator[Finding]:
    """Yield what is wrong with the rest of such an effect."""
    intent, receipt = line.intent, line.receipt
    if intent.state not in FINAL_STATES or intent.next_action_at is not None or intent.parked:
        yield Finding(Rule.PRUNED, "its rows were removed, and it is not settled")
    if intent.alert is not None:
        yield Finding(Rule.PRUNED, "its rows were removed, and a person had to look at it")
    kept = {resolution.evidence_id for resolution in line.resolutions}
    if line.attempts or line.events or any(e.evidence_id not in kept for e in line.evidence):
        yield Finding(Rule.PRUNED, "its rows were removed, and there are some")
    if receipt is None:
        yield Finding(Rule.RECEIPT, "it is settled, and has no receipt")
        return
    computed = hashlib.sha256(receipt.content.encode()).hexdigest()
    if {computed, receipt.digest} != {intent.receipt_digest}:
        yield Finding(Rule.RECEIPT, "the receipt is not the one that the intent names")
