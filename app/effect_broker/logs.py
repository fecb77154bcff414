"""How a process logs: lines on standard error with UTC times, and never the text of an error.

The texts of foreign exceptions hold SQL, URLs, headers and arguments, so a record that brings an
exception along is printed with its type and frames only. Libraries are heard from warnings on,
whatever our own level is: at DEBUG some of them print headers, and with them credentials.
"""

from __future__ import annotations

import logging
import sys
import traceback
from datetime import UTC, datetime
from types import TracebackType
from typing import Final

from effect_broker.config import ConfigurationProblem

_OURS: Final = ("effect_broker", "effect_adapters", "effect_contracts")
_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class _Lines(logging.Formatter):
    """`2026-11-29T12:00:00.123Z WARNING effect_broker.worker: text`."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def formatException(
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None]
        | tuple[None, None, None],
    ) -> str:
        kind, _, trace = ei
        frames = "".join(traceback.format_tb(trace))
        return f"{kind.__name__ if kind else 'no exception'}\n{frames}".rstrip()


def configure(level: str) -> None:
    """Set up the logging of this process; may be called again.

    Raises:
        ConfigurationProblem: there is no such level.
    """
    chosen = level.upper()
    if chosen not in _LEVELS:
        raise ConfigurationProblem(f"EFFECT_BROKER_LOG_LEVEL: use one of {', '.join(_LEVELS)}")
    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(_Lines("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[output], force=True)
    for name in _OURS:
        logging.getLogger(name).setLevel(chosen)
