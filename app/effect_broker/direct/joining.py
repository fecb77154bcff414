"""A submit that joins the caller's own transaction, over the one intake that all surfaces use.

What is checked, refused and compared is `effect_broker.intake`'s to say; the body is read as the
API reads it. This file owns what is said of transactions that cannot be joined. A caller's process
holds its tenant's HMAC key and an encryption key, and never a signing key.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from typing import Final, TypeVar
from uuid import UUID

from effect_adapters.registry import adapters
from effect_broker.api.bodies import ENVELOPE_DEPTH_MAX, SubmitBody, submit_of
from effect_broker.api.presentation import committed_body
from effect_broker.intake import EffectRequest, Intake, Scope, Tenant
from effect_broker.keyring import AesVault, KeyRing, KeyRingProblem
from effect_broker.protocol.ports import EffectMissing, Intent, StoreBusy, VaultError
from effect_broker.protocol.submission import Submitted
from effect_broker.sdk.errors import (
    NotConfigured,
    NotJoined,
    NotUnderstood,
    RunAgain,
    TransactionEnded,
    error_of,
)
from effect_broker.sdk.joined import Transacted
from effect_broker.sdk.results import Effect, effect_from
from effect_broker.sdk.transport import Home
from effect_broker.secretrefs import SecretReferences
from effect_broker.store.caller_connections import (
    JoinBroken,
    JoinRefused,
    Overtaken,
    SavepointLost,
    check_open,
    kept,
    link_of,
)
from effect_broker.store.joined import Carried, JoinedStore, Look
from effect_contracts.canonical import JsonValue, parse_strict
from effect_contracts.document import ContractDocument
from effect_contracts.errors import EffectError, TenantDisabled, problem
from effect_contracts.keys import effect_id

T = TypeVar("T")

_SENTENCES: Final = {
    "unknown_connection": "It is no connection of psycopg, and none of SQLAlchemy over psycopg.",
    "needs_a_loop": "An asynchronous connection needs AsyncBroker.",
    "blocks_the_loop": "A synchronous connection would block the event loop; use Broker.",
    "autocommit": "The connection commits each statement by itself, so that nothing would be "
    "joined; begin a transaction first.",
    "transaction_aborted": "The transaction is aborted; roll it back.",
    "read_only": "The transaction is read-only.",
    "no_broker_here": "This database has no effect-broker, or an older one.",
    "not_a_caller": "The role that has logged in may not submit here; "
    "`effect-broker callers add ROLE --tenant NAME` lets it.",
    "another_database": "The connection leads to another database than this client.",
    "another_tenant": "The role submits for another tenant than the API key of this client.",
    "approval_needed": "The contract needs a person's approval; submit it without a connection.",
    "not_transactional": "The contract is of another class than `transactional`: {detail}.",
    "held": "The contract, the tool or the tenant is held: {detail}.",
}


_UNKNOWN: Final = "The broker refuses it for a reason that this release of the SDK does not know."


class Joining:
    """Submits inside transactions of callers.

    Args:
        ring: seals arguments and makes downstream keys.
    """

    def __init__(self, ring: KeyRing) -> None:
        self._ring = ring
        self._vault = AesVault(ring)
        # No prefix and no directory: what renders here has no use for a secret.
        self._adapters = adapters(SecretReferences("", None))
        self._documents: dict[str, ContractDocument] = {}

    async def submit(
        self, connection: object, raw: bytes, home: Home | None, *, loop: bool
    ) -> Effect:
        """Make an intent part of the caller's transaction.

        Args:
            raw: the body of `POST /v1/effects`.
            home: where the client itself is at home; None where nobody knows.
            loop: the caller runs in an event loop, and the connection has to.

        Raises:
            NotJoined, RunAgain, and what a submit over HTTP raises.
        """
        done: Transacted[None] = await self._said(connection, raw, home, None, None, loop=loop)
        return done.effect

    async def transact(
        self,
        connection: object,
        raw: bytes,
        home: Home | None,
        external_id: str | None,
        body: Callable[[], Awaitable[T]],
        *,
        loop: bool,
    ) -> Transacted[T]:
        """Write the receipt of an effect, then let `body` carry it out, if the key is new.

        An exception of `body` takes back what it and the receipt have written.

        Raises:
            As `submit`, and what `body` raises.
            TransactionEnded: `body` has ended the transaction.
        """
        return await self._said(connection, raw, home, Carried(external_id), body, loop=loop)

    async def _said(
        self,
        connection: object,
        raw: bytes,
        home: Home | None,
        carried: Carried | None,
        body: Callable[[], Awaitable[T]] | None,
        *,
        loop: bool,
    ) -> Transacted[T]:
        """Join, with every refusal in the SDK's words; what `body` raises is left alone."""
        refusal: Exception
        try:
            return await self._joined(connection, raw, home, carried, body, loop=loop)
        except _BodyRaised as raised:
            refusal = raised.error
        except EffectError as error:
            refusal = error_of(error.status, problem(error))
        except JoinRefused as refused:
            refusal = _not_joined(refused)
        except Overtaken as overtaken:
            refusal = _again(overtaken.code)
        except JoinBroken as broken:
            refusal = NotUnderstood(
                "The database refuses what this release of the SDK asks; roll back.",
                {"code": f"sqlstate_{broken.sqlstate.lower()}"},
            )
        except StoreBusy:
            refusal = _again("contract_moves")
        except EffectMissing:
            refusal = _again("serialization_failure")  # it came after the snapshot
        except KeyRingProblem as trouble:
            refusal = NotConfigured(f"The key ring cannot be used: {trouble}.")
        # Outside of the except blocks: what failed holds the arguments.
        raise refusal

    async def _joined(
        self,
        connection: object,
        raw: bytes,
        home: Home | None,
        carried: Carried | None,
        body: Callable[[], Awaitable[T]] | None,
        *,
        loop: bool,
    ) -> Transacted[T]:
        asked = submit_of(parse_strict(raw, depth_max=ENVELOPE_DEPTH_MAX))
        link = link_of(connection)
        if link.needs_loop != loop:
            raise JoinRefused("blocks_the_loop" if loop else "needs_a_loop")
        await check_open(link)
        store = JoinedStore(link, asked.tool, asked.operation_key, self._parsed, carried)
        look = await store.look()
        _check_home(look, home)
        intake = _JoinedIntake(store, self._adapters, self._ring, self._vault, _pass)
        intake.has_loop = loop
        undone: AbstractAsyncContextManager[None] = nullcontext() if body is None else kept(link)
        try:
            async with undone:
                submitted = await intake.submit(_tenant(look), _request(asked))
                value = None
                if body is not None and submitted.created:
                    value = await _carried_out(body)
            return Transacted(_effect(submitted), submitted.created, value)
        except SavepointLost as lost:
            cause = lost.cause
        raise _ended(effect_id(look.tenant_id, asked.operation_key), cause)

    def _parsed(self, digest: str, text: str) -> ContractDocument:
        """Documents are immutable by digest, so each is read once."""
        if digest not in self._documents:
            self._documents[digest] = ContractDocument.from_canonical(text.encode())
        return self._documents[digest]


class _JoinedIntake(Intake):
    """The intake of all surfaces, on a connection that may have no loop."""

    has_loop = True

    async def _check(self, document: ContractDocument, arguments: JsonValue) -> None:
        if self.has_loop:
            await super()._check(document, arguments)
        else:
            document.check_arguments(arguments)  # the thread is the caller's own

    async def _place(self, intent: Intent, arguments: JsonValue) -> str | None:
        try:
            return await super()._place(intent, arguments)
        except VaultError:
            return None  # sealed with a key that this caller does not hold; the hash still differs


class _BodyRaised(Exception):
    """Carries the exception of a body past the words of this module."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


async def _carried_out(body: Callable[[], Awaitable[T]]) -> T:
    try:
        return await body()
    except Exception as error:
        raise _BodyRaised(error) from None


def _tenant(look: Look) -> Tenant:
    scopes = frozenset({Scope.SUBMIT.value})
    return Tenant(look.tenant_id, look.hmac_key_id, f"role:{look.role}", scopes)


def _request(asked: SubmitBody) -> EffectRequest:
    return EffectRequest(
        operation_key=asked.operation_key,
        tool=asked.tool,
        arguments=asked.arguments,
        trace_id=asked.trace_id,
        send_before=asked.send_before,
        parent_id=asked.parent_effect_id,
        compensates_id=asked.compensates,
    )


def _check_home(look: Look, home: Home | None) -> None:
    """What is submitted here has to be found by the client's own calls."""
    if home is None:
        return
    if look.database != home.database:
        raise JoinRefused("another_database")
    if look.tenant_id != home.tenant_id:
        raise JoinRefused("another_tenant")


def _effect(submitted: Submitted) -> Effect:
    body = committed_body(submitted.intent) | {"replayed": not submitted.created}
    return replace(effect_from(body), durable=False)


def _not_joined(refused: JoinRefused) -> Exception:
    if refused.code == "tenant_disabled":
        disabled = TenantDisabled()
        return error_of(disabled.status, problem(disabled))
    sentence = _SENTENCES.get(refused.code, _UNKNOWN).format(detail=refused.detail)
    return NotJoined(sentence, {"code": refused.code})


def _again(code: str) -> RunAgain:
    return RunAgain("Roll back and run the whole transaction again.", {"code": code})


def _ended(effect: UUID, cause: Exception | None) -> Exception:
    ended = TransactionEnded(
        "The function has ended the transaction by a statement of its own, such as COMMIT. What it "
        "had written before may be committed with the receipt, and the rest is not: ask for the "
        "effect, and put right what is missing.",
        {"code": "transaction_ended", "effect_id": str(effect)},
    )
    ended.__cause__ = cause.error if isinstance(cause, _BodyRaised) else cause
    return ended


def _pass(point: str) -> None:
    """Fault points are for the broker's own processes."""
