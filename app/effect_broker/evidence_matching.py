"""Matching: from a stored delivery to the effect that it is about, now or later.

The API matches each delivery once, right after it is stored. What then waits (an open attempt, an
effect that is not known) or was interrupted, workers take up again, at growing intervals. A
delivery becomes evidence under its own id, so that matching it twice is matching it once, whoever
was interrupted where.

A delivery that no effect is found for is looked for again, for a bounded time: an object's id is
known once the answer to its attempt is recorded, and a database that was restored may get its
commits back. Then it stays in the inbox as `unmatched`.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Protocol
from uuid import UUID

from effect_adapters.answers import parse_answer
from effect_broker.evidence_inbox import SEALED_COLUMN, Candidate, DeliveryRecord, Verdicted
from effect_broker.log_events import event
from effect_broker.protocol.ports import (
    CommitUnknown,
    EffectStore,
    Snapshot,
    StaleWrite,
    StoreError,
    Vault,
    VaultError,
)
from effect_broker.protocol.results import result_bytes
from effect_broker.protocol.webhook import (
    Delivered,
    DeliveryStatus,
    Reading,
    deliver,
    find,
    may_be_ours,
    read,
)
from effect_contracts.canonical import JsonValue, parse_strict
from effect_contracts.document import ContractDocument
from effect_contracts.facts import Verdict

_log = logging.getLogger(__name__)

# Our key was stored before it was sent, so only a restore can have forgotten its effect; the id of
# an object is stored with the answer, which the longest attempt deadline bounds.
KEY_SOUGHT_FOR: Final = timedelta(days=7)
OBJECT_SOUGHT_FOR: Final = timedelta(hours=2)

# Deliveries that a worker takes at once; a tick that finds so many runs again with the next.
MATCH_BATCH: Final = 50


class MatchStore(Protocol):
    """What matching asks of the inbox."""

    async def by_key(self, tenant_id: UUID, key: str) -> Sequence[Candidate]:
        """Return the effects of a downstream key, two at most."""

    async def by_external_id(
        self, tenant_id: UUID, contract_name: str, external_id: str
    ) -> Sequence[Candidate]:
        """Return the effects of a contract that have made the object of this id, two at most."""

    async def verdicted(self, tenant_id: UUID, delivery_id: UUID) -> Verdicted | None:
        """Return what the evidence of a delivery has done, None where there is none."""

    async def decide(
        self,
        record: DeliveryRecord,
        status: DeliveryStatus,
        code: str,
        effect_id: UUID | None = None,
    ) -> None:
        """End a delivery and forget its body."""

    async def postpone(
        self,
        record: DeliveryRecord,
        status: DeliveryStatus,
        code: str,
        effect_id: UUID | None = None,
        again_at: datetime | None = None,
    ) -> None:
        """Say why a delivery waits."""


class DueStore(MatchStore, Protocol):
    """What a worker asks of the inbox."""

    async def take_due(self, limit: int) -> Sequence[tuple[DeliveryRecord, datetime]]:
        """Return deliveries that are due, with the database's clock."""

    async def document(self, digest: bytes) -> ContractDocument:
        """Return the document by which a delivery was believed."""


@dataclass(frozen=True, slots=True)
class Matching:
    """Matches deliveries with effects.

    Args:
        effects: as the role of the process.
        new_id: makes the ids of receipts.
    """

    inbox: MatchStore
    effects: EffectStore
    vault: Vault
    new_id: Callable[[], UUID]

    async def match(
        self, record: DeliveryRecord, document: ContractDocument, body: Any, now: datetime
    ) -> DeliveryStatus:
        """Match a delivery; `document` is the one by which it was believed.

        Raises:
            StoreError, VaultError: it stays as it is, and is taken up again.
        """
        assert document.webhook is not None, "it was believed by its webhook"
        reading = read(document.webhook, body)
        found = await self._candidates(record, reading)
        if len(found) > 1:
            return await self._decided(record, DeliveryStatus.UNMATCHED, "several_effects")
        if not found:
            return await self._not_found(record, document, reading, now)
        (candidate,) = found
        if candidate.contract_name != record.contract_name:
            return await self._decided(record, DeliveryStatus.UNMATCHED, "other_contract")
        return await self._told(record, candidate.effect_id, body)

    async def _candidates(self, record: DeliveryRecord, reading: Reading) -> Sequence[Candidate]:
        if reading.key is not None:
            return await self.inbox.by_key(record.tenant_id, reading.key)
        if reading.external_id is not None:
            return await self.inbox.by_external_id(
                record.tenant_id, record.contract_name, reading.external_id
            )
        return ()

    async def _not_found(
        self, record: DeliveryRecord, document: ContractDocument, reading: Reading, now: datetime
    ) -> DeliveryStatus:
        sought_for = OBJECT_SOUGHT_FOR if reading.key is None else KEY_SOUGHT_FOR
        if reading.key is None and reading.external_id is None:
            return await self._decided(record, DeliveryStatus.IGNORED, "key_missing")
        if reading.key is not None and not may_be_ours(document, reading.key):
            return await self._decided(record, DeliveryStatus.IGNORED, "key_of_others")
        if now - record.received_at >= sought_for:
            return await self._decided(record, DeliveryStatus.UNMATCHED, "no_effect")
        await self.inbox.postpone(record, DeliveryStatus.UNMATCHED, "no_effect")
        return DeliveryStatus.UNMATCHED

    async def _told(self, record: DeliveryRecord, effect_id: UUID, body: Any) -> DeliveryStatus:
        snapshot = await self.effects.load(record.tenant_id, effect_id)
        finding = find(
            snapshot.document, snapshot.intent.downstream_key, await self._arguments(snapshot), body
        )
        if finding is None:
            code = "says_nothing" if snapshot.document.webhook else "not_in_its_contract"
            return await self._decided(record, DeliveryStatus.IGNORED, code, effect_id)
        result, digest = None, None
        if finding.verdict is Verdict.COMMITTED:
            plain = result_bytes(finding)
            result = self.vault.seal(record.tenant_id, effect_id, "result", plain)
            digest = hashlib.sha256(plain).digest()
        plan = partial(
            deliver,
            delivery_id=record.delivery_id,
            received_at=record.received_at,
            finding=finding,
            result=result,
            result_digest=digest,
            receipt_id=self.new_id(),
        )
        try:
            delivered: Delivered = await self.effects.change(record.tenant_id, effect_id, plan)
        except (StaleWrite, CommitUnknown):
            stands = await self.inbox.verdicted(record.tenant_id, record.delivery_id)
            if stands is None:
                raise
            return await self._decided(record, stands.status, stands.code, stands.effect_id)
        if delivered.status is DeliveryStatus.WAITING:
            await self.inbox.postpone(
                record, delivered.status, delivered.code, effect_id, delivered.again_at
            )
            return delivered.status
        return await self._decided(record, delivered.status, delivered.code, effect_id)

    async def _arguments(self, snapshot: Snapshot) -> JsonValue | None:
        """The effect's arguments, None where they were erased."""
        intent = snapshot.intent
        sealed = await self.effects.payload(intent.tenant_id, intent.effect_id, "arguments")
        if sealed is None:
            return None
        plain = self.vault.unseal(intent.tenant_id, intent.effect_id, "arguments", sealed)
        return parse_strict(plain, bytes_max=len(plain))

    async def _decided(
        self,
        record: DeliveryRecord,
        status: DeliveryStatus,
        code: str,
        effect_id: UUID | None = None,
    ) -> DeliveryStatus:
        await self.inbox.decide(record, status, code, effect_id)
        if status is DeliveryStatus.CONTRADICTS:
            _log.error(
                "effect %s is final, and delivery %s says otherwise (%s): a person has to look",
                effect_id,
                record.delivery_id,
                code,
                extra=event(
                    "delivery_contradicts",
                    effect_id=str(effect_id),
                    delivery_id=str(record.delivery_id),
                    code=code,
                ),
            )
        return status


async def match_due(
    inbox: DueStore, matching: Matching, may_go_on: Callable[[], bool] = lambda: True
) -> int:
    """Match deliveries that are due; return how many were taken.

    Raises:
        StoreError: the inbox cannot be read.
    """
    taken = await inbox.take_due(MATCH_BATCH)
    for record, now in taken:
        if not may_go_on():
            break
        assert record.sealed is not None, "what is due has its body"
        try:
            plain = matching.vault.unseal(
                record.tenant_id, record.delivery_id, SEALED_COLUMN, record.sealed
            )
            document = await inbox.document(record.contract_digest)
            await matching.match(record, document, parse_answer(plain), now)
        except (StoreError, VaultError) as trouble:
            # One that is troubled must not keep the others waiting; it comes again.
            kind = type(trouble).__name__
            _log.warning(
                "delivery %s: %s",
                record.delivery_id,
                kind,
                extra=event(
                    "delivery_not_matched", delivery_id=str(record.delivery_id), problem=kind
                ),
            )
    return len(taken)
