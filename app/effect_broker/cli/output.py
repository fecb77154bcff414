"""How commands speak: tables for people, JSON for programs, one line for what went wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def complain(text: str, code: int = 1) -> NoReturn:
    """Print one line to standard error and end."""
    print(f"effect-broker: {text}", file=sys.stderr)
    raise SystemExit(code)


def print_json(value: Any) -> None:
    """Print one JSON document, readable and stable."""
    print(json.dumps(value, indent=2, sort_keys=False, default=str))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; cells are plain text, so that no stored text can style the terminal."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(_plain(cell) for cell in row))
    console().print(table)


def console() -> Console:
    """Return the console; wide enough for a table when the output is a file."""
    return Console(width=None if sys.stdout.isatty() else 160, markup=False, highlight=False)


def _plain(cell: object) -> str:
    text = "" if cell is None else str(cell)
    return "".join(c if c.isprintable() else "?" for c in text)
