"""How many of what, in words that agree: the one place that knows of plurals."""

from __future__ import annotations


def counted(number: int, one: str, several: str | None = None) -> str:
    """Return `1 request`, `2 requests`; `several` is the plural where it is not `one` and an s."""
    return f"{number} {one if number == 1 else several or one + 's'}"
