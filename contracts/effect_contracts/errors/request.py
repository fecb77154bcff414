"""The request itself is wrong: the same bytes fail again."""

from __future__ import annotations

from typing import Final

from effect_contracts.errors.base import EffectError
from effect_contracts.problem_codes import ProblemCode
from effect_contracts.reasons import (
    OPERATION_KEY_SENTENCES,
    PARAMETER_SENTENCES,
    PAYLOAD_SENTENCES,
    REQUEST_SENTENCES,
    OperationKeyReason,
    ParameterReason,
    PayloadReason,
    RequestReason,
)

# Keywords whose names alone do not say what is wrong.
_ARGUMENT_SENTENCES: Final = {
    "required": "The arguments lack a member that the contract's schema requires.",
    "additionalProperties": "The arguments have a member that the contract's schema does not know.",
    "forbidden": "The arguments have a member that the contract forbids.",
}


class RequestError(EffectError):
    """The request is at fault: the same bytes will fail again."""


class RequestMalformed(RequestError):
    """The envelope is unreadable: a header, query or path parameter named by `parameter`.

    `limit` is what a number may be at least or at most, `choices` are what the operation knows.
    """

    code = ProblemCode.REQUEST_MALFORMED

    def __init__(
        self,
        reason: ParameterReason | None = None,
        *,
        parameter: str | None = None,
        limit: int | None = None,
        choices: str | None = None,
    ) -> None:
        if reason is None and parameter is not None:
            reason = ParameterReason.FORMAT
        detail = "The request cannot be read as this operation asks for it."
        if reason is not None:
            detail = PARAMETER_SENTENCES[reason]
        if limit is not None:
            detail += f" The limit is {limit}."
        if choices is not None:
            detail += f" There are {choices}."
        said = None if reason is None else reason.value
        extras = {"parameter": parameter, "reason": said, "limit": limit}
        super().__init__(detail, extras=extras)


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
        bound = "" if limit is None else f" The limit is {limit}."
        super().__init__(
            PAYLOAD_SENTENCES[reason] + bound,
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

    `field` points at the value, `keyword` is the schema keyword that failed (`required`, `type`),
    `expected` the type or the number that the schema gives it.
    """

    code = ProblemCode.INVALID_ARGUMENTS

    def __init__(self, *, field: str, keyword: str, expected: str | None = None) -> None:
        detail = _ARGUMENT_SENTENCES.get(keyword)
        if detail is None:
            asks = "" if expected is None else f", which asks for {expected}"
            detail = f"The arguments break the contract's schema by its keyword '{keyword}'{asks}."
        super().__init__(detail, field=field, extras={"keyword": keyword, "expected": expected})


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
