"""The canonical form of a payload: this file owns what is accepted, how it is written, its hash.

Every payload, from the wire (`parse_strict`) or from Python (`check_value`), becomes one checked
value, or an `InvalidPayload` that names a reason and a place and never the value. A checked value
is written by RFC 8785 (library `rfc8785`; where no number and no name needs its rules, the JSON
encoder of Python, which then writes the same), and these hold, each with a test:

- Two payloads share a hash if, and only if, they are equal as JSON: order of members aside, with
  numbers compared by value (`1`, `1.0` and `1e0` are equal; `true`, `1` and `"1"` are not).
- The canonical text is accepted by `parse_strict` again and yields the same value.
- A checked value shares nothing with what it was made from: a later change there is not seen.
- `canonical_bytes` of a checked value never fails.

Numbers. RFC 8785 writes doubles, so a number that a double cannot hold would silently share the
hash of its neighbour. Therefore a number is refused if its value lies beyond ±(2^53-1), however
it is spelt (`9007199254740993`, `1e20`, `1.5e300`, `1e400`: all doubles of that size are whole
numbers, and RFC 8785 would write them as such), and a literal is refused if its exact value is
not the one that its canonical form denotes (`0.10000000000000001`, `1e-400`). Both are to be sent
as strings. Whole numbers become `int`, also `1.0` and `-0`.

Text. Strings are compared by code point, without Unicode normalisation: NFC and NFD are two
values. Lone surrogates and U+0000 are refused (UTF-8 and Postgres cannot hold them);
noncharacters such as U+FFFE are kept.

The limits hold for the raw body and for the canonical text alike, and bound the work before it is
done: depth is measured before anything recurses, size before anything is copied.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from hashlib import sha256
from math import isfinite
from typing import Final, NoReturn, TypeAlias

import rfc8785

from effect_contracts.errors import InvalidPayload, PayloadReason, json_pointer

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
JsonObject: TypeAlias = dict[str, JsonValue]

# design, section 5: nesting over 64 and bodies over 256 KiB are refused. A level is an object or
# an array; a scalar has none.
DEPTH_MAX: Final = 64
BODY_BYTES_MAX: Final = 256 * 1024

# RFC 7493 (I-JSON), section 2.2: the whole numbers that a double holds without a neighbour
# falling on them.
INTEGER_MAX: Final = 2**53 - 1

# "-9007199254740991": JSON allows no leading zeros, so whatever is longer lies outside, and is
# never handed to int(), which refuses 5,000 digits with an error of its own.
_INTEGER_CHARS_MAX: Final = 17

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_WHITE_SPACE: Final = re.compile(r"[ \t\n\r]*")
_ESCAPED: Final = re.compile(r'[\x00-\x1f"\\]')
_SHORT_ESCAPES: Final = frozenset('"\\\b\f\n\r\t')  # two characters; the others are \u00xx

_write_plain: Final = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, sort_keys=True, separators=(",", ":")
).encode

# One match per bracket and per string. The string part takes an unterminated string to the end
# and never gives back, so that no input is scanned twice.
_BRACKET_OR_STRING: Final = re.compile(rb'[\[\]{}]|"(?:[^"\\]++|\\.?)*+"?', re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Refused:
    """Stands in the parsed tree where a value was refused, until the walk knows its pointer."""

    reason: PayloadReason
    member: str | None = None


def parse_strict(
    raw: bytes, *, bytes_max: int = BODY_BYTES_MAX, depth_max: int = DEPTH_MAX
) -> JsonValue:
    """Return the checked value of a raw JSON body.

    Raises `InvalidPayload` for everything that RFC 8259 or the head of this module refuses. Costs
    time linear in the length of `raw`, and nothing beyond `bytes_max`.
    """
    text = _decoded(raw, bytes_max)
    _refuse_deep(raw, depth_max)
    begin = _after_white_space(text, 0)
    if begin == len(text):
        raise InvalidPayload(PayloadReason.EMPTY, offset_bytes=len(raw))
    try:
        tree, end = _DECODER.raw_decode(text, begin)
    except json.JSONDecodeError as error:
        position = error.pos
    else:
        end = _after_white_space(text, end)
        if end != len(text):
            raise InvalidPayload(PayloadReason.TRAILING_TEXT, offset_bytes=_offset(text, end))
        return check_value(tree, bytes_max=bytes_max, depth_max=depth_max)
    # Out of the except block on purpose: the decoder's error carries the whole document, and
    # would ride along as the context of ours.
    raise InvalidPayload(PayloadReason.SYNTAX, offset_bytes=_offset(text, position))


def check_value(
    value: object, *, bytes_max: int = BODY_BYTES_MAX, depth_max: int = DEPTH_MAX
) -> JsonValue:
    """Return the checked copy of a Python value.

    Only `None`, `bool`, `int`, `float`, `str`, `list` and `dict` themselves have a declared JSON
    form: subclasses (enumerations, ordered and default dicts), tuples, sets, bytes, decimals and
    dates are refused. `bytes_max` bounds the canonical text. Raises `InvalidPayload`.
    """
    return _Walk(bytes_max, depth_max).checked(value)


def canonical_bytes(
    value: object, *, bytes_max: int = BODY_BYTES_MAX, depth_max: int = DEPTH_MAX
) -> bytes:
    """Return the RFC 8785 text of `value`, which is checked first. Raises `InvalidPayload`."""
    walk = _Walk(bytes_max, depth_max)
    return _written(walk.checked(value), walk.plain)


def digest(value: object, *, bytes_max: int = BODY_BYTES_MAX, depth_max: int = DEPTH_MAX) -> bytes:
    """Return the SHA-256 (32 bytes) of the canonical text. Raises `InvalidPayload`."""
    return sha256(canonical_bytes(value, bytes_max=bytes_max, depth_max=depth_max)).digest()


def request_hash(tool: str, arguments: object, contract_name: str, contract_version: str) -> bytes:
    """Return SHA-256(JCS({tool, arguments, contract_name, contract_version})), 32 bytes.

    design, section 5. The limits hold for the arguments alone, so that the same arguments are
    accepted whatever the names around them. Raises `InvalidPayload`, with pointers into the
    request (`/arguments/...`), also if the arguments are no object.
    """
    walk = _Walk(BODY_BYTES_MAX, DEPTH_MAX)
    walk.path.append("arguments")
    checked = walk.checked(arguments)
    if not isinstance(checked, dict):
        raise InvalidPayload(PayloadReason.NOT_AN_OBJECT, field="/arguments")
    names: JsonObject = {
        "tool": tool,
        "contract_name": contract_name,
        "contract_version": contract_version,
    }
    request = check_value(names)
    assert isinstance(request, dict)
    request["arguments"] = checked
    return sha256(_written(request, walk.plain)).digest()


def _written(checked: JsonValue, plain: bool) -> bytes:
    """Return the RFC 8785 text of a checked value; `plain` as in `_Walk`.

    RFC 8785 differs from plain JSON, as Python writes it without spaces, in the form of fractions
    and in the order of names beyond the first plane. The library walks the value in Python and
    takes ten times as long, which every effect would pay a dozen times.
    """
    return _write_plain(checked).encode() if plain else rfc8785.dumps(checked)


def first_difference(left: JsonValue, right: JsonValue) -> str | None:
    """Return the JSON Pointer of the first place where two checked values differ, or None.

    First is meant in canonical order: members as RFC 8785 sorts them, elements by index. A member
    that only one side has, and the first element beyond the shorter array, are differences at
    their own pointer. The whole value is "". The pointer may be cut, see `json_pointer`.
    """
    tokens = _difference(left, right)
    return None if tokens is None else json_pointer(reversed(tokens))


def _difference(left: JsonValue, right: JsonValue) -> list[str | int] | None:
    """The tokens of the first difference, innermost first."""
    if isinstance(left, dict) and isinstance(right, dict):
        for name in sorted(left.keys() | right.keys(), key=_utf16):
            if name not in left or name not in right:
                return [name]
            inner = _difference(left[name], right[name])
            if inner is not None:
                inner.append(name)
                return inner
        return None
    if isinstance(left, list) and isinstance(right, list):
        for index, pair in enumerate(zip(left, right, strict=False)):
            inner = _difference(*pair)
            if inner is not None:
                inner.append(index)
                return inner
        return None if len(left) == len(right) else [min(len(left), len(right))]
    return None if _kind(left) is _kind(right) and left == right else []


def _kind(value: JsonValue) -> type:
    """The JSON type: int and float are one, bool is not a number."""
    return int if type(value) is float else type(value)


def _utf16(name: str) -> bytes:
    """The sort key of RFC 8785, section 3.2.3: UTF-16 code units."""
    return name.encode("utf-16-be")


class _Walk:
    """One pass over a value that checks it, copies it and counts its canonical bytes.

    `plain` until a fraction or a name outside of ASCII is met.
    """

    __slots__ = ("bytes_left", "bytes_max", "depth_max", "path", "plain")

    def __init__(self, bytes_max: int, depth_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_left = bytes_max
        self.depth_max = depth_max
        self.path: list[str | int] = []
        self.plain = True

    def checked(self, value: object) -> JsonValue:
        return self._value(value, 0)

    def _value(self, value: object, depth: int) -> JsonValue:
        # Exact types on purpose: a subclass may write, compare or iterate as it likes.
        if type(value) is str:
            self._spend(self._text_bytes(value))
            return value
        if type(value) is dict:
            return self._object(value, depth + 1)
        if type(value) is list:
            return self._array(value, depth + 1)
        if type(value) is int:
            return self._integer(value)
        if type(value) is float:
            return self._float(value)
        if value is None or value is True:
            self._spend(4)
            return value
        if value is False:
            self._spend(5)
            return value
        if isinstance(value, _Refused):
            self._refuse_marked(value)
        self._refuse(PayloadReason.TYPE_UNSUPPORTED)

    def _object(self, members: dict[object, object], depth: int) -> JsonObject:
        self._enter(depth, len(members))
        path = self.path
        copy: JsonObject = {}
        path.append("")
        for name, value in members.items():
            if type(name) is not str:
                path.pop()
                self._refuse(PayloadReason.NAME_NOT_TEXT)
            path[-1] = name
            if not name.isascii():
                self.plain = False
            self._spend(self._text_bytes(name) + 1)  # the colon
            copy[name] = self._value(value, depth)
        path.pop()
        return copy

    def _array(self, elements: list[object], depth: int) -> list[JsonValue]:
        self._enter(depth, len(elements))
        path = self.path
        copy: list[JsonValue] = []
        path.append(0)
        for index, value in enumerate(elements):
            path[-1] = index
            copy.append(self._value(value, depth))
        path.pop()
        return copy

    def _enter(self, depth: int, length: int) -> None:
        if depth > self.depth_max:
            self._refuse(PayloadReason.TOO_DEEP, self.depth_max)
        self._spend(2 + max(length - 1, 0))  # the brackets and the commas

    def _integer(self, number: int) -> int:
        if not -INTEGER_MAX <= number <= INTEGER_MAX:
            self._refuse(PayloadReason.NUMBER_RANGE)
        self._spend(len(str(number)))
        return number

    def _float(self, number: float) -> int | float:
        if not isfinite(number):
            self._refuse(PayloadReason.NUMBER_NOT_FINITE)
        if number.is_integer():
            return self._integer(int(number))
        self.plain = False
        self._spend(len(rfc8785.dumps(number)))
        return number

    def _text_bytes(self, text: str) -> int:
        """Return the canonical length of a string in bytes, quotes included."""
        if text.isascii() and text.isprintable():  # nearly all of them: only two need an escape
            return 2 + len(text) + text.count('"') + text.count("\\")
        if "\x00" in text:
            self._refuse(PayloadReason.NUL_CHARACTER)
        length = 2 + len(text)
        if not text.isascii():
            try:
                length = 2 + len(text.encode())
            except UnicodeEncodeError:
                length = 0
            if not length:  # out of the except block: its error carries the text
                self._refuse(PayloadReason.LONE_SURROGATE)
        if _ESCAPED.search(text):
            length += sum(1 if c in _SHORT_ESCAPES else 5 for c in _ESCAPED.findall(text))
        return length

    def _spend(self, count: int) -> None:
        # Counted before the value is copied, so that shared references ([x, x] nested 60 times
        # is a quintillion elements) end here and not in memory.
        self.bytes_left -= count
        if self.bytes_left < 0:
            self._refuse(PayloadReason.TOO_LARGE, self.bytes_max)

    def _refuse_marked(self, mark: _Refused) -> NoReturn:
        if mark.member is not None:
            self.path.append(mark.member)
        self._refuse(mark.reason)

    def _refuse(self, reason: PayloadReason, limit: int | None = None) -> NoReturn:
        raise InvalidPayload(reason, field=json_pointer(self.path), limit=limit)


def _decoded(raw: bytes, bytes_max: int) -> str:
    if len(raw) > bytes_max:
        raise InvalidPayload(PayloadReason.TOO_LARGE, limit=bytes_max)
    if raw.startswith(_BYTE_ORDER_MARK):
        raise InvalidPayload(PayloadReason.BYTE_ORDER_MARK, offset_bytes=0)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        offset = error.start
    raise InvalidPayload(PayloadReason.NOT_UTF8, offset_bytes=offset)


def _refuse_deep(raw: bytes, depth_max: int) -> None:
    """Measure the nesting before the decoder, which recurses, may see it."""
    if raw.count(b"[") + raw.count(b"{") <= depth_max:
        return  # also if all of them were nested
    depth = 0
    for token in _BRACKET_OR_STRING.finditer(raw):
        match token.group():
            case b"[" | b"{":
                depth += 1
                if depth > depth_max:
                    raise InvalidPayload(
                        PayloadReason.TOO_DEEP, offset_bytes=token.start(), limit=depth_max
                    )
            case b"]" | b"}":
                depth -= 1


def _after_white_space(text: str, begin: int) -> int:
    found = _WHITE_SPACE.match(text, begin)
    assert found is not None, "the pattern matches the empty text"
    return found.end()


def _offset(text: str, position: int) -> int:
    return len(text[:position].encode())


def _object_of(members: list[tuple[str, object]]) -> dict[str, object] | _Refused:
    together = dict(members)
    if len(together) == len(members):
        return together
    seen: set[str] = set()
    for name, _ in members:  # names are compared after unescaping: "\\u0061" repeats "a"
        if name in seen:
            break
        seen.add(name)
    return _Refused(PayloadReason.DUPLICATE_MEMBER, name)


def _integer_of(literal: str) -> int | _Refused:
    if len(literal) > _INTEGER_CHARS_MAX:
        return _Refused(PayloadReason.NUMBER_RANGE)
    return int(literal)


def _float_of(literal: str) -> float | _Refused:
    number = float(literal)
    if abs(number) > INTEGER_MAX:
        return _Refused(PayloadReason.NUMBER_RANGE)
    written = repr(number)
    if written == literal:
        return number
    try:
        if Decimal(literal) == Decimal(written):
            return number
    except InvalidOperation:
        pass  # an exponent of twenty digits: no double is meant
    return _Refused(PayloadReason.NUMBER_PRECISION)


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object_of,
    parse_int=_integer_of,
    parse_float=_float_of,
    parse_constant=float,  # NaN and infinities; the walk refuses them
)
