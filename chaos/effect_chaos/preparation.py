"""What a run stands on: a fresh database, a target, tenants and contracts, and all processes.

Everything is made by the commands that an operator uses, in a directory of the run's own.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from effect_chaos.database import API_ROLE, WORKER_ROLE, Database
from effect_chaos.faults import LOGS, Tell, World
from effect_chaos.outside import Outside
from effect_chaos.processes import Slot, run_command
from effect_chaos.schedule import HEARTBEAT_TTL_SECONDS
from effect_chaos.tools import TOOLS
from effect_chaos.workload import APIS, TENANTS
from effect_contracts.counting import counted

# Small, so that a run of seconds holds what takes minutes in production.
SETTINGS: Final = {
    "EFFECT_BROKER_HEARTBEAT_TTL_SECONDS": f"{HEARTBEAT_TTL_SECONDS:g}",
    "EFFECT_BROKER_DRAIN_SECONDS": "5",
    "EFFECT_BROKER_WORKER_CONCURRENCY": "50",
    "EFFECT_BROKER_QUEUE_POLL_SECONDS": "0.1",
}


@dataclass(frozen=True, slots=True)
class Prepared:
    """A broker whose processes are ready.

    Attributes:
        api_keys: by tenant.
        addresses: the base URL of each API process; it keeps it over restarts.
    """

    world: World
    api_keys: dict[str, str]
    addresses: tuple[str, ...]


@contextmanager
def prepared_broker(directory: Path, workers: int, tell: Tell) -> Iterator[Prepared]:
    """Prepare everything in `directory`, and end all processes afterwards.

    Raises:
        ProcessFailed: a command or process did not do what it has to.
    """
    (directory / "faults").mkdir(parents=True, exist_ok=True)
    (directory / LOGS).mkdir(exist_ok=True)
    with ExitStack() as ending:
        database, outside = Database(directory), Outside(directory)
        ending.callback(database.stop)
        ending.callback(outside.stop)
        tell("preparing a database, a target, tenants and contracts")
        database.start()
        database.migrate()
        database.make_ledger()
        outside.start()
        ring = directory / "keyring.json"
        ring.write_text(run_command(["keys", "ring", "--development"], os.environ))
        api_keys = _tenants(database, ring)
        _apply_contracts(directory, database, outside.url)
        ports = _free_ports(APIS)
        world = _world(directory, database, outside, workers, ring, ports)
        for slot in world.slots:
            ending.callback(slot.close)
        tell(f"starting {counted(workers, 'worker')}, {counted(APIS, 'API')} and a reconciler")
        for slot in world.slots:
            slot.start()
        for slot in world.slots:
            slot.child.wait_ready()
        yield Prepared(world, api_keys, tuple(f"http://127.0.0.1:{port}" for port in ports))


def _tenants(database: Database, ring: Path) -> dict[str, str]:
    """Make the tenants; return an API key of each."""
    environment = {**database.environment, "EFFECT_BROKER_KEY_RING_FILE": str(ring)}

    def make(tenant: str) -> str:
        run_command(["tenants", "create", tenant], environment)
        return run_command(["keys", "create", "--tenant", tenant], environment).strip()

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(TENANTS, pool.map(make, TENANTS), strict=True))


def _apply_contracts(directory: Path, database: Database, origin: str) -> None:
    contracts = directory / "contracts"
    contracts.mkdir(exist_ok=True)
    files = []
    for tool in TOOLS:
        path = contracts / f"{tool.name}.yaml"  # JSON is YAML
        path.write_text(tool.document(origin))
        files.append(str(path))
    run_command(["contracts", "apply", *files], database.environment)


def _world(
    directory: Path,
    database: Database,
    outside: Outside,
    workers: int,
    ring: Path,
    ports: Sequence[int],
) -> World:
    environment = {
        **os.environ,
        **SETTINGS,
        "EFFECT_BROKER_API_DATABASE_URL": database.url_for(API_ROLE),
        "EFFECT_BROKER_WORKER_DATABASE_URL": database.url_for(WORKER_ROLE),
        "EFFECT_BROKER_HOME": str(directory),
        "EFFECT_BROKER_KEY_RING_FILE": str(ring),
        "EFFECT_BROKER_FAULT_DIR": str(directory / "faults"),
    }

    def slot(name: str, ready: str, *arguments: str) -> Slot:
        return Slot(name, arguments, environment, directory / LOGS, ready)

    return World(
        directory,
        database,
        outside,
        workers=tuple(slot(f"worker-{n}", "worker ready as ", "worker") for n in range(workers)),
        apis=tuple(
            slot(f"api-{n}", "api listening on ", "serve", "--port", str(port))
            for n, port in enumerate(ports)
        ),
        reconciler=slot("reconciler", "reconciler ready as ", "reconciler"),
    )


def _free_ports(count: int) -> list[int]:
    """Ports that are free now; an API that comes back has to find its own again."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()
