"""Owns the fault grammar: text such as ``commit;status(503)`` becomes a typed `Plan`, or a refusal.

A plan says what the target does with one request. It is a list of steps and one ending::

    plan    = [where ";"] step (";" step)*        at most one ending, and it comes last
    where   = "accept" | "early"                  cut before a byte is read | answer before the body
    step    = "commit" | "commit(n)"              apply the request (n items of a batch)
            | "delay(s)" | "slow(s)"              wait s seconds
            | "hold" | "hold(name)"               wait for a release
            | "gate" | "gate(name)"               commit, then hold: done, not yet answered
    ending  = "ok" | "FIN" | "RST" | "hang" | "hang(s)" | "status(code, body, headers)" | ...

The promises:

* Only ``commit``, ``gate`` and ``ok`` make an effect (and ``operation`` when it ends well); a plan
  of ``status(503)`` or ``empty(204)`` alone answers and does nothing. Without an ending, a plan
  ends with ``ok``.
* ``commit`` obeys the mode of the kind: under `dedupe` a known key makes no second effect.
* A body given as JSON object or list is sent as ``application/json``, a JSON string as it stands,
  and a bare word as ``{"error": word}``. `partial` and `operation` shape creates only.
* Anything unknown, misplaced or out of range raises `VerbError`, whose text says what is allowed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

SECONDS_MAX = 3600.0
"""Longest wait that a verb may name. A test that needs more has forgotten to release something."""
OVERSIZE_MEBIBYTES_MAX = 256
DRIP_PIECES_MAX = 10_000
ITEMS_MAX = 1000
PLAN_LENGTH_MAX = 20_000
"""Room for a whole scripted answer; a longer plan is a mistake, and refusals quote the plan."""

Value: TypeAlias = "str | int | float | bool | list[Value] | dict[str, Value] | None"


class Word(str):
    """An argument that was written without quotes."""

    __slots__ = ()


class VerbError(ValueError):
    """A plan that cannot be read; the text names the verb and says what is allowed."""


# -- steps ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Commit:
    """Apply the request now. `items` effects are made, for a batch that was delivered in part."""

    items: int = 1


@dataclass(frozen=True, slots=True)
class Delay:
    seconds: float


@dataclass(frozen=True, slots=True)
class Hold:
    """Wait until the control API releases this name."""

    name: str


Step: TypeAlias = Commit | Delay | Hold

# -- endings -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ok:
    """The honest answer. Applies the request if no step has done so."""


@dataclass(frozen=True, slots=True)
class Fin:
    """Close without an answer."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Abort the connection (SO_LINGER 0), so that the client sees ECONNRESET."""


@dataclass(frozen=True, slots=True)
class Hang:
    """Stay silent for so many seconds, or until released (`None`: only a release), then close."""

    seconds: float | None


@dataclass(frozen=True, slots=True)
class Status:
    code: int
    body: bytes
    headers: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Truncated:
    """Cut the answer. `length`: 10 of 50 declared bytes; `chunked`: no last chunk;

    `close`: neither length nor chunks, cut in mid-JSON, which HTTP cannot tell from a whole
    answer; `head`: cut in the status line.
    """

    how: Literal["length", "chunked", "close", "head"]


@dataclass(frozen=True, slots=True)
class Drip:
    """Send the answer slowly: `pieces` pieces of `size` bytes, `seconds` apart, then the rest."""

    size: int
    seconds: float
    pieces: int


@dataclass(frozen=True, slots=True)
class Redirect:
    code: int
    location: str


@dataclass(frozen=True, slots=True)
class Garbage:
    """Bytes that are no HTTP."""


@dataclass(frozen=True, slots=True)
class Partial:
    """207 with a result for each item; with `commit` one effect for each item that is ``ok``."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """202 and an operation to poll: `running` times "running", then the outcome.

    With `commit` the effect is there at once; else it comes with the outcome ``succeeded``.
    """

    outcome: Literal["succeeded", "failed", "404", "never"]
    running: int


@dataclass(frozen=True, slots=True)
class Oversize:
    mebibytes: int


@dataclass(frozen=True, slots=True)
class ContentType:
    """The honest answer under another content type; `body` replaces its bytes if given."""

    media_type: str
    body: bytes | None


_ENDINGS_OF_EARLY = Fin | Reset | Hang | Status | Redirect | Garbage
"""Endings that need nothing of the body."""

Ending: TypeAlias = (
    Ok
    | Fin
    | Reset
    | Hang
    | Status
    | Truncated
    | Drip
    | Redirect
    | Garbage
    | Partial
    | Operation
    | Oversize
    | ContentType
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What happens to one request. `where` says how much of it is read before anything else."""

    text: str
    where: Literal["accept", "head", "request"]
    steps: tuple[Step, ...]
    ending: Ending


HONEST = Plan(text="ok", where="request", steps=(), ending=Ok())
"""What happens when no script is queued."""

# -- reading -------------------------------------------------------------------------------------

_NAME = re.compile(r"[A-Za-z_]+")
_BARE = re.compile(r"[^,()\s;\"]+")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2: a field name
_DECODER = json.JSONDecoder()


def parse_plan(text: str) -> Plan:
    """Read one plan. Raises `VerbError`."""
    if len(text) > PLAN_LENGTH_MAX:
        raise VerbError(f"a plan has at most {PLAN_LENGTH_MAX} characters, not {len(text)}")
    calls = _read_calls(text)
    where: Literal["accept", "head", "request"] = "request"
    if calls[0][0] in ("accept", "early"):
        name, arguments = calls.pop(0)
        _takes(name, arguments, 0, 0)
        where = "accept" if name == "accept" else "head"
    steps: list[Step] = []
    ending: Ending | None = None
    for name, arguments in calls:
        if ending is not None:
            raise VerbError(f"{name!r} comes after the ending of {text!r}; an ending is last")
        if name in _STEPS:
            steps.extend(_STEPS[name](name, arguments))
        elif name in _ENDINGS:
            ending = _ENDINGS[name](name, arguments)
        else:
            raise VerbError(f"unknown verb {name!r}; known: {', '.join(known_verbs())}")
    return _checked(Plan(text, where, tuple(steps), ending if ending is not None else Ok()))


def known_verbs() -> tuple[str, ...]:
    """Every word of the grammar, as a refusal names them."""
    return ("accept", "early", *_STEPS, *_ENDINGS)


def _checked(plan: Plan) -> Plan:
    commits = any(isinstance(step, Commit) for step in plan.steps)
    if plan.where == "accept" and (plan.steps or not isinstance(plan.ending, Fin | Reset)):
        raise VerbError("after 'accept' nothing was read: only FIN or RST may follow")
    if plan.where == "head" and (commits or not isinstance(plan.ending, _ENDINGS_OF_EARLY)):
        raise VerbError("after 'early' the body is unread: nothing can be committed; name a status")
    return plan


def _read_calls(text: str) -> list[tuple[str, list[Value]]]:
    calls: list[tuple[str, list[Value]]] = []
    at = 0
    while True:
        at = _skip_space(text, at)
        found = _NAME.match(text, at)
        if found is None:
            raise VerbError(f"a verb is missing at position {at} of {text!r}")
        name, at = found.group(), _skip_space(text, found.end())
        arguments: list[Value] = []
        if at < len(text) and text[at] == "(":
            arguments, at = _read_arguments(text, at + 1)
        calls.append((name if name in ("FIN", "RST") else name.lower(), arguments))
        at = _skip_space(text, at)
        if at == len(text):
            return calls
        if text[at] != ";":
            raise VerbError(f"expected ';' at position {at} of {text!r}")
        at += 1


def _read_arguments(text: str, at: int) -> tuple[list[Value], int]:
    arguments: list[Value] = []
    at = _skip_space(text, at)
    if at < len(text) and text[at] == ")":
        return arguments, _skip_space(text, at + 1)
    while True:
        value, at = _read_value(text, _skip_space(text, at))
        arguments.append(value)
        at = _skip_space(text, at)
        if at < len(text) and text[at] == ")":
            return arguments, _skip_space(text, at + 1)
        if at >= len(text) or text[at] != ",":
            raise VerbError(f"expected ',' or ')' at position {at} of {text!r}")
        at += 1


def _read_value(text: str, at: int) -> tuple[Value, int]:
    """A JSON value, or a bare word up to the next comma or bracket."""
    if at < len(text) and text[at] in '{["-0123456789':
        try:
            value, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise VerbError(f"no JSON value at position {at} of {text!r}") from error
        if end == len(text) or text[end] in ",) ":
            return value, end
    found = _BARE.match(text, at)
    if found is None:
        raise VerbError(f"an argument is missing at position {at} of {text!r}")
    return Word(found.group()), found.end()


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


# -- one reader for each verb --------------------------------------------------------------------


def _takes(name: str, arguments: list[Value], least: int, most: int) -> None:
    if not least <= len(arguments) <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        raise VerbError(f"{name!r} takes {wanted} arguments, not {len(arguments)}")


def _seconds(name: str, value: Value) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise VerbError(f"{name!r} takes seconds as a number, not {value!r}")
    if not math.isfinite(value) or not 0 <= value <= SECONDS_MAX:
        raise VerbError(f"{name!r} takes 0 to {SECONDS_MAX:g} seconds, not {value!r}")
    return float(value)


def _whole(name: str, value: Value, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise VerbError(f"{name!r} takes a whole number from {least} to {most}, not {value!r}")
    return value


def _word(name: str, value: Value) -> str:
    if not isinstance(value, str) or not value:
        raise VerbError(f"{name!r} takes a word, not {value!r}")
    if not (value.isascii() and value.isprintable() and value == value.strip()):
        raise VerbError(f"{name!r} takes printable ASCII without spaces at its ends")
    return value


def _body(value: Value) -> tuple[bytes, str]:
    """The bytes and the media type of a body that a verb gives."""
    if isinstance(value, Word):
        value = {"error": value}
    elif isinstance(value, str):
        return value.encode("utf-8", "replace"), "text/plain; charset=utf-8"
    return json.dumps(value, separators=(",", ":")).encode(), "application/json"


def _commit(name: str, arguments: list[Value]) -> tuple[Step, ...]:
    _takes(name, arguments, 0, 1)
    return (Commit(_whole(name, arguments[0], 1, ITEMS_MAX) if arguments else 1),)


def _delay(name: str, arguments: list[Value]) -> tuple[Step, ...]:
    _takes(name, arguments, 1, 1)
    return (Delay(_seconds(name, arguments[0])),)


def _hold(name: str, arguments: list[Value]) -> tuple[Step, ...]:
    _takes(name, arguments, 0, 1)
    hold = Hold(_word(name, arguments[0]) if arguments else name)
    return (Commit(), hold) if name == "gate" else (hold,)


def _plain(make: Callable[[], Ending]) -> Callable[[str, list[Value]], Ending]:
    def read(name: str, arguments: list[Value]) -> Ending:
        _takes(name, arguments, 0, 0)
        return make()

    return read


def _hang(name: str, arguments: list[Value]) -> Ending:
    _takes(name, arguments, 0, 1)
    return Hang(_seconds(name, arguments[0]) if arguments else None)


def _status(name: str, arguments: list[Value]) -> Ending:
    _takes(name, arguments, 1, 3)
    code = _whole(name, arguments[0], 200, 599)
    default: Value = "" if code in (204, 304) else {"error": f"status_{code}"}
    body, media_type = _body(arguments[1] if len(arguments) > 1 else default)
    if body and code in (204, 304):
        raise VerbError(f"{name!r}: an answer {code} has no body (RFC 9110, 6.4.1)")
    headers: dict[str, str] = {"content-type": media_type} if body else {}
    if len(arguments) > 2:
        given = arguments[2]
        if not isinstance(given, Mapping):
            raise VerbError(f"{name!r} takes its headers as a JSON object of strings")
        for field, value in given.items():
            if _TOKEN.fullmatch(field) is None:
                raise VerbError(f"{name!r}: {field!r} is no header name")
            if field.lower() in ("content-length", "transfer-encoding"):
                raise VerbError(f"{name!r}: {field} is set by the target; use 'trunc' to cut")
            headers[field.lower()] = _word(name, str(value) if isinstance(value, int) else value)
    return Status(code, body, tuple(headers.items()))


def _empty(name: str, arguments: list[Value]) -> Ending:
    _takes(name, arguments, 0, 1)
    return Status(_whole(name, arguments[0], 200, 299) if arguments else 204, b"", ())


def _trunc(name: str, arguments: list[Value]) -> Ending:
    _takes(name, arguments, 0, 1)
    match arguments:
        case []:
            return Truncated("length")
        case ["length" | "chunked" | "close" | "head" as how]:
            return Truncated(how)
        case _:
            raise VerbError(f"{name!r} takes length, chunked, close or head")


def _drip(name: str, arguments: list[Value]) -> Ending:
    _takes(name, arguments, 3, 3)
    size = _whole(name, arguments[0], 1, 65536)
    return Drip(size, _seconds(name, arguments[1]), _whole(name, arguments[2], 1, DRIP_PIECES_MAX))


def _redirect(name: str, arguments: list[Value]) -> Ending:
    _takes(name, arguments, 2, 2)
    return Redirect(_whole(name, arguments[0], 300, 399), _word(name, arguments[1]))


def _partial(name: str, arguments: list[Value]) -> Ending:
    _takes(name, arguments, 1, ITEMS_MAX)
    items = tuple(_word(name, value) for value in arguments)
    if not set(items) <= {"ok", "fail"}:
        raise VerbError(f"{name!r} takes a list of ok and fail")
    return Partial(items)


def _operation(name: str, arguments: list[Value]) -> Ending:
    _takes(name, arguments, 1, 2)
    running = _whole(name, arguments[1], 0, 1000) if len(arguments) > 1 else 2
    match "404" if arguments[0] == 404 else arguments[0]:
        case "succeeded" | "failed" | "404" | "never" as outcome:
            return Operation(outcome, running)
        case _:
            raise VerbError(f"{name!r} takes succeeded, failed, 404 or never")


def _oversize(name: str, arguments: list[Value]) -> Ending:
    _takes(name, arguments, 1, 1)
    return Oversize(_whole(name, arguments[0], 1, OVERSIZE_MEBIBYTES_MAX))


def _content_type(name: str, arguments: list[Value]) -> Ending:
    _takes(name, arguments, 1, 2)
    media_type = _word(name, arguments[0])
    return ContentType(media_type, _body(arguments[1])[0] if len(arguments) > 1 else None)


_STEPS: Mapping[str, Callable[[str, list[Value]], tuple[Step, ...]]] = {
    "commit": _commit,
    "delay": _delay,
    "slow": _delay,
    "hold": _hold,
    "gate": _hold,
}
_ENDINGS: Mapping[str, Callable[[str, list[Value]], Ending]] = {
    "ok": _plain(Ok),
    "FIN": _plain(Fin),
    "RST": _plain(Reset),
    "hang": _hang,
    "status": _status,
    "empty": _empty,
    "trunc": _trunc,
    "drip": _drip,
    "redirect": _redirect,
    "garbage": _plain(Garbage),
    "partial": _partial,
    "operation": _operation,
    "oversize": _oversize,
    "type": _content_type,
}
