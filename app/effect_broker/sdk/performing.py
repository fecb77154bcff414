"""Effects that the caller performs itself: elect, perform, confirm.

    async with broker.perform("shop.charge", arguments, operation_key=key) as effect:
        answer = await call_the_target(idempotency_key=effect.downstream_key)
        await effect.confirm(answer)
    effect.outcome                      # a value, whoever has performed it

Whoever is not elected has no downstream key: asking for it ends the block, and `outcome` says what
there is to know. An outcome that nobody knows is a value and never an error, as everywhere in this
SDK; an exception of the block's own goes on, and what it left behind is recorded as ambiguous.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias
from uuid import UUID

from effect_broker.sdk.bodies import body_of, checked_external_id, checked_operation_key, plain
from effect_broker.sdk.errors import (
    Body,
    BrokerError,
    Closed,
    NotElected,
    NotUnderstood,
    RequestRefused,
    Unavailable,
    refused,
)
from effect_broker.sdk.giving_back import ASK_ON_SECONDS
from effect_broker.sdk.results import (
    Cancelled,
    Compensated,
    Effect,
    Failed,
    NotYet,
    Receipt,
    Succeeded,
    Unknown,
    WaitsForPerson,
    effect_from,
    outcome_of,
)
from effect_contracts.canonical import BODY_BYTES_MAX, canonical_bytes
from effect_contracts.errors import InvalidPayload, InvalidRequest, RequestReason
from effect_contracts.facts import Outcome as AttemptOutcome

if TYPE_CHECKING:
    from effect_broker.sdk.client import AsyncBroker
    from effect_broker.sdk.face import Broker

# Of 256 bits, in base64url: what nobody guesses.
_TOKEN_BYTES: Final = 32
# A lease is extended when a third of it is over: two extensions may fail before it ends.
_EXTENSIONS_PER_LEASE: Final = 3

_FAILURES: Final = frozenset(
    {
        AttemptOutcome.REJECTED,
        AttemptOutcome.NOT_SENT,
        AttemptOutcome.RETRYABLE,
        AttemptOutcome.KEY_CONFLICT,
        AttemptOutcome.AMBIGUOUS,
    }
)


@dataclass(frozen=True, slots=True)
class Performed:
    """It happened, once as the guarantee of its contract says.

    Attributes:
        result: what the call that performed it has confirmed, here or long ago.
        replayed: another call has performed it, and this one did not.
        receipt: of a replay; for the others `broker.receipt(effect_id)` has it.
    """

    effect_id: UUID
    result: Any = field(repr=False)
    external_id: str | None = None
    replayed: bool = False
    receipt: Receipt | None = None


PerformOutcome: TypeAlias = (
    Performed | Failed | Cancelled | Compensated | Unknown | WaitsForPerson | NotYet
)
"""What has become of an effect that callers perform; `match` over it is total.

`NotYet` is an effect that somebody else performs now, or that may be performed again later:
`ask_again_at` says when it makes sense to ask. `Unknown` is no reason to perform it by other ways.
"""


@dataclass(slots=True)
class _Lease:
    """What the elected holds; `ends_at_seconds` is on the boot clock, read before it was asked."""

    ordinal: int
    ends_at_seconds: float
    extends: bool
    downstream_key: str = field(repr=False)


class AsyncPerformance:
    """One call of `perform`; `async with` it. See `AsyncBroker.perform`."""

    def __init__(
        self,
        broker: AsyncBroker,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        operation_key: str,
        trace_id: str | None,
    ) -> None:
        self._broker = broker
        self._members = {
            "operation_key": checked_operation_key(operation_key),
            "tool": tool,
            "arguments": plain(arguments),
            "trace_id": trace_id,
        }
        self._open = self._used = False
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Of one block nothing is left to the next: another token is another election."""
        self._token = secrets.token_urlsafe(_TOKEN_BYTES)
        # Also where it was given, so that what cannot be asked is refused there.
        self._body = body_of({**self._members, "election": self._token})
        self._effect: Effect | None = None
        self._lease: _Lease | None = None
        self._extending: asyncio.Task[None] | None = None
        self._told = False
        self._veto: NotElected | None = None
        self.outcome: PerformOutcome | None = None

    # What the block sees ---------------------------------------------------------------------

    @property
    def elected(self) -> bool:
        """Whether this caller, and nobody else, performs the effect now."""
        return self._lease is not None

    @property
    def effect(self) -> Effect:
        """The effect as it stood when the block began."""
        assert self._effect is not None, "it is known once the block has begun"
        return self._effect

    @property
    def effect_id(self) -> UUID:
        """The effect's id."""
        return self.effect.effect_id

    @property
    def downstream_key(self) -> str:
        """The key to send to the target; the same for whoever performs the effect.

        Raises:
            NotElected: this caller is not to perform it.
        """
        return self._held().downstream_key

    @property
    def lease_seconds_left(self) -> float:
        """For how long this caller may still begin to send; 0 for who is not elected."""
        lease = self._lease
        now = self._broker._clock.boot_seconds()
        return 0.0 if lease is None or self._told else max(0.0, lease.ends_at_seconds - now)

    def check(self) -> None:
        """Return if the call may begin now; the last thing to do before it.

        Raises:
            NotElected: this caller is not elected, its lease is over, or it has told already what
                has become of the call.
        """
        self._held()
        if self._told:
            raise self._refusal("What has become of the call is told: it is not made any more.")
        if self.lease_seconds_left <= 0:
            raise self._refusal("The lease is over: somebody else may perform this effect now.")

    async def confirm(
        self,
        result: Any = None,
        *,
        external_id: str | None = None,
        fields: Mapping[str, Any] | None = None,
        code: str = "ok",
    ) -> None:
        """Record that it has happened; returns once that is durable, with a receipt.

        What of it has no form in JSON, is too large, or is no id as a receipt holds them, is left
        out and said to be: the commit is a fact whatever its answer looks like.

        Args:
            result: what whoever asks again gets back; stored encrypted.
            external_id: the target's own id of the object.
            fields: small values, kept beside the result.

        Raises:
            ElectionLost: it came too late to settle the effect, and was recorded as a fact.
            Conflict: another outcome stands.
            Unavailable: nothing is known of the confirm, which may be repeated. The effect itself
                must not be: the broker finds out what the contract lets it find out.
        """
        members = _told_of(result, external_id, fields)
        await self._tell(AttemptOutcome.COMMITTED, code, members)
        self.outcome = Performed(self.effect_id, result, members.get("external_id"))

    async def fail(
        self,
        outcome: AttemptOutcome | str = AttemptOutcome.AMBIGUOUS,
        *,
        code: str = "failed",
        retry_after_seconds: float | None = None,
    ) -> None:
        """Record another outcome of the call.

        Args:
            outcome: `not_sent` (no byte has left), `rejected` (refused for good) and `retryable`
                (refused for now) say that it has not happened: only a proof makes them so.
                `key_conflict`: the target knows the key with other content. All else is
                `ambiguous`.
            code: a stable word for it.
            retry_after_seconds: of `retryable`, as the target asked.

        Raises:
            RequestRefused: no such outcome. And as `confirm`.
        """
        try:
            said = AttemptOutcome(outcome)
        except ValueError:
            said = AttemptOutcome.COMMITTED
        if said not in _FAILURES:
            words = ", ".join(sorted(_FAILURES))
            raise refused(
                InvalidRequest(RequestReason.FORMAT, field="/outcome"),
                f"fail() takes one of these outcomes: {words}. confirm() tells what has happened.",
            )
        await self._tell(said, code, {"retry_after_seconds": retry_after_seconds})
        self.outcome = await self._standing(await self._broker.get(self.effect_id))

    # The block -----------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._open:
            raise RuntimeError("One block of a performance at a time; perform() makes another one.")
        if self._used:
            self._begin_anew()
        self._open = self._used = True
        try:
            return await self._ask()
        except BaseException:
            self._open = False
            raise

    async def _ask(self) -> Self:
        asked_at, broker, token, body = 0.0, self._broker, self._token, self._body
        heard = False
        broker._check_open()

        async def ask() -> Body:
            nonlocal asked_at, heard
            # Before each try: a lease is measured from before it can have begun.
            asked_at = broker._clock.boot_seconds()
            try:
                return await broker._transport.elect(body)
            except Unavailable as problem:
                heard = heard or problem._reached
                raise

        async def give_back(answer: Body) -> None:
            if answer.get("elected") is True:
                effect_id = effect_from(_member(answer, "effect")).effect_id
                await self._not_sent(token, effect_id, _lease_from(answer, 0.0).ordinal)

        try:
            answer = await broker._giving_back.answer(broker._insist(ask), give_back)
        except Unavailable:
            if heard:
                # It may have elected this caller, whose block does not begin: nothing is sent.
                broker._giving_back.ask_on(broker._insist(ask, ASK_ON_SECONDS), give_back)
            raise
        effect = self._effect = effect_from(_member(answer, "effect"))
        if answer.get("elected") is not True:
            self.outcome = await self._standing(effect)
            return self
        self._lease = _lease_from(answer, asked_at)
        if self._lease.extends:
            self._extending = asyncio.create_task(self._extend())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._open = False
        if self._extending is not None:
            self._extending.cancel()
        vetoed = error is not None and error is self._veto
        if self._lease is None or self._told:
            if self.outcome is None:
                # What was told may not have arrived: what is known is that nobody knows.
                self.outcome = Unknown(self.effect)
            return vetoed
        code = "exception" if error is not None and not vetoed else "not_stated"
        try:
            await self._tell(AttemptOutcome.AMBIGUOUS, code, {})
            if error is None or vetoed:
                self.outcome = await self._standing(await self._broker.get(self.effect_id))
        except BrokerError:
            # The broker finds out by itself when the lease is over. What is known here is that
            # nobody knows.
            self.outcome = self.outcome or Unknown(self.effect)
        if error is not None and not vetoed:
            self._note(error)
        return vetoed

    # Inside --------------------------------------------------------------------------------------

    def _cut_off(self, error: BaseException | None) -> bool:
        """End a block whose client is closed, so that nothing can be told; as `__aexit__`."""
        self._open = False
        vetoed = error is not None and error is self._veto
        if self.outcome is None:
            self.outcome = Unknown(self.effect)
        if error is not None and not vetoed and self._lease is not None and not self._told:
            self._note(error)
        return vetoed

    def _note(self, error: BaseException) -> None:
        error.add_note(
            f"effect {self.effect_id}: nobody knows whether it has happened. Do not perform it "
            "by another way; perform() with the same operation key says what may be done"
        )

    def _leave(self) -> None:
        """Give an election back whose block has not begun; on the client's event loop."""
        lease, effect = self._lease, self._effect
        if lease is None or effect is None or self._told:
            return
        self._told, self._open = True, False
        if self._extending is not None:
            self._extending.cancel()
        giving_back = self._not_sent(self._token, effect.effect_id, lease.ordinal)
        self._broker._giving_back.begin(giving_back)

    async def _not_sent(self, token: str, effect_id: UUID, ordinal: int) -> None:
        """Tell of an election that nobody uses."""
        outcome = {"outcome": AttemptOutcome.NOT_SENT.value, "code": "caller_cancelled"}
        body, broker = body_of({"election": token, **outcome}), self._broker
        await broker._insist(lambda: broker._transport.attempt(effect_id, ordinal, "confirm", body))

    def _held(self) -> _Lease:
        if self._lease is None:
            raise self._refusal("This caller is not to perform the effect; its outcome says why.")
        return self._lease

    def _refusal(self, detail: str) -> NotElected:
        """The error that ends this block, and no other one."""
        self._veto = NotElected(detail)
        return self._veto

    async def _tell(
        self, outcome: AttemptOutcome, code: str, members: Mapping[str, object]
    ) -> None:
        lease = self._held()
        body = body_of({"election": self._token, "outcome": outcome.value, "code": code, **members})
        broker, effect_id = self._broker, self.effect_id
        # From now on, whatever comes of it: what the block has said is not replaced by the block's
        # end, which another thread may have come to already.
        self._told = True
        # To its end, whatever becomes of who tells it: nobody else knows it.
        await broker._giving_back.told(
            broker._insist(
                lambda: broker._transport.attempt(effect_id, lease.ordinal, "confirm", body)
            )
        )

    async def _extend(self) -> None:
        """Let the lease last while the block runs, as far as the contract permits."""
        lease, broker = self._held(), self._broker
        body = body_of({"election": self._token})
        while True:
            left = self.lease_seconds_left
            await broker._clock.sleep(left / _EXTENSIONS_PER_LEASE)
            if self._told:
                return
            asked_at = broker._clock.boot_seconds()
            with suppress(BrokerError):
                answer = await broker._transport.attempt(
                    self.effect_id, lease.ordinal, "extend", body
                )
                if answer.get("held") is not True:
                    lease.ends_at_seconds = -math.inf
                    return
                until = asked_at + _seconds(answer, "lease_seconds")
                lease.ends_at_seconds = max(lease.ends_at_seconds, until)
            if self.lease_seconds_left <= 0:
                return

    async def _standing(self, effect: Effect) -> PerformOutcome:
        receipt = await self._broker.receipt(effect) if effect.final else None
        seen = outcome_of(effect, receipt)
        if isinstance(seen, Succeeded):
            receipt = seen.receipt
            return Performed(effect.effect_id, receipt.result, receipt.external_id, True, receipt)
        return seen


class Performance:
    """One call of `perform`, for threads; `with` it. See `Broker.perform`."""

    def __init__(self, broker: Broker, begin: Callable[[AsyncBroker], AsyncPerformance]) -> None:
        self._broker = broker
        self._begin = begin
        self._inner: AsyncPerformance | None = None

    @property
    def _performance(self) -> AsyncPerformance:
        assert self._inner is not None, "the block has begun"
        return self._inner

    @property
    def elected(self) -> bool:
        """As `AsyncPerformance.elected`."""
        return self._performance.elected

    @property
    def outcome(self) -> PerformOutcome | None:
        """What has become of the effect; None while nothing is known."""
        return self._performance.outcome

    @property
    def effect(self) -> Effect:
        """As `AsyncPerformance.effect`."""
        return self._performance.effect

    @property
    def effect_id(self) -> UUID:
        """The effect's id."""
        return self._performance.effect_id

    @property
    def downstream_key(self) -> str:
        """As `AsyncPerformance.downstream_key`."""
        return self._performance.downstream_key

    @property
    def lease_seconds_left(self) -> float:
        """As `AsyncPerformance.lease_seconds_left`."""
        return self._performance.lease_seconds_left

    def check(self) -> None:
        """As `AsyncPerformance.check`."""
        self._performance.check()

    def confirm(
        self,
        result: Any = None,
        *,
        external_id: str | None = None,
        fields: Mapping[str, Any] | None = None,
        code: str = "ok",
    ) -> None:
        """Record that it has happened. See `AsyncPerformance.confirm`."""
        self._broker._run(
            lambda _: self._performance.confirm(
                result, external_id=external_id, fields=fields, code=code
            )
        )

    def fail(
        self,
        outcome: AttemptOutcome | str = AttemptOutcome.AMBIGUOUS,
        *,
        code: str = "failed",
        retry_after_seconds: float | None = None,
    ) -> None:
        """Record another outcome of the call. See `AsyncPerformance.fail`."""
        self._broker._run(
            lambda _: self._performance.fail(
                outcome, code=code, retry_after_seconds=retry_after_seconds
            )
        )

    def __enter__(self) -> Self:
        made: list[AsyncPerformance] = []

        async def enter(broker: AsyncBroker) -> AsyncPerformance:
            made.append(self._begin(broker))
            return await made[0].__aenter__()

        try:
            self._inner = self._broker._run(enter)
        except BaseException:
            # Interrupted, and maybe as the answer came: it stands, and no block begins.
            self._broker._soon(lambda: _leave_all(made))
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        try:
            return self._broker._run(lambda _: self._performance.__aexit__(kind, error, trace))
        except Closed:
            return self._performance._cut_off(error)


def _leave_all(made: Sequence[AsyncPerformance]) -> None:
    for one in made:
        one._leave()


# Reading -----------------------------------------------------------------------------------------


def _lease_from(answer: Body, asked_at_seconds: float) -> _Lease:
    ordinal, key = answer.get("ordinal"), answer.get("downstream_key")
    if not isinstance(ordinal, int) or not isinstance(key, str):
        raise NotUnderstood("The answer is not an election as this SDK knows it.")
    ends_at = asked_at_seconds + _seconds(answer, "lease_seconds")
    return _Lease(ordinal, ends_at, answer.get("lease_extends") is True, key)


def _seconds(answer: Body, member: str) -> float:
    value = answer.get(member)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NotUnderstood("The answer is not an election as this SDK knows it.")
    return float(value)


def _member(answer: Body, name: str) -> Body:
    value = answer.get(name)
    if not isinstance(value, dict):
        raise NotUnderstood("The answer is not an election as this SDK knows it.")
    return value


def _told_of(result: Any, external_id: Any, fields: Mapping[str, Any] | None) -> dict[str, Any]:
    """What is told of a commit: everything that can be, and why the rest cannot."""
    told: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    kept = dict(fields or {})
    # Half of a body is for the result, and a quarter for the fields.
    reason = _left_out(kept, BODY_BYTES_MAX // 4)
    if reason is not None:
        kept, left_out["fields_left_out"] = {}, reason
    reason = _left_out(result, BODY_BYTES_MAX // 2)
    if reason is not None:
        left_out["left_out"] = reason
    elif result is not None:
        told["result"] = result
    try:
        told["external_id"] = checked_external_id(external_id)
    except RequestRefused:
        left_out["external_id_left_out"] = "format"
    told["fields"] = kept | left_out or None
    return told


def _left_out(value: Any, bytes_max: int) -> str | None:
    """Why a value cannot be told, or None."""
    if value is None:
        return None
    try:
        canonical_bytes(value, bytes_max=bytes_max)
    except InvalidPayload as problem:
        return problem.reason.value
    return None
