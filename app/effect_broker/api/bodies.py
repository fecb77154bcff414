"""Reading request bodies strictly, before any framework does.

The usual body parsing keeps the last of two equal members and takes NaN; a request that means two
things must be refused instead. So the raw bytes are read here, with a limit, parsed by
`effect_contracts.canonical`, and only then given to a strict model.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar
from uuid import UUID

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from effect_broker.intake import require_object
from effect_broker.resolving import EVIDENCE_ITEMS_MAX, NOTE_BYTES_MAX, EvidenceItem, Statement
from effect_contracts.canonical import BODY_BYTES_MAX, DEPTH_MAX, JsonValue, parse_strict
from effect_contracts.errors import (
    InvalidPayload,
    InvalidRequest,
    PayloadReason,
    PayloadTooLarge,
    RequestMalformed,
    RequestReason,
    UnsupportedMediaType,
    json_pointer,
)
from effect_contracts.facts import Conclusion
from effect_contracts.keys import check_operation_key

if TYPE_CHECKING:
    from fastapi import Request

# Set in the state of a request whose body is not read to its end.
BODY_LEFT: Final = "body_left"

# The envelope is a level of its own: the arguments have all of theirs, as through the SDK.
ENVELOPE_DEPTH_MAX: Final = DEPTH_MAX + 1

# Enough for a caller's mistake; whoever sends more, or nothing, finds the connection closed.
_DISCARD_BYTES_MAX: Final = 4 * BODY_BYTES_MAX
_DISCARD_SECONDS: Final = 1.0

# A body may pause for the first, and takes the second at most: 256 KiB at 9 kB/s. Who is slower
# holds a connection for nothing.
_BODY_IDLE_SECONDS: Final = 10.0
_BODY_SECONDS: Final = 30.0

STRICT: Final = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)

M = TypeVar("M", bound=BaseModel)

# pydantic's names of what went wrong; every other one means a wrong type.
_REASONS: Final = {
    "missing": RequestReason.MISSING,
    "extra_forbidden": RequestReason.UNKNOWN,
    "string_too_short": RequestReason.LENGTH,
    "string_too_long": RequestReason.LENGTH,
    "value_error": RequestReason.FORMAT,
    "string_pattern_mismatch": RequestReason.FORMAT,
    "too_long": RequestReason.LENGTH,
    "timezone_aware": RequestReason.FORMAT,
}


def _moment(value: object) -> object:
    if not isinstance(value, str):
        return value
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is None:
        raise ValueError("a moment without a zone is no moment")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("beyond the years 1 to 9999") from None


def id_value(value: object) -> object:
    """Read an id, which JSON has as a text, for a strict model."""
    return UUID(value) if isinstance(value, str) else value


def _printable(text: str) -> str:
    """An id is printed on terminals, whoever it comes from."""
    if not text.isprintable():
        raise ValueError("an id holds printable characters only")
    return text


def _conclusion(value: object) -> object:
    return Conclusion(value) if isinstance(value, str) else value


Concluded = Annotated[Conclusion, BeforeValidator(_conclusion)]

# A person's own name of a decision.
DecisionId = Annotated[str, Field(pattern=r"^[!-~]{1,255}$")]


class SubmitBody(BaseModel):
    """The body of `POST /v1/effects`."""

    model_config = STRICT

    # `check_operation_key` judges it, with a reason of its own.
    operation_key: str = Field(
        description="Stable name of the business intent.",
        json_schema_extra={"pattern": "^[!-~]{1,255}$"},
    )
    tool: str = Field(min_length=1, max_length=255)
    # Checked by the parser already; a second walk through it would prove nothing.
    arguments: dict[str, Any] = Field(repr=False)
    trace_id: str | None = Field(default=None, max_length=255)
    send_before: Annotated[AwareDatetime | None, BeforeValidator(_moment)] = None
    parent_effect_id: Annotated[UUID | None, BeforeValidator(id_value)] = Field(
        default=None, description="The effect that delegates this one."
    )
    compensates: Annotated[UUID | None, BeforeValidator(id_value)] = Field(
        default=None, description="A succeeded effect that this one undoes when it succeeds."
    )


class EvidenceBody(BaseModel):
    """One item of evidence in a resolution."""

    model_config = STRICT

    kind: str = Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")
    observed_at: Annotated[AwareDatetime, BeforeValidator(_moment)]
    reference: str | None = Field(default=None, min_length=1, max_length=2048)
    digest: str | None = Field(default=None, pattern=r"^sha256:[0-9a-f]{64}$")
    note: str | None = Field(default=None, repr=False)

    @model_validator(mode="after")
    def _can_be_seen_again(self) -> EvidenceBody:
        if self.reference is None and self.digest is None:
            raise ValueError("evidence has a reference or a digest")
        if self.note is not None and len(self.note.encode()) > NOTE_BYTES_MAX:
            raise ValueError("the note is too long")
        return self


class StatementBody(BaseModel):
    """The body of `POST /v1/effects/{id}/resolve`."""

    model_config = STRICT

    decision_id: DecisionId
    expected_version: int = Field(ge=1, le=2**31 - 1)
    conclusion: Concluded
    reason: str = Field(min_length=1, max_length=2000, repr=False)
    # That there is some is judged with the statement (`effect_broker.resolving`).
    evidence: list[EvidenceBody] = Field(
        max_length=EVIDENCE_ITEMS_MAX, json_schema_extra={"minItems": 1}
    )
    external_id: Annotated[str, AfterValidator(_printable)] | None = Field(
        default=None, min_length=1, max_length=255
    )

    @model_validator(mode="after")
    def _an_id_belongs_to_a_commit(self) -> StatementBody:
        if self.external_id is not None and self.conclusion is not Conclusion.COMMITTED:
            raise ValueError("only an effect that exists has an id")
        return self

    def statement(self) -> Statement:
        """Return the statement."""
        items = tuple(EvidenceItem(**item.model_dump()) for item in self.evidence)
        return Statement(
            decision_id=self.decision_id,
            expected_version=self.expected_version,
            conclusion=self.conclusion,
            reason=self.reason,
            evidence=items,
            external_id=self.external_id,
        )


async def read_json(request: Request) -> JsonValue:
    """Return the strictly parsed body; little more of it is read than may be used.

    Raises:
        UnsupportedMediaType, PayloadTooLarge, InvalidPayload.
        RequestMalformed: it does not come to its end in time.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" or "content-encoding" in request.headers:
        raise UnsupportedMediaType
    return parse_strict(await read_raw(request), depth_max=ENVELOPE_DEPTH_MAX)


async def read_raw(request: Request) -> bytes:
    """Return the body as it came; little more of it is read than may be used.

    Raises:
        PayloadTooLarge.
        RequestMalformed: it does not come to its end in time.
    """
    raw = await _bounded(request)
    if raw is None:
        setattr(request.state, BODY_LEFT, True)
        await _discard(request)
        raise PayloadTooLarge(limit_bytes=BODY_BYTES_MAX)
    return raw


async def _bounded(request: Request) -> bytes | None:
    """Return the body, None as soon as it is known to be too large.

    Raises:
        RequestMalformed: it does not come to its end in time.
    """
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared) > BODY_BYTES_MAX:
        return None
    raw = bytearray()
    now = asyncio.get_running_loop().time
    ends_at = now() + _BODY_SECONDS
    try:
        async with asyncio.timeout(_BODY_IDLE_SECONDS) as limit:
            async for chunk in request.stream():
                raw += chunk
                if len(raw) > BODY_BYTES_MAX:
                    return None
                limit.reschedule(min(now() + _BODY_IDLE_SECONDS, ends_at))
    except TimeoutError:
        setattr(request.state, BODY_LEFT, True)
        raise RequestMalformed from None
    return bytes(raw)


async def _discard(request: Request) -> None:
    """Read some of a body that is refused, and keep nothing of it.

    A connection that is closed over unread bytes is reset, and the reset may overtake the answer;
    so that a caller who sends a little too much learns why.
    """
    read = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_SECONDS):
            async for chunk in request.stream():
                read += len(chunk)
                if read > _DISCARD_BYTES_MAX:
                    return


async def read_submit(request: Request) -> SubmitBody:
    """Return the body of a submit.

    Raises:
        As `read_json`.
        InvalidOperationKey: the key is missing or none.
        InvalidRequest: names the member that is missing, unknown, or of a wrong type or length.
    """
    return submit_of(await read_json(request))


def submit_of(value: JsonValue) -> SubmitBody:
    """Return the body of a submit from its parsed value.

    Raises:
        As `read_submit`.
    """
    if not isinstance(value, dict):
        raise InvalidPayload(PayloadReason.NOT_AN_OBJECT, field="")
    check_operation_key(value.get("operation_key"))
    if "arguments" in value:
        require_object(value["arguments"])
    return validated(SubmitBody, value, depth=1)


async def read_statement(request: Request) -> Statement:
    """Return what a person states of an effect.

    Raises:
        As `read_model`.
    """
    return (await read_model(request, StatementBody)).statement()


async def read_model(request: Request, model: type[M]) -> M:
    """Return the body as a strict model.

    Raises:
        As `read_json`.
        InvalidRequest: names the member that is missing, unknown, or of a wrong type or length.
    """
    value = await read_json(request)
    if not isinstance(value, dict):
        raise InvalidPayload(PayloadReason.NOT_AN_OBJECT, field="")
    return validated(model, value)


def validated(model: type[M], value: JsonValue, depth: int | None = None) -> M:
    """Give a value to a strict model; an error names a place of at most `depth` members.

    Raises:
        InvalidRequest.
    """
    try:
        return model.model_validate(value)
    except ValidationError as problem:
        first = problem.errors(include_input=False, include_url=False, include_context=False)[0]
    # Out of the except block on purpose: the model's error carries the body, and would ride along.
    raise InvalidRequest(
        _REASONS.get(first["type"], RequestReason.TYPE), field=json_pointer(first["loc"][:depth])
    )
