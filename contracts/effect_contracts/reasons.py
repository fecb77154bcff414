"""Why a request, a payload or an operation key is refused: stable reasons, a sentence for each.

Like the problem codes, a reason keeps its meaning once it is published. The errors that carry
them are in `effect_contracts.errors`, which is also where callers import them from.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class ParameterReason(StrEnum):
    """Why a parameter of the query cannot be taken. Stable, like the problem codes."""

    MISSING = "missing"
    UNKNOWN = "unknown"
    TYPE = "type"
    LENGTH = "length"
    RANGE = "range"
    CHOICE = "choice"
    FORMAT = "format"


PARAMETER_SENTENCES: Final = {
    ParameterReason.MISSING: "The request lacks a parameter that it must have.",
    ParameterReason.UNKNOWN: "The request has a parameter that this operation does not know.",
    ParameterReason.TYPE: "A parameter is no number, truth value or text as it must be.",
    ParameterReason.LENGTH: "A parameter is too short or too long, or is given too often.",
    ParameterReason.RANGE: "A parameter is below or above what this operation takes.",
    ParameterReason.CHOICE: "A parameter is none of the values that this operation knows.",
    ParameterReason.FORMAT: (
        "A parameter is not written as it must be, or does not fit the others; a cursor is one "
        "that this operation has given out."
    ),
}


class RequestReason(StrEnum):
    """Why a member of a request's body cannot be taken. Stable, like the problem codes."""

    MISSING = "missing"
    UNKNOWN = "unknown"
    TYPE = "type"
    LENGTH = "length"
    FORMAT = "format"
    FUTURE = "future"
    NO_SUCH_EFFECT = "no_such_effect"
    NOT_TO_BE_REACHED = "not_to_be_reached"


REQUEST_SENTENCES: Final = {
    RequestReason.MISSING: "The request lacks a member that it must have.",
    RequestReason.UNKNOWN: "The request has a member that this operation does not know.",
    RequestReason.TYPE: "A member of the request has another type than it must have.",
    RequestReason.LENGTH: "A member of the request is too short or too long.",
    RequestReason.FORMAT: (
        "A member of the request is not written as it must be: a moment is RFC 3339 with an "
        "offset, an effect id is a UUID."
    ),
    RequestReason.FUTURE: "An observation cannot begin later than now, by the database's clock.",
    RequestReason.NOT_TO_BE_REACHED: (
        "Nothing may be posted to this URL: it has to be https, without a user and a fragment, "
        "and its host's address public or in a network that EFFECT_BROKER_EVENT_NETWORKS names to "
        "this process."
    ),
    RequestReason.NO_SUCH_EFFECT: "There is no such effect of this tenant to belong to.",
}


class PayloadReason(StrEnum):
    """Why a payload has no canonical form. Stable, like the problem codes."""

    EMPTY = "empty"
    TOO_LARGE = "too_large"
    BYTE_ORDER_MARK = "byte_order_mark"
    NOT_UTF8 = "not_utf8"
    SYNTAX = "syntax"
    TRAILING_TEXT = "trailing_text"
    TOO_DEEP = "too_deep"
    DUPLICATE_MEMBER = "duplicate_member"
    NAME_NOT_TEXT = "name_not_text"
    NUMBER_NOT_FINITE = "number_not_finite"
    NUMBER_RANGE = "number_range"
    NUMBER_PRECISION = "number_precision"
    LONE_SURROGATE = "lone_surrogate"
    NUL_CHARACTER = "nul_character"
    TYPE_UNSUPPORTED = "type_unsupported"
    NOT_AN_OBJECT = "not_an_object"


PAYLOAD_SENTENCES: Final = {
    PayloadReason.EMPTY: "The payload is empty; send one JSON value.",
    PayloadReason.TOO_LARGE: "The payload is larger than the limit.",
    PayloadReason.BYTE_ORDER_MARK: "The payload begins with a byte order mark; send plain UTF-8.",
    PayloadReason.NOT_UTF8: "The payload is not valid UTF-8.",
    PayloadReason.SYNTAX: "The payload is not valid JSON (RFC 8259).",
    PayloadReason.TRAILING_TEXT: (
        "Text follows the JSON value; send one value and nothing after it."
    ),
    PayloadReason.TOO_DEEP: "Objects and arrays are nested deeper than the limit.",
    PayloadReason.DUPLICATE_MEMBER: "An object has two members of the same name.",
    PayloadReason.NAME_NOT_TEXT: "A member name is not a string.",
    PayloadReason.NUMBER_NOT_FINITE: "NaN and infinities are not JSON numbers.",
    PayloadReason.NUMBER_RANGE: "A number lies beyond ±(2^53-1); send it as a string.",
    PayloadReason.NUMBER_PRECISION: (
        "A number has more digits than a double keeps; send it as a string."
    ),
    PayloadReason.LONE_SURROGATE: (
        "A string holds half of a surrogate pair, which no UTF-8 text can carry."
    ),
    PayloadReason.NUL_CHARACTER: "A string holds the character U+0000, which cannot be stored.",
    PayloadReason.TYPE_UNSUPPORTED: (
        "A value has a type without a declared JSON form; use dict, list, str, int, "
        "float, bool or None itself, and strings for decimals, dates and bytes."
    ),
    PayloadReason.NOT_AN_OBJECT: "This has to be a JSON object, with named members.",
}


class OperationKeyReason(StrEnum):
    """Why a text is no operation key."""

    NOT_TEXT = "not_text"
    EMPTY = "empty"
    TOO_LONG = "too_long"
    ILLEGAL_CHARACTER = "illegal_character"


OPERATION_KEY_SENTENCES: Final = {
    OperationKeyReason.NOT_TEXT: "The operation key is missing or not a string.",
    OperationKeyReason.EMPTY: "The operation key is empty.",
    OperationKeyReason.TOO_LONG: "The operation key is longer than the limit; it is never cut.",
    OperationKeyReason.ILLEGAL_CHARACTER: (
        "The operation key may hold printable ASCII without spaces only (0x21 to 0x7E)."
    ),
}
