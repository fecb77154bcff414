"""Runs the engine by itself, in a process of its own, and prints what it did as JSON.

    python engine_program.py DATABASE_URL claims|open_pickle|refused_pickle MARKER

One process per question: the engine is a singleton, and the refusal of pickles cannot be undone.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from dbos import DBOS, DBOSPortableJSONSerializer

from effect_broker.durable import refuse_pickle
from effect_broker.proof.broker import wait_until

QUEUE = "questions"
APPLICATION = "questions"
VERSION = "1"
OWN_ID = "successor"

started: list[str] = []
entered = threading.Event()
released = threading.Event()


@DBOS.workflow(name="note", max_recovery_attempts=None)
def note(word: str) -> str:
    """Write down that the run was entered."""
    started.append(word)
    return word


@DBOS.workflow(name="note_and_wait", max_recovery_attempts=None)
def note_and_wait(word: str) -> str:
    """Write down that the run was entered, and stay in it."""
    started.append(word)
    entered.set()
    released.wait(30)
    return word


class Creation:
    """Creates a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return Path.touch, (Path(self.path),)  # type: ignore[return-value]


class Database:
    """The engine's tables."""

    def __init__(self, url: str) -> None:
        self.url = url

    def execute(self, statement: LiteralString, *values: object) -> list[tuple[Any, ...]]:
        """Run one statement in a transaction of its own."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    def enqueue(self, word: str, *, name: str = "note", priority: int = 1) -> None:
        """Enqueue a run named after its word, as `effect_broker.enqueue_run` does."""
        self.execute(
            "SELECT dbos.enqueue_workflow(workflow_name => %s, queue_name => %s,"
            " positional_args => ARRAY[to_json(%s::text)], workflow_id => %s, app_version => %s,"
            " application_name => %s, priority => %s)",
            name,
            QUEUE,
            word,
            word,
            VERSION,
            APPLICATION,
            priority,
        )

    def strand(self, word: str, executor_id: str) -> None:
        """Let a run be pending on an executor that has never lived."""
        self.execute(
            "UPDATE dbos.workflow_status SET status = 'PENDING', executor_id = %s,"
            " owner_xid = 'gone' WHERE workflow_uuid = %s",
            executor_id,
            word,
        )

    def status(self, word: str) -> tuple[str, str | None]:
        """Status and executor of a run."""
        rows = self.execute(
            "SELECT status, executor_id FROM dbos.workflow_status WHERE workflow_uuid = %s", word
        )
        return rows[0][0], rows[0][1]

    def wait_status(self, word: str, status: str) -> None:
        """Wait until a run has this status."""
        wait_until(lambda: self.status(word)[0] == status or None, f"{word} {status}", 20.0)


def launch(url: str) -> None:
    """Launch the engine as `effect_broker.durable` does, to run one thing at a time."""
    DBOS(
        config={
            "name": APPLICATION,
            "system_database_url": url,
            "application_version": VERSION,
            "executor_id": OWN_ID,
            "run_migrations": False,
            "serializer": DBOSPortableJSONSerializer(),
            "log_level": "ERROR",
        }
    )
    DBOS.listen_queues([QUEUE])
    DBOS.launch()
    DBOS.register_queue(QUEUE, worker_concurrency=1, polling_interval_sec=0.02)


def claims(database: Database) -> dict[str, Any]:
    """Claim runs one after the other, then recover those of a dead executor.

    Recovery is asked for twice, the second time while the recovered run is running.
    """
    for word, priority in (("late", 7), ("later", 7), ("first", 1), ("middle", 3), ("last", 9)):
        database.enqueue(word, priority=priority)
    # Ages are in milliseconds; these were enqueued within a few.
    database.execute(
        "UPDATE dbos.workflow_status SET created_at = created_at + 1000"
        " WHERE workflow_uuid = 'later'"
    )
    for word, executor_id in (("lost", "dead"), ("foreign", "alive")):
        database.enqueue(word, name="note_and_wait")
        database.strand(word, executor_id)
    launch(database.url)
    database.wait_status("last", "SUCCESS")
    in_order = list(started)
    untouched = database.status("lost")
    handles = len(DBOS._recover_pending_workflows(["dead"]))
    assert entered.wait(20)
    # The row says by now that we own it, so that the same request finds nothing any more.
    again = len(DBOS._recover_pending_workflows(["dead"]))
    owner = database.status("lost")
    released.set()
    database.wait_status("lost", "SUCCESS")
    return {
        "in_order": in_order,
        "before": untouched,
        "handles": handles,
        "again": again,
        "owner": owner,
        "recovered": started[len(in_order) :],
        "foreign": database.status("foreign"),
    }


def pickled(database: Database, marker: str) -> dict[str, Any]:
    """Claim a run whose input is a pickle although the serializer is JSON."""
    database.enqueue("evil")
    payload = base64.b64encode(pickle.dumps({"args": (Creation(marker),), "kwargs": {}})).decode()
    database.execute("UPDATE dbos.workflow_input SET inputs = %s", payload)
    database.execute("UPDATE dbos.workflow_status SET serialization = 'py_pickle'")
    launch(database.url)
    wait_until(lambda: database.status("evil")[0] in {"SUCCESS", "ERROR"} or None, "evil", 20.0)
    return {"unpickled": os.path.exists(marker), "status": database.status("evil")[0]}


def main() -> None:
    """Answer one question."""
    url, question, marker = sys.argv[1:]
    database = Database(url)
    match question:
        case "claims":
            answer = claims(database)
        case "open_pickle":
            answer = pickled(database, marker)
        case "refused_pickle":
            refuse_pickle()
            answer = pickled(database, marker)
        case _:
            raise SystemExit(f"no such question: {question}")
    print(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)  # the engine's threads have nothing left to say


if __name__ == "__main__":
    main()
