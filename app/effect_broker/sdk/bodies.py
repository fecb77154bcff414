"""From a caller's values to the bodies of the API's requests, checked as the broker itself would.

What cannot be sent is refused here by the protocol's own rules, before anything is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, TypeAlias
from uuid import UUID

from effect_broker.sdk.errors import RequestRefused, refused
from effect_broker.sdk.results import Effect, Evidence
from effect_contracts.canonical import BODY_BYTES_MAX, DEPTH_MAX, canonical_bytes
from effect_contracts.errors import EffectError, InvalidRequest, RequestReason
from effect_contracts.keys import check_operation_key

# As a receipt holds it.
_EXTERNAL_ID_CHARS_MAX: Final = 255

EffectRef: TypeAlias = Effect | UUID | str
"""An effect, or its id."""


def checked_operation_key(text: str) -> str:
    problem: RequestRefused
    try:
        return check_operation_key(text)
    except EffectError as error:
        problem = refused(error)
    raise problem


def body_of(members: Mapping[str, object]) -> bytes:
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


def evidence_body(item: Evidence) -> dict[str, object]:
    members: dict[str, object] = {
        "kind": item.kind,
        "observed_at": moment_text(item.observed_at, "/evidence"),
        "reference": item.reference,
        "digest": item.digest,
        "note": item.note,
    }
    return {name: value for name, value in members.items() if value is not None}


def plain(arguments: object) -> object:
    """Any mapping may be handed over; what is inside has to be plain, and the body's check says."""
    return dict(arguments) if isinstance(arguments, Mapping) else arguments


def moment_text(at: object, field: str) -> str | None:
    if at is None:
        return None
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise refused(
            InvalidRequest(RequestReason.FORMAT, field=field),
            "A moment is a datetime with a time zone, such as datetime.now(timezone.utc).",
        )
    return at.isoformat()


def id_of(effect: EffectRef, field: str = "/effect_id") -> UUID:
    if isinstance(effect, Effect):
        return effect.effect_id
    if isinstance(effect, UUID):
        return effect
    try:
        return UUID(effect)
    except (ValueError, AttributeError, TypeError):
        pass
    raise refused(
        InvalidRequest(RequestReason.FORMAT, field=field),
        "An effect is an `Effect` or its id, which is a UUID. By its operation key it is found by "
        "submitting the same request again.",
    )


def id_text(effect: EffectRef | None, field: str) -> str | None:
    return None if effect is None else str(id_of(effect, field))


def submit_body(
    tool: str,
    arguments: Mapping[str, Any],
    operation_key: str,
    trace_id: str | None = None,
    send_before: datetime | None = None,
    parent: EffectRef | None = None,
    compensates: EffectRef | None = None,
) -> bytes:
    """Return the body of a submit, the same bytes at every try.

    Raises:
        RequestRefused: a member breaks a rule that can be told here.
    """
    return body_of(
        {
            "operation_key": checked_operation_key(operation_key),
            "tool": tool,
            "arguments": plain(arguments),
            "trace_id": trace_id,
            "send_before": moment_text(send_before, "/send_before"),
            "parent_effect_id": id_text(parent, "/parent_effect_id"),
            "compensates": id_text(compensates, "/compensates"),
        }
    )


def checked_external_id(text: object) -> str | None:
    """Return what a receipt may hold as the caller's own id.

    Raises:
        RequestRefused.
    """
    if text is None:
        return None
    plain = isinstance(text, str) and all("!" <= character <= "~" for character in text)
    if not isinstance(text, str) or not plain or not 1 <= len(text) <= _EXTERNAL_ID_CHARS_MAX:
        raise refused(
            InvalidRequest(RequestReason.FORMAT, field="/external_id"),
            "An external id is a text of 1 to 255 characters of printable ASCII without spaces.",
        )
    return text
