"""Subscriptions to a tenant's events: who wants to be told what, where, and how that goes.

This file owns what a subscription is to the one who makes it. Its secret is made here, told once,
and kept sealed. What is delivered, and when, is `effect_broker.event_delivery`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Protocol
from uuid import UUID

from effect_broker.event_stream import StreamReads, place_after
from effect_broker.protocol.ports import Sealed, Vault
from effect_contracts.errors import InvalidRequest, LimitReached, NotFound, RequestReason
from effect_contracts.event_stream import EventFilter, Place, event_id
from effect_contracts.webhook_sending import SECRET_BYTES, secret_of
from effect_contracts.webhook_urls import Networks, UrlRefused, receiver_of

# The column that a sealed secret is bound to, with the id of its subscription.
SEALED_COLUMN: Final = "subscription"
# Each is read for by itself, so that there is an end to what a tenant can ask of the workers.
SUBSCRIPTIONS_MAX: Final = 20
DESCRIPTION_CHARS_MAX: Final = 500
# How long the secret before signs beside a new one, and how many may at once.
OVERLAP_SECONDS: Final = 86_400.0
OVERLAP_SECONDS_MAX: Final = 30 * 86_400.0
RETIRING_MAX: Final = 4
PAUSED_BY_PERSON: Final = "paused_by_person"


@dataclass(frozen=True, slots=True)
class SubscriptionOrder:
    """What is asked for; `after` is a cursor of the stream, None for all that comes from now on."""

    url: str = field(repr=False)
    wanted: EventFilter
    description: str = ""
    after: str | None = None


@dataclass(frozen=True, slots=True)
class NewSubscription:
    """A subscription to be stored; `place` is None for the present end of the stream."""

    subscription_id: UUID
    order: SubscriptionOrder
    sealed: Sealed
    place: Place | None
    actor: str


@dataclass(frozen=True, slots=True)
class SubscriptionRecord:
    """A subscription and how it goes.

    Attributes:
        failing_since: nothing was accepted since then, and something was refused.
        old_secret_until: a secret that was replaced still signs until then, beside the new one.
        waiting, dead: how many events wait for another try, and how many were given up.
    """

    subscription_id: UUID
    url: str = field(repr=False)
    wanted: EventFilter
    description: str
    created_by: str
    created_at: datetime
    place: Place
    failing_since: datetime | None
    last_code: str | None
    delivered_at: datetime | None
    paused_at: datetime | None
    pause_code: str | None
    old_secret_until: datetime | None
    waiting: int
    dead: int

    @property
    def status(self) -> str:
        """`paused`, `failing` or `active`."""
        if self.paused_at is not None:
            return "paused"
        return "active" if self.failing_since is None else "failing"

    def to_json(self) -> dict[str, Any]:
        """Return the members of a subscription; its secret is none of them."""
        return {
            "subscription_id": str(self.subscription_id),
            "url": self.url,
            "types": sorted(self.wanted.types),
            "states": sorted(self.wanted.states),
            "description": self.description,
            "status": self.status,
            "created_by": self.created_by,
            "created_at": _moment(self.created_at),
            "delivered_at": _moment(self.delivered_at),
            "failing_since": _moment(self.failing_since),
            "last_code": self.last_code,
            "paused_at": _moment(self.paused_at),
            "pause_code": self.pause_code,
            "old_secret_until": _moment(self.old_secret_until),
            "waiting": self.waiting,
            "dead_letters": self.dead,
        }


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that was given up; `digest` is None once retention has removed the event."""

    effect_id: UUID
    sequence: int
    digest: bytes | None
    kind: str | None
    tries: int
    first_tried_at: datetime | None
    dead_at: datetime
    code: str
    status: int | None

    def to_json(self) -> dict[str, Any]:
        """Return the members of a dead letter."""
        known = self.digest is not None
        return {
            "event_id": event_id(self.effect_id, self.sequence, self.digest or b"")
            if known
            else None,
            "effect_id": str(self.effect_id),
            "sequence": self.sequence,
            "type": self.kind,
            "tries": self.tries,
            "first_tried_at": _moment(self.first_tried_at),
            "dead_at": _moment(self.dead_at),
            "code": self.code,
            "http_status": self.status,
            "can_be_redelivered": known,
        }


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """A page of dead letters, the oldest first; `cursor` is None on the last one."""

    letters: tuple[DeadLetter, ...]
    cursor: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the members of the page."""
        return {
            "dead_letters": [letter.to_json() for letter in self.letters],
            "cursor": self.cursor,
        }


class Replaced(StrEnum):
    """What became of a wish to replace a secret."""

    DONE = "done"
    MISSING = "missing"
    TOO_MANY = "too_many"


class SubscriptionStore(Protocol):
    """Where the subscriptions of a tenant are kept. All raise StoreError."""

    async def add(self, tenant_id: UUID, new: NewSubscription, limit: int) -> bool:
        """Store one; False where the tenant has `limit` already."""

    async def listing(self, tenant_id: UUID) -> tuple[SubscriptionRecord, ...]:
        """Return all, the oldest first."""

    async def one(self, tenant_id: UUID, subscription_id: UUID) -> SubscriptionRecord | None:
        """Return one; None without it."""

    async def remove(self, tenant_id: UUID, subscription_id: UUID) -> bool:
        """Remove one and what waits for it; False without it."""

    async def pause(self, tenant_id: UUID, subscription_id: UUID, code: str) -> bool:
        """Deliver nothing more until it is resumed; False without it."""

    async def resume(self, tenant_id: UUID, subscription_id: UUID) -> bool:
        """Let it go on at once; False without it."""

    async def replace_secret(
        self,
        tenant_id: UUID,
        subscription_id: UUID,
        sealed: Sealed,
        overlap_seconds: float,
        limit: int,
    ) -> Replaced:
        """Sign with this secret from now on, and with those before for so long; not at all with 0.

        With `limit` secrets that still sign beside the present one, nothing is changed.
        """

    async def dead_letters(
        self, tenant_id: UUID, subscription_id: UUID, cursor: str | None, limit: int
    ) -> DeadLetters:
        """Return a page of what was given up.

        Raises:
            CursorInvalid.
        """

    async def redeliver(
        self, tenant_id: UUID, subscription_id: UUID, event: tuple[UUID, int] | None
    ) -> int:
        """Let one dead letter wait again, all with None; return how many."""


@dataclass(frozen=True, slots=True)
class Subscribing:
    """What persons and programs do with subscriptions.

    Args:
        networks: that may be reached although they are not public.
        plain_http: whether http:// will do, as in development.
    """

    store: SubscriptionStore
    stream: StreamReads
    vault: Vault
    new_id: Callable[[], UUID]
    networks: Networks
    plain_http: bool

    async def create(
        self, tenant_id: UUID, order: SubscriptionOrder, actor: str
    ) -> tuple[SubscriptionRecord, str]:
        """Make a subscription; return it with its secret, which nobody can read again.

        Raises:
            InvalidRequest: nothing may be posted to this URL. LimitReached.
            RequestMalformed, CursorSuperseded: of `after`. StoreError.
        """
        try:
            receiver_of(order.url, self.networks, plain_http=self.plain_http)
        except UrlRefused:
            raise InvalidRequest(RequestReason.NOT_TO_BE_REACHED, field="/url") from None
        place = None
        if order.after is not None:
            head = await self.stream.head(tenant_id)
            place = place_after(order.after, tenant_id, head)
        subscription_id = self.new_id()
        secret = secret_of(secrets.token_bytes(SECRET_BYTES))
        sealed = self.vault.seal(tenant_id, subscription_id, SEALED_COLUMN, secret.encode())
        new = NewSubscription(subscription_id, order, sealed, place, actor)
        if not await self.store.add(tenant_id, new, SUBSCRIPTIONS_MAX):
            raise LimitReached(limit=SUBSCRIPTIONS_MAX)
        return await self.one(tenant_id, subscription_id), secret

    async def one(self, tenant_id: UUID, subscription_id: UUID) -> SubscriptionRecord:
        """Return a subscription.

        Raises:
            NotFound, StoreError.
        """
        record = await self.store.one(tenant_id, subscription_id)
        if record is None:
            raise NotFound
        return record

    async def remove(self, tenant_id: UUID, subscription_id: UUID) -> None:
        """End a subscription at once, with its dead letters; one that is gone already is gone.

        Raises:
            NotFound, StoreError.
        """
        if not await self.store.remove(tenant_id, subscription_id):
            raise NotFound

    async def resume(self, tenant_id: UUID, subscription_id: UUID) -> SubscriptionRecord:
        """Let a subscription go on where it stands; one that goes on already does.

        Raises:
            NotFound, StoreError.
        """
        if not await self.store.resume(tenant_id, subscription_id):
            raise NotFound
        return await self.one(tenant_id, subscription_id)

    async def pause(self, tenant_id: UUID, subscription_id: UUID) -> SubscriptionRecord:
        """Deliver nothing more until it is resumed; what happens meanwhile is delivered then.

        Raises:
            NotFound, StoreError.
        """
        if not await self.store.pause(tenant_id, subscription_id, PAUSED_BY_PERSON):
            raise NotFound
        return await self.one(tenant_id, subscription_id)

    async def replace_secret(
        self, tenant_id: UUID, subscription_id: UUID, overlap_seconds: float
    ) -> tuple[SubscriptionRecord, str]:
        """Make a new secret; return it, which nobody can read again.

        For `overlap_seconds` each delivery is signed with the old one too, so that a receiver may
        change to the new one at any time in it; with 0 the old one signs nothing any more. An
        answer that was lost is no harm: what signed before signs on, and the wish may be repeated.

        Raises:
            NotFound, StoreError.
            LimitReached: as many old secrets as may be sign still.
        """
        secret = secret_of(secrets.token_bytes(SECRET_BYTES))
        sealed = self.vault.seal(tenant_id, subscription_id, SEALED_COLUMN, secret.encode())
        replaced = await self.store.replace_secret(
            tenant_id, subscription_id, sealed, overlap_seconds, RETIRING_MAX
        )
        if replaced is Replaced.MISSING:
            raise NotFound
        if replaced is Replaced.TOO_MANY:
            raise LimitReached(limit=RETIRING_MAX)
        return await self.one(tenant_id, subscription_id), secret

    async def redeliver(
        self, tenant_id: UUID, subscription_id: UUID, event: tuple[UUID, int] | None
    ) -> int:
        """Try dead letters again from the start, one or all; return how many.

        Raises:
            NotFound: no such subscription, or no such dead letter. StoreError.
        """
        await self.one(tenant_id, subscription_id)
        again = await self.store.redeliver(tenant_id, subscription_id, event)
        if event is not None and not again:
            raise NotFound
        return again


def _moment(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
