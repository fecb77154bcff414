"""The port between the SDK and a broker: the calls that speak the API's own bodies.

A transport makes one try of one call. Whether a call is repeated, how long is waited and what an
answer means is decided above it, so that every way to a broker behaves the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias
from uuid import UUID

from effect_broker.sdk.errors import Body

Wish: TypeAlias = Literal["reconcile", "cancel"]
Deed: TypeAlias = Literal["extend", "confirm"]


@dataclass(frozen=True, slots=True)
class Home:
    """Where the calls of a client go: whose key it has, and which database is behind it."""

    tenant_id: UUID
    database: tuple[str, ...]


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

    async def tool(self, name: str) -> Body:
        """Return the contract that a submit of this tool would be bound to."""

    async def unresolved(self, query: Mapping[str, str]) -> Body:
        """Return a page of the unresolved listing; `query` is that of `GET /v1/unresolved`."""

    async def home(self) -> Home | None:
        """Return where calls go, None where a caller cannot know."""

    async def elect(self, body: bytes) -> Body:
        """Ask to perform an effect; `body` is that of `POST /v1/effects/elect`, as every try."""

    async def attempt(self, effect_id: UUID, ordinal: int, deed: Deed, body: bytes) -> Body:
        """Extend the lease of one's own attempt, or tell what it showed."""

    async def close(self) -> None:
        """Give back what is held; nothing is called afterwards."""
