"""A whole broker for the parts that look at more than its speed: kinds, tenants, processes.

As `bench.broker`, with a target that counts what it bears, several tenants, and figures that are
taken from the database's own clock wherever two moments are compared.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import httpx
import psycopg

from bench.counting_target import CountingTarget
from bench.machine import cpu_of_family, parent_of
from bench.parts import Ground
from bench.rounds import Load, Timed
from effect_broker.proof.broker import NotInTime, ProofBroker
from effect_broker.proof.contracts import charge, tuned
from effect_broker.proof.stack import ManagedProcess
from effect_contracts.document import ContractDocument

_IDLE_SECONDS = 900.0
_LOOK_SECONDS = 0.5
# How many submits are under way at once when a backlog is made.
_CALLERS = 8
FINAL = "('succeeded', 'failed_final', 'cancelled', 'compensated')"

Row = tuple[Any, ...]


class Stage:
    """A broker with its own database, a counting target, an API, and workers as they are asked for.

    Args:
        ground: where the part is measured.
        name: of its database.
        environment: further settings of its processes.
    """

    def __init__(
        self, ground: Ground, name: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self.url = ground.database(name)
        poll = {"EFFECT_BROKER_QUEUE_POLL_SECONDS": str(ground.poll_seconds)}
        self.broker = ProofBroker(
            ground.directory / name, self.url, environment=poll | dict(environment or {})
        )
        self.target = CountingTarget()
        self.tenant_id = ""
        self.api: ManagedProcess | None = None
        self.workers: list[ManagedProcess] = []

    def __enter__(self) -> Self:
        try:
            self.broker.prepare()
            self.tenant_id = self.broker.tenant_id
            self.target.start()
            self.api = self.broker.start_api()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End everything."""
        self.kill_workers()
        self.broker.stop()
        self.target.stop()

    # Processes -----------------------------------------------------------------------------------

    def start_workers(self, count: int = 1) -> list[ManagedProcess]:
        """Start workers and wait until all are ready."""
        started = self.broker.start_workers(count)
        self.workers += started
        return started

    def kill_workers(self) -> None:
        """SIGKILL to every worker."""
        for worker in self.workers:
            if worker.alive:
                worker.kill()
        self.workers.clear()

    def restart_api(self) -> None:
        """Another API process, so that nothing is in its plans of how the tables were."""
        assert self.api is not None
        self.api.kill()
        self.api = self.broker.start_api()

    def postgres_cpu(self) -> float:
        """Processor seconds of the server, all its sessions included."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            return cpu_of_family(parent_of(connection.info.backend_pid))

    # Calling -------------------------------------------------------------------------------------

    def offer(self, kind: str, **members: Any) -> str:
        """Let the broker have an idempotent tool at the counting target; return its name."""
        return self.apply(tuned("demo-charge-idempotent", self.target.url, kind, **members))

    def apply(self, document: ContractDocument) -> str:
        """Apply a contract; return its tool."""
        self.broker.apply(document)
        return document.tool

    def submits(
        self,
        tool: str,
        prefix: str,
        count: int,
        *,
        callers: int = _CALLERS,
        api_key: str = "",
        again: bool = False,
    ) -> Timed:
        """Submit `count` effects with operation keys `prefix:0` and so on; `again`: replays."""
        expected = 200 if again else 202
        return asyncio.run(self._submits(tool, prefix, Load(callers, count), api_key, expected))

    async def _submits(
        self, tool: str, prefix: str, load: Load, api_key: str, expected: int
    ) -> Timed:
        numbers = itertools.count()
        headers = dict(self.broker.http.headers)
        if api_key:
            headers["authorization"] = f"Bearer {api_key}"
        async with httpx.AsyncClient(
            base_url=str(self.broker.http.base_url),
            headers=headers,
            trust_env=False,
            limits=httpx.Limits(max_connections=load.clients),
            timeout=60.0,
        ) as http:

            async def one() -> None:
                key = f"{prefix}:{next(numbers)}"
                answer = await http.post("/v1/effects", json=submission(tool, key))
                assert answer.status_code == expected, answer.text

            return await load.run([one] * load.clients)

    # The database --------------------------------------------------------------------------------

    def rows(self, query: str, *values: object) -> Sequence[Row]:
        """Run one statement as the superuser; return its rows."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(query.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def value(self, query: str, *values: object) -> Any:
        """Return the only column of the first row, None without one."""
        rows = self.rows(query, *values)
        return rows[0][0] if rows else None

    def settled(self, prefix: str) -> int:
        """Return how many effects of a prefix are final."""
        return int(
            self.value(
                "SELECT count(*) FROM effect_broker.effect_intents"
                f" WHERE state IN {FINAL} AND operation_key LIKE %s",
                f"{prefix}:%",
            )
        )

    def wait_idle(self) -> None:
        """Wait until no effect has anything left to do.

        Asked seldom and by one index: who waits must not take part in what is measured.

        Raises:
            NotInTime: there are some after 15 minutes.
        """
        outstanding = (
            "SELECT count(*) FROM effect_broker.effect_intents WHERE next_action_at IS NOT NULL"
        )
        pause = threading.Event()
        with psycopg.connect(self.url, autocommit=True) as connection:
            left = -1
            for _ in range(int(_IDLE_SECONDS / _LOOK_SECONDS)):
                row = connection.execute(outstanding).fetchone()
                left = int(row[0]) if row else 0
                if left == 0:
                    return
                pause.wait(_LOOK_SECONDS)
        raise NotInTime(f"{left} effects have something left to do after {_IDLE_SECONDS:.0f} s")

    def milliseconds(self, prefix: str) -> list[float]:
        """Return how long each effect of a prefix took, from its submit to its receipt."""
        rows = self.rows(
            "SELECT extract(epoch FROM r.recorded_at - i.created_at)::float8 * 1000"
            " FROM effect_broker.effect_intents AS i"
            " JOIN effect_broker.effect_receipts AS r USING (tenant_id, effect_id)"
            " WHERE i.operation_key LIKE %s ORDER BY 1",
            f"{prefix}:%",
        )
        return [float(row[0]) for row in rows]

    def receipts_at(self, prefix: str) -> list[float]:
        """Return when the receipts of a prefix were recorded, as seconds since the epoch."""
        rows = self.rows(
            "SELECT extract(epoch FROM r.recorded_at)::float8"
            " FROM effect_broker.effect_intents AS i"
            " JOIN effect_broker.effect_receipts AS r USING (tenant_id, effect_id)"
            " WHERE i.operation_key LIKE %s ORDER BY 1",
            f"{prefix}:%",
        )
        return [float(row[0]) for row in rows]


def submission(tool: str, key: str) -> dict[str, Any]:
    """Return the body of a submit."""
    return {"operation_key": key, "tool": tool, "arguments": charge(key)}
