"""One request under its key, from the claim to the kept result: this file owns the order.

The claim is there before the work begins, and the result is kept before anybody is told of it.
What is a result: a success, and a refusal (the same request would be refused again). A failure
(5xx, an exception, an error of a tool) is none, and what becomes of the key then follows from what
is known:

    atomic store                            all was rolled back: the key is open, `not_done`
    the work says `NothingDone`             the key is open, `not_done`
    separate store, anything else           `outcome_unknown`: the failure may have come after the
                                            work's own commit, so releasing the key would allow a
                                            second one
    the same, work declared repeatable      the key is open, and the outcome still unknown
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass

from effect_broker.receiving.telling import told_unavailable
from effect_broker.receiving.terms import (
    Held,
    KeptResult,
    KeyedRequest,
    KeyStore,
    NothingDone,
    NotStored,
    Refusal,
    StoreUnavailable,
)

_CURRENT: ContextVar[Held] = ContextVar("effect_broker_receiving_claim")


def current_claim() -> Held:
    """Return the claim that the present work runs under; `current_claim().connection` is the
    transaction to work in.

    Raises:
        LookupError: there is none: the request has no key, or is not covered.
    """
    return _CURRENT.get()


@dataclass(frozen=True, slots=True)
class Ran:
    """The work was done now, and its result is kept."""

    result: KeptResult


@dataclass(frozen=True, slots=True)
class Replayed:
    """The kept result of the first request."""

    result: KeptResult


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was done for this request."""

    reason: Refusal


@dataclass(frozen=True, slots=True)
class Failed:
    """The work was begun and has no result.

    Attributes:
        not_done: it is known that nothing was changed; else nobody knows.
        error: what was raised, for the server's own log.
    """

    not_done: bool
    error: BaseException | None = None


Ended = Ran | Replayed | Refused | Failed
Work = Callable[[], Awaitable[KeptResult | None]]


async def run_once(store: KeyStore, request: KeyedRequest, work: Work) -> Ended:
    """Do the work unless its key says otherwise. `work` returns None where it has failed.

    An exception of the work is part of `Failed`; cancellation is raised.
    """
    try:
        async with store.claim(request) as claim:
            if isinstance(claim, KeptResult):
                return Replayed(claim)
            if isinstance(claim, Refusal):
                return Refused(claim)
            return await _worked(claim, work)
    except StoreUnavailable as error:
        told_unavailable(error)
        return Refused(Refusal.STORE_UNAVAILABLE)


async def _worked(claim: Held, work: Work) -> Ended:
    token = _CURRENT.set(claim)
    try:
        result = await work()
    except NothingDone as error:
        await claim.release()
        return Failed(True, error)
    except Exception as error:
        return Failed(await claim.give_up(), error)
    finally:
        _CURRENT.reset(token)
    if result is None:
        return Failed(await claim.give_up())
    try:
        await claim.complete(result)
    except NothingDone as error:
        return Failed(True, error)
    except NotStored as error:
        return Failed(False, error)
    return Ran(result)
