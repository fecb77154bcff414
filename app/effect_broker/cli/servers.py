"""The commands that run for long, `serve`, `worker` and `reconciler`, and `migrate` and `target`.

Each prints one line on standard output when it is ready, which supervisors, demo and tests wait
for, and ends with 0 on SIGTERM and SIGINT after it has finished what it holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from effect_broker import assembly, logs
from effect_broker.cli.output import AsJson, complain, print_json
from effect_broker.config import Role, Settings, load_settings
from effect_broker.postgres.choice import home_directory

if TYPE_CHECKING:
    import uvicorn

    from effect_broker.api.connections import Connections
    from effect_broker.api.services import Services

# How long running requests may still take once the process was told to end. A long poll ends
# at once, a submit takes milliseconds; the rest is for a database that is slow.
_SHUTDOWN_SECONDS: Final = 10
# What requests get that are cut off since the process was told twice.
_FORCED_SECONDS: Final = 1
_BACKLOG: Final = 1024

Host = Annotated[str, typer.Option(help="Address to listen on.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the root."""
    app.command()(serve)
    app.command()(worker)
    app.command()(reconciler)
    app.command()(migrate)
    app.command()(target)


def serve(
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8080,
) -> None:
    """Run the HTTP API. It accepts and reads effects; workers send them."""
    settings = _settings()
    listening = _bound(host, port)
    with listening, assembly.database(settings, Role.API) as login:
        asyncio.run(_serve(settings, login, listening))


def worker(
    probes: Annotated[
        str | None,
        typer.Option(help="Look-ups for effects that callers perform, as module:registry."),
    ] = None,
) -> None:
    """Run a worker: it sends effects, settles lost answers, and repairs what others left."""
    settings = _settings()
    if probes is not None:
        settings = settings.model_copy(update={"probes": probes})
    with assembly.database(settings, Role.WORKER) as login:
        asyncio.run(_work(settings, login))


def reconciler() -> None:
    """Run the reconcile loop alone, by SQL: it starts runs for due effects, and sends nothing."""
    settings = _settings()
    with assembly.database(settings, Role.WORKER) as login:
        asyncio.run(_reconcile(settings, login))


def migrate(as_json: AsJson = False) -> None:
    """Bring the database up to this release: roles, both schemas, rights. Safe to repeat."""
    settings = _settings()
    with assembly.database(settings, Role.MIGRATE) as login:
        from effect_broker.store.migrate import MigrationError

        try:
            report = assembly.migrate(settings, login)
        except MigrationError as problem:
            complain(str(problem))
    if as_json:
        print_json(
            {
                "version_before": report.version_before,
                "version": report.version,
                "roles_created": list(report.roles_created),
                "engine_created": report.engine_created,
            }
        )
        return
    before = report.version_before or "none"
    changed = "already at" if before == report.version else f"from {before} to"
    engine = "created" if report.engine_created else "present"
    typer.echo(f"migrated: schema {changed} {report.version}; engine schema {engine}")


def target(
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8090,
    ledger: Annotated[
        Path | None, typer.Option(help="The SQLite file; by default in the state directory.")
    ] = None,
    mode: Annotated[
        list[str] | None, typer.Option(metavar="KIND=MODE", help="How a kind of object behaves.")
    ] = None,
) -> None:
    """Run the demo's outside system: a small HTTP service with a ledger of its own."""
    from effect_broker.proof.target.__main__ import main

    _settings()
    place = ledger or home_directory() / "target.sqlite"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        complain(f"cannot make {place.parent}: {problem.strerror}; name another file by --ledger")
    arguments = ["--host", host, "--port", str(port), "--ledger", str(place)]
    for text in mode or ():
        arguments += ["--mode", text]
    raise typer.Exit(main(arguments))


def _settings() -> Settings:
    settings = load_settings()
    logs.configure(settings.log_level, as_json=settings.json_logs)
    return settings


def _bound(host: str, port: int) -> socket.socket:
    """Return a listening socket, so that a busy port is known before anything else begins."""
    shown = f"[{host}]" if ":" in host else host
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        complain(f"{shown} is not an address of this machine; name one by --host")
    family, kind, protocol, _, address = found[0]
    listening = socket.socket(family, kind, protocol)
    try:
        # A restart must not wait for connections of the process before to time out.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError as problem:
        listening.close()
        complain(f"cannot listen on {shown}:{port}: {problem.strerror}; name another by --port")
    return listening


async def _serve(
    settings: Settings, login: assembly.DatabaseLogin, listening: socket.socket
) -> None:
    import uvicorn

    from effect_broker.api.app import create_app
    from effect_broker.api.connections import Connections, connections_max
    from effect_broker.api.limits import RequestLimits

    class Server(uvicorn.Server):
        """uvicorn's, but that our own signal handling ends it with 0, and that it says when."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            # The loop has set its own number, which is how many it accepts at a time; the kernel
            # may keep more, so that a burst of clients does not have to knock again.
            listening.listen(_BACKLOG)
            print(f"api listening on {_url(listening)}", flush=True)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            await super().shutdown(sockets)
            if self.force_exit:
                # The server leaves these to the end of the loop, which tears them off with noise.
                running = set(self.server_state.tasks)
                for task in running:
                    task.cancel()
                if running:
                    await asyncio.wait(running, timeout=_FORCED_SECONDS)
                await self.lifespan.shutdown()

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    # Entered here and not by the application, so that what is wrong with the database or the key
    # ring ends the process with a sentence, before a client was let in.
    async with assembly.api_services(settings, login) as services:

        @asynccontextmanager
        async def opened() -> AsyncIterator[Services]:
            yield services

        limit = connections_max()
        connections = Connections(limit)
        limits = RequestLimits(settings.tenant_requests_per_second, settings.tenant_requests_burst)
        app = create_app(
            opened,
            draining=lambda: server.should_exit,
            connections_max=limit,
            limits=limits,
        )
        server = Server(_server_config(app, connections))
        loop = asyncio.get_running_loop()

        def end() -> None:
            server.force_exit = server.should_exit  # told twice: wait for nobody
            server.should_exit = True

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end)
        await server.serve(sockets=[listening])


def _server_config(app: Callable[..., Any], connections: Connections) -> uvicorn.Config:
    import uvicorn

    from effect_broker.api.connections import ACCEPTS_AT_ONCE

    return uvicorn.Config(
        app,
        http=connections.protocol,  # type: ignore[arg-type]  # called like the class
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=ACCEPTS_AT_ONCE,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def _work(settings: Settings, login: assembly.DatabaseLogin) -> None:
    async with assembly.worker(settings, login) as (made, executor_id):
        await made.run(lambda: print(f"worker ready as {executor_id}", flush=True))


async def _reconcile(settings: Settings, login: assembly.DatabaseLogin) -> None:
    async with assembly.reconciler(settings, login) as (made, executor_id):
        await made.run(lambda: print(f"reconciler ready as {executor_id}", flush=True))
