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
from typing import Any, Final, Self, TypeAlias, TypeVar
from uuid import UUID

from effect_broker.clock import SystemClock
from effect_broker.sdk.errors import (
    Body,
    Closed,
    NotConfigured,
    RateLimited,
    RequestRefused,
    Unavailable,
    refused,
)
from effect_broker.sdk.http import HttpTransport
from effect_broker.sdk.patience import (
    Clock,
    Deadline,
    Until,
    pause_seconds,
    poll_seconds,
    rest_seconds,
)
from effect_broker.sdk.results import (
    Effect,
    Evidence,
    NotYet,
    Outcome,
    Receipt,
    effect_from,
    outcome_of,
    receipt_from,
)
from effect_broker.sdk.transport import Transport, Wish
from effect_contracts.canonical import BODY_BYTES_MAX, DEPTH_MAX, canonical_bytes
from effect_contracts.errors import EffectError, InvalidRequest, RequestReason
from effect_contracts.facts import Conclusion
from effect_contracts.keys import check_operation_key

T = TypeVar("T")

EffectRef: TypeAlias = Effect | UUID | str
"""An effect, or its id."""

ENV_URL: Final = "EFFECT_BROKER_URL"
ENV_API_KEY: Final = "EFFECT_BROKER_API_KEY"

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
        seconds = answer_time.total_seconds()
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
    def over(cls, transport: Transport, *, patience: timedelta, clock: Clock) -> Self:
        """Return a client over another way to a broker."""
        made = cls.__new__(cls)
        made._open(transport, patience, clock)
        return made

    def _open(self, transport: Transport, patience: timedelta, clock: Clock) -> None:
        self._transport = transport
        self._patience_seconds = patience.total_seconds()
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

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
        self._closed = True
        if self._loop is None or self._loop is asyncio.get_running_loop():
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

        Raises:
            RequestRefused: the key, the tool or the arguments break a rule; nothing was stored.
            Conflict: the key stands for another request; `field` and `effect_id` say which.
        """
        members: dict[str, object] = {
            "operation_key": _operation_key(operation_key),
            "tool": tool,
            "arguments": _plain(arguments),
            "trace_id": trace_id,
            "send_before": _moment(send_before, "/send_before"),
            "parent_effect_id": _text_id(parent, "/parent_effect_id"),
            "compensates": _text_id(compensates, "/compensates"),
        }
        body = _body(members)
        return effect_from(await self._insist(lambda: self._transport.submit(body)))

    async def get(self, effect: EffectRef) -> Effect:
        """Return an effect as it stands, with its attempts.

        Raises:
            NotFound.
        """
        effect_id = _id(effect)
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
        effect_id = _id(effect)
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
        effect_id = _id(effect)
        return receipt_from(await self._insist(lambda: self._transport.receipt(effect_id)))

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
        effect_id = _id(effect)
        body = _body(
            {
                "decision_id": decision_id,
                "expected_version": expected_version,
                "conclusion": str(conclusion),
                "reason": reason,
                "evidence": [_evidence(item) for item in evidence],
                "external_id": external_id,
            }
        )
        return effect_from(await self._insist(lambda: self._transport.resolve(effect_id, body)))

    async def _wish(self, effect: EffectRef, wish: Wish) -> Effect:
        effect_id = _id(effect)
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


def access_from(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return URL and API key.

    Raises:
        NotConfigured: names the variable that is missing.
    """
    found = []
    for name in (ENV_URL, ENV_API_KEY):
        # A line feed at the end is how files and shells hand over a secret, never a part of it.
        value = environment.get(name, "").strip()
        if not value:
            raise NotConfigured(f"The environment variable {name} is not set.")
        found.append(value)
    return found[0], found[1]


def _operation_key(text: str) -> str:
    problem: RequestRefused
    try:
        return check_operation_key(text)
    except EffectError as error:
        problem = refused(error)
    raise problem


def _body(members: Mapping[str, object]) -> bytes:
    """Return the body without what was not given; the same bytes for every try.

    Raises:
        RequestRefused: a value has no form in JSON, as the broker itself would say.
    """
    given = {name: value for name, value in members.items() if value is not None}
    problem: RequestRefused
    try:
        # The envelope is a level of its own; the arguments have all of theirs.
        return canonical_bytes(given, bytes_max=BODY_BYTES_MAX, depth_max=DEPTH_MAX + 1)
    except EffectError as error:
        problem = refused(error)
    raise problem


def _evidence(item: Evidence) -> dict[str, object]:
    members: dict[str, object] = {
        "kind": item.kind,
        "observed_at": _moment(item.observed_at, "/evidence"),
        "reference": item.reference,
        "digest": item.digest,
        "note": item.note,
    }
    return {name: value for name, value in members.items() if value is not None}


def _plain(arguments: object) -> object:
    """Any mapping may be handed over; what is inside has to be plain, and the body's check says."""
    return dict(arguments) if isinstance(arguments, Mapping) else arguments


def _moment(at: object, field: str) -> str | None:
    if at is None:
        return None
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise refused(InvalidRequest(RequestReason.FORMAT, field=field))
    return at.isoformat()


def _id(effect: EffectRef, field: str = "/effect_id") -> UUID:
    if isinstance(effect, Effect):
        return effect.effect_id
    if isinstance(effect, UUID):
        return effect
    try:
        return UUID(effect)
    except (ValueError, AttributeError, TypeError):
        pass
    raise refused(InvalidRequest(RequestReason.FORMAT, field=field))


def _text_id(effect: EffectRef | None, field: str) -> str | None:
    return None if effect is None else str(_id(effect, field))
