"""What a server keeps of a key, and what a second request with that key is told. Pure.

A key stands for one request of one scope (a tenant, an account). The first request claims it; its
result is kept under it; `judge` says what every later one is told:

    kept row                     same request             another request
    done                         the kept result          `key_conflict`
    in progress, lease running   `in_progress`            `key_conflict`
    in progress, lease over      `outcome_unknown` (1)    `key_conflict`
    unknown                      `outcome_unknown` (1)    `key_conflict`

(1) Or claimed anew, where the owner of the server has declared its work repeatable.

There are two ways of keeping a row, and a store is one of them:

- **atomic**: the row and the mutation are one transaction. Whatever ends the work before its
  commit, SIGKILL included, undoes both, so the key is open again and nothing was done. No lease is
  needed.
- **separate**: the row is committed before the work begins. A crash leaves it in progress; nobody
  can know whether the work was done, so the key is not opened again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final, Protocol, TypeAlias
from uuid import UUID

from effect_contracts.canonical import canonical_bytes, parse_strict
from effect_contracts.errors import InvalidPayload

KEY_CHARS_MAX: Final = 255
SCOPE_CHARS_MAX: Final = 255
# Longer than any web server lets a request run; a store takes another.
LEASE_SECONDS: Final = 300.0
# A day and an hour: clients that count a day from their own clock are still served.
RETENTION_SECONDS: Final = 90_000.0
# So long a second request waits for the first before it is told `in_progress`.
WAIT_SECONDS: Final = 1.0
RESULT_BYTES_MAX: Final = 262_144
# Of what is asked, in canonical form; far above what a request may hold.
_DIGESTED_BYTES_MAX: Final = 16 * 1024 * 1024


class Refusal(StrEnum):
    """Why a request was not carried out; the values are the stable codes of the answers."""

    KEY_MISSING = "key_missing"
    KEY_INVALID = "key_invalid"
    KEY_CONFLICT = "key_conflict"
    IN_PROGRESS = "in_progress"
    OUTCOME_UNKNOWN = "outcome_unknown"
    STORE_UNAVAILABLE = "store_unavailable"
    UNAUTHENTICATED = "unauthenticated"
    REQUEST_TOO_LARGE = "request_too_large"


SENTENCES: Final[Mapping[Refusal, str]] = {
    Refusal.KEY_MISSING: "This request needs an idempotency key. Nothing was done.",
    Refusal.KEY_INVALID: "A key is 1 to 255 characters of printable ASCII, without spaces, given "
    "once. Nothing was done.",
    Refusal.KEY_CONFLICT: "This key stands for another request. Nothing was done for this one.",
    Refusal.IN_PROGRESS: "The first request with this key is still at work. Ask again later, with "
    "the same key.",
    Refusal.OUTCOME_UNKNOWN: "The first request with this key has ended without a result: nobody "
    "knows whether it was carried out, and it is not carried out again.",
    Refusal.STORE_UNAVAILABLE: "The keys cannot be read now. Nothing was done for this request.",
    Refusal.UNAUTHENTICATED: "Whose key this is cannot be told. Nothing was done.",
    Refusal.REQUEST_TOO_LARGE: "The request is larger than this server takes. Nothing was done.",
}


class State(StrEnum):
    """Of a kept row."""

    IN_PROGRESS = "in_progress"
    DONE = "done"
    UNKNOWN = "unknown"


class Landed(StrEnum):
    """The answer to "did this key land?"."""

    LANDED = "landed"
    REFUSED = "refused"
    """The first request was refused: its result is kept, and nothing was done."""
    IN_PROGRESS = "in_progress"
    UNKNOWN = "unknown"
    NOT_LANDED = "not_landed"


class StoreUnavailable(Exception):
    """The store could not be asked, before any work was begun."""


class NotStored(Exception):
    """The work has ended and its result may not be kept: what happened is not known here."""


class NothingDone(Exception):
    """Raised by the work itself: it has stopped before anything was changed.

    It is the only way for work outside a shared transaction to open its key again.
    """


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """A request under a key.

    Attributes:
        scope: whose key it is; the keys of two scopes never meet.
        digest: SHA-256 of what was asked (`request_digest`).
    """

    scope: str
    key: str
    digest: bytes

    def __post_init__(self) -> None:
        assert len(self.digest) == 32, "a SHA-256"
        if not key_is_valid(self.key):
            raise ValueError("a key is 1 to 255 characters of printable ASCII without spaces")
        if len(self.scope) > SCOPE_CHARS_MAX or "\0" in self.scope:
            raise ValueError("a scope is up to 255 characters, without NUL")


@dataclass(frozen=True, slots=True)
class KeptResult:
    """The first result, as it is given back on every replay.

    Attributes:
        refused: it says that nothing was done (a 4xx).
    """

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    refused: bool = False

    @property
    def value(self) -> Any:
        """The body as JSON; None where it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class Row:
    """What is kept under a key. `lease_over` is judged by the store's own clock."""

    digest: bytes
    state: State
    token: UUID
    lease_over: bool
    result: KeptResult | None
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Standing:
    """How a key stands, for a look-up."""

    state: Landed
    row: Row | None = None

    def as_json(self, key: str) -> dict[str, Any]:
        """Return what a look-up answers; times are UTC, ISO 8601."""
        told: dict[str, Any] = {
            "key": key,
            "state": self.state.value,
            "landed": self.state is Landed.LANDED,
        }
        if self.row is not None:
            told["request_digest"] = self.row.digest.hex()
            told["created_at"] = self.row.created_at.isoformat()
            told["expires_at"] = self.row.expires_at.isoformat()
            if self.row.result is not None:
                told["status"] = self.row.result.status
                told["result"] = self.row.result.value
        return told


class Held(Protocol):
    """The claim of the one request that does the work."""

    @property
    def connection(self) -> Any:
        """The connection whose open transaction keeps the key; only of an atomic store.

        Raises:
            RuntimeError: the store is separate.
        """

    async def complete(self, result: KeptResult) -> None:
        """Keep the result, and commit. An atomic store undoes the work of a refused one first.

        Raises:
            NothingDone: it was not kept, and all was rolled back.
            NotStored: what happened is not known.
        """

    async def release(self) -> None:
        """Open the key again: nothing was done."""

    async def give_up(self) -> bool:
        """End the claim without a result; return whether all that was done is known to be undone.

        An atomic store rolls back. A separate one makes the outcome unknown, or opens the key
        where the work is repeatable.
        """


Claim: TypeAlias = "Held | KeptResult | Refusal"


class KeyStore(Protocol):
    """Where keys are kept. A claim that is left before it was ended is given up."""

    atomic: bool
    result_bytes_max: int

    def claim(self, request: KeyedRequest) -> AbstractAsyncContextManager[Claim]:
        """Claim the key, or say why not: the kept result, or a refusal.

        Raises:
            StoreUnavailable: on entering.
        """

    async def look_up(self, scope: str, key: str) -> Standing:
        """Say how a key stands, with authority.

        Raises:
            StoreUnavailable.
        """


class Reclaim:
    """The row may be claimed anew: the work is repeatable and nobody is at it."""


def judge(row: Row, request: KeyedRequest, *, repeatable: bool) -> KeptResult | Refusal | Reclaim:
    """Return what a request is told whose key has a row; see the head of this file."""
    if row.digest != request.digest:
        return Refusal.KEY_CONFLICT
    if row.state is State.DONE:
        assert row.result is not None, "done rows have a result"
        return row.result
    if row.state is State.IN_PROGRESS and not row.lease_over:
        return Refusal.IN_PROGRESS
    return Reclaim() if repeatable else Refusal.OUTCOME_UNKNOWN


def standing_of(row: Row | None) -> Standing:
    """Return how a key with this row stands."""
    if row is None:
        return Standing(Landed.NOT_LANDED)
    if row.state is State.DONE:
        assert row.result is not None, "done rows have a result"
        return Standing(Landed.REFUSED if row.result.refused else Landed.LANDED, row)
    if row.state is State.IN_PROGRESS and not row.lease_over:
        return Standing(Landed.IN_PROGRESS, row)
    return Standing(Landed.UNKNOWN, row)


def key_is_valid(key: str) -> bool:
    """Whether `key` is 1 to 255 characters of printable ASCII without spaces."""
    return 1 <= len(key) <= KEY_CHARS_MAX and all("!" <= sign <= "~" for sign in key)


def request_digest(of: Mapping[str, Any], body: bytes | None = None) -> bytes:
    """Return the SHA-256 of what was asked: of JSON by value (RFC 8785), of all else by its bytes.

    `of` says what the body is for (method and path, or a tool and its arguments).

    Raises:
        InvalidPayload: `of` has no canonical form.
    """
    parts: dict[str, Any] = dict(of)
    if body is not None:
        limit = max(len(body) * 2, 1024)
        try:
            parts["json"] = sha256(
                canonical_bytes(parse_strict(body, bytes_max=limit), bytes_max=limit)
            ).hexdigest()
        except InvalidPayload:
            parts["bytes"] = sha256(body).hexdigest()
    return sha256(canonical_bytes(parts, bytes_max=_DIGESTED_BYTES_MAX)).digest()
