"""Intake: from a caller's request to a durable intent, or to the one that stands already.

This file owns the order of the checks. The same operation key again is a result, not an error:
an intent that stands is compared under the contract that is pinned in it, so that neither a new
contract version nor a withdrawn tool turns an honest replay into a refusal. Only a new intent is
judged by the active contract. Nothing is stored, and no key is derived, for a request that is
refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, Protocol
from uuid import UUID

from effect_adapters.base import Adapter, RenderError, TransactionalAdapter
from effect_broker.faultpoints import FaultPoint
from effect_broker.keyring import KeyRing
from effect_broker.protocol.ports import (
    ContractMoved,
    EffectMissing,
    Intent,
    LinkRefusal,
    LinkRefused,
    Sealed,
    StoreBusy,
    Vault,
)
from effect_broker.protocol.submission import Elected, Submission, Submitted
from effect_contracts import keys
from effect_contracts.bounded_schema import CheckTooCostly, Work
from effect_contracts.canonical import (
    JsonValue,
    canonical_bytes,
    check_value,
    first_difference,
    parse_strict,
    request_hash,
)
from effect_contracts.document import CallerSettings, ContractDocument, sent_by_workers
from effect_contracts.errors import (
    EffectError,
    Forbidden,
    InvalidArguments,
    InvalidPayload,
    InvalidRequest,
    NotForCallers,
    PayloadConflict,
    PayloadReason,
    RequestReason,
    TransitionRefused,
    UnknownTool,
)

# A check of up to so many steps (some milliseconds) is done at once.
_STEPS_AT_ONCE: Final = 5_000

# How often a submit starts again because the contract has just been replaced.
_CONTRACT_READS_MAX: Final = 3
# The names that a contract can give to its tool.
_TOOL: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")


class Scope(StrEnum):
    """What an API key may be made for; none includes another but `effects`."""

    SUBMIT = "submit"  # make effects, hurry them, and withdraw them before a first attempt
    READ = "read"  # see effects, receipts, histories, holds and decisions
    OPERATE = "operate"  # conclude what has become of an effect, approve, hold
    ADMIN = "admin"  # let a tenant's events out: subscriptions and their secrets
    EFFECTS = "effects"  # short for the first two


_SHORT: Final = frozenset({Scope.SUBMIT, Scope.READ})


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who asks, as authentication has found; never taken from the request.

    Attributes:
        credential: the id of the API key, or the name of the operator at the command line.
        scopes: what the credential may do.
    """

    tenant_id: UUID
    hmac_key_id: str
    credential: str
    scopes: frozenset[str] = frozenset()

    def may(self, scope: Scope) -> bool:
        """Whether the credential has the right."""
        short = scope in _SHORT and Scope.EFFECTS.value in self.scopes
        return short or scope.value in self.scopes

    def require(self, scope: Scope) -> None:
        """Raise `Forbidden` if the credential lacks the right."""
        if not self.may(scope):
            raise Forbidden(scope=scope.value)


@dataclass(frozen=True, slots=True)
class EffectRequest:
    """What a caller asks for.

    Attributes:
        operation_key: the caller's stable name of the business intent.
        arguments: a JSON object; part of the identity, as are tool and contract.
        trace_id: for the reader; no part of the identity.
        traceparent: the trace context of the submit (W3C); no part of the identity either.
        send_before: no first attempt may start at or after this moment.
        parent_id: the effect that delegates this one; fixed by the first submit.
        compensates_id: the effect that this one undoes when it succeeds; likewise.
    """

    operation_key: str
    tool: str
    arguments: Mapping[str, JsonValue] = field(repr=False)
    trace_id: str | None = None
    traceparent: str | None = None
    send_before: datetime | None = None
    parent_id: UUID | None = None
    compensates_id: UUID | None = None


class IntakeStore(Protocol):
    """What intake asks of the store."""

    async def active_contract(self, tool: str) -> ContractDocument | None:
        """Return the active contract of a tool (it may be a second old), None without one."""

    def forget_contract(self, tool: str) -> None:
        """Read the active contract of a tool anew the next time."""

    async def submit(self, submission: Submission) -> Submitted:
        """Store the intent, its payloads, its first event and its run in one commit, or return
        the intent that holds the key.

        Raises:
            ContractMoved: the contract is no longer the active one of its tool.
        """

    async def intent(self, tenant_id: UUID, effect_id: UUID) -> Intent:
        """Return an intent of this tenant.

        Raises:
            EffectMissing.
        """

    async def payload(
        self, tenant_id: UUID, effect_id: UUID, kind: str, ref: str = ""
    ) -> Sealed | None: ...


class Intake:
    """The submit of every surface: HTTP, SDK and MCP use this one."""

    def __init__(
        self,
        store: IntakeStore,
        adapters: Mapping[str, Adapter | TransactionalAdapter],
        ring: KeyRing,
        vault: Vault,
        reach: Callable[[str], None],
    ) -> None:
        self._store = store
        self._adapters = adapters
        self._ring = ring
        self._vault = vault
        self._reach = reach
        # One at a time: more would take turns at the same interpreter.
        self._long_check = asyncio.Semaphore(1)

    async def submit(self, tenant: Tenant, request: EffectRequest) -> Submitted:
        """Make the intent durable, or return the one that the same request made before.

        Raises:
            InvalidOperationKey, InvalidPayload: the request has no identity.
            UnknownTool, InvalidArguments: no active contract takes it, and no intent stands.
            PayloadConflict: the key is bound to another request; nothing was sent.
            StoreError: nothing is known; the same request may be sent again.
        """
        keys.check_operation_key(request.operation_key)
        arguments = check_value(dict(request.arguments))
        effect_id = keys.effect_id(tenant.tenant_id, request.operation_key)
        for _ in range(_CONTRACT_READS_MAX):
            try:
                submission = await self._prepared(tenant, request, arguments, effect_id)
            except EffectError as refusal:
                return await self._standing(tenant, effect_id, request.tool, arguments, refusal)
            self._reach(FaultPoint.BEFORE_SUBMIT_COMMIT)
            try:
                submitted = await self._store.submit(submission)
                break
            except ContractMoved:
                self._store.forget_contract(request.tool)
            except LinkRefused as refused:
                raise await self._refused_link(tenant, request, effect_id, refused) from None
        else:
            raise StoreBusy("the active contract of the tool changes too fast")
        self._reach(FaultPoint.AFTER_SUBMIT_COMMIT)
        if not submitted.created:
            await self._compare(submitted.intent, request.tool, arguments)
        return submitted

    async def elect(
        self,
        tenant: Tenant,
        request: EffectRequest,
        store: Callable[[Submission, ContractDocument], Awaitable[Elected]],
    ) -> Elected:
        """Make the intent durable together with a caller's attempt, by `store`; else as `submit`.

        Raises:
            As `submit`.
            NotForCallers: the contract leaves the sending to workers.
        """
        keys.check_operation_key(request.operation_key)
        arguments = check_value(dict(request.arguments))
        effect_id = keys.effect_id(tenant.tenant_id, request.operation_key)
        for _ in range(_CONTRACT_READS_MAX):
            try:
                submission = await self._prepared(tenant, request, arguments, effect_id)
                document = await self._store.active_contract(request.tool)
                if document is None or document.digest() != submission.contract_digest:
                    continue  # it was replaced just now
                if not isinstance(document.adapter, CallerSettings):
                    raise NotForCallers
            except EffectError as refusal:
                stood = await self._standing(tenant, effect_id, request.tool, arguments, refusal)
                return Elected(False, stood.intent)
            try:
                elected = await store(submission, document)
                break
            except ContractMoved:
                self._store.forget_contract(request.tool)
        else:
            raise StoreBusy("the active contract of the tool changes too fast")
        if not elected.created:
            await self._compare(elected.intent, request.tool, arguments)
        return elected

    async def contract_of(self, tool: str) -> ContractDocument:
        """Return the contract that a submit of now would be bound to.

        Raises:
            UnknownTool, StoreError.
        """
        # What no contract can name is not looked up; a column could not even hold some of it.
        known = await self._store.active_contract(tool) if _TOOL.fullmatch(tool) else None
        if known is None or known.adapter.kind not in self._adapters:
            raise UnknownTool
        return known

    async def _prepared(
        self, tenant: Tenant, request: EffectRequest, arguments: JsonValue, effect_id: UUID
    ) -> Submission:
        document = await self.contract_of(request.tool)
        try:
            await self._check(document, arguments)
        except InvalidArguments as refusal:
            # The document knows the arguments only; a caller sent them as a member of a request.
            expected = refusal.extras.get("expected")
            raise InvalidArguments(
                field=f"/arguments{refusal.field or ''}",
                keyword=str(refusal.extras["keyword"]),
                expected=None if expected is None else str(expected),
            ) from None
        secret = self._ring.hmac_key(tenant.hmac_key_id)
        downstream_key = keys.downstream_key(
            secret, tenant.tenant_id, request.operation_key, document.key_format
        )
        wire: bytes | None = None
        if sent_by_workers(document):
            wire = self._rendered(document, arguments, downstream_key)

        def seal(column: str, plain: bytes) -> Sealed:
            return self._vault.seal(tenant.tenant_id, effect_id, column, plain)

        return Submission(
            effect_id=effect_id,
            tenant_id=tenant.tenant_id,
            operation_key=request.operation_key,
            tool=request.tool,
            request_hash=request_hash(request.tool, arguments, document.name, document.version),
            contract_digest=document.digest(),
            contract_name=document.name,
            contract_version=document.version,
            safety=document.safety,
            downstream_key=downstream_key,
            hmac_key_id=tenant.hmac_key_id,
            wire_digest=None if wire is None else hashlib.sha256(wire).digest(),
            arguments=seal("arguments", canonical_bytes(arguments)),
            wire=None if wire is None else seal("wire", wire),
            preview=document.preview(arguments),
            requested_by=f"caller:{tenant.credential}",
            trace_id=request.trace_id,
            traceparent=request.traceparent,
            send_before=request.send_before,
            parent_id=request.parent_id,
            compensates_id=request.compensates_id,
        )

    async def _refused_link(
        self, tenant: Tenant, request: EffectRequest, effect_id: UUID, refused: LinkRefused
    ) -> EffectError:
        """What a caller is told of a link that cannot be; nothing was stored."""
        place = "/compensates" if request.compensates_id is not None else "/parent_effect_id"
        match refused.why:
            case LinkRefusal.MISSING:
                return InvalidRequest(RequestReason.NO_SUCH_EFFECT, field=place)
            case LinkRefusal.ANOTHER:
                intent = await self._store.intent(tenant.tenant_id, effect_id)
                return PayloadConflict(field=place, effect_id=effect_id, state=intent.state)
            case LinkRefusal.NOT_COMPENSABLE:
                assert request.compensates_id is not None
                other = await self._store.intent(tenant.tenant_id, request.compensates_id)
                return TransitionRefused(state=other.state)

    async def _check(self, document: ContractDocument, arguments: JsonValue) -> None:
        """Check the arguments; a check that takes long does not hold up the other requests.

        Raises:
            InvalidArguments.
        """
        try:
            document.check_arguments_within(arguments, Work(_STEPS_AT_ONCE))
            return
        except CheckTooCostly:
            pass
        async with self._long_check:
            await asyncio.to_thread(document.check_arguments, arguments)

    def _rendered(
        self, document: ContractDocument, arguments: JsonValue, downstream_key: str
    ) -> bytes:
        adapter = self._adapters[document.adapter.kind]
        try:
            return adapter.render(document, arguments, downstream_key)
        except RenderError as problem:
            # The schema let through what the target's request cannot carry.
            raise InvalidArguments(
                field=f"/arguments{problem.pointer}", keyword=problem.code
            ) from None

    async def _standing(
        self,
        tenant: Tenant,
        effect_id: UUID,
        tool: str,
        arguments: JsonValue,
        refusal: EffectError,
    ) -> Submitted:
        """A request that would be refused as a new one may be the replay of an old one."""
        try:
            intent = await self._store.intent(tenant.tenant_id, effect_id)
        except EffectMissing:
            raise refusal from None
        await self._compare(intent, tool, arguments)
        return Submitted(created=False, intent=intent)

    async def _compare(self, intent: Intent, tool: str, arguments: JsonValue) -> None:
        """Return if the request is the stored one, under the contract pinned in the stored row.

        Raises:
            PayloadConflict: names the first place that differs.
        """
        asked = request_hash(tool, arguments, intent.contract_name, intent.contract_version)
        if asked == intent.request_hash:
            return
        place = "/tool" if tool != intent.tool else await self._place(intent, arguments)
        raise PayloadConflict(field=place, effect_id=intent.effect_id, state=intent.state)

    async def _place(self, intent: Intent, arguments: JsonValue) -> str | None:
        sealed = await self._store.payload(intent.tenant_id, intent.effect_id, "arguments")
        if sealed is None:
            return None  # erased: the hash still refuses, the place is no longer known
        plain = self._vault.unseal(intent.tenant_id, intent.effect_id, "arguments", sealed)
        difference = first_difference(parse_strict(plain), arguments)
        return None if difference is None else f"/arguments{difference}"


def require_object(value: JsonValue) -> dict[str, JsonValue]:
    """Return the arguments as the object that they have to be.

    Raises:
        InvalidPayload: they are something else.
    """
    if not isinstance(value, dict):
        raise InvalidPayload(PayloadReason.NOT_AN_OBJECT, field="/arguments")
    return value
