"""Owns the target's durable memory: what arrived and what was done, in one SQLite file.

The promises: `record_arrival` and `transaction` return only after the rows are on disk
(``synchronous=FULL``), so a SIGKILL right after loses nothing; one process at a time owns a
ledger file (others may read it); counts are taken from the rows, never from memory.
"""

from __future__ import annotations

import fcntl
import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import IO, Any

from effect_broker.proof.target.messages import Answer, Json, Keys, Request
from effect_broker.proof.target.modes import Mode

_RECEIVED = "body_state IN ('whole', 'early')"
_TABLES = ("operations", "stored_answers", "effects", "departures", "arrivals", "modes", "counts")


class LedgerUnusable(Exception):
    """The ledger file cannot be opened; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Effect:
    """One applied mutation, as the API shows it. `committed_at` is the target's wall clock."""

    n: int
    kind: str
    object_id: str
    sequence: int
    name: str | None
    downstream_key: str | None
    correlation_key: str | None
    arrival_n: int
    item: int | None
    content: Json
    etag: str
    committed_at: float


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    request_digest: str
    answer: Answer
    stored_at: float


@dataclass(frozen=True, slots=True)
class StoredOperation:
    n: int
    kind: str
    arrival_n: int
    outcome: str
    running_left: int
    object_id: str | None


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows of one kind and key. `arrivals` are mutating requests, `lookups` the reads."""

    arrivals: int
    lookups: int
    effects: int


class Ledger:
    """The open ledger. Not for more than one thread."""

    def __init__(self, path: Path) -> None:
        """Open or create the file. Raises `LedgerUnusable`."""
        self._lock = _locked(path)
        try:
            self._db = _opened(path)
        except BaseException:
            self._lock.close()
            raise

    def close(self) -> None:
        self._db.close()
        self._lock.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """One durable transaction; an exception inside leaves no row."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    # -- arrivals --------------------------------------------------------------------------------

    def record_arrival(
        self,
        request: Request,
        kind: str,
        keys: Keys,
        plan: str,
        received_monotonic: float,
        received_at: float,
    ) -> int:
        """Write one received request; returns its number `n` once it is on disk."""
        cursor = self._db.execute(
            "INSERT INTO arrivals (kind, method, path, query, mutating, headers, downstream_key,"
            " correlation_key, body, body_length, body_digest, body_state, plan,"
            " received_monotonic, received_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                kind,
                request.method,
                request.path,
                request.query,
                int(request.mutating),
                json.dumps(request.kept_headers()),
                keys.downstream,
                keys.correlation,
                request.body,
                len(request.body),
                request.body_digest,
                request.body_state,
                plan,
                received_monotonic,
                received_at,
            ),
        )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def record_departure(self, n: int, received_monotonic: float, left_monotonic: float) -> None:
        """Note that the client of arrival `n` went away before it had the whole answer.

        Nothing is noted where that arrival is no longer in the ledger: it was cleared meanwhile.
        """
        self._db.execute(
            "INSERT INTO departures"
            " SELECT n, ? FROM arrivals WHERE n = ? AND received_monotonic = ?",
            (left_monotonic, n, received_monotonic),
        )

    def arrival_rows(self, kind: str | None, key: str | None) -> list[Json]:
        """Every arrival with its columns, the body as bytes; cut connections included.

        `left_monotonic` is None where the client stayed for the whole answer.
        """
        where, values = _narrowed(kind, key)
        rows = self._db.execute(
            "SELECT arrivals.*, left_monotonic"  # noqa: S608
            f" FROM arrivals LEFT JOIN departures ON arrival_n = n WHERE {where} ORDER BY n",
            values,
        )
        return [{**dict(row), "headers": json.loads(row["headers"])} for row in rows]

    def arrival(self, n: int) -> Json:
        """One arrival; its headers as a mapping, of which the last of a name wins."""
        row = self._db.execute("SELECT * FROM arrivals WHERE n = ?", (n,)).fetchone()
        return {**dict(row), "headers": dict(json.loads(row["headers"]))}

    def body_digest(self, n: int) -> str:
        row = self._db.execute("SELECT body_digest FROM arrivals WHERE n = ?", (n,)).fetchone()
        return str(row["body_digest"])

    def counts(self, kind: str | None, key: str | None) -> Counts:
        where, values = _narrowed(kind, key)
        arrivals, lookups = self._db.execute(
            "SELECT count(*) FILTER (WHERE mutating = 1), count(*) FILTER (WHERE mutating = 0)"  # noqa: S608
            f" FROM arrivals WHERE {_RECEIVED} AND {where}",
            values,
        ).fetchone()
        effects = self._db.execute(f"SELECT count(*) FROM effects WHERE {where}", values)  # noqa: S608
        return Counts(arrivals, lookups, effects.fetchone()[0])

    # -- effects ---------------------------------------------------------------------------------

    def next_sequence(self, kind: str) -> int:
        """The number of the next new object of a kind, from 1."""
        row = self._db.execute("SELECT max(sequence) FROM effects WHERE kind = ?", (kind,))
        return int(row.fetchone()[0] or 0) + 1

    def add_effect(
        self,
        kind: str,
        object_id: str,
        sequence: int,
        keys: Keys,
        content: Json,
        *,
        etag: str,
        arrival_n: int,
        committed_at: float,
        name: str | None = None,
        item: int | None = None,
    ) -> Effect:
        """Add one applied mutation, inside a `transaction`."""
        assert self._db.in_transaction, "an effect and the answer stored for it are one commit"
        cursor = self._db.execute(
            "INSERT INTO effects (kind, object_id, sequence, name, downstream_key,"
            " correlation_key, arrival_n, item, content, etag, committed_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                kind,
                object_id,
                sequence,
                name,
                keys.downstream,
                keys.correlation,
                arrival_n,
                item,
                json.dumps(content),
                etag,
                committed_at,
            ),
        )
        assert cursor.lastrowid is not None
        row = self._db.execute("SELECT * FROM effects WHERE n = ?", (cursor.lastrowid,))
        return _effect(row.fetchone())

    def effects(self, kind: str | None, key: str | None) -> list[Effect]:
        """Every applied mutation, oldest first."""
        where, values = _narrowed(kind, key)
        rows = self._db.execute(f"SELECT * FROM effects WHERE {where} ORDER BY n", values)  # noqa: S608
        return [_effect(row) for row in rows]

    def objects(
        self, kind: str, key: str | None, committed_by: float, after_n: int, limit: int
    ) -> list[Effect]:
        """The present objects of a kind in order of their first effect, as a look-up sees them.

        Only what was committed until `committed_by`; at most `limit` after the effect `after_n`.
        """
        where, values = _narrowed(kind, key)
        rows = self._db.execute(
            "SELECT newest.* FROM (SELECT min(n) AS first_n, max(n) AS last_n FROM effects"  # noqa: S608
            f" WHERE {where} AND committed_at <= ? GROUP BY object_id) AS seen"
            " JOIN effects AS newest ON newest.n = seen.last_n"
            " WHERE seen.first_n > ? ORDER BY seen.first_n LIMIT ?",
            (*values, committed_by, after_n, limit),
        )
        return [_effect(row) for row in rows]

    def object(self, kind: str, id_or_name: str) -> Effect | None:
        """The newest content of one object, by id or by its name in the path."""
        row = self._db.execute(
            "SELECT * FROM effects WHERE kind = ? AND (object_id = ? OR name = ?)"
            " ORDER BY n DESC LIMIT 1",
            (kind, id_or_name, id_or_name),
        ).fetchone()
        return None if row is None else _effect(row)

    def effects_named(self, kind: str, name: str) -> list[Effect]:
        """Every applied mutation of a name, oldest first."""
        rows = self._db.execute(
            "SELECT * FROM effects WHERE kind = ? AND name = ? ORDER BY n", (kind, name)
        )
        return [_effect(row) for row in rows]

    def first_effect_n(self, kind: str, object_id: str) -> int | None:
        row = self._db.execute(
            "SELECT min(n) FROM effects WHERE kind = ? AND object_id = ?", (kind, object_id)
        ).fetchone()
        return None if row[0] is None else int(row[0])

    # -- stored answers --------------------------------------------------------------------------

    def stored_answer(self, kind: str, key: str) -> StoredAnswer | None:
        row = self._db.execute(
            "SELECT * FROM stored_answers WHERE kind = ? AND key = ?", (kind, key)
        ).fetchone()
        if row is None:
            return None
        headers = tuple((name, value) for name, value in json.loads(row["headers"]))
        answer = Answer(row["status"], bytes(row["body"]), headers)
        return StoredAnswer(row["request_digest"], answer, row["stored_at"])

    def store_answer(
        self, kind: str, key: str, request_digest: str, answer: Answer, stored_at: float
    ) -> None:
        """Remember what a key was answered; replaces an older memory of the key."""
        self._db.execute(
            "INSERT OR REPLACE INTO stored_answers VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                kind,
                key,
                request_digest,
                answer.status,
                json.dumps(answer.headers),
                answer.body,
                stored_at,
            ),
        )

    def forget_answer(self, kind: str, key: str) -> None:
        self._db.execute("DELETE FROM stored_answers WHERE kind = ? AND key = ?", (kind, key))

    # -- operations ------------------------------------------------------------------------------

    def add_operation(
        self, kind: str, arrival_n: int, outcome: str, running: int, object_id: str | None
    ) -> int:
        cursor = self._db.execute(
            "INSERT INTO operations (kind, arrival_n, outcome, running_left, object_id)"
            " VALUES (?, ?, ?, ?, ?)",
            (kind, arrival_n, outcome, running, object_id),
        )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def operation(self, n: int) -> StoredOperation | None:
        row = self._db.execute("SELECT * FROM operations WHERE n = ?", (n,)).fetchone()
        return None if row is None else StoredOperation(**dict(row))

    def count_poll(self, n: int) -> None:
        self._db.execute("UPDATE operations SET running_left = running_left - 1 WHERE n = ?", (n,))

    def finish_operation(self, n: int, object_id: str) -> None:
        self._db.execute("UPDATE operations SET object_id = ? WHERE n = ?", (object_id, n))

    # -- settings and counts ---------------------------------------------------------------------

    def modes(self) -> dict[str, Mode]:
        rows = self._db.execute("SELECT kind, settings FROM modes")
        return {row["kind"]: Mode.model_validate_json(row["settings"]) for row in rows}

    def set_mode(self, kind: str, mode: Mode) -> None:
        self._db.execute(
            "INSERT OR REPLACE INTO modes VALUES (?, ?)", (kind, mode.model_dump_json())
        )

    def counted(self) -> dict[str, int]:
        """Requests of the `count_only` kinds that were written."""
        return {row["kind"]: row["requests"] for row in self._db.execute("SELECT * FROM counts")}

    def write_counted(self, requests: dict[str, int]) -> None:
        self._db.executemany("INSERT OR REPLACE INTO counts VALUES (?, ?)", list(requests.items()))

    def clear(self) -> None:
        """Forget everything, numbering included: a fresh ledger."""
        with self.transaction():
            for table in _TABLES:
                self._db.execute(f"DELETE FROM {table}")  # noqa: S608
            self._db.execute("DELETE FROM sqlite_sequence")


def _locked(path: Path) -> IO[str]:
    """Hold `path`'s lock for the life of this process; a second owner would mix two ledgers."""
    try:
        lock = open(f"{path}.lock", "w")  # noqa: SIM115 - held open on purpose
    except OSError as error:
        raise LedgerUnusable(f"cannot use the ledger {path}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise LedgerUnusable(f"the ledger {path} is in use by another target") from error
    return lock


def _opened(path: Path) -> sqlite3.Connection:
    db: sqlite3.Connection | None = None
    try:
        db = sqlite3.connect(path, isolation_level=None)
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("PRAGMA foreign_keys=ON")
        schema = files("effect_broker.proof.target").joinpath("schema.sql").read_text()
        db.executescript(schema)
    except sqlite3.Error as error:
        if db is not None:
            db.close()
        raise LedgerUnusable(f"cannot use the ledger {path}: {error}") from error
    return db


def _narrowed(kind: str | None, key: str | None) -> tuple[str, Sequence[Any]]:
    """A condition on constant columns; the values travel as parameters."""
    conditions, values = ["1"], []
    if kind is not None:
        conditions.append("kind = ?")
        values.append(kind)
    if key is not None:
        conditions.append("(downstream_key = ? OR correlation_key = ?)")
        values.extend([key, key])
    return " AND ".join(conditions), values


def _effect(row: sqlite3.Row) -> Effect:
    return Effect(**{**dict(row), "content": json.loads(row["content"])})
