"""Reading request bodies strictly, before any framework does.

The usual body parsing keeps the last of two equal members and takes NaN; a request that means two
things must be refused instead. So the raw bytes are read here, with a limit, parsed by
`effect_contracts.canonical`, and only then given to a strict model.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from fastapi import Request
from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from effect_broker.intake import require_object
from effect_contracts.canonical import BODY_BYTES_MAX, DEPTH_MAX, JsonValue, parse_strict
from effect_contracts.errors import (
    InvalidPayload,
    InvalidRequest,
    PayloadReason,
    PayloadTooLarge,
    RequestReason,
    UnsupportedMediaType,
    json_pointer,
)
from effect_contracts.keys import check_operation_key

# The envelope is a level of its own: the arguments have all of theirs, as through the SDK.
_ENVELOPE_DEPTH_MAX: Final = DEPTH_MAX + 1

# Enough for a caller's mistake; whoever sends more, or nothing, finds the connection closed.
_DISCARD_BYTES_MAX: Final = 4 * BODY_BYTES_MAX
_DISCARD_SECONDS: Final = 1.0

# pydantic's names of what went wrong; every other one means a wrong type.
_REASONS: Final = {
    "missing": RequestReason.MISSING,
    "extra_forbidden": RequestReason.UNKNOWN,
    "string_too_short": RequestReason.LENGTH,
    "string_too_long": RequestReason.LENGTH,
    "value_error": RequestReason.FORMAT,
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


class SubmitBody(BaseModel):
    """The body of `POST /v1/effects`."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)

    operation_key: str
    tool: str = Field(min_length=1, max_length=255)
    # Checked by the parser already; a second walk through it would prove nothing.
    arguments: dict[str, Any] = Field(repr=False)
    trace_id: str | None = Field(default=None, max_length=255)
    send_before: Annotated[AwareDatetime | None, BeforeValidator(_moment)] = None


async def read_json(request: Request) -> JsonValue:
    """Return the strictly parsed body; little more of it is read than may be used.

    Raises:
        UnsupportedMediaType, PayloadTooLarge, InvalidPayload.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" or "content-encoding" in request.headers:
        raise UnsupportedMediaType
    raw = await _bounded(request)
    if raw is None:
        await _discard(request)
        raise PayloadTooLarge(limit_bytes=BODY_BYTES_MAX)
    return parse_strict(raw, depth_max=_ENVELOPE_DEPTH_MAX)


async def _bounded(request: Request) -> bytes | None:
    """Return the body, None as soon as it is known to be too large."""
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared) > BODY_BYTES_MAX:
        return None
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > BODY_BYTES_MAX:
            return None
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
    value = await read_json(request)
    if not isinstance(value, dict):
        raise InvalidPayload(PayloadReason.NOT_AN_OBJECT, field="")
    check_operation_key(value.get("operation_key"))
    if "arguments" in value:
        require_object(value["arguments"])
    try:
        return SubmitBody.model_validate(value)
    except ValidationError as problem:
        first = problem.errors(include_input=False, include_url=False, include_context=False)[0]
    # Out of the except block on purpose: the model's error carries the body, and would ride along.
    raise InvalidRequest(
        _REASONS.get(first["type"], RequestReason.TYPE), field=json_pointer(first["loc"][:1])
    )
