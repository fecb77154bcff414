"""What a believed webhook delivery says of an effect, as pure functions.

This file owns how a delivery is read by a contract and what follows from it for a locked effect.
The pinned contract of the effect has the last word on what counts: a delivery proves a commit only
if its conditions hold, it shows the effect's own downstream key, and its payload fields agree. All
else is stored as a fact that proves nothing, linked to the effect by an event.

While an attempt is open, its own answer comes first: it is the better proof and has the result, and
a sender that is lost is waited for no longer than its deadline.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from effect_adapters.answers import extract, id_text
from effect_adapters.base import Finding
from effect_broker.protocol.changes import add_evidence
from effect_broker.protocol.conclusion import rows_removed
from effect_broker.protocol.ports import Change, Sealed, Snapshot
from effect_contracts.canonical import JsonValue, first_difference
from effect_contracts.decide import deadline
from effect_contracts.document import ContractDocument
from effect_contracts.expressions import pointer_value, search
from effect_contracts.facts import CODE_FAILURE_NOTICE, EffectState, EvidenceSource, Verdict
from effect_contracts.keys import key_length
from effect_contracts.life import is_final
from effect_contracts.webhook_settings import WebhookSettings

# A key as text; longer ones are no key of ours, and no column's either.
_TEXT_CHARS_MAX: Final = 4096
_SENDERS_ID_CHARS_MAX: Final = 255

CODE_TOLD: Final = "told"
CODE_ATTEMPT_OPEN: Final = "attempt_open"


class DeliveryStatus(StrEnum):
    """What has become of a delivery. All but the first two are the end of it.

    received     stored, and not read against its effect yet
    waiting      the effect is known, and an attempt of it is open
    unmatched    there is no effect of it; looked for again while it has a next time
    ignored      no word about an effect
    rejected     signed, and not readable
    recorded     a fact, linked to its effect; it proved no commit that was in doubt
    settled      it proved the commit
    contradicts  its effect is final, and it says otherwise than the receipt
    """

    RECEIVED = "received"
    WAITING = "waiting"
    UNMATCHED = "unmatched"
    IGNORED = "ignored"
    REJECTED = "rejected"
    RECORDED = "recorded"
    SETTLED = "settled"
    CONTRADICTS = "contradicts"


class Claim(StrEnum):
    """What a delivery says, by the conditions of a contract."""

    COMMITTED = "committed"
    FAILED = "failed"
    BOTH = "both"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Reading:
    """A delivery as one contract's `webhook` section reads it.

    Attributes:
        senders_id: the sender's id of it, where the contract names one.
        key: what stands where our key should, as text; None without one.
        external_id: the target's id of the object.
    """

    claim: Claim
    senders_id: str | None
    key: str | None
    external_id: str | None


def read(webhook: WebhookSettings, body: Any) -> Reading:
    """Return what a parsed body says; what is odd in it says nothing."""
    committed, failed = (
        expression is not None and search(expression, body) is True
        for expression in (webhook.committed, webhook.failed)
    )
    claim = Claim.COMMITTED if committed else Claim.FAILED if failed else Claim.NOTHING
    senders_id = None if webhook.delivery_id is None else id_text(search(webhook.delivery_id, body))
    if senders_id is not None and len(senders_id) > _SENDERS_ID_CHARS_MAX:
        senders_id = None
    wanted = webhook.extraction.external_id
    return Reading(
        claim=Claim.BOTH if committed and failed else claim,
        senders_id=senders_id,
        key=_key(webhook, body),
        external_id=None if wanted is None else id_text(search(wanted, body)),
    )


def _key(webhook: WebhookSettings, body: Any) -> str | None:
    if webhook.key_match is None:
        return None
    found = search(webhook.key_match.path, body)
    if not isinstance(found, str) or not found.startswith(webhook.key_match.prefix):
        return None
    key = found.removeprefix(webhook.key_match.prefix)
    # What a text column can hold.
    return key if 0 < len(key) <= _TEXT_CHARS_MAX and key.isprintable() else None


def may_be_ours(document: ContractDocument, key: str) -> bool:
    """Whether a key has the form of this contract's keys; others are of somebody else's making."""
    form = document.key_format
    return key.startswith(form.prefix) and len(key) == key_length(form)


def find(
    document: ContractDocument, downstream_key: str, arguments: JsonValue | None, body: Any
) -> Finding | None:
    """Return what a delivery says of an effect by its pinned contract; None if it is no word of it.

    `arguments` are None where they were erased. The finding does not know yet whether anything was
    sent: see `deliver`.
    """
    webhook = document.webhook
    if webhook is None:
        return None
    reading = read(webhook, body)
    match reading.claim:
        case Claim.NOTHING:
            return None
        case Claim.BOTH:
            return Finding(Verdict.UNKNOWN, "contradicting_conditions")
        case Claim.FAILED:
            return Finding(Verdict.UNKNOWN, CODE_FAILURE_NOTICE)
        case Claim.COMMITTED:
            pass
    if reading.key is None:
        return Finding(Verdict.UNKNOWN, "key_missing")
    if reading.key != downstream_key:
        return Finding(Verdict.UNKNOWN, "key_disagrees")
    if arguments is None:
        return Finding(Verdict.UNKNOWN, "arguments_erased")
    # What proves nothing names no object: it may be anybody's.
    ids = () if reading.external_id is None else (reading.external_id,)
    if disagreeing(webhook, arguments, body):
        return Finding(Verdict.MISMATCH, "fields_disagree", ids)
    extracted = extract(webhook.extraction, body)
    if extracted is None:
        return Finding(Verdict.UNKNOWN, "external_id_missing")
    return Finding(Verdict.COMMITTED, CODE_TOLD, ids, extracted.result, extracted.receipt_fields)


def disagreeing(webhook: WebhookSettings, arguments: JsonValue, body: Any) -> tuple[str, ...]:
    """Return the argument pointers of `agree` whose values are not those of the body.

    As in a probe: an argument that is absent agrees with an absent or null value.
    """
    return tuple(
        pointer
        for pointer, expression in webhook.agree.items()
        if first_difference(pointer_value(arguments, pointer)[1], search(expression, body))
        is not None
    )


@dataclass(frozen=True, slots=True)
class Delivered:
    """What has become of a delivery with its effect.

    Attributes:
        code: why, as a stable word.
        again_at: for `waiting`, when the open attempt has ended at the latest.
    """

    status: DeliveryStatus
    code: str
    again_at: datetime | None = None


def deliver(
    snapshot: Snapshot,
    *,
    delivery_id: UUID,
    received_at: datetime,
    finding: Finding,
    result: Sealed | None,
    result_digest: bytes | None,
    receipt_id: UUID,
) -> Change[Delivered]:
    """Store the delivery as evidence under its own id, and what follows from it."""
    intent, facts = snapshot.intent, snapshot.facts
    policy = snapshot.document.policy()
    final = is_final(intent.state)
    open_until = max(
        (deadline(a, policy) for a in facts.attempts if a.outcome is None), default=None
    )
    if not final and open_until is not None and open_until > snapshot.now:
        return Change(Delivered(DeliveryStatus.WAITING, CODE_ATTEMPT_OPEN, open_until))
    if not any(a.may_have_sent for a in facts.attempts) and not rows_removed(snapshot):
        # Somebody else's object, whatever stands on it: nothing of ours has left.
        finding = Finding(Verdict.UNKNOWN, "nothing_sent")
    proof = finding.verdict is Verdict.COMMITTED
    change = add_evidence(
        snapshot,
        evidence_id=delivery_id,
        source=EvidenceSource.WEBHOOK,
        finding=finding,
        began_at=min(received_at, snapshot.now),
        covers_through=sum(a.started_at <= received_at for a in facts.attempts),
        target_identity=intent.target_identity,
        result=result if proof else None,
        result_digest=result_digest if proof else None,
        receipt_id=receipt_id,
        actor=f"webhook:{delivery_id}",
    )
    seen = change.result
    status = DeliveryStatus.RECORDED
    if final and seen.alert is not None:
        status = DeliveryStatus.CONTRADICTS
    elif not final and proof and seen.state is EffectState.SUCCEEDED:
        status = DeliveryStatus.SETTLED
    return Change(Delivered(status, finding.code), change.writes)
