"""The errors of the SDK: this file owns their tree, and how a problem body becomes one of them.

    BrokerError
    ├── NotConfigured      no URL or key, or one that cannot be used; nothing was called
    ├── Closed             the client was closed, or belongs to another event loop
    ├── RequestRefused     400, 405, 413, 415, 422: the same call is refused again
    ├── AccessRefused      401, 403: the key is not good, or not for this
    ├── NotFound           404: no such effect of this tenant, or no receipt of it yet
    ├── Conflict           409: what is stored forbids it
    │   ├── StaleVersion       the effect has changed since it was read
    │   ├── TooEarly           the observation began before it could prove anything
    │   └── ElectionLost       what the caller performed came too late to settle the effect
    ├── NotJoined          a transaction that cannot carry a submit; nothing was written
    ├── TransactionEnded   a body of `transact` has ended the transaction: a half may be committed
    ├── Unavailable        5xx or no answer: nothing is known, the same call may be repeated
    │   ├── RateLimited        429
    │   └── RunAgain           the caller's whole transaction has to run again
    ├── NotUnderstood      what answered is no effect-broker, or one of another age
    ├── NotElected         this caller may not perform the effect, now or any more
    └── EffectFailed       raised by `Failed.raise_for_failure()` and by nothing else

No error says that an effect did not happen, except `EffectFailed`. An outcome that nobody knows is
a value (`effect_broker.sdk.results.Unknown`), so that no `except` block can mistake it for a reason
to send again. Errors hold codes, sentences of the broker and JSON Pointers; never an API key, an
argument, or the text of a stranger.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, assert_never
from uuid import UUID

from effect_contracts.errors import EffectError, problem
from effect_contracts.problem_codes import ProblemCode

if TYPE_CHECKING:
    from effect_broker.sdk.results import Failed

Body = Mapping[str, Any]
"""A JSON object as the broker has sent it."""


class BrokerError(Exception):
    """The root of everything that the SDK raises on purpose.

    Attributes:
        detail: a sentence for people.
        problem: the members of the broker's problem body (RFC 9457); empty where none came.
    """

    def __init__(self, detail: str, problem: Body | None = None) -> None:
        # Both are `args`, so that errors survive a pickle as they are.
        super().__init__(detail, dict(problem or {}))
        self.detail = detail
        self.problem: Body = dict(problem or {})

    @property
    def code(self) -> str | None:
        """The stable code to compare, such as `payload_conflict`; None where no broker spoke."""
        return self._text("code")

    @property
    def status(self) -> int | None:
        """The HTTP status, None where no answer came."""
        status = self.problem.get("status")
        return status if isinstance(status, int) else None

    @property
    def field(self) -> str | None:
        """A JSON Pointer to the place in the request that is at fault."""
        return self._text("field")

    def _text(self, member: str) -> str | None:
        value = self.problem.get(member)
        return value if isinstance(value, str) else None

    def __str__(self) -> str:
        place = f" (at {self.field or 'the root'})" if self.field is not None else ""
        return f"{self.code}: {self.detail}{place}" if self.code else f"{self.detail}{place}"


class NotConfigured(BrokerError):
    """The URL or the API key is missing or cannot be used; nothing was called."""


class Closed(BrokerError):
    """The client was closed before or during the call, or belongs to another event loop."""


class RequestRefused(BrokerError):
    """The request is at fault: the same call will be refused again. Nothing was stored."""


class AccessRefused(BrokerError):
    """The API key is missing, unknown, revoked, or not for this."""


class NotFound(BrokerError):
    """It does not exist, or belongs to another tenant: the two look the same on purpose."""


class Conflict(BrokerError):
    """The request is well formed and contradicts what is stored; nothing was sent or changed.

    Of a submit it means that the operation key stands for another request: `field` is the first
    place that differs, `effect_id` the effect that holds the key, `state` its state.
    """

    @property
    def effect_id(self) -> UUID | None:
        """The effect that holds the operation key, where one does."""
        text = self._text("effect_id")
        try:
            return UUID(text) if text is not None else None
        except ValueError:
            return None

    @property
    def state(self) -> str | None:
        """The state that forbids it, where the broker has told."""
        return self._text("state")


class StaleVersion(Conflict):
    """The effect has changed since it was read: read it again and decide anew."""


class TooEarly(Conflict):
    """The observation began before it could prove anything."""

    @property
    def not_before(self) -> datetime | None:
        """When an observation may begin that proves something."""
        text = self._text("not_before")
        try:
            return datetime.fromisoformat(text) if text is not None else None
        except ValueError:
            return None


class ElectionLost(Conflict):
    """This caller's lease had run out, and somebody has gone on without it.

    What it told is recorded as a fact, and counts as far as it can: `state` is where the effect
    stands with it. It is no reason to perform the effect again; ask for its result instead.
    """


class Unavailable(BrokerError):
    """Nothing is known, and the same call may be repeated.

    A submit may or may not have been stored: submit again under the same operation key, as often
    as it takes. The SDK has done so already, for as long as its patience says.
    """

    # For this package: whether the broker may have been reached at all.
    _reached = True

    @property
    def retry_after_seconds(self) -> int | None:
        """How long the broker asks to be left alone, if it does."""
        seconds = self.problem.get("retry_after_seconds")
        return seconds if isinstance(seconds, int) else None


class RateLimited(Unavailable):
    """Too many requests of this key or tenant; this one was not looked at."""

    _reached = False


class NotJoined(BrokerError):
    """The caller's transaction cannot carry a submit; nothing was written, and it goes on.

    `code` says why: `autocommit`, `transaction_aborted`, `read_only`, `no_broker_here`,
    `not_a_caller`, `another_database`, `another_tenant`, `approval_needed`, `not_transactional`,
    `held`, `unknown_connection`, `needs_a_loop`, `blocks_the_loop`.
    """


class TransactionEnded(BrokerError):
    """The body of `transact` has ended the caller's transaction, by a statement of its own.

    After a COMMIT the receipt stands, with what the body had written until then and without the
    rest: the effect counts as carried out, and its body will not run again. After a ROLLBACK
    nothing stands. `get(effect_id)` says which; what the body itself has raised is `__cause__`.
    """

    @property
    def effect_id(self) -> UUID:
        """The effect whose receipt was written before the body ran."""
        return UUID(self.problem["effect_id"])


class RunAgain(Unavailable):
    """Another transaction was faster, or this one is over: roll back and run all of it again.

    `code` is `serialization_failure`, `lock_not_available`, `deadlock_detected`, or a word for what
    has ended the transaction. Whatever it is, no effect of this transaction stands.
    """


class NotUnderstood(BrokerError):
    """What answered is no effect-broker, or one that this SDK is too old or too new for.

    Nothing is known of the call. A wrong base URL or a proxy in between is the usual cause, so
    the SDK does not repeat it; a submit may still be repeated under its operation key.
    """


class NotElected(BrokerError):
    """Whoever is not elected, or no more, has asked for what only the elected may have.

    Inside of `with broker.perform(...)` it ends the block, and the block swallows it: what has
    become of the effect is `outcome`, a value.
    """


class EffectFailed(BrokerError):
    """The effect is settled as failed: it did not happen, or a person has ended it as failed."""

    def __init__(self, outcome: Failed) -> None:
        effect = outcome.effect
        super().__init__(f"Effect {effect.effect_id} has failed for good ({effect.reason}).")
        self.args = (outcome,)
        self.outcome = outcome


# A proxy between caller and broker says these of itself: the broker may never have been asked.
_PASSING_STATUSES: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


def error_of(status: int, body: object, retry_after: str | None = None) -> BrokerError:
    """Return the error for an answer that is no success.

    Args:
        body: what the answer's JSON gave, None where it is none.
        retry_after: the header of that name.
    """
    # Seconds in up to nine digits; a date, or whatever else stands before a broker, is no number.
    number = re.fullmatch(r"[0-9]{1,9}", retry_after or "")
    seconds = None if number is None else int(number.group())
    if not isinstance(body, dict) or not isinstance(body.get("code"), str):
        told: dict[str, Any] = {"status": status, "retry_after_seconds": seconds}
        if status == 429:
            return RateLimited("Something before the broker refuses so many requests.", told)
        if status in _PASSING_STATUSES:
            return Unavailable(f"The broker was not reached: status {status} came instead.", told)
        return NotUnderstood(
            f"Status {status} without the broker's problem body: what answers at this URL is no "
            "effect-broker, or something before it does.",
            told,
        )
    members = {**body, "status": status}
    if seconds is not None:
        members["retry_after_seconds"] = seconds
    detail = body.get("detail")
    kind = _kind_of(body["code"], status)
    return kind(detail if isinstance(detail, str) else "The broker gave no detail.", members)


def refused(error: EffectError, said: str | None = None) -> RequestRefused:
    """Return the SDK's error for a request that the protocol's own rules refuse unsent.

    Args:
        said: in the words of Python, where those of the protocol speak of its JSON.
    """
    detail = error.detail if said is None else said
    return RequestRefused(detail, {**problem(error), "detail": detail})


def _kind_of(code: str, status: int) -> type[BrokerError]:
    try:
        known = ProblemCode(code)
    except ValueError:
        return _kind_of_status(status)
    return kind_of_code(known)


def kind_of_code(code: ProblemCode) -> type[BrokerError]:
    """Return the class for a code of the protocol; there is one for each."""
    match code:
        case (
            ProblemCode.REQUEST_MALFORMED
            | ProblemCode.METHOD_NOT_ALLOWED
            | ProblemCode.PAYLOAD_TOO_LARGE
            | ProblemCode.UNSUPPORTED_MEDIA_TYPE
            | ProblemCode.INVALID_REQUEST
            | ProblemCode.INVALID_PAYLOAD
            | ProblemCode.INVALID_OPERATION_KEY
            | ProblemCode.INVALID_ARGUMENTS
            | ProblemCode.UNKNOWN_TOOL
            | ProblemCode.NOT_FOR_CALLERS
            | ProblemCode.CONTRACT_INVALID
        ):
            return RequestRefused
        case (
            ProblemCode.UNAUTHENTICATED
            | ProblemCode.FORBIDDEN
            | ProblemCode.SECOND_PERSON_REQUIRED
            | ProblemCode.TENANT_DISABLED
        ):
            return AccessRefused
        case ProblemCode.NOT_FOUND:
            return NotFound
        case ProblemCode.STALE_VERSION:
            return StaleVersion
        case ProblemCode.TOO_EARLY:
            return TooEarly
        case ProblemCode.ELECTION_LOST:
            return ElectionLost
        case (
            ProblemCode.PAYLOAD_CONFLICT
            | ProblemCode.DECISION_CONFLICT
            | ProblemCode.ANOTHER_REQUEST
            | ProblemCode.ANOTHER_ALERT
            | ProblemCode.CURSOR_SUPERSEDED
            | ProblemCode.LIMIT_REACHED
            | ProblemCode.ILLEGAL_TRANSITION
            | ProblemCode.CONTRACT_CONFLICT
        ):
            return Conflict
        case ProblemCode.RATE_LIMITED:
            return RateLimited
        case (
            ProblemCode.STORAGE_UNAVAILABLE
            | ProblemCode.KEY_RING_MISSING
            | ProblemCode.CONFIGURATION_INVALID
            | ProblemCode.INTERNAL
        ):
            return Unavailable
        case _:
            assert_never(code)


def _kind_of_status(status: int) -> type[BrokerError]:
    """The class for a code that a newer broker has added."""
    match status:
        case 401 | 403:
            return AccessRefused
        case 404:
            return NotFound
        case 409:
            return Conflict
        case 429:
            return RateLimited
        case _ if 400 <= status < 500:
            return RequestRefused
        case _ if status >= 500:
            return Unavailable
        case _:
            return NotUnderstood
