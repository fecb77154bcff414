"""What `doctor` says of evidence: the secrets of webhooks, and receipts that nobody has signed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from effect_adapters.base import SecretUnavailable
from effect_broker.cli.checks import Findings, ok, warn
from effect_broker.store.signatures import UnsignedReceipts
from effect_contracts.counting import counted
from effect_contracts.document import ContractDocument
from effect_contracts.secret_references import webhook_secrets
from effect_contracts.webhook_signature import SecretMalformed, signing_key

WEBHOOK_CHECK: Final = "webhook_secrets"
RECEIPT_CHECK: Final = "unsigned_receipts"


def webhook_findings(
    documents: Sequence[ContractDocument], resolve: Callable[[str], str]
) -> Findings:
    """Judge whether every webhook of an active contract has secrets that can be used.

    `resolve` raises SecretUnavailable, as the API's own resolver of webhook secrets does.
    """
    told, looked_at = False, 0
    for document in documents:
        names = webhook_secrets(document)
        looked_at += bool(names)
        wrong = [said for name in names if (said := _wrong(document, name, resolve))]
        if not wrong:
            continue
        told = True
        effect = "every delivery is refused" if len(wrong) == len(names) else "some may be refused"
        yield warn(
            WEBHOOK_CHECK,
            f"{document.name} {document.version}: {effect} here: {', '.join(wrong)}",
            "set them where the API runs (below EFFECT_BROKER_WEBHOOK_SECRET_PREFIX, by default "
            "EFFECT_BROKER_WEBHOOK_KEY_, or …_DIRECTORY), and ask doctor there",
        )
    if looked_at and not told:
        yield ok(WEBHOOK_CHECK, f"{counted(looked_at, 'webhook has', 'webhooks have')} secrets")


def receipt_findings(found: UnsignedReceipts) -> Findings:
    """Judge whether receipts bear a signature."""
    if found.unsigned:
        yield warn(
            RECEIPT_CHECK,
            f"{found.unsigned} of {counted(found.looked_at, 'receipt')} looked at "
            f"{'bears' if found.unsigned == 1 else 'bear'} no signature",
            "`effect-broker receipts sign` signs them, with a key ring that has a signing key; "
            "see that the ring of every process has one",
        )
    elif found.looked_at:
        yield ok(RECEIPT_CHECK, f"{counted(found.looked_at, 'receipt')} looked at, all signed")


def _wrong(document: ContractDocument, name: str, resolve: Callable[[str], str]) -> str | None:
    assert document.webhook is not None, "its secrets were named"
    try:
        signing_key(document.webhook.scheme, resolve(name))
    except SecretUnavailable:
        return f"{name} does not resolve"
    except SecretMalformed:
        return f"{name} is not written as its scheme asks"
    return None
