"""Hosting on DBOS: the only module that imports it.

DBOS queues, checkpoints and re-enters the runs; it decides nothing. This module owns the workflow
and its three steps, the launch and the drain of one executor, the registration of the queue, and
the two private names of DBOS that are used (`_recover_pending_workflows` and
`DefaultSerializer.deserialize`; a test asserts that they exist and behave as assumed).

What enters a `dbos` table: tenant id, effect id, generation as input; the fields of `View` as step
results. A step never raises into DBOS: an exception's text would be stored there. A run that
cannot go on ends, and the effect's stored next action continues it.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final, NoReturn
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit
from uuid import UUID

from dbos import DBOS, DBOSClient, DBOSConfig, DBOSPortableJSONSerializer
from dbos import _serialization as dbos_serialization
from dbos._error import DBOSInitializationError

from effect_broker import hosting
from effect_broker.config import ENGINE_POOL_SIZE
from effect_broker.engine_log import quiet_engine_log
from effect_broker.log_events import event
from effect_broker.protocol import steps
from effect_broker.protocol.conclusion import Next, View
from effect_broker.protocol.ports import EffectMissing, Ports, StoreError, VaultError
from effect_broker.protocol.run import GENERATION_FIRST, StepResult, drive
from effect_broker.tracing import Spans
from effect_broker.turns import Turns, give_up_turn

_log = logging.getLogger(__name__)

# DBOS's connections. Its checkpoints are no authority, so they need not wait for the disk: a
# server crash loses at most some of them and costs a repeated step, never a duplicate or a loss.
# Its statements have no time limit, because DBOS does not retry a cancelled one (it would strand
# the run); an idle transaction of a stopped process is ended before a successor is needed.
# It acts as the worker's role whoever the URL logs in as.
_DBOS_SESSION: Final = (
    "-c synchronous_commit=off -c statement_timeout=0 -c lock_timeout=0 "
    "-c role=effect_broker_worker"
)
_DBOS_IDLE_TRANSACTION_SECONDS: Final = 2

# How long a drain waits beyond the longest attempt: transaction 2 and the last checkpoint.
DRAIN_GRACE_SECONDS: Final = 5


def migrate_dbos(url: str) -> None:
    """Create or bring forward DBOS's own schema with the privileged URL."""
    quiet_engine_log()
    DBOS.migrate(url, schema=hosting.DBOS_SCHEMA)


def refuse_pickle() -> None:
    """Make every unpickling by DBOS fail.

    DBOS unpickles rows that are marked `py_pickle` whatever serializer is configured, so that an
    INSERT into its tables would run code in a worker.
    """

    def refused(_self: object, serialized_data: str) -> NoReturn:
        raise ValueError("pickled rows are refused by effect-broker")

    # setattr, since replacing a method of a foreign class is what a type checker forbids.
    setattr(dbos_serialization.DefaultSerializer, "deserialize", refused)  # noqa: B010


class _Slot:
    """What the workflow and the steps of this process run on; filled before the launch."""

    def __init__(self) -> None:
        self.ports: Ports | None = None
        self.fit: Callable[[], Awaitable[None]] | None = None
        self.running: Counter[str] = Counter()
        self.turns = Turns()
        self.spans = Spans()
        self.said: set[str] = set()

    def require(self) -> Ports:
        assert self.ports is not None, "the steps run only in a launched host"
        return self.ports

    async def fit_to_go_on(self) -> None:
        """Wait until the process may go on with its runs."""
        assert self.fit is not None, "the steps run only in a launched host"
        await self.fit()

    @contextmanager
    def run(self, run_id: str) -> Iterator[None]:
        self.running[run_id] += 1
        try:
            yield
        finally:
            self.running[run_id] -= 1
            if not self.running[run_id]:
                del self.running[run_id]


_slot = _Slot()


async def _traced(
    name: str, tenant_id: str, effect_id: str, step: Callable[[], Awaitable[View]]
) -> StepResult:
    """Run a step as soon as the process is fit for it, in a span of its own."""
    await _slot.fit_to_go_on()
    async with _slot.spans.step(name, tenant_id, effect_id) as ended:
        result = await _guarded(name, effect_id, step)
        ended(result)
        return result


async def _guarded(name: str, effect_id: str, step: Callable[[], Awaitable[View]]) -> StepResult:
    """Run a step; whatever goes wrong becomes the end of the run, without a text of its own."""
    try:
        seen = await step()
        if seen.alert is not None:
            _log.error(
                "alert %s: effect %s, see its history",
                seen.alert.value,
                effect_id,
                extra=event("alert_raised", alert=seen.alert.value, effect_id=effect_id),
            )
        return seen.to_json()
    except (StoreError, EffectMissing) as problem:
        kind = type(problem).__name__
        _log.warning(
            "step %s of effect %s: %s",
            name,
            effect_id,
            kind,
            extra=event("step_ended", step=name, effect_id=effect_id, problem=kind),
        )
        return _end(kind)
    except VaultError as problem:
        # Its text holds a key id at most, and it is the same for every effect under that key.
        kind = type(problem).__name__
        named = event("payload_unreadable", step=name, effect_id=effect_id, problem=kind)
        if str(problem) in _slot.said:
            _log.warning("step %s of effect %s: %s again", name, effect_id, kind, extra=named)
        else:
            _slot.said.add(str(problem))
            _log.error("step %s of effect %s: %s", name, effect_id, problem, extra=named)
        return _end(kind)
    except Exception as problem:
        # Frames only: the exception's text may hold arguments.
        frames = "".join(traceback.format_tb(problem.__traceback__))
        kind = type(problem).__name__
        _log.error(
            "step %s of effect %s failed: %s\n%s",
            name,
            effect_id,
            kind,
            frames,
            extra=event("step_failed", step=name, effect_id=effect_id, problem=kind),
        )
        return _end(kind)


def _end(reason: str) -> StepResult:
    return {"next": Next.END.value, "state": "", "reason": reason}


# The names are part of the protocol, like their order: a run that one release has begun is gone on
# with by the next, or fails there for the engine, and the effect's next action begins another.
@DBOS.step(name="reserve")
async def _reserve(tenant_id: str, effect_id: str, generation: int) -> StepResult:
    step = partial(steps.reserve, _slot.require(), UUID(tenant_id), UUID(effect_id), generation)
    return await _traced("reserve", tenant_id, effect_id, step)


@DBOS.step(name="dispatch")
async def _dispatch(tenant_id: str, effect_id: str, version: int, ordinal: int) -> StepResult:
    step = partial(
        steps.dispatch, _slot.require(), UUID(tenant_id), UUID(effect_id), version, ordinal
    )
    return await _traced("dispatch", tenant_id, effect_id, step)


@DBOS.step(name="probe")
async def _probe(tenant_id: str, effect_id: str, version: int) -> StepResult:
    step = partial(steps.probe, _slot.require(), UUID(tenant_id), UUID(effect_id), version)
    return await _traced("probe", tenant_id, effect_id, step)


class _Calls:
    """The steps of one effect and generation, as DBOS records them."""

    def __init__(self, tenant_id: str, effect_id: str, generation: int) -> None:
        self._tenant_id = tenant_id
        self._effect_id = effect_id
        self._generation = generation

    def begin(self) -> Awaitable[StepResult]:
        # No step to the engine: what it says is always the same, and a checkpoint of it would be a
        # sixth of what the engine costs.
        step = partial(steps.begin, _slot.require())
        return _traced("reserve", self._tenant_id, self._effect_id, step)

    def reserve(self) -> Awaitable[StepResult]:
        return _reserve(self._tenant_id, self._effect_id, self._generation)

    def dispatch(self, version: int, ordinal: int) -> Awaitable[StepResult]:
        return _dispatch(self._tenant_id, self._effect_id, version, ordinal)

    def probe(self, version: int) -> Awaitable[StepResult]:
        return _probe(self._tenant_id, self._effect_id, version)


# Attempts of recovery are not limited by DBOS: the broker counts generations without a new fact.
@DBOS.workflow(name=hosting.WORKFLOW_NAME, max_recovery_attempts=None)
async def _effect_run(tenant_id: str, effect_id: str, generation: int) -> str:
    with _slot.run(hosting.workflow_id(effect_id, generation)):
        async with _slot.turns.turn(tenant_id):
            calls = _Calls(tenant_id, effect_id, generation)
            return await drive(calls, new=generation == GENERATION_FIRST)


class EngineAway(Exception):
    """The engine's schema is missing, older than this release, or being made anew by `migrate`."""


def _engine_is_away(problem: Exception) -> bool:
    """Whether the engine has met a schema that is not there, or not yet whole."""
    if isinstance(problem, DBOSInitializationError):
        return True
    state = getattr(getattr(problem, "orig", None), "sqlstate", None)
    return state in hosting.ENGINE_MISSING_SQLSTATES


class Host:
    """One launched DBOS executor.

    Args:
        url: database URL of the worker's role.
        ports: what the steps run on.
        fit: returns when the process may go on with its runs; each step begins with it.
        worker_concurrency: runs in flight at once in this process.
        tenant_concurrency: of these, one tenant's; None for the usual share.
        poll_seconds: how often the queue is polled.
        queue_name: what this process claims from; runs that it hands on go to the ordinary queue.
        spans: traces each step.
    """

    def __init__(
        self,
        url: str,
        ports: Ports,
        *,
        fit: Callable[[], Awaitable[None]],
        worker_concurrency: int,
        tenant_concurrency: int | None,
        poll_seconds: float,
        queue_name: str = hosting.QUEUE_NAME,
        spans: Spans | None = None,
    ) -> None:
        self._spans = spans or Spans()
        self._queue_name = queue_name
        share = max(1, int(worker_concurrency * hosting.TENANT_SHARE))
        self._tenant_concurrency = min(tenant_concurrency or share, worker_concurrency)
        self._url = url
        self._ports = ports
        self._fit = fit
        self._worker_concurrency = worker_concurrency
        self._poll_seconds = poll_seconds
        self._client: DBOSClient | None = None

    async def launch(self) -> None:
        """Register the queue, then start to claim runs on the running event loop.

        Raises:
            EngineAway: the `dbos` schema is missing, older, or being made anew; nothing has
                started, and it may be tried again.
            Exception: the database is not reachable.
        """
        quiet_engine_log()
        refuse_pickle()
        _slot.ports = replace(self._ports, waits=give_up_turn)
        _slot.fit = self._fit
        _slot.spans = self._spans
        try:
            await self._launch()
        except Exception as problem:
            if not _engine_is_away(problem):
                raise
            await self.drain(0.0)
            raise EngineAway(type(problem).__name__) from None

    async def _launch(self) -> None:
        self._client = await asyncio.to_thread(self._new_client)
        # Before the first poll: a worker without a limit would claim the whole backlog at once.
        await self.ensure_queue()
        config: DBOSConfig = {
            "name": hosting.APPLICATION_NAME,
            "system_database_url": self._url,
            "dbos_system_schema": hosting.DBOS_SCHEMA,
            "application_version": hosting.APPLICATION_VERSION,
            "executor_id": self._ports.process.executor_id,
            "run_migrations": False,
            "serializer": DBOSPortableJSONSerializer(),
            "sys_db_pool_size": ENGINE_POOL_SIZE,
            "sys_db_idle_transaction_timeout_sec": _DBOS_IDLE_TRANSACTION_SECONDS,
            "db_engine_kwargs": _engine_options(),
            "log_level": "WARNING",
            "console_log_level": "WARNING",
        }
        DBOS(config=config)
        DBOS.listen_queues([self._queue_name])
        DBOS.launch()

    async def drain(self, timeout_seconds: float) -> None:
        """Stop claiming, let running steps end for at most `timeout_seconds`, and shut down."""
        if self._client is not None:
            await asyncio.to_thread(self._client.destroy)
            self._client = None
        await asyncio.to_thread(
            DBOS.destroy, workflow_completion_timeout_sec=max(1, round(timeout_seconds))
        )
        # DBOS made its own pool the loop's default and has just shut it; name look-ups need one.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max_workers=2))

    async def ensure_queue(self) -> None:
        """Register the queue, parted by tenant; a recreated schema comes back without it."""
        assert self._client is not None
        await self._client.register_queue_async(
            self._queue_name,
            worker_concurrency=self._worker_concurrency,
            partition_worker_concurrency=self._tenant_concurrency,
            polling_interval_sec=self._poll_seconds,
            application_name=hosting.APPLICATION_NAME,
        )

    async def recover(self, executor_ids: list[str]) -> int:
        """Hand the pending runs of dead executors back to the queue; return how many.

        A compare-and-set in the database, so that several workers may do it at once.
        """
        recover: Callable[[list[str]], list[Any]] = (
            getattr(DBOS, "recover_workflows", None) or DBOS._recover_pending_workflows
        )
        return len(await asyncio.to_thread(recover, executor_ids))

    async def resume(self, run_ids: list[str]) -> None:
        """Put runs back into the queue that are pending on this executor but not running."""
        await DBOS.resume_workflows_async(run_ids, queue_name=hosting.QUEUE_NAME)

    async def take_over(self, run_id: str, queue_name: str) -> None:
        """Move a run into the ordinary queue, and remove the queue of its drill."""
        await self.resume([run_id])
        await self.remove_queue(queue_name)

    async def remove_queue(self, queue_name: str) -> None:
        """Forget the queue of a drill that is over."""
        assert self._client is not None
        await self._client.delete_queue_async(queue_name)

    @property
    def running(self) -> frozenset[str]:
        """The ids of the runs that are in this process now."""
        return frozenset(_slot.running)

    def _new_client(self) -> DBOSClient:
        return DBOSClient(
            system_database_url=_with_session(self._url),
            dbos_system_schema=hosting.DBOS_SCHEMA,
            serializer=DBOSPortableJSONSerializer(),
            application_name=hosting.APPLICATION_NAME,
            system_database_pool_size=1,
            retry_connection_errors=False,
        )


def _with_session(url: str) -> str:
    """Add the session's options to a URL, for the client, which takes no other way."""
    parts = urlsplit(url)
    query = [*parse_qsl(parts.query), ("options", _DBOS_SESSION)]
    return urlunsplit(parts._replace(query=urlencode(query, quote_via=quote)))


def _engine_options() -> dict[str, Any]:
    return {
        # Saves one round trip per checkout; DBOS retries a connection that turns out to be dead.
        "pool_pre_ping": False,
        "hide_parameters": True,
        "connect_args": {"application_name": "effect-broker-dbos", "options": _DBOS_SESSION},
    }
