"""Owns the evidence folder of one run: what is written down about it, and how it is read back.

A folder holds what three parties say, each in a file of its own, and nothing that the broker has
stored for itself:

    run.json           seed, settings, and when the quiet began
    operations.jsonl   the workload: each operation, and what may legally become of it
    history.jsonl      the callers: each call, with its begin and end, and what was answered
    arrivals.jsonl     the target: each request that it received
    objects.jsonl      the target: each mutation that it applied
    rows.jsonl         the table of the transactional mutation

The promises: what is written can be read again and is equal; anything unknown, missing or of
another type is refused with file and line (`RecordInvalid`), so that a judgement never rests on
half a folder. Moments of `Run` and `Invocation`, and `Arrival.received_monotonic`, are seconds of
one CLOCK_MONOTONIC; `received_at` and `committed_at` are the target's wall clock.

An operation is recognised at the target by its `marker`: a word in its arguments that no other
operation has. The broker carries it and knows nothing of it, so that a request is told apart even
when its key, its other fields or its tenant are wrong.
"""

from __future__ import annotations

import hashlib
import json
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar

R = TypeVar("R")

RUN_FILE: Final = "run.json"
OPERATIONS_FILE: Final = "operations.jsonl"
HISTORY_FILE: Final = "history.jsonl"
ARRIVALS_FILE: Final = "arrivals.jsonl"
OBJECTS_FILE: Final = "objects.jsonl"
ROWS_FILE: Final = "rows.jsonl"

MARKER: Final = re.compile(r"\bmark[0-9a-f]{24}\b")
"""How an operation's marker looks, wherever it stands in a body."""


class RecordInvalid(Exception):
    """An evidence folder cannot be read; the text names the file, the line and the reason."""


class Safety(StrEnum):
    """The safety class of the operation's contract."""

    TRANSACTIONAL = "transactional"
    IDEMPOTENT = "idempotent"
    RECONCILABLE = "reconcilable"
    UNSAFE = "unsafe"


class Verb(StrEnum):
    """What a caller asked for."""

    SUBMIT = "submit"
    GET = "get"
    RECEIPT = "receipt"
    LIST = "list"
    CANCEL = "cancel"
    RECONCILE = "reconcile"
    RESOLVE = "resolve"


Setting = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Run:
    """One run. `quiet_began_at`: from then on no fault was injected; None if it never came."""

    seed: int
    seconds: float
    began_at: float
    quiet_began_at: float | None
    ended_at: float
    settings: Mapping[str, Setting] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operation:
    """One business intent of the workload, and what may legally become of it.

    `legal_states` are the final states that it may end in. `may_park`: it may also end without
    one, waiting for a person. `effects_most` is how many effects the target may hold for it in
    the end; `effects_least` how many it holds at least once it is `succeeded` (0 only where the
    target confirms what it drops). `duplicate_reported`: the target lies, so that more than
    `effects_most` effects may stand, but only if the broker says so in the end. `sends_key`: the
    contract sends the downstream key, so that every request has to carry it. `refusing_statuses`
    are the HTTP statuses that the contract lists as proof of no commit, with another try allowed.
    """

    tenant: str
    operation_key: str
    tool: str
    kind: str
    safety: Safety
    marker: str
    request_digest: str
    legal_states: tuple[str, ...] = ("succeeded",)
    effects_most: int = 1
    effects_least: int = 1
    may_park: bool = False
    duplicate_reported: bool = False
    sends_key: bool = True
    refusing_statuses: tuple[int, ...] = (429,)

    @property
    def name(self) -> str:
        """How verdicts name it."""
        return f"{self.tenant}/{self.operation_key}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What an answer of the broker showed. A member that it did not have is None.

    `receipt_digest` of a `RECEIPT` call is the digest that the receipt itself bears, `content`
    the SHA-256 of the receipt's content as it was read. `listed` are the (effect id, operation
    key) pairs of a listing, each as ``id operation_key``; `alerts` the codes of what the broker
    reports beside the state, such as ``duplicate_detected``.
    """

    status: int
    code: str | None = None
    effect_id: str | None = None
    operation_key: str | None = None
    state: str | None = None
    version: int | None = None
    final: bool | None = None
    waits_for_person: bool | None = None
    reason: str | None = None
    next_action_at: str | None = None
    receipt_digest: str | None = None
    external_id: str | None = None
    content: str | None = None
    listed: tuple[str, ...] = ()
    alerts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Invocation:
    """One call of one caller. `answer` is None if none came: the call may have been carried out.

    `operation_key` is what the caller had in mind, also where it asked by effect id;
    `request_digest` is the digest of the arguments that a submit sent.
    """

    n: int
    verb: Verb
    tenant: str
    operation_key: str
    began_at: float
    ended_at: float
    answer: Answer | None
    effect_id: str | None = None
    request_digest: str | None = None


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request in the target's ledger. `received`: whole enough to be acted upon.

    `text` is what a marker is looked for in: the body, and the query of a look-up. `plan` is what
    the target was told to do with it, in its grammar of faults (``ok``, ``commit;RST``).
    """

    n: int
    kind: str
    method: str
    path: str
    mutating: bool
    received: bool
    downstream_key: str | None
    correlation_key: str | None
    body_digest: str
    text: str
    plan: str
    received_monotonic: float
    received_at: float


@dataclass(frozen=True, slots=True)
class TargetObject:
    """One applied mutation in the target's ledger; `text` is its content."""

    n: int
    kind: str
    object_id: str
    name: str | None
    downstream_key: str | None
    correlation_key: str | None
    arrival_n: int
    item: int | None
    text: str
    committed_at: float


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row that the transactional mutation wrote; `text` holds its marker."""

    kind: str
    external_id: str
    downstream_key: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """A whole folder."""

    run: Run
    operations: tuple[Operation, ...]
    history: tuple[Invocation, ...]
    arrivals: tuple[Arrival, ...] = ()
    objects: tuple[TargetObject, ...] = ()
    rows: tuple[TableRow, ...] = ()


def marker_of(tenant: str, operation_key: str, salt: str = "") -> str:
    """Return the marker of an operation; `salt` tells runs on one target apart."""
    digest = hashlib.sha256(f"{salt}\0{tenant}\0{operation_key}".encode()).hexdigest()
    return f"mark{digest[:24]}"


def digest_of(arguments: Mapping[str, Any]) -> str:
    """Return the digest of a request's arguments, whatever the order of their members."""
    text = json.dumps(arguments, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


# -- writing -------------------------------------------------------------------------------------


def write(folder: Path, evidence: Evidence) -> None:
    """Write a whole folder; files of an earlier writing are replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    write_run(folder, evidence.run)
    write_lines(folder / OPERATIONS_FILE, evidence.operations)
    write_lines(folder / HISTORY_FILE, evidence.history)
    write_lines(folder / ARRIVALS_FILE, evidence.arrivals)
    write_lines(folder / OBJECTS_FILE, evidence.objects)
    write_lines(folder / ROWS_FILE, evidence.rows)


def write_run(folder: Path, run: Run) -> None:
    """Write `run.json`."""
    (folder / RUN_FILE).write_text(json.dumps(asdict(run), indent=1) + "\n")


def write_lines(path: Path, records: Iterable[Any]) -> None:
    """Write one file of the folder."""
    path.write_text("".join(line(record) for record in records))


def line(record: Any) -> str:
    """Return one record as a line, for a file that grows while the run goes on."""
    return json.dumps(asdict(record), separators=(",", ":"), ensure_ascii=True) + "\n"


# -- reading -------------------------------------------------------------------------------------


def read(folder: Path) -> Evidence:
    """Read a whole folder.

    Raises:
        RecordInvalid.
    """
    return Evidence(
        run=_decoded(Run, _json(_text(folder / RUN_FILE), RUN_FILE), RUN_FILE),
        operations=tuple(_records(folder / OPERATIONS_FILE, Operation)),
        history=tuple(_records(folder / HISTORY_FILE, Invocation)),
        arrivals=tuple(_records(folder / ARRIVALS_FILE, Arrival)),
        objects=tuple(_records(folder / OBJECTS_FILE, TargetObject)),
        rows=tuple(_records(folder / ROWS_FILE, TableRow)),
    )


def _records(path: Path, kind: type[R]) -> Iterator[R]:
    text = _text(path)
    if text and not text.endswith("\n"):
        raise RecordInvalid(f"{path.name}: the last line has no end; the writer was cut off")
    for number, written in enumerate(text.splitlines(), 1):
        where = f"{path.name}:{number}"
        yield _decoded(kind, _json(written, where), where)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise RecordInvalid(f"{path}: {error}") from error


def _json(text: str, where: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_members)
    except ValueError as error:
        raise RecordInvalid(f"{where}: {error}") from error


def _members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member is there twice")
    return members


def _decoded(kind: type[R], value: object, where: str) -> R:
    if not isinstance(value, dict):
        raise RecordInvalid(f"{where}: {kind.__name__} is an object")
    assert is_dataclass(kind)
    hints = typing.get_type_hints(kind)
    names = [member.name for member in fields(kind)]
    if set(value) != set(names):
        differing = ", ".join(sorted(set(value) ^ set(names)))
        raise RecordInvalid(f"{where}: {kind.__name__} has missing or unknown members: {differing}")
    made = {name: _value(hints[name], value[name], f"{where}: {name}") for name in names}
    return typing.cast(R, kind(**made))


def _value(hint: Any, value: object, where: str) -> object:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        members = [member for member in arguments if member is not type(None)]
        if len(members) == 1:
            return _value(members[0], value, where)
        if type(value) in members:
            return value
    elif origin is tuple:
        if isinstance(value, list):
            return tuple(_value(arguments[0], item, where) for item in value)
    elif origin is Mapping:
        if isinstance(value, dict):
            return {name: _value(arguments[1], item, where) for name, item in value.items()}
    elif is_dataclass(hint):
        return _decoded(typing.cast(type[Any], hint), value, where)
    elif issubclass(hint, StrEnum):
        if isinstance(value, str) and value in set(hint):
            return hint(value)
    elif type(value) is hint:
        return value
    elif hint is float and type(value) is int:
        return float(value)
    raise RecordInvalid(f"{where}: {value!r} is no {getattr(hint, '__name__', hint)}")
