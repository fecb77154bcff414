"""Forgeries: a trace is taken apart, changed, and put together again as an attacker could.

Three levels of care: a line is only edited; its digest, and with it those of all that follow, are
made again; the events are chained again as well, and the intent's head with them. The first is
caught by the line, the second by the chain or a rule, the third by a rule or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any
from uuid import UUID

from effect_contracts.events import FIRST_PREVIOUS_DIGEST, Event, event_digest
from effect_contracts.trace import TraceReport, verify_lines
from effect_contracts.trace.log import line_digest

Line = dict[str, Any]
Forge = Callable[[Line], None]


def parsed(lines: Iterable[bytes]) -> list[Line]:
    """Return the lines without their digests."""
    return [
        {name: value for name, value in json.loads(line).items() if name != "digest"}
        for line in lines
    ]


def sealed(lines: Iterable[Line]) -> list[bytes]:
    """Return the lines with digests that fit."""
    previous, written = b"", []
    for line in lines:
        body = json.dumps(line, separators=(",", ":"), ensure_ascii=False).encode()
        previous = line_digest(previous, body)
        written.append(b'{"digest":"%s",%s\n' % (previous, body[1:]))
    return written


def singles(lines: list[Line]) -> list[list[Line]]:
    """Return one trace for each effect: header, its contract, the effect, end."""
    contracts = {c["contract_digest"]: c for c in lines if c["type"] == "contract"}
    return [
        [lines[0], contracts[effect["intent"]["contract_digest"]], effect, end_of(effect)]
        for effect in lines
        if effect["type"] == "effect"
    ]


def end_of(effect: Line) -> Line:
    """The last line of a trace of one effect."""
    return {"type": "end", "contracts": 1, "effects": 1, "events": len(effect["events"])}


def judged(trace: list[Line], forge: Forge, *, rechain: bool) -> TraceReport:
    """Forge the effect of a trace of one; seal it again; return what the check says."""
    header, contract, effect, _ = trace
    forged = json.loads(json.dumps(effect))  # a copy, at a fifth of what `deepcopy` takes
    forge(forged)
    if rechain:
        rechained(forged)
    return verify_lines(sealed([header, contract, forged, end_of(forged)]), whole=True)


def renumbered(effect: Line) -> None:
    """Number the events from where they begin, and the intent with them."""
    first = effect["events"][0]["sequence"]
    for offset, event in enumerate(effect["events"]):
        event["sequence"] = first + offset
    effect["intent"]["version"] = effect["events"][-1]["sequence"]
    effect["intent"]["state"] = effect["events"][-1]["to_state"]
    effect["intent"]["reason"] = effect["events"][-1]["reason"]


def rechained(effect: Line) -> None:
    """Chain the events again, from the first one's predecessor on, and the intent's head."""
    intent, previous = effect["intent"], FIRST_PREVIOUS_DIGEST
    for position, event in enumerate(effect["events"]):
        if position == 0 and event["sequence"] != 1:
            previous = bytes.fromhex(event["previous_digest"])
        event["previous_digest"] = previous.hex()
        fields = {name: event[name] for name in _TEXT_FIELDS}
        previous = event_digest(
            previous,
            Event(
                tenant_id=UUID(intent["tenant_id"]),
                effect_id=UUID(intent["effect_id"]),
                at=datetime.fromisoformat(event["at"]),
                **fields,
            ),
        )
        event["digest"] = previous.hex()
    if effect["events"]:
        intent["event_digest"] = previous.hex()


_TEXT_FIELDS = (
    "sequence", "kind", "event", "from_state", "to_state", "reason", "actor", "metadata",
)  # fmt: skip


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of every value that holds no other."""
    children: Iterable[tuple[str | int, Any]]
    match value:
        case dict() if value:
            children = value.items()
        case list() if value:
            children = enumerate(value)
        case _:
            yield path
            return
    for name, child in children:
        yield from leaves(child, (*path, name))


def at(value: Any, path: tuple[str | int, ...]) -> Any:
    """Return what stands at a path."""
    for name in path:
        value = value[name]
    return value


def put(value: Any, path: tuple[str | int, ...], new: Any) -> None:
    """Put something at a path."""
    at(value, path[:-1])[path[-1]] = new
