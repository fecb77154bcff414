"""The receipt of one effect: there is one exactly if it is final, and it says what the facts do.

Its content is computed again from the intent and the facts that were known when it was written,
and has to be the same, byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from uuid import UUID

from effect_contracts.errors import InvalidPayload
from effect_contracts.facts import FINAL_STATES, EffectState, EvidenceSource, Outcome, Verdict
from effect_contracts.receipts import receipt_content, receipt_digest, receipt_time
from effect_contracts.trace.findings import Finding, Rule, require
from effect_contracts.trace.log import ReceiptRecord
from effect_contracts.trace.timeline import Timeline


def check_receipt(timeline: Timeline, state: EffectState, reason: str, at: datetime) -> None:
    """Judge the receipt of a settlement that is written now.

    Raises:
        Broken: it is missing, belongs to another moment, or says something else.
    """
    receipt = timeline.line.receipt
    require(receipt is not None, Rule.RECEIPT, "the effect is settled here and has no receipt")
    assert receipt is not None
    require(receipt.recorded_at == at, Rule.RECEIPT, "the receipt was written at another moment")
    _check_winner(timeline, receipt, state, reason, at)


def standing_findings(timeline: Timeline, *, settled_in_sight: bool) -> Iterator[Finding]:
    """Yield what is wrong with the receipt as a row.

    Args:
        settled_in_sight: the settling event was kept; where it was pruned, so may the receipt be.
    """
    intent, receipt = timeline.line.intent, timeline.line.receipt
    final = intent.state in FINAL_STATES
    if final != (intent.receipt_digest is not None):
        yield Finding(Rule.RECEIPT, "the intent names a receipt exactly if it is final")
    if receipt is None:
        if final and settled_in_sight:
            yield Finding(Rule.RECEIPT, "the receipt is missing")
        return
    if not final:
        yield Finding(Rule.RECEIPT, "there is a receipt of an effect that is not settled")
    digest = receipt_digest(receipt.content.encode()).hex()
    if digest != receipt.digest:
        yield Finding(Rule.RECEIPT, "the receipt's digest does not fit its content")
    if intent.receipt_digest != receipt.digest:
        yield Finding(Rule.RECEIPT, "the intent names another receipt")


def check_old_receipt(timeline: Timeline) -> None:
    """Judge a receipt whose settling event was pruned, by the facts that are older than it.

    Raises:
        Broken: it says something else than the facts do.
    """
    receipt, intent = timeline.line.receipt, timeline.line.intent
    if receipt is None:
        return
    content = _content(receipt)
    state, reason = content.get("state"), content.get("reason")
    settled = EffectState.SUCCEEDED if intent.state is EffectState.COMPENSATED else intent.state
    require(state == settled.value, Rule.RECEIPT, "the receipt names another state")
    require(isinstance(reason, str), Rule.RECEIPT, "the receipt names no reason")
    assert isinstance(reason, str)
    then = Timeline(timeline.line, timeline.policy, None)
    then.begin_through(receipt.recorded_at)
    _check_winner(then, receipt, settled, reason, receipt.recorded_at)


def _check_winner(
    timeline: Timeline, receipt: ReceiptRecord, state: EffectState, reason: str, at: datetime
) -> None:
    intent = timeline.line.intent
    source, external_id, result_digest, ref = _winner(timeline, state)
    try:
        expected = receipt_content(
            {
                "receipt_id": str(receipt.receipt_id),
                "effect_id": str(intent.effect_id),
                "tenant_id": str(intent.tenant_id),
                "operation_key": intent.operation_key,
                "tool": intent.tool,
                "request_hash": intent.request_hash,
                "contract": {
                    "name": intent.contract_name,
                    "version": intent.contract_version,
                    "digest": intent.contract_digest,
                },
                "safety": intent.safety.value,
                "downstream_key_digest": intent.downstream_key_digest,
                "state": state.value,
                "reason": reason,
                "source": source,
                "external_id": external_id,
                "result_digest": result_digest,
                "attempts": len(timeline.attempts),
                "settled_at": receipt_time(at),
            }
        )
    except InvalidPayload:
        # A forged row may hold what no submit lets in.
        require(False, Rule.RECEIPT, "no receipt can say what the rows hold")
        raise
    if receipt.content.encode() != expected:
        different = _differences(_content(receipt), json.loads(expected))
        require(False, Rule.RECEIPT, f"the receipt says something else in: {different}")
    wanted = None if result_digest is None else str(ref)
    require(
        receipt.result_ref == wanted, Rule.RECEIPT, "the receipt refers to another fact's result"
    )


def _winner(
    timeline: Timeline, state: EffectState
) -> tuple[str, str | None, str | None, UUID | None]:
    """Return source, external id, result digest and id of the fact that a success rests on."""
    if state is not EffectState.SUCCEEDED:
        return "decision", None, None, None
    found = [row for row in timeline.evidence if row.verdict is Verdict.COMMITTED]
    committed = [a for a in timeline.attempts if a.outcome is Outcome.COMMITTED]
    ids = {a.external_id for a in committed if a.external_id is not None}
    if len(ids | {i for row in found for i in row.external_ids}) > 1:
        # Only a person's word settles this; the latest one counts.
        found = [row for row in found if row.source is EvidenceSource.OPERATOR][-1:]
        committed = []
    for attempt in committed:
        row = timeline.row(attempt.ordinal)
        return "response", row.external_id, row.result_digest, row.attempt_id
    for seen in found:
        first = seen.external_ids[0] if seen.external_ids else None
        return seen.source.value, first, seen.result_digest, seen.evidence_id
    return "decision", None, None, None


def _content(receipt: ReceiptRecord) -> dict[str, Any]:
    try:
        value: Any = json.loads(receipt.content)
    except (ValueError, RecursionError, InvalidPayload):
        value = None
    require(isinstance(value, dict), Rule.RECEIPT, "the receipt is no JSON object")
    assert isinstance(value, dict)
    return value


def _differences(told: dict[str, Any], expected: dict[str, Any]) -> str:
    """The names of our own members that differ; a foreign name is not shown."""
    names = [name for name in expected if told.get(name, ...) != expected[name]]
    if told.keys() - expected.keys():
        names.append("members that it does not have")
    return ", ".join(names) or "its spelling"
