"""Keys of named parts: this file owns how parts become one key, and what is no part of a key.

Two lists of parts make the same key only if they are the same list: what separates, escapes and
shortens is itself escaped inside a part. A part is taken as it is, neither trimmed nor folded, so
42 and "42" are one part, and "A" and "a" are two.

A key that would be longer than 255 characters keeps its beginning, so that it can be read and found
by prefix, and ends with the SHA-256 of the whole. The sign before the hash occurs in no other key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date, time, timedelta
from enum import StrEnum
from hashlib import sha256
from typing import Final, TypeAlias
from uuid import UUID

from effect_contracts.keys import OPERATION_KEY_CHARS_MAX, check_operation_key

Segment: TypeAlias = str | int | UUID
"""One part of a key: a name or an id. Numbers are written in decimal, UUIDs in lower case."""

# No name is that long; what is, is content.
SEGMENT_CHARS_MAX: Final = 1024

_SEPARATOR: Final = ":"
_HASH_SIGN: Final = "~"
_ESCAPE: Final = "%"
_HASH_CHARS: Final = 64
_READABLE_CHARS_MAX: Final = OPERATION_KEY_CHARS_MAX - _HASH_CHARS - len(_HASH_SIGN)
# Printable ASCII but space, and but the three signs that have a meaning of their own.
_AS_THEY_ARE: Final = frozenset(map(chr, range(0x21, 0x7F))) - {_SEPARATOR, _HASH_SIGN, _ESCAPE}
# The number of a try, written as one part. What is meant as a second one has two parts, or a
# name of its own: `"reminder", 2`.
_NUMBERED_TRY: Final = re.compile(r"(?:attempt|retry|try)[-_.#]?[0-9]+", re.I)
_UUID: Final = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|[0-9a-f]{32}", re.I)
_LETTER: Final = re.compile(r"[^\W\d_]")


class KeyRefusal(StrEnum):
    """Why no key is made: stable codes."""

    TOO_FEW = "too_few"
    NO_NAME = "no_name"
    NOT_A_PART = "not_a_part"
    EMPTY = "empty"
    TOO_LONG = "too_long"
    NOT_UNICODE = "not_unicode"
    TIME = "time"
    ATTEMPT = "attempt"
    CHANGES = "changes"
    COUNTED = "counted"
    NO_ID = "no_id"
    ORIGIN_UNKNOWN = "origin_unknown"


class KeyRefused(ValueError):
    """What was given makes no key that is the same at the next try. The text shows no part.

    Attributes:
        reason: the stable code.
    """

    def __init__(self, reason: KeyRefusal, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[type[KeyRefused], tuple[KeyRefusal, str]]:
        # Engines store the error of a step as a pickle.
        return type(self), (self.reason, str(self))


def from_steps(*segments: Segment) -> str:
    """Return the operation key of these parts, from the general to the particular.

    `from_steps("order", 42, "charge")` is `order:42:charge`. One part at least has to be a name,
    that is, hold a letter and be no UUID.

    Raises:
        KeyRefused: fewer than two parts, no name among them, or one that is empty, too long, a
            time, a fraction, the number of a try, or no text at all.
    """
    if len(segments) < 2:
        raise KeyRefused(
            KeyRefusal.TOO_FEW,
            "A key needs two parts at least: what it is about, and what is done to it.",
        )
    texts = [_text(segment, number) for number, segment in enumerate(segments, start=1)]
    if not any(is_name(text) for text in texts):
        raise KeyRefused(
            KeyRefusal.NO_NAME, "No part of the key is a name: say what is done, as in charge."
        )
    return check_operation_key(_shortened(_SEPARATOR.join(map(_escaped, texts))))


def is_name(text: str) -> bool:
    """Whether it can be the name of something, and is no bare number or UUID."""
    return bool(_LETTER.search(text)) and not _UUID.fullmatch(text)


def named_step(step: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """Return the caller's name of a step if it begins with a name.

    Raises:
        KeyRefused: there is none, or its first part is a number or a UUID.
    """
    if not step:
        raise KeyRefused(KeyRefusal.NO_NAME, "The step needs a name that you choose, as in charge.")
    first = step[0]
    if not isinstance(first, str) or (first and not is_name(first)):
        raise KeyRefused(
            KeyRefusal.NO_NAME,
            "The step begins with a number or an id: begin with what is done, as in charge.",
        )
    return step


def refuse_values(parts: Iterable[object], changing: dict[str, object]) -> None:
    """Refuse a part that is, or holds, a value that is another one at the next try.

    Args:
        changing: what the framework calls it, to its value now; None and short ones are no ids.

    Raises:
        KeyRefused: names what it is, never its value.
    """
    for number, part in enumerate(parts, start=1):
        for name, value in changing.items():
            # Shorter values occur in honest names by chance.
            if value is not None and len(str(value)) >= 8 and str(value) in str(part):
                raise KeyRefused(
                    KeyRefusal.CHANGES,
                    f"Part {number} holds {name}, which is another one when this is tried again.",
                )


def required(value: str | None, missing: str) -> str:
    """Return the framework's id; refuse where there is none. `missing` says what to do.

    Raises:
        KeyRefused.
    """
    if not value:
        raise KeyRefused(KeyRefusal.NO_ID, missing)
    return value


def _text(segment: object, number: int) -> str:
    """The part as text; `number` counts from 1."""
    if isinstance(segment, date | time | timedelta | float):
        raise KeyRefused(
            KeyRefusal.TIME,
            f"Part {number} is a time or a fraction: the next try has another one. A date that "
            "belongs to the intent is given as text, as in 2026-11.",
        )
    if isinstance(segment, UUID):
        return str(segment)
    if isinstance(segment, int) and not isinstance(segment, bool):
        if segment.bit_length() > 256:
            raise KeyRefused(KeyRefusal.TOO_LONG, f"Part {number} is too long a number for an id.")
        return str(int(segment))
    if not isinstance(segment, str):
        raise KeyRefused(
            KeyRefusal.NOT_A_PART,
            f"Part {number} is of type {type(segment).__name__}: a part is text, a whole number "
            "or a UUID.",
        )
    return _checked(segment, number)


def _checked(text: str, number: int) -> str:
    if not text:
        raise KeyRefused(KeyRefusal.EMPTY, f"Part {number} is empty.")
    if len(text) > SEGMENT_CHARS_MAX:
        raise KeyRefused(
            KeyRefusal.TOO_LONG,
            f"Part {number} is longer than {SEGMENT_CHARS_MAX} characters: it is no name.",
        )
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise KeyRefused(KeyRefusal.NOT_UNICODE, f"Part {number} holds half a character.")
    if _NUMBERED_TRY.fullmatch(text):
        raise KeyRefused(
            KeyRefusal.ATTEMPT,
            f"Part {number} is the number of a try, so every try would be a new intent. A second "
            "one that is meant has a name of its own, as in reminder and 2.",
        )
    # A subclass may answer differently when it is formatted; its characters are what was checked.
    return str.__str__(text)


def _escaped(text: str) -> str:
    return "".join(
        character if character in _AS_THEY_ARE else _percent(character) for character in text
    )


def _percent(character: str) -> str:
    return "".join(f"{_ESCAPE}{byte:02X}" for byte in character.encode("utf-8"))


def _shortened(key: str) -> str:
    if len(key) <= OPERATION_KEY_CHARS_MAX:
        return key
    return key[:_READABLE_CHARS_MAX] + _HASH_SIGN + sha256(key.encode("ascii")).hexdigest()
