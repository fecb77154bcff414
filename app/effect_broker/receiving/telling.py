"""What is logged of requests under a key that came to no result: kinds and places, and no texts.

The texts of exceptions may hold what was sent, or a password. What the application has raised is
raised to the server as well, which does with it what it does with every other exception; this line
is there also where the server says nothing. The logger is `effect_broker.receiving`.
"""

from __future__ import annotations

import logging
import traceback
from typing import Final

from effect_broker.log_events import event

_log = logging.getLogger("effect_broker.receiving")

# A longer chain of causes tells nothing more.
_KINDS_MAX: Final = 5


def told_failure(error: BaseException | None, *, not_done: bool, what: str) -> None:
    """Log that work under a key has no result.

    Args:
        not_done: it is known that nothing was changed.
        what: a sentence of ours. Of the error only its kinds and its place are logged.
    """
    kind = None if error is None else kinds(error)
    where = None if error is None else place(error)
    _log.error(
        "%s (%s): %s at %s",
        what,
        "nothing was changed" if not_done else "it is not known what was changed",
        kind or "no exception",
        where or "no place",
        extra=event("keyed_request_failed", not_done=not_done, kind=kind, place=where),
    )


def told_unavailable(error: BaseException) -> None:
    """Log why the keys cannot be read; the request is answered that it may come again."""
    kind = kinds(error)
    _log.error(
        "the store of idempotency keys cannot be used: %s",
        kind,
        extra=event("key_store_unavailable", kind=kind, seldom=kind),
    )


def kinds(error: BaseException) -> str:
    """Return the kinds of an exception and of its causes, the first cause last, with SQL states."""
    found, seen = [], error
    while True:
        state = getattr(seen, "sqlstate", None)
        found.append(type(seen).__name__ + (f" {state}" if state else ""))
        cause = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
        if cause is None or cause in (error, seen) or len(found) > _KINDS_MAX:
            return " from ".join(found)
        seen = cause


def place(error: BaseException) -> str | None:
    """Return where it was raised: file, line and function, the innermost of the application."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else None
