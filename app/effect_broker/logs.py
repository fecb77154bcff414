"""How a process logs: lines on standard error with UTC times, and never the text of an error.

In production a line is one JSON object with a stable name of the event
(`effect_broker.log_events`); in development it is for reading.

Nor more often than a reader can use: what a stranger or an outage can cause a thousand times a
second is written once in `SELDOM_SECONDS`, with the number of those that were left out.

The texts of foreign exceptions hold SQL, URLs, headers and arguments, so a record that brings an
exception along is printed with its type and frames only. Libraries are heard from warnings on,
whatever our own level is: at DEBUG some of them print headers, and with them credentials.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final

from opentelemetry import trace

from effect_broker.config import ConfigurationProblem

_OURS: Final = ("effect_broker", "effect_adapters", "effect_contracts")
_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


# A person who reads along misses nothing, and a day of it is a megabyte or two.
SELDOM_SECONDS: Final = 5.0
# What a client, or an outage of somebody else, can make to speak.
_SELDOM: Final = ("asyncio", "uvicorn.error", "effect_broker.api", "opentelemetry", "psycopg")
_PLACES_MAX: Final = 1000


class _Seldom(logging.Filter):
    """Lets one record of each place through in each interval.

    The place of a library's record is its line. Our own are told apart by their text too, since
    one line of ours says all that can be wrong with a store; those that say so of themselves, by
    the word that they give for it.
    """

    def __init__(self, interval_seconds: float = SELDOM_SECONDS) -> None:
        super().__init__()
        self._interval_seconds = interval_seconds
        self._seen: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        word: str | None = getattr(record, "seldom", None)
        if word is None and not record.name.startswith(_SELDOM):
            return True
        if word is None:
            word = record.getMessage() if record.name.startswith(_OURS) else ""
        place = (record.pathname, record.lineno, word)
        last, left_out = self._seen.get(place, (-self._interval_seconds, 0))
        if 0 <= record.created - last < self._interval_seconds:
            self._seen[place] = (last, left_out + 1)
            return False
        if len(self._seen) >= _PLACES_MAX:
            self._seen.clear()
        self._seen[place] = (record.created, 0)
        if left_out:
            record.msg = f"{record.getMessage()} (and {left_out} more like this before)"
            record.args = None
            record.left_out = left_out
        return True


class _Lines(logging.Formatter):
    """`2026-11-29T12:00:00.123Z WARNING effect_broker.worker: text`."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return _moment(record)

    def formatException(
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None]
        | tuple[None, None, None],
    ) -> str:
        kind, frames = _kind_and_frames(ei)
        return f"{kind}\n{frames}".rstrip()


class _Objects(logging.Formatter):
    """One JSON object in a line. Members of our own stand before what a record brings along."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "at": _moment(record),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", _event_of_others(record.name)),
            "logger": record.name,
            "message": record.getMessage(),
        }
        span = trace.get_current_span().get_span_context()
        if span.is_valid:
            told["trace_id"] = trace.format_trace_id(span.trace_id)
            told["span_id"] = trace.format_span_id(span.span_id)
        if record.exc_info:
            kind, frames = _kind_and_frames(record.exc_info)
            told["exception"] = {"kind": kind, "frames": frames}
        if left_out := getattr(record, "left_out", 0):
            told["left_out"] = left_out
        fields: dict[str, Any] = getattr(record, "fields", {})
        return json.dumps(fields | told, ensure_ascii=False, default=str)


def _moment(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _kind_and_frames(
    info: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
) -> tuple[str, str]:
    kind, _, where = info
    return kind.__name__ if kind else "no exception", "".join(traceback.format_tb(where))


def _event_of_others(logger: str) -> str:
    """Libraries know no names of ours; where they come from is one."""
    return f"log_of_{logger.partition('.')[0]}"


def configure(level: str, *, as_json: bool = False) -> None:
    """Set up the logging of this process; may be called again.

    Raises:
        ConfigurationProblem: there is no such level.
    """
    chosen = level.upper()
    if chosen not in _LEVELS:
        raise ConfigurationProblem(f"EFFECT_BROKER_LOG_LEVEL: use one of {', '.join(_LEVELS)}")
    output = logging.StreamHandler(sys.stderr)
    lines = _Lines("%(asctime)s %(levelname)s %(name)s: %(message)s")
    output.setFormatter(_Objects() if as_json else lines)
    output.addFilter(_Seldom())
    logging.basicConfig(level=logging.WARNING, handlers=[output], force=True)
    for name in _OURS:
        logging.getLogger(name).setLevel(chosen)
