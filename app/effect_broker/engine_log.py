"""What the engine's own log may say: one line for each thing, not too often, and no values.

The engine logs SQL, tracebacks and the server's details, in which values stand. Here each record is
cut to a sentence that names the error and its place, and a source line is heard once in a while.
"""

from __future__ import annotations

import logging
import re
from typing import Final

_LOG_LINE_MAX: Final = 300
_INTERVAL_SECONDS: Final = 5.0

# The innermost frame of a formatted traceback with what follows it: indented source, then the name
# of the error, and after that its text, which is not ours to show.
_FRAME: Final = re.compile(
    r'^  File "(?P<path>[^"\n]+)", line (?P<line>[0-9]+)[^\n]*\n(?:    [^\n]*\n)*'
    r"(?P<error>[A-Za-z_][\w.]*)(?=:|$)",
    re.MULTILINE,
)


def quiet_engine_log() -> None:
    """Send DBOS's log through ours, and not more often than a reader can use.

    During an outage it writes some fourteen lines a second and tracebacks with them.
    """
    logger = logging.getLogger("dbos")
    if not any(isinstance(f, _OncePerInterval) for f in logger.filters):
        logger.addFilter(_OncePerInterval(_INTERVAL_SECONDS))
        # DBOS adds a handler of its own, and stops propagation, where there is none.
        logger.addHandler(logging.NullHandler())


def _without_values(text: str) -> str:
    """What a text of DBOS's says in its first line; what follows holds SQL, frames and values.

    Where the first line ends in a traceback, the error's name and the innermost frame are kept,
    since else it would say that there was an error and no more.
    """
    head, _, rest = text.partition("\n")
    sentence, traced, _ = head.partition("Traceback (most recent call last):")
    if not traced:
        if head.rstrip().endswith(":") and rest.startswith("Traceback "):
            return _without_values(f"{head.rstrip()} {rest}")
        return head[:_LOG_LINE_MAX]
    said = sentence.rstrip(" :")
    if frames := list(_FRAME.finditer(rest)):
        innermost = frames[-1]
        file = innermost["path"].replace("\\", "/").rpartition("/")[2]
        said += f": {innermost['error']}, {file} line {innermost['line']}"
    return said[:_LOG_LINE_MAX]


class _OncePerInterval(logging.Filter):
    """Lets one record per source line and interval through, without values and traceback."""

    def __init__(self, interval_seconds: float) -> None:
        super().__init__()
        self._interval_seconds = interval_seconds
        self._last: dict[tuple[str, int], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        place = (record.pathname, record.lineno)
        last = self._last.get(place)
        if last is not None and record.created - last < self._interval_seconds:
            return False
        self._last[place] = record.created
        text = _without_values(record.getMessage())
        if record.exc_info and record.exc_info[0] is not None:
            text += f" ({record.exc_info[0].__name__})"
        record.msg = text
        record.args = None
        record.exc_info = None
        record.exc_text = None
        return True
