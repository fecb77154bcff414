"""The broker's own figures: submits over HTTP, a drained backlog, one effect at a time."""

from __future__ import annotations

import asyncio
import itertools
import ssl
import threading
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx
import psycopg

from bench.rounds import Load, Timed, off_beat
from effect_broker.faultpoints import ENV_FAULT_DIR
from effect_broker.proof.broker import ProofBroker, wait_until
from effect_broker.proof.contracts import charge, tuned

KIND = "bench"
SETTLE_SECONDS = 300.0


class Measured:
    """A whole broker, with the workers that a measurement starts."""

    def __init__(self, directory: Path, superuser_url: str, poll_seconds: float) -> None:
        self._url, self._poll = superuser_url, poll_seconds
        self._broker = ProofBroker(
            directory,
            superuser_url,
            environment={"EFFECT_BROKER_QUEUE_POLL_SECONDS": str(poll_seconds)},
        )
        # Its fault points look for files at every turn; in production none is armed.
        self._broker.stack.environment.pop(ENV_FAULT_DIR)
        self._numbers = itertools.count()
        self.api_key = ""
        self.tool = ""
        self.target_url = ""

    def prepare(self) -> None:
        """Migrate, and start the target and the API."""
        self._broker.prepare()
        target = self._broker.target
        target.client.set_mode(KIND, "dedupe")
        document = tuned("demo-charge-idempotent", target.url, KIND)
        self._broker.apply(document)
        self.tool = document.tool
        self.target_url = f"{target.url}/objects/{KIND}"
        self._broker.start_api()

    def close(self) -> None:
        """End everything."""
        self._broker.stop()

    def _value(self, query: str, *values: object) -> Any:
        with psycopg.connect(self._url, autocommit=True) as connection:
            row = connection.execute(query.encode(), values).fetchone()
        return row[0] if row else None

    # Submits -------------------------------------------------------------------------------------

    def _body(self, key: str) -> dict[str, Any]:
        return {"operation_key": key, "tool": self.tool, "arguments": charge(key)}

    def submits(self, load: Load, prefix: str, *, again: bool = False) -> Timed:
        """Submit `load.count` effects over HTTP; `again`: those of the same prefix once more."""
        return asyncio.run(self._submits(load, prefix, 200 if again else 202))

    async def _submits(self, load: Load, prefix: str, expected: int) -> Timed:
        numbers = itertools.count()
        headers = dict(self._broker.http.headers)
        base_url = str(self._broker.http.base_url)

        async def one(http: httpx.AsyncClient) -> None:
            body = self._body(f"{prefix}:{next(numbers)}")
            answer = await http.post("/v1/effects", json=body)
            assert answer.status_code == expected, answer.text

        # Each with its own connection: a pool of many looks at all of them at every request, and
        # would be measured instead of the broker.
        context = ssl.create_default_context()
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(
                    httpx.AsyncClient(
                        base_url=base_url,
                        headers=headers,
                        trust_env=False,
                        timeout=60.0,
                        verify=context,
                    )
                )
                for _ in range(load.clients)
            ]
            return await load.run([partial(one, http) for http in clients])

    # Effects -------------------------------------------------------------------------------------

    def _finish(self, prefix: str, count: int) -> None:
        done = (
            "SELECT count(*) = %s FROM effect_broker.effect_intents"
            " WHERE state = 'succeeded' AND operation_key LIKE %s"
        )
        wait_until(
            lambda: self._value(done, count, f"{prefix}:%") or None, "all settled", SETTLE_SECONDS
        )

    def settle_rest(self) -> None:
        """Let a worker carry out whatever else was submitted, so that it is in no figure."""
        (worker,) = self._broker.start_workers(1)
        rest = "SELECT count(*) = 0 FROM effect_broker.effect_intents WHERE state <> 'succeeded'"
        wait_until(lambda: self._value(rest) or None, "the rest settled", SETTLE_SECONDS)
        worker.kill()

    def drain(self, prefix: str, count: int) -> float:
        """Submit `count` while no worker runs, then start one; return effects per second."""
        self.submits(Load(8, count), prefix)
        (worker,) = self._broker.start_workers(1)
        self._finish(prefix, count)
        worker.kill()
        seconds = self._value(
            "SELECT (max(w.updated_at) - min(w.started_at_epoch_ms)) / 1000.0"
            " FROM dbos.workflow_status AS w JOIN effect_broker.effect_intents AS i"
            " ON w.workflow_uuid LIKE i.effect_id || '%%' WHERE i.operation_key LIKE %s"
            " AND w.status = 'SUCCESS'",
            f"{prefix}:%",
        )
        return count / float(seconds)

    def one_by_one(self, prefix: str, count: int) -> Timed:
        """Submit one after the other at an idle worker; the time is the database's own."""
        (worker,) = self._broker.start_workers(1)
        pause = threading.Event()
        began = perf_counter()
        for number in range(count):
            answer = self._broker.http.post("/v1/effects", json=self._body(f"{prefix}:{number}"))
            self._broker.settled(answer.json()["effect_id"])
            pause.wait(off_beat(number, self._poll))
        seconds = perf_counter() - began
        worker.kill()
        took = self._value(
            "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY"
            " extract(epoch FROM r.recorded_at - i.created_at) * 1000.0)"
            " FROM effect_broker.effect_intents AS i"
            " JOIN effect_broker.effect_receipts AS r USING (tenant_id, effect_id)"
            " WHERE i.operation_key LIKE %s",
            f"{prefix}:%",
        )
        return Timed(count / seconds, float(took))

    def requests_at_target(self) -> int:
        """How many requests the target has counted."""
        return self._broker.target.client.ledger(kind=KIND).arrivals
