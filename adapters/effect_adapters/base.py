"""The port between the broker and a target: what an adapter is asked, and what it answers.

An adapter owns the truth about its target: how a request is rendered, what an answer proves, how
the target is asked later. It owns no retry, no wait and no state; those are the broker's. It
never raises for what a target or a network does: every such case is an `Answer` or a `Finding`.
No text of a library's exception leaves an adapter, since such texts carry header values and URLs;
only the stable codes of this package do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from effect_contracts.canonical import JsonValue
from effect_contracts.document import ContractDocument
from effect_contracts.facts import Outcome, Verdict

# Resolves a secret reference of a contract (`env:NAME`, `file:PATH`) at the moment of dispatch.
# Raises SecretUnavailable; the broker's implementation enforces the allow-list.
SecretResolver = Callable[[str], str]

# Reports that execution has reached a named fault point; does nothing unless a test armed it.
Reach = Callable[[str], None]


class SecretUnavailable(Exception):
    """A secret reference is not allowed or cannot be read; the text names no value."""


def secret_value(reference: str, secrets: SecretResolver) -> str:
    """Return the secret of a reference, read now.

    Raises:
        SecretUnavailable: it cannot be had, whatever the resolver met (a missing file, a broken
            vault): the text of that may hold the value.
    """
    try:
        return secrets(reference)
    except SecretUnavailable:
        raise
    except Exception:
        raise SecretUnavailable from None


def name_or_secret(text: str, secrets: SecretResolver) -> str:
    """Return a user name: as it stands, or the secret that it refers to.

    Raises:
        SecretUnavailable: see `secret_value`.
    """
    return secret_value(text, secrets) if text.startswith(("env:", "file:")) else text


class RenderError(Exception):
    """Arguments and contract do not make a request. `code` is stable, the text holds no value.

    Attributes:
        code: for example `body_field_missing`.
        pointer: JSON Pointer of the place in the arguments, or empty.
    """

    def __init__(self, code: str, pointer: str = "") -> None:
        super().__init__(f"{code} at {pointer!r}")
        self.code = code
        self.pointer = pointer


@dataclass(frozen=True, slots=True)
class Budget:
    """The time one exchange may still take, on a clock that also counts while suspended.

    The broker reads the clock before it begins the transaction that grants the attempt, so the
    budget ends on the worker before the attempt's deadline ends on the database clock.

    Attributes:
        ends_at_seconds: reading of `read` at which no further byte may leave.
        read: the clock, in seconds (CLOCK_BOOTTIME, CLOCK_MONOTONIC where there is none).
    """

    ends_at_seconds: float
    read: Callable[[], float]

    def remaining_seconds(self) -> float:
        """Return the seconds left, zero or less when the budget is spent."""
        return self.ends_at_seconds - self.read()


@dataclass(frozen=True, slots=True)
class DispatchCall:
    """One permission to send one stored request once.

    Attributes:
        wire: the rendered request, byte for byte as stored; nothing is rendered again.
        reach: to be called with `before_socket_write` in front of the last gate and with
            `after_last_gate` behind it: no budget is read between there and the bytes that
            complete the request.
        hang_up: end our side of the connection once the request is written, so that the target
            may find it broken while it is at work; an answer that comes all the same is read.
            Trials of a target ask for it, workers never; `http`, `s3` and `sqs` can.
    """

    effect_id: UUID
    tenant_id: UUID
    attempt_id: UUID
    ordinal: int
    downstream_key: str
    wire: bytes = field(repr=False)
    document: ContractDocument
    budget: Budget
    reach: Reach
    hang_up: bool = False


@dataclass(frozen=True, slots=True)
class ProbeCall:
    """One question to the target: does the effect of this key exist?

    Attributes:
        arguments: the effect's arguments, for the payload fields that have to agree.
        operation: the reference of an accepted operation to poll, if the target gave one.
    """

    effect_id: UUID
    tenant_id: UUID
    downstream_key: str
    arguments: JsonValue = field(repr=False)
    document: ContractDocument
    operation: str | None = field(repr=False)
    budget: Budget
    reach: Reach


@dataclass(frozen=True, slots=True)
class Answer:
    """What one attempt showed.

    Attributes:
        outcome: one of the outcomes an adapter may give (never `presumed_ambiguous`).
        code: stable lower-case code of the reason, for example `deadline`, `connect_refused`.
        external_id: the target's id of the object; None where the contract extracts none.
        result: the part of the answer that the caller gets back; stored encrypted.
        receipt_fields: small extracted values for the receipt; stored encrypted with `result`.
        retry_after_seconds: as the target asked, unclamped.
        bytes_may_have_left: False only where that is proved.
        response_digest: SHA-256 (hex) of the received body bytes, if any were received.
        status: the protocol's status number, if one was received.
        operation: reference of an accepted operation; stored encrypted.
    """

    outcome: Outcome
    code: str
    external_id: str | None = None
    result: JsonValue = field(default=None, repr=False)
    receipt_fields: Mapping[str, JsonValue] = field(default_factory=dict, repr=False)
    retry_after_seconds: float | None = None
    bytes_may_have_left: bool = True
    response_digest: str | None = None
    status: int | None = None
    operation: str | None = field(default=None, repr=False)


def not_sent(code: str) -> Answer:
    """Return the answer of an attempt of which it is proved that no byte has left."""
    return Answer(Outcome.NOT_SENT, code, bytes_may_have_left=False)


@dataclass(frozen=True, slots=True)
class Finding:
    """What one probe showed.

    Attributes:
        verdict: `committed` needs one object with our key and agreeing payload fields;
            `mismatch` is several objects or a disagreement; `rejected` is an accepted operation
            that failed for good; everything unproved is `unknown`. Whether a `not_committed`
            counts is the broker's decision (settlement bound), not the adapter's.
        code: stable lower-case code of the reason.
        external_ids: the ids of all objects seen, in the target's order.
        result, receipt_fields, response_digest, status: as in `Answer`.
        retry_after_seconds: as the target asked, unclamped.
    """

    verdict: Verdict
    code: str
    external_ids: tuple[str, ...] = ()
    result: JsonValue = field(default=None, repr=False)
    receipt_fields: Mapping[str, JsonValue] = field(default_factory=dict, repr=False)
    response_digest: str | None = None
    status: int | None = None
    retry_after_seconds: float | None = None


class Adapter(Protocol):
    """A target that is reached over a wire."""

    def identity(self, document: ContractDocument) -> str:
        """Return the target's identity (origin and declared account id), for example
        `https://api.example.com#acct_1`. Arguments never choose it."""

    def render(
        self, document: ContractDocument, arguments: JsonValue, downstream_key: str
    ) -> bytes:
        """Return the wire request as bytes to store and send: method, URL, key and body; no
        credentials, dates or signatures. Pure: the same input gives the same bytes.

        Raises:
            RenderError: the arguments do not make a request under this contract.
        """

    async def dispatch(self, call: DispatchCall) -> Answer:
        """Send `call.wire` at most once, within the budget; never raises for the world."""

    async def probe(self, call: ProbeCall) -> Finding:
        """Ask the target, within the budget; never changes it, never raises for the world."""


class TransactionalAdapter(Protocol):
    """A target that lives in the broker's own database and shares its transaction."""

    def identity(self, document: ContractDocument) -> str:
        """Return the target's identity: the database and the function."""

    def render(
        self, document: ContractDocument, arguments: JsonValue, downstream_key: str
    ) -> bytes:
        """Return the call as bytes to store: function and parameters. Pure.

        Raises:
            RenderError: the arguments do not make a call under this contract.
        """

    async def mutate(self, connection: Any, call: DispatchCall) -> Answer:
        """Run the mutation on `connection`, inside the transaction that the broker has opened
        and will commit together with the receipt. `not_sent`, `rejected` and `retryable` leave
        the transaction rolled back to where the mutation began."""
