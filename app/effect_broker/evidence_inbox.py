"""The evidence inbox: signed deliveries of providers are believed, stored, and only then answered.

This file owns the order of the checks, and what an inbox is to its store. Nothing is stored for a
delivery that is not believed, and whoever sent it learns nothing: an unknown tenant or contract, a
contract without a webhook, a wrong signature and one that is too old are one and the same answer.
What is believed is stored once, by the sender's id of it; the same again changes nothing. From then
on it cannot be lost: what is not matched with its effect at once, a worker matches later
(`effect_broker.evidence_matching`).

All times are the database's. The clock of this process bridges the moments since it was asked.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Protocol
from uuid import UUID

from effect_adapters.answers import BodyInvalid, parse_answer
from effect_adapters.base import SecretResolver, SecretUnavailable
from effect_broker.log_events import event
from effect_broker.protocol.ports import Sealed, StoreError, Vault, VaultError
from effect_broker.protocol.webhook import Claim, DeliveryStatus, read
from effect_contracts.document import ContractDocument
from effect_contracts.errors import InvalidPayload, NotFound, PayloadReason
from effect_contracts.webhook_settings import WebhookSettings
from effect_contracts.webhook_signature import (
    Authentic,
    HeaderFields,
    Refusal,
    SecretMalformed,
    signing_key,
    verify,
)

_log = logging.getLogger(__name__)

# The column that a sealed body is bound to, with the id of its delivery.
SEALED_COLUMN: Final = "webhook"

# How old the document of an endpoint may be here; a burst of deliveries asks the database once.
_ENDPOINT_SECONDS: Final = 2.0
_ENDPOINTS_MAX: Final = 1000

# A sender that is refused is told of in the log so often, for each contract and reason.
_SAY_AGAIN_SECONDS: Final = 60.0

# Names as they are made; nothing else is looked up.
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where deliveries of one tenant's contract come in; `now` is the database clock."""

    tenant_id: UUID
    document: ContractDocument
    now: datetime


@dataclass(frozen=True, slots=True)
class Delivery:
    """A delivery that is believed, to be stored.

    Attributes:
        document: the contract by which it was believed.
        senders_id: the sender's id of it, or `sha256:` and the digest of the body.
        sealed: its body, None where nothing is left to be done with it.
    """

    delivery_id: UUID
    tenant_id: UUID
    document: ContractDocument
    senders_id: str
    body_digest: bytes
    status: DeliveryStatus
    code: str
    sealed: Sealed | None


@dataclass(frozen=True, slots=True)
class DeliveryRecord:
    """A stored delivery, as far as matching needs it."""

    delivery_id: UUID
    tenant_id: UUID
    contract_name: str
    contract_digest: bytes
    received_at: datetime
    sealed: Sealed | None


@dataclass(frozen=True, slots=True)
class Candidate:
    """An effect that a delivery may be about."""

    effect_id: UUID
    contract_name: str


@dataclass(frozen=True, slots=True)
class Verdicted:
    """What the evidence of a delivery has done to its effect."""

    status: DeliveryStatus
    code: str
    effect_id: UUID


@dataclass(frozen=True, slots=True)
class DeliveryFilter:
    """Which deliveries; every condition that is given must hold."""

    statuses: frozenset[DeliveryStatus] = frozenset()
    contract: str | None = None
    effect_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class DeliveryLine:
    """A delivery as it is listed; `next_match_at` is None once it is decided."""

    delivery_id: UUID
    contract_name: str
    contract_version: str
    senders_id: str
    body_digest: bytes
    received_at: datetime
    status: DeliveryStatus
    code: str
    effect_id: UUID | None
    decided_at: datetime | None
    next_match_at: datetime | None


@dataclass(frozen=True, slots=True)
class Deliveries:
    """A page of deliveries, newest first; `cursor` is None on the last one."""

    lines: tuple[DeliveryLine, ...]
    cursor: str | None


class DeliveryReads(Protocol):
    """Where the deliveries of a tenant are read."""

    async def deliveries(
        self, tenant_id: UUID, filters: DeliveryFilter, cursor: str | None, limit: int
    ) -> Deliveries:
        """Return one page, newest first.

        Raises:
            CursorInvalid, StoreError.
        """


class InboxStore(Protocol):
    """What taking in asks of the store."""

    async def endpoint(self, tenant: str, contract: str) -> Endpoint | None:
        """Return an endpoint; None without a tenant, a contract, or a webhook of it."""

    async def add(self, delivery: Delivery) -> tuple[DeliveryRecord | None, DeliveryStatus]:
        """Store a delivery; None and the status of the one that stands where there is one."""


class Matcher(Protocol):
    """Who matches a delivery with its effect (`effect_broker.evidence_matching`)."""

    async def match(
        self, record: DeliveryRecord, document: ContractDocument, body: Any, now: datetime
    ) -> DeliveryStatus: ...


@dataclass(frozen=True, slots=True)
class Received:
    """What has become of a delivery; `duplicate` where it had come before."""

    status: DeliveryStatus
    duplicate: bool


@dataclass(slots=True)
class _Asked:
    endpoint: Endpoint | None
    at_seconds: float


@dataclass
class EvidenceInbox:
    """Takes deliveries in.

    Args:
        secrets: resolves the references of webhook secrets, and of nothing else.
        boot_seconds: a clock that never goes back.
        new_id: makes the ids of deliveries.
    """

    store: InboxStore
    matcher: Matcher
    vault: Vault
    secrets: SecretResolver
    boot_seconds: Callable[[], float]
    new_id: Callable[[], UUID]
    _known: OrderedDict[tuple[str, str], _Asked] = field(default_factory=OrderedDict)
    _said: dict[tuple[str, str], float] = field(default_factory=dict)

    async def receive(
        self, tenant: str, contract: str, headers: HeaderFields, body: bytes
    ) -> Received:
        """Believe, store and match one delivery.

        Raises:
            NotFound: it is not believed, for whatever reason.
            InvalidPayload: it is signed and no JSON; it is kept as rejected.
            StoreError: it is not stored; the sender sends it again.
        """
        asked = await self._endpoint(tenant, contract)
        endpoint = asked.endpoint
        if endpoint is None:
            # As much work as a signature of this body takes, so that time tells nothing either.
            hmac.digest(b"nobody", body, "sha256")
            raise NotFound
        passed = self.boot_seconds() - asked.at_seconds
        webhook = endpoint.document.webhook
        assert webhook is not None, "an endpoint has a webhook"
        authentic = self._believed(
            endpoint.document.name, webhook, headers, body, endpoint.now.timestamp() + passed
        )
        if authentic is None:
            raise NotFound
        return await self._stored(endpoint, webhook, authentic, body)

    async def _endpoint(self, tenant: str, contract: str) -> _Asked:
        name, now = (tenant, contract), self.boot_seconds()
        if not _NAME.fullmatch(tenant) or not _NAME.fullmatch(contract):
            return _Asked(None, now)
        known = self._known.get(name)
        if known is None or now - known.at_seconds >= _ENDPOINT_SECONDS:
            known = _Asked(await self.store.endpoint(tenant, contract), now)
            self._known[name] = known
            self._known.move_to_end(name)
            while len(self._known) > _ENDPOINTS_MAX:
                self._known.popitem(last=False)
        return known

    def _believed(
        self,
        name: str,
        webhook: WebhookSettings,
        headers: HeaderFields,
        body: bytes,
        now_seconds: float,
    ) -> Authentic | None:
        keys: list[bytes] = []
        for reference in webhook.secrets:
            try:
                keys.append(signing_key(webhook.scheme, self.secrets(reference)))
            except SecretUnavailable:
                self._say(name, f"the secret {reference} cannot be resolved by this process")
            except SecretMalformed:
                self._say(name, f"the secret {reference} is not written as its scheme asks")
        outcome = verify(webhook.scheme, keys, headers, body, now_seconds)
        if isinstance(outcome, Refusal):
            self._say(name, outcome.value)
            return None
        return outcome

    def _say(self, name: str, what: str) -> None:
        """Tell the operator, not the sender; anybody can send, so not each time."""
        now = self.boot_seconds()
        said_at = self._said.get((name, what))
        if said_at is None or now - said_at >= _SAY_AGAIN_SECONDS:
            self._said[name, what] = now
            _log.warning(
                "a delivery to the webhook of contract %s is refused: %s",
                name,
                what,
                extra=event("delivery_refused", contract=name, code=what),
            )

    async def _stored(
        self, endpoint: Endpoint, webhook: WebhookSettings, authentic: Authentic, body: bytes
    ) -> Received:
        digest = hashlib.sha256(body).digest()
        senders_id = authentic.signed_id or f"sha256:{digest.hex()}"
        value: Any = None
        status, code = DeliveryStatus.RECEIVED, DeliveryStatus.RECEIVED.value
        try:
            value = parse_answer(body)
        except BodyInvalid:
            status, code = DeliveryStatus.REJECTED, "body_invalid"
        else:
            reading = read(webhook, value)
            senders_id = reading.senders_id or senders_id
            if reading.claim is Claim.NOTHING:
                status, code = DeliveryStatus.IGNORED, "says_nothing"
        delivery_id = self.new_id()
        sealed = None
        if status is DeliveryStatus.RECEIVED:
            sealed = self.vault.seal(endpoint.tenant_id, delivery_id, SEALED_COLUMN, body)
        record, standing = await self.store.add(
            Delivery(
                delivery_id,
                endpoint.tenant_id,
                endpoint.document,
                senders_id,
                digest,
                status,
                code,
                sealed,
            )
        )
        if standing is DeliveryStatus.REJECTED:
            raise InvalidPayload(PayloadReason.SYNTAX)
        if record is None:
            return Received(standing, duplicate=True)
        if status is DeliveryStatus.RECEIVED:
            standing = await self._matched(record, endpoint.document, value)
        return Received(standing, duplicate=False)

    async def _matched(
        self, record: DeliveryRecord, document: ContractDocument, body: Any
    ) -> DeliveryStatus:
        try:
            return await self.matcher.match(record, document, body, record.received_at)
        except (StoreError, VaultError) as trouble:
            # It is stored: a worker goes on with it.
            _log.warning(
                "delivery %s is matched later: %s",
                record.delivery_id,
                type(trouble).__name__,
                extra=event(
                    "delivery_matched_later",
                    delivery_id=str(record.delivery_id),
                    problem=type(trouble).__name__,
                ),
            )
            return DeliveryStatus.RECEIVED


def moment(at: datetime | None) -> str | None:
    """Return a time as it is listed."""
    return None if at is None else at.astimezone(UTC).isoformat()


def line_body(line: DeliveryLine) -> dict[str, Any]:
    """Return the members of a delivery, for the API and the command line."""
    return {
        "delivery_id": str(line.delivery_id),
        "contract": {"name": line.contract_name, "version": line.contract_version},
        "senders_id": line.senders_id,
        "body_digest": f"sha256:{line.body_digest.hex()}",
        "received_at": moment(line.received_at),
        "status": line.status.value,
        "code": line.code,
        "effect_id": None if line.effect_id is None else str(line.effect_id),
        "decided_at": moment(line.decided_at),
        "next_match_at": moment(line.next_match_at),
    }
