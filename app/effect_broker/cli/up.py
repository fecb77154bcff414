"""`effect-broker up`: a whole broker on this machine, for one who wants to try it.

It starts what an operator starts for real (API, workers) and the demo's target as processes of
their own, on the embedded Postgres or on the database that the environment names, and keeps all it
makes in the state directory: database, key ring, API key, the target's ledger, logs. What it made
is found again by the next `up`. It is for development, and production refuses it.

The end is in order: first nobody submits, then the workers finish their sends, then the target and
the database go. Children therefore do not see the terminal's Ctrl-C; this process tells them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import typer

from effect_broker import assembly
from effect_broker.cli.access import any_url, as_user
from effect_broker.cli.kept import Kept
from effect_broker.cli.output import AsJson, complain, print_json
from effect_broker.clock import new_id
from effect_broker.config import Role, Settings, load_settings
from effect_broker.keyring import (
    ENV_KEY_RING,
    ENV_KEY_RING_FILE,
    KEY_RING_NAME,
    KeyRing,
    key_ring,
    new_key_ring,
)
from effect_broker.postgres.choice import home_directory
from effect_broker.postgres.locks import FileLock
from effect_broker.proof.stack import ProcessNotReady, Stack
from effect_broker.store.catalogue import Catalogue
from effect_broker.store.pool import make_pool
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.tenants import Authentication, TenantRecord, Tenants
from effect_contracts.catalog import catalog_documents
from effect_contracts.counting import counted
from effect_contracts.document import ContractDocument
from effect_contracts.errors import EffectError

_TENANT: Final = "local"
_API_KEY_NAME: Final = "api-key"
_LOCK_NAME: Final = "up.lock"
_LOGS_NAME: Final = "logs"
_LEDGER_NAME: Final = "target.sqlite"
_APPLICATION_NAME: Final = "effect-broker-up"
_HOST: Final = "127.0.0.1"
_WATCH_SECONDS: Final = 0.5
_WORKERS_MAX: Final = 16

# One kind of object at the target for each class, since a kind has one mode.
_KINDS: Final = {
    "demo-charge-idempotent": ("charges", "dedupe"),
    "demo-charge-reconcilable": ("lookup_charges", "lookup"),
    "demo-charge-unsafe": ("single_charges", "neither"),
}
_TRIED_TOOL: Final = "demo.charge"

Port = Annotated[int, typer.Option(min=0, max=65535, help="Of the API; 0 takes a free one.")]


@dataclass(frozen=True, slots=True)
class _Broker:
    """What stands when all is ready.

    Attributes:
        direct_url: the API's own login at the database, where it asks for no password.
    """

    url: str
    home: Path
    tenant: str
    tools: tuple[str, ...]
    direct_url: str | None
    api_key: str = field(repr=False)

    @property
    def curl(self) -> str:
        """A request to paste into a shell; pasted again it is a replay."""
        request = {
            "operation_key": "order:42:charge:v1",
            "tool": _TRIED_TOOL,
            "arguments": {"order": "42", "amount": 1200, "currency": "eur"},
        }
        return " \\\n  ".join(
            (
                f"curl -sS {shlex.quote(self.url + '/v1/effects?wait=10')}",
                f"-H {shlex.quote(f'Authorization: Bearer {self.api_key}')}",
                "-H 'Content-Type: application/json'",
                f"-d {shlex.quote(json.dumps(request))}",
            )
        )


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("up")(up)


def up(
    port: Port = 8080,
    target_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Of the demo's target; effects remember it.")
    ] = 8090,
    workers: Annotated[int, typer.Option(min=1, max=_WORKERS_MAX, help="How many.")] = 2,
    as_json: AsJson = False,
) -> None:
    """Run a whole broker on this machine until Ctrl-C, with a key and a request to paste."""
    settings = load_settings()
    if settings.production:
        complain("`up` is for development; in production run migrate, serve and worker")
    with suppress(KeyboardInterrupt), _interrupted_by_every_ending():
        _run(settings, port, target_port, workers, as_json)


def _run(settings: Settings, port: int, target_port: int, workers: int, as_json: bool) -> None:
    home = home_directory()
    with ExitStack() as stack:
        lock = FileLock(home / _LOCK_NAME)
        locked = home.is_dir() and _lock(stack, lock)
        for wanted, option in ((port, "--port"), (target_port, "--target-port")):
            _check_port(wanted, option)
        _tell("preparing the database", as_json)
        # The embedded server makes the home, with the rights that its own account needs.
        login = stack.enter_context(assembly.database(settings, Role.MIGRATE))
        _make_home(home)
        if not locked:
            _lock(stack, lock)
        _migrate(settings, login)
        _ensure_key_ring(home)
        ring = key_ring(settings)
        origin = f"http://{_HOST}:{target_port}"
        documents = tuple(_local(name, origin) for name in _KINDS)
        known_key = _read_api_key(home)
        tenant, api_key = asyncio.run(_prepare(login.url, ring, documents, known_key))
        if api_key != known_key:
            _write_secret(home / _API_KEY_NAME, api_key + "\n")
        environment = _environment(settings, login.url, home)
        processes = Stack(home / _LOGS_NAME, environment)
        running = _Processes(processes)
        stack.callback(running.end)
        _tell("starting target, API and workers", as_json)
        url = running.start(port, target_port, workers, home)
        tools = tuple(document.tool for document in documents)
        direct_url = environment.get("EFFECT_BROKER_API_DATABASE_URL")
        if direct_url is not None and urlsplit(direct_url).password is not None:
            direct_url = None
        _announce(_Broker(url, home, tenant, tools, direct_url, api_key), workers, as_json)
        running.watch()


# Before anything starts ---------------------------------------------------------------------


@contextmanager
def _interrupted_by_every_ending() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end the block as Ctrl-C does."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    endings = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in endings}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _lock(stack: ExitStack, lock: FileLock) -> bool:
    try:
        taken = lock.try_acquire()
    except OSError as problem:
        complain(f"{lock.path.parent} cannot be used: {problem.strerror}; set EFFECT_BROKER_HOME")
    if not taken:
        complain(
            f"`effect-broker up` runs already for {lock.path.parent}; end it first, or set "
            "EFFECT_BROKER_HOME to another directory"
        )
    stack.callback(lock.release)
    return True


def _check_port(port: int, option: str) -> None:
    """Say now that a port is taken, and not after a minute of preparations."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError as problem:
            complain(f"cannot listen on {_HOST}:{port}: {problem.strerror}; name another by "
                     f"{option}")  # fmt: skip


def _make_home(home: Path) -> None:
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        (home / _LOGS_NAME).mkdir(mode=0o700, exist_ok=True)
        ignored = home / ".gitignore"
        if not ignored.exists():
            ignored.write_text("*\n")  # a state directory lies in a project, and holds keys
    except OSError as problem:
        complain(f"{home} cannot be used: {problem.strerror}; set EFFECT_BROKER_HOME to another")


def _migrate(settings: Settings, login: assembly.DatabaseLogin) -> None:
    from effect_broker.store.migrate import MigrationError

    try:
        assembly.migrate(settings, login)
    except MigrationError as problem:
        complain(str(problem))


def _ensure_key_ring(home: Path) -> None:
    """Make a development ring, unless there is a ring; nobody else may read it."""
    path = home / KEY_RING_NAME
    if os.environ.get(ENV_KEY_RING) or os.environ.get(ENV_KEY_RING_FILE) or path.exists():
        return
    _write_secret(path, new_key_ring(f"dev-{new_id().hex[:8]}", development=True))


def _read_api_key(home: Path) -> str | None:
    try:
        return (home / _API_KEY_NAME).read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _write_secret(path: Path, text: str) -> None:
    """Write a file that is whole or not there, and closed to others from its first byte."""
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    aside.unlink(missing_ok=True)
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


# In the database ------------------------------------------------------------------------------


async def _prepare(
    url: str, ring: KeyRing, documents: tuple[ContractDocument, ...], known_key: str | None
) -> tuple[str, str]:
    """Make what is missing: tenant, contracts, API key. Returns the tenant's name and the key.

    The key of an earlier `up` will do, if it still opens this database for this tenant.
    """
    admin = make_pool(url, DatabaseRole.ADMIN, application_name=_APPLICATION_NAME, size_max=1)
    api = make_pool(url, DatabaseRole.API, application_name=_APPLICATION_NAME, size_max=1)
    async with admin, api:
        tenants = Tenants(admin)
        tenant = await _tenant(tenants, ring)
        await _apply(Catalogue(admin), documents)
        if known_key is not None and await _opens(Authentication(api), known_key, tenant):
            return tenant.name, known_key
        return tenant.name, (await tenants.create_key(tenant.name)).api_key


async def _tenant(tenants: Tenants, ring: KeyRing) -> TenantRecord:
    known = [t for t in await tenants.tenants() if t.disabled_at is None]
    if not known:
        return await tenants.create(_TENANT, ring.hmac.active)
    tenant = next((t for t in known if t.name == _TENANT), known[0])
    if tenant.hmac_key_id not in ring.hmac.keys:
        complain(
            f"the key ring lacks the key {tenant.hmac_key_id}, under which the tenant "
            f"{tenant.name} was made: put the old key ring back, or begin anew with another "
            "EFFECT_BROKER_HOME and database"
        )
    return tenant


async def _apply(catalogue: Catalogue, documents: tuple[ContractDocument, ...]) -> None:
    """Apply the demo's contracts; one that somebody has made for such a tool stays active."""
    active = {c.tool: c.name for c in await catalogue.contracts() if c.active}
    for document in documents:
        ours = active.get(document.tool, document.name) == document.name
        await catalogue.apply(document, activate=ours)


async def _opens(authentication: Authentication, api_key: str, tenant: TenantRecord) -> bool:
    try:
        found = await authentication.tenant(api_key)
    except EffectError:
        return False
    return found.tenant_id == tenant.tenant_id


def _local(name: str, origin: str) -> ContractDocument:
    """A document of the catalog for our own target.

    A published version never changes, so the version tells the address and the content apart.
    """
    kind, _ = _KINDS[name]
    document: dict[str, Any] = json.loads(catalog_documents()[name].canonical())
    adapter = document["adapter"]
    adapter["url"] = f"{origin}/objects/{kind}"
    if adapter.get("probe"):
        adapter["probe"]["url"] = f"{origin}/objects/{kind}{{?key}}"
    content = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
    document["version"] = f"local-{urlsplit(origin).port}-{content[:8]}"
    return ContractDocument.parse_yaml(json.dumps(document))


# The processes --------------------------------------------------------------------------------


def _environment(settings: Settings, url: str, home: Path) -> dict[str, str]:
    """Settings of the children beside our own; each logs in as itself where the server lets it."""
    environment = {"EFFECT_BROKER_HOME": str(home)}
    # Nobody else's machine: a receiver that is tried beside the broker is on it, too.
    environment["EFFECT_BROKER_EVENT_NETWORKS"] = settings.with_loopback().event_networks
    if any_url(settings):
        return environment
    trusts = urlsplit(url).password is None
    for role in (DatabaseRole.API, DatabaseRole.WORKER):
        name = role.value.removeprefix("effect_broker_").upper()
        own = as_user(url, role.value) if trusts else url
        environment[f"EFFECT_BROKER_{name}_DATABASE_URL"] = own
    return environment


class _Processes:
    """The children, from the first start to an end in order."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._target: Kept | None = None
        self._api: Kept | None = None
        self._workers: list[Kept] = []

    def start(self, port: int, target_port: int, workers: int, home: Path) -> str:
        """Start all and wait until all are ready; returns the API's URL."""
        target = ["target", "--port", str(target_port), "--ledger", str(home / _LEDGER_NAME)]
        for kind, mode in _KINDS.values():
            target += ["--mode", f"{kind}={mode}"]
        api_port = port  # of the next start: a free port that was taken is kept
        try:
            self._target = Kept(lambda: self._stack.start(target, "target listening on "))
            self._api = Kept(lambda: self._stack.api(api_port))
            self._workers = [Kept(self._stack.worker) for _ in range(workers)]
            for kept in (self._target, *self._workers):
                kept.process.wait_ready()
            url = self._api.process.wait_ready()
        except ProcessNotReady as problem:
            complain(str(problem).strip())
        api_port = urlsplit(url).port or port
        return url

    def watch(self) -> None:
        """Stay until Ctrl-C; a child that ends is replaced, as a supervisor would."""
        pause = threading.Event()
        while True:
            pause.wait(_WATCH_SECONDS)
            for kept in self._all():
                kept.look()

    def _all(self) -> list[Kept]:
        """In the order in which they end: API, workers, target."""
        return [k for k in (self._api, *self._workers, self._target) if k is not None]

    def end(self) -> None:
        """End API, then workers, then target; a second Ctrl-C kills what is left."""
        if self._target is None:
            return
        print("ending; Ctrl-C again does not wait", file=sys.stderr)
        try:
            for kept in self._all():
                if kept.process.alive:
                    kept.process.terminate()
        except KeyboardInterrupt:
            for kept in self._all():
                if kept.process.alive:
                    kept.process.kill()
        self._stack.stop()


# What is said ---------------------------------------------------------------------------------


def _tell(text: str, as_json: bool) -> None:
    print(text, file=sys.stderr if as_json else sys.stdout, flush=True)


def _announce(broker: _Broker, workers: int, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "url": broker.url,
                "api_key": broker.api_key,
                "tenant": broker.tenant,
                "tools": list(broker.tools),
                "workers": workers,
                "home": str(broker.home),
                "api_database_url": broker.direct_url,
                "curl": broker.curl,
            }
        )
        sys.stdout.flush()
        return
    lines = (
        f"effect-broker is up at {broker.url} (API description: {broker.url}/openapi.json)",
        f"  tenant  {broker.tenant}, {counted(workers, 'worker')}",
        f"  tools   {', '.join(broker.tools)}",
        f"  state   {broker.home} (logs in {_LOGS_NAME}/)",
        f"  console {broker.url}/console; a key for it: `effect-broker keys create --tenant "
        f"{broker.tenant} --scope read --scope operate`",
        *([f"  direct  {shlex.quote(broker.direct_url)}"] if broker.direct_url else []),
        "",
        "Paste this into another terminal; pasted again, it is a replay and no second charge:",
        "",
        broker.curl,
        "",
        "Ctrl-C ends it; the next `up` finds everything again.",
    )
    print("\n".join(lines), flush=True)
