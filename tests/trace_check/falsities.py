"""Other values for every place of an effect's account: well formed, and false."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from effect_contracts.canonical import canonical_bytes
from effect_contracts.facts import Alert, Conclusion, EffectState, EvidenceSource, Outcome, Verdict
from effect_contracts.life import LifeEvent
from effect_contracts.trace.kinds import EventKind

_HEX = re.compile(r"[0-9a-f]{64}")
_UUID = re.compile(r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}")
_WORDS: dict[str, type[StrEnum]] = {
    "state": EffectState,
    "from_state": EffectState,
    "to_state": EffectState,
    "outcome": Outcome,
    "verdict": Verdict,
    "source": EvidenceSource,
    "event": LifeEvent,
    "kind": EventKind,
    "alert": Alert,
    "conclusion": Conclusion,
}
_MOMENT = "2026-01-01T00:00:07.000001Z"
_DIGEST = "ab" * 32


def falsities(name: str, value: Any) -> Iterator[Any]:
    """Yield other values for a member of this name."""
    words = [str(word.value) for word in _WORDS.get(name, ())]
    if words and (value is None or value in words):
        yield from (word for word in words if word != value)
        return
    match value:
        case bool():
            yield not value
        case int() | float():
            yield value + 1
            yield value - 1
        case None:
            yield _instead_of_none(name)
        case []:
            yield ["sim_9"]
        case str() if name == "metadata":
            yield from _metadata(value)
        case str() if _is_moment(name):
            moment = datetime.fromisoformat(value)
            for shift in (timedelta(seconds=1), timedelta(hours=-1)):
                yield f"{moment + shift:%Y-%m-%dT%H:%M:%S.%fZ}"
        case str() if _HEX.fullmatch(value):
            yield _flipped(value)
        case str() if _UUID.fullmatch(value):
            yield _flipped(value)
        case str():
            yield f"{value}x"
            yield "x"
        case _:
            raise AssertionError(f"no falsity for {name}")


def _instead_of_none(name: str) -> Any:
    if _is_moment(name):
        return _MOMENT
    if name.endswith("_digest"):
        return _DIGEST
    return 7.0 if name.endswith("_seconds") else "x"


def _is_moment(name: str) -> bool:
    return name == "at" or name.endswith(("_at", "_before"))


def _flipped(text: str) -> str:
    return ("0" if text[0] != "0" else "1") + text[1:]


def _metadata(text: str) -> Iterator[str]:
    """Each member changed or dropped, one added; canonical, as the broker writes it."""
    members = json.loads(text)
    for name, value in members.items():
        for other in falsities(name, value):
            yield _canonical({**members, name: other})
        yield _canonical({n: v for n, v in members.items() if n != name})
    yield _canonical({**members, "note": "x"})
    yield text.replace("{", "{ ", 1)


def _canonical(value: Any) -> str:
    return canonical_bytes(value).decode()
