"""The statements that the broker really sends: pages that each touches, and how each is planned.

Pages come from pg_stat_statements, plans from auto_explain: both see every statement of every
session, those inside of functions and those of foreign keys too. So nothing is measured that the
broker does not do, and nothing is forgotten that it does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psycopg import Connection

_PLAN = re.compile(r"duration: [0-9.]+ ms  plan:\n((?:\t.*\n)+)")
_SETTINGS = {
    "session_preload_libraries": "auto_explain",
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_nested_statements": "on",
    "auto_explain.log_format": "json",
    "auto_explain.log_verbose": "on",  # names the statement as pg_stat_statements does
    "auto_explain.log_level": "log",
}


@dataclass(frozen=True, slots=True)
class Touched:
    """One statement over some work.

    Attributes:
        query_id: the server's name of it.
        text: as the server shows it, constants taken out.
        calls: how often it ran.
        pages: of tables and indexes that it has touched in all, cached or not, 8 kB each.
        top: it came from outside; else a function or a foreign key has run it.
    """

    query_id: int
    text: str
    calls: int
    pages: int
    top: bool

    @property
    def each(self) -> float:
        """Pages of one call."""
        return self.pages / self.calls


def begin_counting(connection: Connection[Any]) -> None:
    """Forget what was counted, and count those inside of functions too from now on."""
    connection.execute("ALTER SYSTEM SET pg_stat_statements.track = 'all'")
    connection.execute("SELECT pg_reload_conf()")
    connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
    connection.execute("SELECT pg_stat_statements_reset()")


def counted(connection: Connection[Any]) -> list[Touched]:
    """Return what was counted in this database, by the processes of the broker alone."""
    rows = connection.execute(
        "SELECT s.queryid, min(s.query), sum(s.calls)::bigint,"
        " sum(s.shared_blks_hit + s.shared_blks_read)::bigint, s.toplevel"
        " FROM pg_stat_statements AS s JOIN pg_roles AS r ON r.oid = s.userid"
        " WHERE s.dbid = (SELECT oid FROM pg_database WHERE datname = current_database())"
        " AND r.rolname LIKE 'effect\\_broker\\_%'"
        " GROUP BY s.queryid, s.toplevel ORDER BY 4 DESC"
    ).fetchall()
    return [Touched(*row) for row in rows]


def explain_all(connection: Connection[Any], on: bool) -> None:
    """Let every later session of the database write the plan of each statement into the log."""
    row = connection.execute("SELECT current_database()").fetchone()
    assert row is not None
    for name, value in _SETTINGS.items():
        change = f"SET {name} = '{value}'" if on else f"RESET {name}"
        connection.execute(f"ALTER DATABASE {row[0]} {change}".encode())


@dataclass(frozen=True, slots=True)
class Read:
    """What a plan reads.

    Attributes:
        text: of the statement.
        indexes: by name.
        tables: that it reads, by an index or not; not those that it only inserts into.
        whole: of these, those that it reads from end to end.
    """

    text: str
    indexes: frozenset[str]
    tables: frozenset[str]
    whole: frozenset[str]

    def with_plan_of(self, other: Read) -> Read:
        """Return what both plans of the same statement read."""
        return Read(
            self.text,
            self.indexes | other.indexes,
            self.tables | other.tables,
            self.whole | other.whole,
        )


class PlanLog:
    """The server's log, from a moment on."""

    def __init__(self, connection: Connection[Any]) -> None:
        row = connection.execute("SHOW data_directory").fetchone()
        assert row is not None
        self._path = Path(row[0]) / "server.log"
        self._from = self._path.stat().st_size

    def reads(self) -> dict[int, Read]:
        """Return what each statement since then reads, all of its plans together."""
        with self._path.open(errors="replace") as log:
            log.seek(self._from)
            text = log.read()
        found: dict[int, Read] = {}
        for match in _PLAN.finditer(text):
            shown = json.loads(match.group(1))
            read = read_by(shown["Query Text"], shown["Plan"])
            known = found.get(shown["Query Identifier"])
            found[shown["Query Identifier"]] = known.with_plan_of(read) if known else read
        return found


def read_by(text: str, plan: Mapping[str, Any]) -> Read:
    """Return what a plan reads, with all that is below it."""
    indexes: set[str] = set()
    tables: set[str] = set()
    whole: set[str] = set()
    waiting: list[Mapping[str, Any]] = [plan]
    while waiting:
        node = waiting.pop()
        if node["Node Type"] == "Seq Scan":
            whole.add(node["Relation Name"])
        if "Scan" in node["Node Type"] and "Relation Name" in node:
            tables.add(node["Relation Name"])
        if "Index Name" in node:
            indexes.add(node["Index Name"])
        waiting += node.get("Plans", ())
    return Read(text, frozenset(indexes), frozenset(tables), frozenset(whole))


def one_line(text: str) -> str:
    """Return a statement in one line of a table."""
    words = " ".join(re.sub(r"--[^\n]*", "", text).split())
    return words if len(words) <= 90 else f"{words[:87]}…"


def scans_of(reads: Iterable[Read], growing: Sequence[str]) -> list[str]:
    """Return a line for each statement that reads a growing table from end to end."""
    return [
        f"{table} from end to end: {one_line(read.text)}"
        for read in reads
        for table in sorted(read.whole & set(growing))
    ]
