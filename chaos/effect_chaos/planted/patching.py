"""Replacing functions of the product by others that do wrong, for the life of this process.

A bug can be on for good, or only while a file names it: so that one process can have every bug,
one after the other, and need not be started for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

ENV_BUG_FILE = "EFFECT_CHAOS_BUG_FILE"
CHOSEN = "chosen"
"""Stands for the name of a bug where the file names it."""

_ALWAYS: Callable[[], bool] = lambda: True  # noqa: E731
_on: Callable[[], bool] = _ALWAYS


@contextmanager
def only_while_chosen(bug: str, path: Path) -> Iterator[None]:
    """What is replaced inside the block does wrong only while the file holds the bug's name."""
    global _on
    _on = lambda: path.read_text() == bug  # noqa: E731
    try:
        yield
    finally:
        _on = _ALWAYS


def choose(path: Path, bug: str) -> None:
    """Let one bug, or by an empty name none, be on from now on."""
    new = path.with_suffix(".new")
    new.write_text(bug)
    new.replace(path)


def replaced(owner: object, name: str, make: Callable[[Any], Any]) -> None:
    """Put `make(original)` in the place of `owner.name`.

    Raises:
        AttributeError: the product has no such function any more, and the bug is gone with it.
    """
    original = getattr(owner, name)
    broken = make(original)
    on = _on

    @wraps(original)
    def chosen(*given: Any, **named: Any) -> Any:
        return (broken if on() else original)(*given, **named)

    setattr(owner, name, chosen)
