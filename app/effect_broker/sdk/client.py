"""The asynchronous client: all that the SDK does is here, over whichever transport.

Every call may be repeated: a submit by its operation key, a resolution by its decision id, and the
rest because a look, a wish and a withdrawal mean the same the second time. So the client repeats
each by itself while nothing is known of it, and gives up with `Unavailable` when its patience ends.
What it never does is to repeat an effect: that is for the broker alone.
"""

from __future__ import annotations

import asyncio
import math
import os
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar
from uuid import UUID

from effect_broker.clock import SystemClock
from effect_broker.sdk.access import ENV_API_KEY as ENV_API_KEY
from effect_broker.sdk.access import ENV_URL as ENV_URL
from effect_broker.sdk.access import access_from as access_from
from effect_broker.sdk.access import variable_of
from effect_broker.sdk.bodies import EffectRef as EffectRef
from effect_broker.sdk.bodies import (
    body_of,
    evidence_body,
    id_of,
)
from effect_broker.sdk.bodies import checked_external_id as checked_external_id
from effect_broker.sdk.bodies import submit_body as submit_body
from effect_broker.sdk.errors import (
    Body,
    Closed,
    NotConfigured,
    RateLimited,
    Unavailable,
)
from effect_broker.sdk.giving_back import GivingBack
from effect_broker.sdk.http import HttpTransport
from effect_broker.sdk.joined import Joins, KeyRingSource, Transacted, postgres_transport
from effect_broker.sdk.patience import (
    Clock,
    Deadline,
    Until,
    checked_seconds,
    pause_seconds,
    poll_seconds,
    rest_seconds,
)
from effect_broker.sdk.performed import performed_async
from effect_broker.sdk.performing import AsyncPerformance, PerformOutcome
from effect_broker.sdk.results import (
    Effect,
    Evidence,
    NotYet,
    Outcome,
    Receipt,
    Tool,
    effect_from,
    outcome_of,
    receipt_from,
    tool_from,
)
from effect_broker.sdk.transport import Transport, Wish
from effect_broker.sdk.unresolved import UnresolvedPage, page_from
from effect_contracts.facts import Conclusion

T = TypeVar("T")
P = ParamSpec("P")

# A restart of the broker or a failover of its database is sat out by most callers.
PATIENCE: Final = timedelta(seconds=60)
# More than a busy database takes; a stopped process is left after this.
ANSWER_TIME: Final = timedelta(seconds=30)


# Two clocks measure a poll; one that was held for nearly all of its time was held.
_HELD_SHARE: Final = 0.9


class AsyncBroker:
    """A broker, for one event loop. Connections are kept and reused; any number of tasks may call.

    Args:
        base_url: of the API, such as `https://broker.example/effects`; a path is kept.
        api_key: of your tenant. It is in no `repr`, error or log of the SDK.
        patience: for how long a call is repeated of which nothing is known.
        answer_time: within which an answer has to come before the call counts as lost.
        tls: trust other certificates; verification cannot be turned off.

    Every method raises, apart from what it names itself: `Unavailable` (nothing is known, the same
    call may be repeated), `AccessRefused`, `NotUnderstood` and `Closed`.

    Raises:
        NotConfigured: the URL or the key cannot be used.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        patience: timedelta = PATIENCE,
        answer_time: timedelta = ANSWER_TIME,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        seconds = checked_seconds(answer_time, "answer_time")
        if seconds <= 0:
            raise NotConfigured("The time for an answer has to be more than nothing.")
        transport = HttpTransport(base_url, api_key, tls=tls, answer_seconds=seconds)
        self._open(transport, patience, SystemClock())

    @classmethod
    def from_environment(
        cls,
        environment: Mapping[str, str] | None = None,
        *,
        patience: timedelta = PATIENCE,
        answer_time: timedelta = ANSWER_TIME,
        tls: ssl.SSLContext | None = None,
    ) -> Self:
        """Return a client as EFFECT_BROKER_URL and EFFECT_BROKER_API_KEY say.

        Raises:
            NotConfigured: names the variable that is missing.
        """
        url, api_key = access_from(os.environ if environment is None else environment)
        return cls(url, api_key, patience=patience, answer_time=answer_time, tls=tls)

    @classmethod
    def on_postgres(
        cls,
        url: str | None = None,
        *,
        api_key: str | None = None,
        key_ring: KeyRingSource = None,
        patience: timedelta = PATIENCE,
        answer_time: timedelta = ANSWER_TIME,
    ) -> Self:
        """Return a client that needs no API process: it serves its calls from the database.

        Args:
            url: a login of the API's role; without it as `effect-broker serve` finds it.
            api_key: of your tenant; without it EFFECT_BROKER_API_KEY.
            key_ring: a file or the document itself; without it as the environment says.

        Raises:
            NotConfigured: names what is missing.
        """
        key = variable_of(os.environ, ENV_API_KEY) if api_key is None else api_key
        transport = postgres_transport(
            url, key, key_ring, checked_seconds(answer_time, "answer_time")
        )
        made = cls.over(transport, patience=patience, clock=SystemClock())
        made._joins = Joins(transport, key_ring)
        return made

    @classmethod
    def over(cls, transport: Transport, *, patience: timedelta, clock: Clock) -> Self:
        """Return a client over another way to a broker."""
        made = cls.__new__(cls)
        made._open(transport, patience, clock)
        return made

    def _open(self, transport: Transport, patience: timedelta, clock: Clock) -> None:
        self._transport = transport
        self._joins = Joins(transport)
        self._patience_seconds = checked_seconds(patience, "patience")
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._giving_back = GivingBack()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._transport!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; effects that are under way go on."""
        own = self._loop is None or self._loop is asyncio.get_running_loop()
        try:
            if own:
                await self._giving_back.end()
        finally:
            self._closed = True
            if own:
                await self._transport.close()

    # Effects -------------------------------------------------------------------------------------

    async def submit(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        operation_key: str,
        trace_id: str | None = None,
        send_before: datetime | None = None,
        parent: EffectRef | None = None,
        compensates: EffectRef | None = None,
        connection: object | None = None,
    ) -> Effect:
        """Make an intent durable; return it as soon as that is known. It is carried out later.

        The same call again is always safe: it returns the effect that is there (`replayed`).
        The SDK repeats it by itself while nothing is known.

        Args:
            tool: as a contract of the broker names it.
            arguments: plain JSON values; `dict`, `list`, `str`, `int`, `float`, `bool`, `None`.
            operation_key: the stable name of the business intent, 1 to 255 printable ASCII
                characters without spaces. Make it of what does not change when your code runs
                again: `order:42:charge:v1`, `run:789:step:refund-03`. Never a random id made at
                the call, which is a new intent at every try; never a hash of the arguments, since
                two equal refunds of 10 € may both be meant.
            trace_id: your own name of what this belongs to, to find it again.
            send_before: no first attempt begins after this moment.
            parent: the effect that has delegated this one.
            compensates: the effect that this one undoes when it succeeds.
            connection: of psycopg or SQLAlchemy, with your own transaction on it: the intent is
                committed with it or not at all. It is made once and never repeated by the SDK.

        Raises:
            RequestRefused: the key, the tool or the arguments break a rule; nothing was stored.
            Conflict: the key stands for another request; `field` and `effect_id` say which.
            NotJoined, RunAgain: with a connection; nothing of it was written.
        """
        body = submit_body(
            tool, arguments, operation_key, trace_id, send_before, parent, compensates
        )
        if connection is not None:
            await self.joinable()
            return await self._joins.submit(connection, body, loop=True)
        return effect_from(await self._insist(lambda: self._transport.submit(body)))

    async def transact(
        self,
        connection: object,
        body: Callable[[], Awaitable[T]],
        *,
        tool: str,
        arguments: Mapping[str, Any],
        operation_key: str,
        external_id: str | None = None,
        trace_id: str | None = None,
    ) -> Transacted[T]:
        """Carry out an effect by your own statements, once, with its receipt in your transaction.

        The receipt is written first; then `body` runs, if the key is new, and never otherwise. An
        exception of `body` takes back what it and the receipt have written, and is raised. Nothing
        stands before you commit.

        Args:
            body: your statements, on the same connection.
            tool: of a contract of the class `transactional`.
            external_id: how your own tables name what `body` makes; for the receipt.

        Raises:
            NotJoined, RunAgain, RequestRefused, Conflict.
            TransactionEnded: `body` has ended your transaction, by a COMMIT that it has executed:
                a half of its work may be committed, with the receipt.
        """
        asked = submit_body(tool, arguments, operation_key, trace_id)
        external_id = checked_external_id(external_id)
        await self.joinable()
        return await self._joins.transact(connection, asked, external_id, body, loop=True)

    async def joinable(self) -> Joins:
        """See where this client is at home, before a transaction is joined; for this package.

        Raises:
            Unavailable, AccessRefused, NotConfigured.
        """
        await self._insist(self._joins.home)
        return self._joins

    async def get(self, effect: EffectRef) -> Effect:
        """Return an effect as it stands, with its attempts.

        Raises:
            NotFound.
        """
        effect_id = id_of(effect)
        return effect_from(await self._insist(lambda: self._transport.effect(effect_id, 0.0)))

    async def wait(self, effect: EffectRef, *, deadline: Deadline = None) -> Effect:
        """Return an effect once it is final or waits for a person, or when the deadline is over.

        The looks follow what the effect says of its next action. Giving up, by the deadline or by
        a cancelled task, only ends the waiting: the effect goes on.

        Raises:
            NotFound.
            Unavailable: nothing was heard for as long as the patience says; with a deadline, of an
                effect that was named by its id alone, before the deadline.
        """
        effect_id = id_of(effect)
        until = Until(deadline, self._clock)
        seen = effect if isinstance(effect, Effect) else None
        early = 0  # looks that were answered before their time, one after the other
        crowded = False
        while True:
            asked = 0.0 if crowded else poll_seconds(until.left_seconds())
            begun = self._clock.boot_seconds()
            try:
                seen = effect_from(await self._look(effect_id, asked, until))
            except Unavailable as problem:
                if until.over and seen is not None:
                    return seen
                if until.over or not isinstance(problem, RateLimited):
                    raise
                # The broker is there, and says when to come again: that ends no wait.
                crowded, early = True, early + 1
                rest = max(pause_seconds(early), problem.retry_after_seconds or 0)
            else:
                if seen.still or until.over:
                    return seen
                crowded = False
                held = 0 < asked * _HELD_SHARE <= self._clock.boot_seconds() - begun
                early = 0 if held else early + 1
                rest = rest_seconds(seen, early, held=held)
            await self._clock.sleep(min(rest, until.left_seconds()))

    async def result(self, effect: EffectRef, *, deadline: Deadline = None) -> Outcome:
        """Wait as `wait` does; return what has become of the effect.

        Without a deadline it returns when the effect is final or waits for a person. An outcome
        that nobody knows is the value `Unknown`, the end of the deadline is `NotYet`.

        Raises:
            NotFound.
            Unavailable: as `wait`.
        """
        became = await self.wait(effect, deadline=deadline)
        if not became.final:
            return outcome_of(became, None) if became.waits_for_person else NotYet(became)
        return outcome_of(became, await self.receipt(became))

    async def receipt(self, effect: EffectRef) -> Receipt:
        """Return the receipt of a settled effect.

        Raises:
            NotFound: also while it is not settled.
        """
        effect_id = id_of(effect)
        return receipt_from(await self._insist(lambda: self._transport.receipt(effect_id)))

    async def tool(self, name: str) -> Tool:
        """Return the contract that a submit of this tool would be bound to.

        Raises:
            RequestRefused: no active contract serves it (`unknown_tool`).
        """
        return tool_from(await self._insist(lambda: self._transport.tool(name)))

    async def unresolved(
        self,
        *,
        tool: str | None = None,
        reason: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> UnresolvedPage:
        """Return effects that want attention, the most urgent first.

        Args:
            reason: of being listed, as the rows name it.
            cursor: of the page before.

        Raises:
            RequestRefused: a filter is none of the broker's.
        """
        named = {"tool": tool, "reason": reason, "limit": limit, "cursor": cursor}
        query = {name: str(value) for name, value in named.items() if value is not None}
        return page_from(await self._insist(lambda: self._transport.unresolved(query)))

    # Performed by the caller ---------------------------------------------------------------------

    def perform(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        operation_key: str,
        trace_id: str | None = None,
    ) -> AsyncPerformance:
        """Let this caller make the call itself, once: `async with` what is returned.

        For tools whose contract has the adapter `caller`. One caller at a time is elected; to all
        others, and to whoever comes later, `outcome` is what there is to know. Arguments as those
        of `submit`.

        Raises, where the block begins:
            RequestRefused: a rule is broken, or the contract lets no caller perform it.
            Conflict: the key stands for another request; `field` and `effect_id` say which.
        """
        return AsyncPerformance(
            self, tool, arguments, operation_key=operation_key, trace_id=trace_id
        )

    def performed(
        self,
        tool: str,
        *,
        key: Callable[..., str],
        arguments: Callable[..., Mapping[str, Any]] | None = None,
    ) -> Callable[
        [Callable[Concatenate[AsyncPerformance, P], Awaitable[T]]],
        Callable[P, Awaitable[PerformOutcome]],
    ]:
        """Return a decorator: the function performs the effect, its calls return the outcome.

        The function gets the `AsyncPerformance` first and then its own arguments; what it returns
        is confirmed as the result. It runs only for who is elected.

        Args:
            key: the operation key of a call, made of the call's arguments.
            arguments: the effect's arguments; by default those of the call, by name.
        """
        return performed_async(self, tool, key, arguments)

    # Wishes and decisions ------------------------------------------------------------------------

    async def reconcile(self, effect: EffectRef) -> Effect:
        """Ask the broker to look at the target now; `changed` says whether that changed anything.

        It is never a second way to send.

        Raises:
            NotFound.
        """
        return await self._wish(effect, "reconcile")

    async def cancel(self, effect: EffectRef) -> Effect:
        """Withdraw an effect before its first attempt; again, it changes nothing.

        Raises:
            NotFound.
            Conflict: it may have been sent, and cannot be taken back.
        """
        return await self._wish(effect, "cancel")

    async def resolve(
        self,
        effect: EffectRef,
        conclusion: Conclusion | str,
        *,
        decision_id: str,
        expected_version: int,
        reason: str,
        evidence: Sequence[Evidence],
        external_id: str | None = None,
    ) -> Effect:
        """Record what a person knows of an effect whose outcome the broker cannot settle.

        Args:
            conclusion: `committed`, `not_committed` or `failed`. None of them means "try again".
            decision_id: your name of this decision; with it the same call changes nothing the
                second time (`replayed`).
            expected_version: `effect.version` as the person saw it.
            evidence: what was looked at.
            external_id: the target's id of the object, for `committed`.

        Raises:
            NotFound, RequestRefused.
            StaleVersion: the effect has changed since.
            TooEarly: the look began before it could prove anything.
            Conflict: the decision id or the effect's state does not permit it.
        """
        effect_id = id_of(effect)
        body = body_of(
            {
                "decision_id": decision_id,
                "expected_version": expected_version,
                "conclusion": str(conclusion),
                "reason": reason,
                "evidence": [evidence_body(item) for item in evidence],
                "external_id": external_id,
            }
        )
        return effect_from(await self._insist(lambda: self._transport.resolve(effect_id, body)))

    async def _wish(self, effect: EffectRef, wish: Wish) -> Effect:
        effect_id = id_of(effect)
        return effect_from(await self._insist(lambda: self._transport.wish(effect_id, wish)))

    # Repeating -----------------------------------------------------------------------------------

    async def _look(self, effect_id: UUID, wait_seconds: float, until: Until) -> Body:
        """Ask for an effect, not beyond the deadline; who comes late has one look all the same.

        Raises:
            RateLimited: at once.
            Unavailable: the deadline is over; without one, the patience.
        """

        def asked() -> Awaitable[Body]:
            return self._transport.effect(effect_id, wait_seconds)

        if until.over:
            self._check_open()
            return await asked()
        left = until.left_seconds()
        if math.isinf(left):
            return await self._insist(asked, self._patience_seconds, waits=True)
        try:
            async with asyncio.timeout(left):
                return await self._insist(asked, math.inf, waits=True)
        except TimeoutError:
            pass
        raise Unavailable("The broker did not answer before the deadline.")

    async def _insist(
        self,
        call: Callable[[], Awaitable[T]],
        patience_seconds: float | None = None,
        *,
        waits: bool = False,
    ) -> T:
        """Make a call again and again until something is known of it.

        Args:
            patience_seconds: instead of the client's own.
            waits: too many requests are told at once.

        Raises:
            Unavailable: the patience is over.
        """
        self._check_open()
        now = self._clock.boot_seconds
        patience = self._patience_seconds if patience_seconds is None else patience_seconds
        ends_at = now() + patience
        step = 0
        while True:
            try:
                return await call()
            except Unavailable as problem:
                if waits and isinstance(problem, RateLimited):
                    raise
                rest = max(pause_seconds(step), problem.retry_after_seconds or 0)
                if now() + rest >= ends_at:
                    raise
            await self._clock.sleep(rest)
            step += 1

    def _check_open(self) -> None:
        loop = asyncio.get_running_loop()
        if self._closed:
            raise Closed("This client is closed.")
        # Its connections live in the loop that made them.
        if self._loop is not None and self._loop is not loop:
            raise Closed("This client belongs to another event loop; make one for each.")
        self._loop = loop
