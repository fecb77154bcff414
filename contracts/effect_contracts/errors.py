"""The errors of the protocol: this file owns their tree, stable codes and problem bodies.

    EffectError
    ├── RequestError                 the request itself is wrong; the same bytes fail again
    │   ├── RequestMalformed         400 request_malformed
    │   ├── MethodNotAllowed         405 method_not_allowed
    │   ├── PayloadTooLarge          413 payload_too_large
    │   ├── UnsupportedMediaType     415 unsupported_media_type
    │   ├── InvalidRequest           422 invalid_request
    │   ├── InvalidPayload           422 invalid_payload
    │   ├── InvalidOperationKey      422 invalid_operation_key
    │   ├── InvalidArguments         422 invalid_arguments
    │   ├── UnknownTool              422 unknown_tool
    │   └── NotForCallers            422 not_for_callers
    ├── AccessError                  who asks, how often, or what may be seen
    │   ├── Unauthenticated          401 unauthenticated
    │   ├── Forbidden                403 forbidden
    │   ├── SecondPersonRequired     403 second_person_required
    │   ├── TenantDisabled           403 tenant_disabled
    │   ├── NotFound                 404 not_found
    │   └── RateLimited              429 rate_limited
    ├── ConflictError                the request is fine, the present state forbids it
    │   ├── PayloadConflict          409 payload_conflict
    │   ├── StaleVersion             409 stale_version
    │   ├── TooEarly                 409 too_early
    │   ├── DecisionConflict         409 decision_conflict
    │   ├── AnotherRequest           409 another_request
    │   ├── AnotherAlert             409 another_alert
    │   ├── CursorSuperseded         409 cursor_superseded
    │   ├── LimitReached             409 limit_reached
    │   ├── ElectionLost             409 election_lost
    │   └── TransitionRefused        409 illegal_transition
    ├── ContractError                a contract document is at fault
    │   ├── ContractInvalid          422 contract_invalid
    │   └── ContractConflict         409 contract_conflict
    └── BrokerError                  the broker or what it stands on is at fault
        ├── StorageUnavailable       503 storage_unavailable
        ├── KeyRingMissing           500 key_ring_missing
        ├── ConfigurationInvalid     500 configuration_invalid
        └── InternalError            500 internal

Every leaf has one code and every code one leaf. An error carries codes, JSON Pointers, limits,
times and sentences that stand in the source, and never a value, an argument or a secret: the
constructors have no place to put one. `problem` prints the body of RFC 9457. A code, once
published, keeps its meaning and its status.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar, TypeAlias
from uuid import UUID

from effect_contracts.facts import EffectState
from effect_contracts.pointers import POINTER_CHARS_MAX as POINTER_CHARS_MAX
from effect_contracts.pointers import json_pointer as json_pointer
from effect_contracts.problem_codes import PROBLEM_TYPE_PREFIX as PROBLEM_TYPE_PREFIX
from effect_contracts.problem_codes import ProblemCode as ProblemCode
from effect_contracts.problem_codes import status_of as status_of
from effect_contracts.reasons import OPERATION_KEY_SENTENCES, PAYLOAD_SENTENCES, REQUEST_SENTENCES
from effect_contracts.reasons import OperationKeyReason as OperationKeyReason
from effect_contracts.reasons import PayloadReason as PayloadReason
from effect_contracts.reasons import RequestReason as RequestReason

Extra: TypeAlias = str | int | list[dict[str, str]]


class EffectError(Exception):
    """The root of every error that the broker raises on purpose.

    `detail` is a sentence of this source tree; `field` is a JSON Pointer into what the caller
    sent; `extras` become further members of the problem body.
    """

    code: ClassVar[ProblemCode]

    def __init__(
        self,
        detail: str,
        *,
        field: str | None = None,
        extras: Mapping[str, Extra | None] | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.field = field
        self.extras = {name: v for name, v in (extras or {}).items() if v is not None}

    @property
    def title(self) -> str:
        """The code in words: the same for every occurrence, as RFC 9457 asks."""
        return self.code.value.replace("_", " ").capitalize()

    @property
    def status(self) -> int:
        """The HTTP status of the code."""
        return status_of(self.code)

    @property
    def retry_after_seconds(self) -> int | None:
        """What a `Retry-After` header should say, if the error knows."""
        seconds = self.extras.get("retry_after_seconds")
        return seconds if isinstance(seconds, int) else None

    def __str__(self) -> str:
        place = f" (at {self.field or 'the root'})" if self.field is not None else ""
        return f"{self.code}: {self.detail}{place}"

    def __reduce__(self) -> tuple[object, ...]:
        # The leaves differ in their constructors, so the default way to copy and pickle fails.
        return _rebuilt, (type(self), self.detail, self.field, self.extras)


def _rebuilt(
    leaf: type[EffectError], detail: str, field: str | None, extras: Mapping[str, Extra]
) -> EffectError:
    error = leaf.__new__(leaf)
    EffectError.__init__(error, detail, field=field, extras=extras)
    return error


# --- the request itself is wrong ------------------------------------------------------------


class RequestError(EffectError):
    """The request is at fault: the same bytes will fail again."""


class RequestMalformed(RequestError):
    """The envelope is unreadable: a header, query or path parameter named by `parameter`."""

    code = ProblemCode.REQUEST_MALFORMED

    def __init__(self, *, parameter: str | None = None) -> None:
        super().__init__(
            "The request cannot be read as this operation asks for it.",
            extras={"parameter": parameter},
        )


class MethodNotAllowed(RequestError):
    """The path exists, the method does not."""

    code = ProblemCode.METHOD_NOT_ALLOWED

    def __init__(self) -> None:
        super().__init__("This path does not offer this method; see the Allow header.")


class PayloadTooLarge(RequestError):
    """The body was not read to its end; `limit_bytes` is what would have been read."""

    code = ProblemCode.PAYLOAD_TOO_LARGE

    def __init__(self, *, limit_bytes: int) -> None:
        super().__init__(
            f"The body is larger than {limit_bytes} bytes.", extras={"limit": limit_bytes}
        )


class UnsupportedMediaType(RequestError):
    """The body is not declared as JSON."""

    code = ProblemCode.UNSUPPORTED_MEDIA_TYPE

    def __init__(self) -> None:
        super().__init__("Send application/json in UTF-8, without a content encoding.")


class InvalidRequest(RequestError):
    """A member of the body is at fault; `field` points at it, also where it is missing."""

    code = ProblemCode.INVALID_REQUEST

    def __init__(self, reason: RequestReason, *, field: str) -> None:
        super().__init__(REQUEST_SENTENCES[reason], field=field, extras={"reason": reason.value})

    @property
    def reason(self) -> RequestReason:
        """Which rule was broken."""
        return RequestReason(str(self.extras["reason"]))


class InvalidPayload(RequestError):
    """The payload has no canonical form.

    `field` points at the value, `offset_bytes` into the raw body where there is no value yet,
    `limit` is the bound that was exceeded (bytes or levels).
    """

    code = ProblemCode.INVALID_PAYLOAD

    def __init__(
        self,
        reason: PayloadReason,
        *,
        field: str | None = None,
        offset_bytes: int | None = None,
        limit: int | None = None,
    ) -> None:
        super().__init__(
            PAYLOAD_SENTENCES[reason],
            field=field,
            extras={"reason": reason.value, "offset": offset_bytes, "limit": limit},
        )

    @property
    def reason(self) -> PayloadReason:
        """Which rule was broken."""
        return PayloadReason(str(self.extras["reason"]))


class InvalidOperationKey(RequestError):
    """The operation key breaks its rule; `offset_chars` is the place of an illegal character."""

    code = ProblemCode.INVALID_OPERATION_KEY

    def __init__(
        self,
        reason: OperationKeyReason,
        *,
        offset_chars: int | None = None,
        limit: int | None = None,
    ) -> None:
        super().__init__(
            OPERATION_KEY_SENTENCES[reason],
            field="/operation_key",
            extras={"reason": reason.value, "offset": offset_chars, "limit": limit},
        )

    @property
    def reason(self) -> OperationKeyReason:
        """Which rule was broken."""
        return OperationKeyReason(str(self.extras["reason"]))


class InvalidArguments(RequestError):
    """The arguments break the contract's JSON Schema.

    `field` points at the value, `keyword` is the schema keyword that failed (`required`, `type`).
    """

    code = ProblemCode.INVALID_ARGUMENTS

    def __init__(self, *, field: str, keyword: str) -> None:
        super().__init__(
            f"The arguments break the contract's schema by its keyword '{keyword}'.",
            field=field,
            extras={"keyword": keyword},
        )


class UnknownTool(RequestError):
    """No active contract serves the tool that was named."""

    code = ProblemCode.UNKNOWN_TOOL

    def __init__(self) -> None:
        super().__init__(
            "No active contract serves this tool; 'effect-broker contracts list' shows them.",
            field="/tool",
        )


class NotForCallers(RequestError):
    """The contract of the tool leaves the sending to the broker."""

    code = ProblemCode.NOT_FOR_CALLERS

    def __init__(self) -> None:
        super().__init__(
            "The contract of this tool does not let its caller perform it; submit it instead.",
            field="/tool",
        )


# --- who asks, how often, what may be seen ---------------------------------------------------


class AccessError(EffectError):
    """The caller may not do this, or not now."""


class Unauthenticated(AccessError):
    """No API key, or one that is unknown or revoked: the three look the same on purpose."""

    code = ProblemCode.UNAUTHENTICATED

    def __init__(self) -> None:
        super().__init__("Send a valid API key as 'Authorization: Bearer <key>'.")


class Forbidden(AccessError):
    """The key is good and lacks the named scope."""

    code = ProblemCode.FORBIDDEN

    def __init__(self, *, scope: str | None = None) -> None:
        super().__init__("This API key may not do this.", extras={"scope": scope})


class SecondPersonRequired(AccessError):
    """Whoever asked for it, or said it first, cannot be the one who agrees."""

    code = ProblemCode.SECOND_PERSON_REQUIRED

    def __init__(self) -> None:
        super().__init__("This takes the credential of another person; nothing was changed.")


class TenantDisabled(AccessError):
    """The tenant is switched off; nothing is accepted or dispatched for it."""

    code = ProblemCode.TENANT_DISABLED

    def __init__(self) -> None:
        super().__init__("This tenant is disabled.")


class NotFound(AccessError):
    """It does not exist, or belongs to another tenant: the two look the same on purpose."""

    code = ProblemCode.NOT_FOUND

    def __init__(self) -> None:
        super().__init__("There is no such resource.")


class RateLimited(AccessError):
    """Too many requests; come again in `retry_after_seconds`."""

    code = ProblemCode.RATE_LIMITED

    def __init__(self, *, retry_after_seconds: int) -> None:
        super().__init__(
            f"Too many requests; try again in {retry_after_seconds} s.",
            extras={"retry_after_seconds": retry_after_seconds},
        )


# --- the present state forbids it ------------------------------------------------------------


class ConflictError(EffectError):
    """The request is well formed and contradicts what is stored."""


class PayloadConflict(ConflictError):
    """The operation key is taken by another request.

    `field` is the first place that differs (None where the stored arguments were erased);
    `effect_id` and `state` tell of the effect that holds the key. Nothing was dispatched.
    """

    code = ProblemCode.PAYLOAD_CONFLICT

    def __init__(
        self,
        *,
        field: str | None,
        effect_id: UUID | None = None,
        state: EffectState | None = None,
    ) -> None:
        super().__init__(
            "This operation key is bound to another request; nothing was sent. "
            "Repeat the first request unchanged, or use a new key for a new intent.",
            field=field,
            extras={
                "effect_id": None if effect_id is None else str(effect_id),
                "state": None if state is None else state.value,
            },
        )


class StaleVersion(ConflictError):
    """The decision was made on another version than the stored one."""

    code = ProblemCode.STALE_VERSION

    def __init__(self, *, expected: int, found: int | None = None) -> None:
        super().__init__(
            "The effect has changed since it was read; read it again and decide anew.",
            extras={"expected_version": expected, "version": found},
        )


class TooEarly(ConflictError):
    """The observation began before it could prove anything; it can from `not_before` on."""

    code = ProblemCode.TOO_EARLY

    def __init__(self, *, not_before: datetime) -> None:
        assert not_before.tzinfo is not None, "a moment without a zone is no moment"
        moment = not_before.astimezone(UTC).isoformat()
        super().__init__(
            f"Proof of no commit counts only if it was observed from {moment} on.",
            extras={"not_before": moment},
        )


class DecisionConflict(ConflictError):
    """The decision id stands for another statement already."""

    code = ProblemCode.DECISION_CONFLICT

    def __init__(self) -> None:
        super().__init__(
            "This decision id was used for another statement; nothing was changed. "
            "Choose a new id for a new decision."
        )


class AnotherRequest(ConflictError):
    """The request hash that was named is not that of the effect."""

    code = ProblemCode.ANOTHER_REQUEST

    def __init__(self) -> None:
        super().__init__(
            "The effect stands for another request than the one that was named; nothing was "
            "changed. Read it again, and decide on what it says."
        )


class AnotherAlert(ConflictError):
    """The alert that was named is not, or no longer, the one that the effect has."""

    code = ProblemCode.ANOTHER_ALERT

    def __init__(self) -> None:
        super().__init__(
            "The effect has another alert by now; nothing was changed. Read it again first."
        )


class CursorSuperseded(ConflictError):
    """A cursor of the event stream is of another copy of the database, or of a lost future."""

    code = ProblemCode.CURSOR_SUPERSEDED

    def __init__(self, *, resume: str) -> None:
        super().__init__(
            "The cursor is of another copy of this database. Go on after `resume`, and pass over "
            "the events whose id you have seen.",
            extras={"resume": resume},
        )


class LimitReached(ConflictError):
    """There are as many of these as there may be; remove one first."""

    code = ProblemCode.LIMIT_REACHED

    def __init__(self, *, limit: int) -> None:
        super().__init__("There are as many as there may be.", extras={"limit": limit})


class TransitionRefused(ConflictError):
    """The effect's state does not permit what was asked."""

    code = ProblemCode.ILLEGAL_TRANSITION

    def __init__(self, *, state: EffectState) -> None:
        super().__init__(
            f"An effect in state '{state.value}' does not permit this.",
            extras={"state": state.value},
        )


class ElectionLost(ConflictError):
    """The caller does not hold the election any more; what it told was kept as a fact."""

    code = ProblemCode.ELECTION_LOST

    def __init__(self, *, effect_id: UUID, state: EffectState) -> None:
        super().__init__(
            "The lease had run out and somebody has gone on without this caller. What it told is "
            "recorded as a fact; it settles the effect only as far as that permits. Do not perform "
            "the effect again.",
            extras={"effect_id": str(effect_id), "state": state.value},
        )


# --- a contract document is at fault ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ContractProblem:
    """One broken rule of a contract document: where, and a sentence on how to mend it."""

    field: str
    message: str


class ContractError(EffectError):
    """A contract document cannot be used."""


class ContractInvalid(ContractError):
    """The document breaks rules; all of them are listed, in the order of the document."""

    code = ProblemCode.CONTRACT_INVALID

    def __init__(self, problems: Sequence[ContractProblem]) -> None:
        assert problems, "an invalid contract has at least one problem"
        first = problems[0]
        more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(
            first.message + more,
            field=first.field,
            extras={"problems": [{"field": p.field, "message": p.message} for p in problems]},
        )


class ContractConflict(ContractError):
    """The same name and version is stored with another digest."""

    code = ProblemCode.CONTRACT_CONFLICT

    def __init__(self) -> None:
        super().__init__(
            "This contract name and version is stored with other content; "
            "raise the version, a published one never changes."
        )


# --- the broker is at fault ------------------------------------------------------------------


class BrokerError(EffectError):
    """Nothing is wrong with the request."""


class StorageUnavailable(BrokerError):
    """The database did not answer or may not be written. Repeating a submit is safe."""

    code = ProblemCode.STORAGE_UNAVAILABLE

    def __init__(self, *, retry_after_seconds: int = 1) -> None:
        super().__init__(
            "The database cannot be reached or written; the same request may be sent again.",
            extras={"retry_after_seconds": retry_after_seconds},
        )


class KeyRingMissing(BrokerError):
    """No key ring, or none with the key that a stored row names."""

    code = ProblemCode.KEY_RING_MISSING

    def __init__(self, *, key_id: str | None = None) -> None:
        super().__init__(
            "The key ring is missing or lacks a key that is needed.", extras={"key_id": key_id}
        )


class ConfigurationInvalid(BrokerError):
    """A setting is wrong; `remedy` is a sentence that says what to do, without its value."""

    code = ProblemCode.CONFIGURATION_INVALID

    def __init__(self, *, setting: str, remedy: str) -> None:
        super().__init__(f"{setting}: {remedy}", extras={"setting": setting})


class InternalError(BrokerError):
    """A mistake of the broker's own; the log has the rest under the problem's instance."""

    code = ProblemCode.INTERNAL

    def __init__(self) -> None:
        super().__init__("The broker made a mistake; the same request may be sent again.")


def problem(error: EffectError, instance: str | None = None) -> dict[str, object]:
    """Return the problem body of RFC 9457 for `error`.

    `instance` is a URI reference of this occurrence (for instance the request id), if there is
    one. Members of the standard come first and are never overwritten by an extra.
    """
    body: dict[str, object] = {
        "type": PROBLEM_TYPE_PREFIX + error.code.value,
        "title": error.title,
        "status": error.status,
        "detail": error.detail,
        "code": error.code.value,
    }
    if instance is not None:
        body["instance"] = instance
    if error.field is not None:
        body["field"] = error.field
    for name, extra in error.extras.items():
        body.setdefault(name, extra)
    return body
