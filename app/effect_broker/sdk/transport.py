"""The port between the SDK and a broker: six calls that speak the API's own bodies.

A transport makes one try of one call. Whether a call is repeated, how long is waited and what an
answer means is decided above it, so that every way to a broker behaves the same.
"""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias
from uuid import UUID

from effect_broker.sdk.errors import Body

Wish: TypeAlias = Literal["reconcile", "cancel"]


class Transport(Protocol):
    """One way to a broker.

    Every call raises `effect_broker.sdk.errors.BrokerError`: `Unavailable` where nothing is known
    of what became of it, and never the error of a library.
    """

    async def submit(self, body: bytes) -> Body:
        """Make an intent durable; `body` is that of `POST /v1/effects`, the same at every try."""

    async def effect(self, effect_id: UUID, wait_seconds: float) -> Body:
        """Return an effect, once it stands still or when the time is over."""

    async def receipt(self, effect_id: UUID) -> Body:
        """Return the receipt of a settled effect."""

    async def resolve(self, effect_id: UUID, body: bytes) -> Body:
        """Record what a person knows; the decision id in `body` makes it safe to repeat."""

    async def wish(self, effect_id: UUID, wish: Wish) -> Body:
        """Ask for a look now, or for a withdrawal."""

    async def close(self) -> None:
        """Give back what is held; nothing is called afterwards."""
