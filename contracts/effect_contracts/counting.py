"""How many of what, and how long, in words: the one place that knows of plurals and of units."""

from __future__ import annotations


def counted(number: int, one: str, several: str | None = None) -> str:
    """Return `1 request`, `2 requests`; `several` is the plural where it is not `one` and an s."""
    return f"{number} {one if number == 1 else several or one + 's'}"


def span(seconds: float) -> str:
    """Return how long, in the unit that a reader would choose; less than nothing is `0 s`."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0.0):.0f} s"
