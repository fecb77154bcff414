"""Reading what a target sent: strict JSON, and what a contract extracts from it. Pure functions.

Bodies are read strictly (no duplicate members, NaN, NUL or lone surrogates, at most 64 levels).
Unlike in requests, numbers of any size are taken, since targets use them as ids; what leaves here
has those beyond ±(2^53-1) written as strings, digit by digit.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final, NoReturn

from effect_contracts.canonical import INTEGER_MAX, JsonObject, JsonValue, check_value
from effect_contracts.errors import InvalidPayload
from effect_contracts.expressions import search
from effect_contracts.http_settings import Extraction

# The columns and the receipt hold ids up to this length; a longer "id" is some other text.
EXTERNAL_ID_CHARS_MAX: Final = 1024
_EXTERNAL_ID_BITS_MAX: Final = EXTERNAL_ID_CHARS_MAX * 10 // 3  # 2**10 > 10**3

# JMESPath repeats a value without copying it, so that a short expression may stand for more than
# would fit into any memory. More than fits into the largest answer is no part of one.
_VALUES_MAX: Final = 2**22


class BodyInvalid(Exception):
    """A body is no strict JSON."""


def parse_answer(body: bytes) -> Any:
    """Return a body's value, numbers of any size included.

    Raises:
        BodyInvalid: for everything that is no strict JSON.
    """
    valid = False
    try:
        value = json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_object_of,
            parse_constant=_refuse,
            parse_float=_float_of,
        )
        # Depth, NUL, lone surrogates: what could not be stored is not taken. Writing numbers
        # out and escapes can make the text longer than it came, but not tenfold.
        check_value(portable(value), bytes_max=10 * len(body) + 64)
        valid = True
    except (ValueError, RecursionError, InvalidPayload):
        pass
    if not valid:
        # Out of the handler on purpose: the library's error carries the whole body.
        raise BodyInvalid
    return value


def _object_of(members: list[tuple[str, Any]]) -> dict[str, Any]:
    together = dict(members)
    if len(together) != len(members):
        raise ValueError
    return together


def _refuse(_literal: str) -> NoReturn:
    raise ValueError


def _float_of(literal: str) -> float:
    number = float(literal)
    if not isfinite(number):
        raise ValueError
    return number


def portable(value: Any) -> JsonValue:
    """Return `value` with the numbers that a double cannot hold exactly written as strings.

    Raises:
        ValueError: it is no JSON, or of absurd size.
    """
    left = _VALUES_MAX

    def written(part: Any) -> JsonValue:
        nonlocal left
        left -= 1
        if left < 0:
            raise ValueError
        match part:
            case bool() | None | str():
                return part
            case int() | float():
                return part if abs(part) <= INTEGER_MAX else f"{part}"
            case list():
                return [written(element) for element in part]
            case dict():
                return {name: written(member) for name, member in part.items()}
            case _:
                raise ValueError

    return written(value)


# Extraction ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Extracted:
    """What an answer that says "done" yields."""

    external_id: str | None
    result: JsonValue
    receipt_fields: JsonObject


def extract(extraction: Extraction, value: Any) -> Extracted | None:
    """Return what the contract takes from a parsed body or item; None if the id is missing."""
    external_id: str | None = None
    if extraction.external_id is not None:
        external_id = id_text(search(extraction.external_id, value))
        if external_id is None:
            return None
    result = value if extraction.result is None else search(extraction.result, value)
    fields = {
        name: portable_or_none(search(expression, value))
        for name, expression in extraction.receipt_fields.items()
    }
    return Extracted(external_id, portable_or_none(result), fields)


def id_text(value: Any) -> str | None:
    """Return a target's id as text; None where the value is no id.

    An id is a text or an integer of at most `EXTERNAL_ID_CHARS_MAX` printable characters: it is
    stored, listed and printed on terminals.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        # Measured before it is written out, which Python refuses from some length on.
        value = str(value) if value.bit_length() <= _EXTERNAL_ID_BITS_MAX else ""
    if isinstance(value, str) and 0 < len(value) <= EXTERNAL_ID_CHARS_MAX and value.isprintable():
        return value
    return None


def portable_or_none(value: Any) -> JsonValue:
    """JMESPath may compute what JSON cannot hold (a sum of infinite size, a reference)."""
    try:
        return check_value(portable(value), bytes_max=2**26)
    except (ValueError, InvalidPayload, RecursionError):
        return None
