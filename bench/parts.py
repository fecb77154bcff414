"""What a part of the benchmark is given and gives back; `bench.__main__` runs them.

A part is a module with a `measure(ground) -> Findings`. It gets a Postgres server of its own, so
that what one part leaves behind is in no figure of another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg

from bench.report import Ratio
from effect_broker.postgres.embedded import EmbeddedPostgres


@dataclass(frozen=True, slots=True)
class Ground:
    """Where a part is measured.

    Attributes:
        url: a superuser's, of a server that only this part uses; fsync and synchronous_commit on.
        directory: for whatever the part writes.
        poll_seconds: how often queues are polled, on both sides of a comparison.
        rounds: how often each comparison is taken; medians are reported.
        scale: of the usual counts; below 1 to see that all works.
        server: the same server, for parts that stop it. It preloads pg_stat_statements.
    """

    url: str
    directory: Path
    poll_seconds: float
    rounds: int
    scale: float
    server: EmbeddedPostgres

    def count(self, usual: int, least: int = 10) -> int:
        """Return how many to take where `usual` is the count of a full run."""
        return max(least, int(usual * self.scale))

    def database(self, name: str) -> str:
        """Make a database on the server; return its URL."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{name}"))


@dataclass(frozen=True, slots=True)
class Table:
    """Figures as they are shown to a reader.

    Attributes:
        title: what is shown.
        columns: the head.
        rows: cells as text, units in the head or in the cell.
        note: what a reader has to know to read it right.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Findings:
    """What a part has found.

    Attributes:
        ratios: comparisons within this run; names are stable and unique over all parts.
        figures: what stands behind them, for the JSON.
        tables: the same for a reader.
    """

    ratios: Sequence[Ratio] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)
    tables: Sequence[Table] = ()
