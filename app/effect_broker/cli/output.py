"""How commands speak: tables for people, JSON for programs, one line for what went wrong."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, NoReturn

import typer
from rich.console import Console
from rich.table import Table

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

# Nothing was learned, because something is missing on this side; 1 would say that it was.
EXIT_COULD_NOT_RUN: Final = 4

# What is copied into the next command: the id of an effect, of one of its events, of a hold.
_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(\.[0-9]+(\.[0-9a-f]{8})?)?")
# Folded to less than this, a column cannot be read any more.
_FOLDED_CHARS: Final = 12
# Of a table's frame: beside each column, and once.
_FRAME_OF_COLUMN, _FRAME = 3, 1


def complain(text: str, code: int = 1) -> NoReturn:
    """Print one line to standard error and end."""
    print(f"effect-broker: {text}", file=sys.stderr)
    raise SystemExit(code)


def print_json(value: Any) -> None:
    """Print one JSON document, readable and stable."""
    print(json.dumps(value, indent=2, sort_keys=False, default=str))


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    first_to_go: Sequence[str] = (),
) -> None:
    """Print a table; cells are plain text, so that no stored text can style the terminal.

    A column of ids is never folded, so that an id can be copied. Where the terminal is too narrow,
    whole columns are left out: those of `first_to_go`, then from the right, and ids last.
    """
    cells = [[_plain(cell) for cell in row] for row in rows]
    out = console()
    ids = {index for index in range(len(columns)) if _is_of_ids([row[index] for row in cells])}
    shown = _fitting(columns, cells, ids, first_to_go, out.width) if ids else range(len(columns))
    gone = [name for index, name in enumerate(columns) if index not in shown]
    table = Table(
        title=title,
        title_justify="left",
        header_style="bold",
        caption=f"no room for: {', '.join(gone)} (--json has all)" if gone else None,
        caption_justify="left",
    )
    for index in shown:
        table.add_column(columns[index], overflow="fold", no_wrap=index in ids)
    for row in cells:
        table.add_row(*(row[index] for index in shown))
    out.print(table)


def print_line(text: str) -> None:
    """Print a line to copy: however long, it is not broken."""
    print(_plain(text))


def tell_progress(text: str) -> None:
    """Say how far it is: on a terminal in one line that the next replaces, else in whole lines."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
    else:
        print(text, file=sys.stderr, flush=True)


def end_progress() -> None:
    """Leave the terminal's line to what follows."""
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def console() -> Console:
    """Return the console; wide enough for a table when the output is a file."""
    return Console(width=None if sys.stdout.isatty() else 160, markup=False, highlight=False)


def _is_of_ids(cells: Sequence[str]) -> bool:
    given = [cell for cell in cells if cell]
    return bool(given) and all(_ID.fullmatch(cell) for cell in given)


def _fitting(
    columns: Sequence[str],
    cells: Sequence[Sequence[str]],
    ids: set[int],
    first_to_go: Sequence[str],
    width: int,
) -> Sequence[int]:
    """Return the columns that can be read side by side."""

    def needs(index: int) -> int:
        longest = max(len(columns[index]), *(len(row[index]) for row in cells))
        return _FRAME_OF_COLUMN + (longest if index in ids else min(longest, _FOLDED_CHARS))

    order = [columns.index(name) for name in first_to_go]
    rest = [index for index in reversed(range(len(columns))) if index not in order]
    order += [index for index in rest if index not in ids]
    order += [index for index in rest if index in ids]
    shown = set(range(len(columns)))
    for index in order[:-1]:
        if _FRAME + sum(map(needs, shown)) <= width:
            break
        shown.discard(index)
    return sorted(shown)


def _plain(cell: object) -> str:
    text = "" if cell is None else str(cell)
    return "".join(c if c.isprintable() else "?" for c in text)
