"""A whole broker for demo and proofs: a migrated database, processes, a target, and a caller.

The parts are the real ones, in processes of their own; this file only prepares what an operator
would (tenant, API key, key ring, contracts) and speaks to the API as a caller does.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit

import httpx

from effect_broker import faultpoints
from effect_broker.durable import migrate_dbos
from effect_broker.faultpoints import FaultAction, FaultPoint
from effect_broker.keyring import ENV_KEY_RING_FILE, new_key_ring
from effect_broker.proof.stack import ManagedProcess, Stack, state_of
from effect_broker.proof.target.process import TargetProcess
from effect_broker.store.catalogue import Catalogue
from effect_broker.store.migrate import migrate
from effect_broker.store.pool import Pool, make_pool
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.tenants import DEFAULT_SCOPES, Tenants
from effect_contracts.document import ContractDocument

T = TypeVar("T")

KEY_ID = "proof"
SETTLE_SECONDS = 60.0
# A limit for a machine that starts a dozen processes at once, not a wait.
API_READY_SECONDS = 300.0
_POLL_SECONDS = 0.05
# What a caller does with 503: a database that is away, or a machine that stood still for a moment.
_BUSY_TRIES = 40
_BUSY_SECONDS = 0.5


class NotInTime(Exception):
    """Something that has to happen did not; the text says what was seen last."""


def url_for(superuser_url: str, role: DatabaseRole) -> str:
    """Return the URL of another role on a server that trusts local connections."""
    parts = urlsplit(superuser_url)
    address = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{quote(role.value)}@{address}"))


def wait_until(
    seen: Callable[[], T | None], what: str, timeout_seconds: float = SETTLE_SECONDS
) -> T:
    """Return the first value that `seen` gives.

    Raises:
        NotInTime: there was none in time.
    """
    pause = threading.Event()
    for _ in range(int(timeout_seconds / _POLL_SECONDS)):
        value = seen()
        if value is not None:
            return value
        pause.wait(_POLL_SECONDS)
    raise NotInTime(f"{what}: not within {timeout_seconds} s")


def _patiently(ask: Callable[[], httpx.Response]) -> httpx.Response:
    """Ask again while there is no answer or a 503, as every caller does; return the last answer.

    A connection that was kept is closed by the other side after a while, and that may be just when
    it is used again.

    Raises:
        httpx.TransportError: there was no answer until the end.
    """
    pause = threading.Event()
    for _ in range(_BUSY_TRIES):
        try:
            answer = ask()
        except httpx.TransportError:
            pass
        else:
            if answer.status_code != 503:
                return answer
        pause.wait(_BUSY_SECONDS)
    return ask()


class ProofBroker:
    """One broker with one tenant.

    Args:
        directory: for logs, fault points, key ring and the target's ledger.
        superuser_url: of a database of its own.
        environment: further settings of its processes.
        modes: `KIND=MODE` of the target.
        migrated: the database is prepared already.
        own_logins: each process logs in as its own role, which the server must allow without a
            password; else all log in as the superuser and take their roles then.
    """

    def __init__(
        self,
        directory: Path,
        superuser_url: str,
        *,
        environment: Mapping[str, str] | None = None,
        modes: Iterable[str] = (),
        migrated: bool = False,
        own_logins: bool = True,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.superuser_url = superuser_url
        self.migrated = migrated
        self.own_logins = own_logins
        ring = directory / "keyring.json"
        ring.write_text(new_key_ring(KEY_ID, development=True))
        self.target = TargetProcess(directory / "target.sqlite", modes=tuple(modes))
        self.stack = Stack(
            directory,
            {
                "EFFECT_BROKER_API_DATABASE_URL": self.url(DatabaseRole.API),
                "EFFECT_BROKER_WORKER_DATABASE_URL": self.url(DatabaseRole.WORKER),
                "EFFECT_BROKER_HOME": str(directory),
                ENV_KEY_RING_FILE: str(ring),
                **(environment or {}),
            },
        )
        self.tenant_id = ""
        self._http: httpx.Client | None = None
        self._former_http: list[httpx.Client] = []
        self._api_key = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def url(self, role: DatabaseRole) -> str:
        """Return the database URL of a role."""
        return url_for(self.superuser_url, role) if self.own_logins else self.superuser_url

    # Preparing -----------------------------------------------------------------------------------

    def prepare(self, tenant: str = "proof", scopes: Sequence[str] = DEFAULT_SCOPES) -> None:
        """Migrate, make the tenant and its API key, and start the target."""
        if not self.migrated:
            migrate(self.superuser_url, migrate_dbos=migrate_dbos)
        self._api_key = self.add_tenant(tenant, scopes)
        self.target.start()

    def add_tenant(self, name: str, scopes: Sequence[str] = DEFAULT_SCOPES) -> str:
        """Make a tenant; return an API key of it."""

        async def work(pool: Pool) -> str:
            tenants = Tenants(pool)
            self.tenant_id = str((await tenants.create(name, KEY_ID)).tenant_id)
            return (await tenants.create_key(name, scopes)).api_key

        return self._administer(work)

    def apply(self, *documents: ContractDocument) -> None:
        """Apply contracts and make each the active one of its tool."""

        async def work(pool: Pool) -> None:
            for document in documents:
                await Catalogue(pool).apply(document)

        self._administer(work)

    def _administer(self, work: Callable[[Pool], Awaitable[T]]) -> T:
        async def run() -> T:
            url = self.url(DatabaseRole.ADMIN)
            taken = None if self.own_logins else DatabaseRole.ADMIN
            async with make_pool(url, taken, application_name="proof-admin", size_max=1) as pool:
                return await work(pool)

        return asyncio.run(run())

    # Processes -----------------------------------------------------------------------------------

    def start_api(self, environment: Mapping[str, str] | None = None) -> ManagedProcess:
        """Start an API process and speak to it from now on."""
        process = self.stack.api(environment=environment)
        if self._http is not None:
            self._former_http.append(self._http)  # a call that is under way may still use it
        self._http = self.client(process.wait_ready(API_READY_SECONDS), self._api_key)
        return process

    def client(self, base_url: str, api_key: str) -> httpx.Client:
        """Return a caller with a key of its own."""
        return httpx.Client(
            base_url=base_url,
            headers={"Authorization": f"Bearer {api_key}"},
            timeout=90.0,
            trust_env=False,
        )

    def start_workers(self, count: int) -> list[ManagedProcess]:
        """Start workers and wait until all are ready."""
        workers = [self.stack.worker() for _ in range(count)]
        for worker in workers:
            worker.wait_ready()
        return workers

    def arm(self, point: FaultPoint, action: FaultAction = FaultAction.KILL) -> None:
        """Arm a fault point once, for whichever process comes there first."""
        faultpoints.arm(self.stack.faults, point, action)

    def wait_fired(self, point: FaultPoint, action: FaultAction = FaultAction.KILL) -> int:
        """Return the id of the process that has met the armed point; one to be killed is dead."""

        def seen() -> int | None:
            met = faultpoints.fired(self.stack.faults, point, action)
            # It says so first, and may be held up before it does it.
            late = met and action is FaultAction.KILL and state_of(met[0]) not in {None, "Z"}
            return met[0] if met and not late else None

        pid = wait_until(seen, f"{point} fired")
        for path in self.stack.faults.glob(f"{point}.{action}.fired.*"):
            path.unlink()
        return pid

    def stop(self) -> None:
        """End everything."""
        for client in (*self._former_http, *([self._http] if self._http else [])):
            client.close()
        self.stack.stop()
        self.target.stop()

    # Calling -----------------------------------------------------------------------------------

    @property
    def http(self) -> httpx.Client:
        """The caller."""
        assert self._http is not None, "start_api comes first"
        return self._http

    def submit(
        self,
        operation_key: str,
        tool: str,
        arguments: Mapping[str, Any],
        wait: float = 0.0,
        members: Mapping[str, Any] | None = None,
    ) -> httpx.Response:
        """Submit once, with further members of the body, and return the answer as it is."""
        body = {"operation_key": operation_key, "tool": tool, "arguments": dict(arguments)}
        body |= members or {}
        return self.http.post("/v1/effects", json=body, params={"wait": wait})

    def submitted(self, operation_key: str, tool: str, arguments: Mapping[str, Any]) -> str:
        """Submit a new effect and return its id; a broker that is busy is asked again.

        Raises:
            httpx.HTTPStatusError: it was not taken. ValueError: it was there already.
        """
        tries = list[str]()

        def answered() -> httpx.Response:
            tries.append(operation_key)
            return self.submit(operation_key, tool, arguments)

        answer = _patiently(answered)
        answer.raise_for_status()
        # Of a try that had no answer nothing is known: it may have been taken.
        if answer.status_code == 200 and len(tries) == 1:
            raise ValueError(f"{operation_key} was submitted before")
        effect_id: str = answer.json()["effect_id"]
        return effect_id

    def effect(self, effect_id: str) -> dict[str, Any]:
        """Return an effect as the API shows it; a broker that is busy is asked again."""
        answer = _patiently(lambda: self.http.get(f"/v1/effects/{effect_id}"))
        answer.raise_for_status()
        body: dict[str, Any] = answer.json()
        return body

    def settled(self, effect_id: str, timeout_seconds: float = SETTLE_SECONDS) -> dict[str, Any]:
        """Return the effect once it is final or waits for a person.

        Raises:
            NotInTime.
        """

        def seen() -> dict[str, Any] | None:
            body = self.effect(effect_id)
            return body if body["final"] or body["waits_for_person"] else None

        try:
            return wait_until(seen, f"effect {effect_id} settled", timeout_seconds)
        except NotInTime as late:
            history = _patiently(lambda: self.http.get(f"/v1/effects/{effect_id}/history"))
            raise NotInTime(f"{late}; it is {self.effect(effect_id)}: {history.text}") from None

    def receipt(self, effect_id: str) -> dict[str, Any] | None:
        """Return the receipt, None while there is none."""
        answer = _patiently(lambda: self.http.get(f"/v1/effects/{effect_id}/receipt"))
        if answer.status_code == 404:
            return None
        answer.raise_for_status()
        body: dict[str, Any] = answer.json()
        return body
