"""Bare DBOS, measured as the broker is: `bench.bare_worker` is its worker."""

from __future__ import annotations

import subprocess
import sys
import threading
from time import perf_counter
from types import TracebackType
from typing import Any, Self

import psycopg
from dbos import DBOSClient, EnqueueOptions

from bench.bare_worker import NAME, QUEUE, READY, VERSION
from bench.rounds import Timed, off_beat
from effect_broker.proof.broker import wait_until

SETTLE_SECONDS = 300.0


class BareDbos:
    """A database with workflows, and one worker process that may be started and killed."""

    def __init__(self, url: str, target_url: str, poll_seconds: float) -> None:
        self._url, self._target_url, self._poll = url, target_url, poll_seconds
        self._client = DBOSClient(system_database_url=url)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()  # makes its schema
        self.stop()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        self._client.destroy()

    def start(self) -> None:
        """Start the worker and wait until it polls."""
        arguments = [self._url, self._target_url, str(self._poll)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.bare_worker", *arguments], stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.decode().startswith(READY), line

    @property
    def pid(self) -> int:
        """The worker's process."""
        assert self._process is not None, "it was started"
        return self._process.pid

    def stop(self) -> None:
        """End the worker."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def enqueue(self, order: str) -> None:
        """Enqueue one workflow."""
        options: EnqueueOptions = {
            "workflow_name": "effect",
            "queue_name": QUEUE,
            "workflow_id": order,
            "app_version": VERSION,
            "application_name": NAME,
        }
        self._client.enqueue(options, order)

    def _value(self, query: str, *values: object) -> Any:
        with psycopg.connect(self._url, autocommit=True) as connection:
            row = connection.execute(query.encode(), values).fetchone()
        return row[0] if row else None

    def drain(self, prefix: str, count: int) -> float:
        """Enqueue `count`, then start a worker; return how many a second it completed."""
        for number in range(count):
            self.enqueue(f"{prefix}-{number}")
        self.start()
        done = "SELECT count(*) = %s FROM dbos.workflow_status" + (
            " WHERE status = 'SUCCESS' AND workflow_uuid LIKE %s"
        )
        wait_until(
            lambda: self._value(done, count, f"{prefix}-%") or None, "all done", SETTLE_SECONDS
        )
        self.stop()
        seconds = self._value(
            "SELECT (max(updated_at) - min(started_at_epoch_ms)) / 1000.0"
            " FROM dbos.workflow_status WHERE workflow_uuid LIKE %s",
            f"{prefix}-%",
        )
        return count / float(seconds)

    def one_by_one(self, prefix: str, count: int) -> Timed:
        """Enqueue one after the other at an idle worker; the time is the engine's own."""
        self.start()
        pause = threading.Event()
        began = perf_counter()
        for number in range(count):
            order = f"{prefix}-{number}"
            self.enqueue(order)
            wait_until(
                lambda order=order: self._value(  # type: ignore[misc]
                    "SELECT true FROM dbos.workflow_status"
                    " WHERE workflow_uuid = %s AND status = 'SUCCESS'",
                    order,
                ),
                "done",
            )
            pause.wait(off_beat(number, self._poll))
        seconds = perf_counter() - began
        self.stop()
        took = self._value(
            "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY updated_at - created_at)"
            " FROM dbos.workflow_status WHERE workflow_uuid LIKE %s",
            f"{prefix}-%",
        )
        return Timed(count / seconds, float(took))
