"""The stable codes of problems, and the HTTP status of each.

A code, once published, keeps its meaning and its status. The errors that carry them are in
`effect_contracts.errors`, which is also where callers import them from.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, assert_never

PROBLEM_TYPE_PREFIX: Final = "urn:effect-broker:problem:"


class ProblemCode(StrEnum):
    """The stable name of a problem: what programs compare, and the end of its type URN."""

    REQUEST_MALFORMED = "request_malformed"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    INVALID_REQUEST = "invalid_request"
    INVALID_PAYLOAD = "invalid_payload"
    INVALID_OPERATION_KEY = "invalid_operation_key"
    INVALID_ARGUMENTS = "invalid_arguments"
    UNKNOWN_TOOL = "unknown_tool"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    SECOND_PERSON_REQUIRED = "second_person_required"
    TENANT_DISABLED = "tenant_disabled"
    NOT_FOUND = "not_found"
    RATE_LIMITED = "rate_limited"
    PAYLOAD_CONFLICT = "payload_conflict"
    STALE_VERSION = "stale_version"
    TOO_EARLY = "too_early"
    DECISION_CONFLICT = "decision_conflict"
    ANOTHER_REQUEST = "another_request"
    ANOTHER_ALERT = "another_alert"
    CURSOR_SUPERSEDED = "cursor_superseded"
    LIMIT_REACHED = "limit_reached"
    ILLEGAL_TRANSITION = "illegal_transition"
    ELECTION_LOST = "election_lost"
    NOT_FOR_CALLERS = "not_for_callers"
    CONTRACT_INVALID = "contract_invalid"
    CONTRACT_CONFLICT = "contract_conflict"
    STORAGE_UNAVAILABLE = "storage_unavailable"
    KEY_RING_MISSING = "key_ring_missing"
    CONFIGURATION_INVALID = "configuration_invalid"
    INTERNAL = "internal"


def status_of(code: ProblemCode) -> int:
    """Return the HTTP status that belongs to `code` (RFC 9110, section 15)."""
    match code:
        case ProblemCode.REQUEST_MALFORMED:
            return 400
        case ProblemCode.UNAUTHENTICATED:
            return 401
        case (
            ProblemCode.FORBIDDEN | ProblemCode.SECOND_PERSON_REQUIRED | ProblemCode.TENANT_DISABLED
        ):
            return 403
        case ProblemCode.NOT_FOUND:
            return 404
        case ProblemCode.METHOD_NOT_ALLOWED:
            return 405
        case (
            ProblemCode.PAYLOAD_CONFLICT
            | ProblemCode.STALE_VERSION
            | ProblemCode.TOO_EARLY
            | ProblemCode.DECISION_CONFLICT
            | ProblemCode.ANOTHER_REQUEST
            | ProblemCode.ANOTHER_ALERT
            | ProblemCode.CURSOR_SUPERSEDED
            | ProblemCode.LIMIT_REACHED
            | ProblemCode.ILLEGAL_TRANSITION
            | ProblemCode.ELECTION_LOST
            | ProblemCode.CONTRACT_CONFLICT
        ):
            return 409
        case ProblemCode.PAYLOAD_TOO_LARGE:
            return 413
        case ProblemCode.UNSUPPORTED_MEDIA_TYPE:
            return 415
        case (
            ProblemCode.INVALID_REQUEST
            | ProblemCode.INVALID_PAYLOAD
            | ProblemCode.INVALID_OPERATION_KEY
            | ProblemCode.INVALID_ARGUMENTS
            | ProblemCode.UNKNOWN_TOOL
            | ProblemCode.NOT_FOR_CALLERS
            | ProblemCode.CONTRACT_INVALID
        ):
            return 422
        case ProblemCode.RATE_LIMITED:
            return 429
        case (
            ProblemCode.KEY_RING_MISSING | ProblemCode.CONFIGURATION_INVALID | ProblemCode.INTERNAL
        ):
            return 500
        case ProblemCode.STORAGE_UNAVAILABLE:
            return 503
        case _:
            assert_never(code)
