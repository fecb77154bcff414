"""Owns the target's process: the listening socket, its connections, and a clean end.

The life of a request: its head is read, its plan is chosen, its body is read, its row is on disk,
its steps run, its ending is sent. The promise that everything else rests on: **a request that a
plan is carried out for is in the ledger before the plan begins**, whatever the client then sees.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import assert_never

from effect_broker.proof.target.clock import TargetClock
from effect_broker.proof.target.control import PREFIX, Control
from effect_broker.proof.target.counting import FLUSH_SECONDS, CountOnly
from effect_broker.proof.target.endings import end
from effect_broker.proof.target.faults import (
    HONEST,
    Commit,
    Delay,
    Hold,
    Ok,
    Operation,
    Partial,
    Plan,
    Reset,
    Status,
)
from effect_broker.proof.target.ledger import Ledger, LedgerUnusable
from effect_broker.proof.target.messages import Answer, Request, error_answer
from effect_broker.proof.target.modes import Mode
from effect_broker.proof.target.routes import route_of
from effect_broker.proof.target.scripts import Scripts
from effect_broker.proof.target.service import Arrival, TargetService
from effect_broker.proof.target.waits import Bulletin, Holds
from effect_broker.proof.target.wire import ClientGone, Connection, NotHttp

BACKLOG = 1024
# How long under `racing` a key has been looked up and is not yet written: long enough that
# requests that are sent together overlap, also on a busy machine.
_RACE_SECONDS = 0.25
_ACCEPT_PAUSE_SECONDS = 0.1  # when descriptors run out: others must end before a next one fits
_log = logging.getLogger(__name__)


class CannotListen(Exception):
    """The address cannot be listened on; the text says why and what to do."""


class TargetServer:
    """One running target. Not for more than one event loop."""

    def __init__(self, ledger: Ledger, host: str = "127.0.0.1", port: int = 0) -> None:
        self._ledger = ledger
        self._host = host
        self._port = port
        self._scripts = Scripts()
        self._bulletin = Bulletin()
        self._holds = Holds(self._bulletin)
        self._counting = CountOnly(ledger)
        self.service = TargetService(ledger, TargetClock())
        self._control = Control(
            self.service, self._scripts, self._holds, self._bulletin, self._counting
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: socket.socket | None = None

    async def start(self) -> str:
        """Listen; returns the base URL. Raises `CannotListen`."""
        self._listener = _listening(self._host, self._port)
        port = self._listener.getsockname()[1]
        self._spawn(self._accept(self._listener))
        self._spawn(self._flush_counts())
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{port}"

    async def stop(self) -> None:
        """Close everything that is open; what was received is in the ledger already."""
        if self._listener is not None:
            self._listener.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._counting.flush()

    # -- connections -----------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _flush_counts(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            self._counting.flush()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(listener)
            except OSError as error:
                if listener.fileno() == -1:
                    return
                _log.warning("cannot accept a connection: %s", error.strerror)
                await asyncio.sleep(_ACCEPT_PAUSE_SECONDS)
                continue
            self._spawn(self._serve(Connection(sock), address[0]))

    async def _serve(self, connection: Connection, peer: str) -> None:
        try:
            if await self._cut_unread(connection):
                return
            while await self._serve_one(connection, peer):
                pass
        except ClientGone as gone:
            if gone.part is not None and not gone.part.path.startswith(PREFIX):
                self.service.receive_broken("cut", HONEST, gone.part)
        except NotHttp as error:
            with contextlib.suppress(ClientGone):
                refusal = error_answer(error.status, "bad_request", str(error))
                await connection.answer(refusal, more=False)
        except Exception:
            _log.exception("the target failed at a request")
            with contextlib.suppress(Exception):
                await connection.answer(error_answer(500, "target_defect", "see log"), more=False)
        finally:
            connection.close()

    async def _cut_unread(self, connection: Connection) -> bool:
        """Carry out a plan for a connection of which nothing is read; control is exempt."""
        if not self._scripts.connection_is_next():
            return False
        first = await connection.peek()
        if not first or f" {PREFIX}".encode() in first:
            return False
        plan = self._scripts.next_for_connection()
        if plan is None:  # taken by another connection in the meantime
            return False
        self.service.receive_broken("unread", plan, None)
        self._bulletin.post()
        if isinstance(plan.ending, Reset):
            connection.abort()
        connection.close()
        return True

    async def _serve_one(self, connection: Connection, peer: str) -> bool:
        head = await connection.read_head()
        if head is None:
            return False
        if head.path.startswith(PREFIX):
            request = await connection.read_body(head)
            return await connection.answer(await self._control.answer(request, peer), more=True)
        route = route_of(head)
        plan = self._scripts.next_for_head(route.kind, head.method, self.service.keys(head, route))
        if plan is not None:
            return await self._carry_out(head, plan, connection, more=False)
        request = await connection.read_body(head)
        keys = self.service.keys(request, route)
        if request.mutating and self.service.mode(route.kind).mode == "count_only":
            counted = self._counting.count(route.kind, keys)
            self._bulletin.post()
            return await connection.answer(counted, more=True)
        plan = self._scripts.next_for_request(route.kind, request.method, keys)
        return await self._carry_out(request, plan, connection, more=True)

    # -- plans -----------------------------------------------------------------------------------

    async def _carry_out(
        self, request: Request, plan: Plan, connection: Connection, *, more: bool
    ) -> bool:
        arrival = self.service.receive(request, plan)
        self._bulletin.post()
        applied = await self._take_steps(arrival, plan)
        if isinstance(plan.ending, Status):
            self.service.store_scripted(arrival, plan.ending)
        if connection.gone():
            self.service.unheard(arrival)
        answer = applied if applied is not None else self.service.unmade_answer(arrival)
        try:
            return await end(plan.ending, answer, connection, self._holds, more=more)
        except ClientGone:
            self.service.left(arrival)
            raise

    async def _take_steps(self, arrival: Arrival, plan: Plan) -> Answer | None:
        """Run the steps; returns the honest answer if the request was applied."""
        applied: Answer | None = None
        with self.service.working_on(arrival):
            if arrival.races:
                await asyncio.sleep(_RACE_SECONDS)
            for step in plan.steps:
                match step:
                    case Commit():
                        applied = applied or self._apply(arrival, plan)
                    case Delay(seconds=seconds):
                        await asyncio.sleep(seconds)
                    case Hold(name=name):
                        await self._holds.wait(name, None)
                    case _:
                        assert_never(step)
            if applied is None and isinstance(plan.ending, Ok | Partial | Operation):
                applied = self._apply(arrival, plan)
        return applied

    def _apply(self, arrival: Arrival, plan: Plan) -> Answer:
        answer = self.service.apply(arrival, plan)
        self._bulletin.post()
        return answer


def _listening(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise CannotListen(f"cannot listen on {host}:{port}: a port is 0 to 65535")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        busy = error.errno == errno.EADDRINUSE
        why = "the port is in use; choose another with --port" if busy else str(error)
        raise CannotListen(f"cannot listen on {host}:{port}: {why}") from error
    listener.setblocking(False)
    return listener


async def serve(
    host: str,
    port: int,
    ledger_path: Path,
    *,
    modes: Mapping[str, Mode] | None = None,
    ready: Callable[[str], None],
) -> None:
    """Serve until SIGTERM or SIGINT; `ready` gets the base URL once connections are accepted.

    Raises `CannotListen`, `LedgerUnusable`.
    """
    ledger = Ledger(ledger_path)
    try:
        server = TargetServer(ledger, host, port)
        for kind, mode in (modes or {}).items():
            server.service.set_mode(kind, mode)
        ending = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, ending.set)
        ready(await server.start())
        try:
            await ending.wait()
        finally:
            await server.stop()
    finally:
        ledger.close()


def run(host: str, port: int, ledger_path: Path, *, modes: Mapping[str, Mode] | None = None) -> int:
    """The command: serves until told to end; returns the exit code (1: could not begin)."""

    def ready(url: str) -> None:
        print(f"target listening on {url}", flush=True)

    try:
        asyncio.run(serve(host, port, ledger_path, modes=modes, ready=ready))
    except (CannotListen, LedgerUnusable) as error:
        print(f"target: {error}", file=sys.stderr)
        return 1
    return 0
