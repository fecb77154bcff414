"""The composition root: from settings to the parts of a process; nothing else wires them.

Each process gets what it needs and no more. The API's adapters render and never send, so its
secret references resolve to nothing, but for those of webhooks in its inbox; the worker beats and
repairs over connections of its own, so that a backlog of effects which waits for connections cannot
make it look dead.

The heavy imports (the engine, the migrations) stand inside the functions that need them: a
command that reads one row must not load an engine first.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import unquote, urlsplit, urlunsplit
from uuid import UUID

from effect_adapters.http.connection import verifying_tls
from effect_adapters.registry import adapters
from effect_broker import open_files
from effect_broker.api.services import Health, Services
from effect_broker.approving import Approving
from effect_broker.authentication import CachedAuthentication
from effect_broker.batches import Batching
from effect_broker.clock import SystemClock, new_executor_id, new_id
from effect_broker.config import (
    API_POOL_SIZE,
    REPAIR_POOL_SIZE,
    WORKER_POOL_SIZE,
    ConfigurationProblem,
    Role,
    Settings,
)
from effect_broker.console import ConsoleParts
from effect_broker.event_delivery import Deliveries
from effect_broker.evidence_inbox import EvidenceInbox
from effect_broker.evidence_matching import Matching, match_due
from effect_broker.faultpoints import ENV_FAULT, ENV_FAULT_DIR, FaultPoints
from effect_broker.keyring import (
    AesVault,
    KeyRing,
    KeyRingProblem,
    key_ring,
    ring_public_keys,
    ring_signer,
)
from effect_broker.log_events import event
from effect_broker.metrics_ledger import FreshLedger
from effect_broker.observability import Observed, observed, served_alone, served_beside
from effect_broker.observed_intake import ObservedIntake
from effect_broker.performing import Performing
from effect_broker.postgres.choice import ServerSource, home_directory, resolve_server
from effect_broker.postgres.container import ContainerPostgresError
from effect_broker.postgres.embedded import EmbeddedPostgresError
from effect_broker.probes import load_probes
from effect_broker.process import WorkerProcess
from effect_broker.protocol.ports import Ports, StoreError, Vault
from effect_broker.resolving import Resolving
from effect_broker.secretrefs import SecretReferences
from effect_broker.store.api import PostgresApiStore
from effect_broker.store.batches import PostgresBatches
from effect_broker.store.console import PostgresConsole
from effect_broker.store.drills import PostgresDrills
from effect_broker.store.elections import PostgresElections
from effect_broker.store.errors import store_errors
from effect_broker.store.event_delivery import PostgresDeliveries
from effect_broker.store.event_stream import PostgresStream
from effect_broker.store.health import DatabaseHealth, database_health
from effect_broker.store.history import PostgresHistory
from effect_broker.store.holds import Holds
from effect_broker.store.inbox import PostgresInbox
from effect_broker.store.metrics import PostgresLedgerNumbers
from effect_broker.store.pool import Pool, make_pool
from effect_broker.store.reachability import connection_trouble
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.runs import PostgresWorkerStore
from effect_broker.store.sessions import PostgresSessions
from effect_broker.store.subscriptions import PostgresSubscriptions
from effect_broker.store.tenants import Authentication
from effect_broker.store.tracing import PostgresTraceparents
from effect_broker.store.warming import warm
from effect_broker.subscriptions import Subscribing
from effect_contracts.webhook_urls import read_networks

if TYPE_CHECKING:
    from effect_broker.drill_worker import DrillWorker
    from effect_broker.store.migrate import MigrationReport
    from effect_broker.worker import Reconciler, Worker

_log = logging.getLogger(__name__)

_OWN_SERVERS: Final[tuple[ServerSource, ...]] = ("wheel", "local", "container")

# A prober gives up after a second or a few; an answer that comes later is no answer.
_HEALTH_SECONDS: Final = 2.0

# The role that a process takes once it is logged in, whoever its URL logs in as.
_DATABASE_ROLES: Final = {Role.API: DatabaseRole.API, Role.WORKER: DatabaseRole.WORKER}


@dataclass(frozen=True, slots=True)
class DatabaseLogin:
    """A URL, and the name of the setting it comes from, for the texts of errors."""

    url: str = field(repr=False)
    source: str


# Settings ------------------------------------------------------------------------------------


def fault_points(settings: Settings) -> FaultPoints:
    """Return the fault points that the environment arms; in production there are none.

    Raises:
        FaultSpecInvalid: the variable cannot be read.
    """
    if not settings.production:
        return FaultPoints.from_environment()
    if os.environ.get(ENV_FAULT) or os.environ.get(ENV_FAULT_DIR):
        _log.warning(
            "fault points are not armed in production", extra=event("fault_points_ignored")
        )
    return FaultPoints()


@contextmanager
def database(settings: Settings, role: Role) -> Iterator[DatabaseLogin]:
    """Give the database of a role: the one that a URL names, else in development the embedded
    server of the state directory, which then runs at least as long as the block.

    Raises:
        ConfigurationProblem: there is none; the text says what to do.
        PostgresNotFound: none of the ways to run a server of our own is open.
    """
    own_variable = f"EFFECT_BROKER_{role.value.upper()}_DATABASE_URL"
    url = settings.url(role)
    if url is not None:
        shared = url == settings.database_url
        yield DatabaseLogin(url, "EFFECT_BROKER_DATABASE_URL" if shared else own_variable)
        return
    others = [other for other in Role if settings.url(other) is not None]
    if settings.production or others:
        # With another role's URL set, a database of our own would be the wrong one.
        raise ConfigurationProblem(
            f"no database: set {own_variable}, or EFFECT_BROKER_DATABASE_URL in development"
        )
    choice = resolve_server(home_directory(), os.environ, sources=_OWN_SERVERS)
    try:
        url = choice.server.start()
    except (EmbeddedPostgresError, ContainerPostgresError) as problem:
        raise ConfigurationProblem(str(problem)) from None
    try:
        if role in _DATABASE_ROLES and choice.source != "container":
            url = _as_user(url, _DATABASE_ROLES[role])
        yield DatabaseLogin(url, "the embedded database")
    finally:
        choice.server.stop()


def _as_user(url: str, role: DatabaseRole) -> str:
    """The URL for another user of a server that asks for no password."""
    parts = urlsplit(url)
    address = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{role.value}@{address}"))


# The processes -------------------------------------------------------------------------------


@asynccontextmanager
async def api_services(
    settings: Settings,
    login: DatabaseLogin,
    ring: KeyRing | None = None,
    *,
    name: str = "effect-broker-api",
    sessions_max: int = API_POOL_SIZE,
) -> AsyncIterator[Services]:
    """Give what the API's routes stand on.

    Args:
        ring: instead of the one that the environment names.
        name: of the process, for those who look at the server's sessions.

    Raises:
        ConfigurationProblem: the database cannot be used, or its schema is older.
        KeyRingProblem, FaultSpecInvalid.
    """
    ring = ring or key_ring(settings)
    faults = fault_points(settings)
    await _check_database(settings, login, DatabaseRole.API)
    pool = make_pool(login.url, DatabaseRole.API, application_name=name, size_max=sessions_max)
    clock = SystemClock()
    ledger = FreshLedger(PostgresLedgerNumbers(pool), clock.boot_seconds)
    async with pool, observed(settings, "api", new_executor_id()) as seen:
        await _check_schema(pool)
        store = PostgresApiStore(
            pool, signer=ring_signer(ring), trusted=ring_public_keys(ring), observer=seen.observer
        )
        await _warn_of_lacking_keys(store, ring)
        vault, inbox = AesVault(ring), PostgresInbox(pool)
        # No prefix and no directory: an API that renders requests has no use for a secret.
        renderers = adapters(SecretReferences("", None))
        intake = ObservedIntake(
            store, renderers, ring, vault, faults.reach,
            counts=seen.metrics, spans=seen.spans, boot_seconds=clock.boot_seconds,
        )  # fmt: skip
        services = Services(
            intake=intake,
            performing=Performing(
                intake, _elections(pool, ring, seen), renderers, vault, new_id, clock.boot_seconds
            ),
            reads=store,
            history=PostgresHistory(pool),
            stream=PostgresStream(pool),
            subscribing=subscribing(settings, pool, vault),
            unresolved=store,
            resolving=Resolving(store, new_id),
            approving=Approving(store, new_id),
            batching=Batching(PostgresBatches(pool), Resolving(store, new_id)),
            holds=partial(Holds, pool),
            drills=PostgresDrills(pool),
            inbox=_evidence_inbox(settings, inbox, store, vault),
            deliveries=inbox,
            console=ConsoleParts(
                PostgresSessions(pool), PostgresConsole(pool), store, settings.console_origin
            ),
            vault=vault,
            authenticator=CachedAuthentication(Authentication(pool)),
            health=partial(_health, pool, store, ring),
        )
        async with served_beside(settings, seen, ledger) as here:
            yield replace(services, metrics=partial(seen.page, ledger) if here else None)


def _elections(pool: Pool, ring: KeyRing, seen: Observed) -> PostgresElections:
    return PostgresElections(
        pool, signer=ring_signer(ring), trusted=ring_public_keys(ring), observer=seen.observer
    )


@asynccontextmanager
async def worker(settings: Settings, login: DatabaseLogin) -> AsyncIterator[tuple[Worker, str]]:
    """Give a worker that has not begun, and its executor id.

    Raises:
        ConfigurationProblem: the database cannot be used, its schema is older, or the engine's is
            missing. KeyRingProblem, FaultSpecInvalid.
    """
    from effect_broker.worker import Worker

    reach = fault_points(settings).reach
    async with _worker_parts(settings, login, "worker", reach) as (ports, repairs, seen):
        process = cast(WorkerProcess, ports.process)
        inbox = PostgresInbox(repairs)
        matching = Matching(inbox, ports.store, ports.vault, new_id)
        trusted = ring_public_keys(key_ring(settings))
        made = Worker(
            login.url,
            PostgresWorkerStore(repairs, trusted=trusted, observer=seen.observer),
            ports,
            process,
            ttl_seconds=settings.heartbeat_ttl_seconds,
            worker_concurrency=open_files.slots(settings.worker_concurrency),
            tenant_concurrency=settings.tenant_concurrency,
            poll_seconds=settings.queue_poll_seconds,
            drain_seconds=settings.drain_seconds,
            match_deliveries=partial(match_due, inbox, matching, process.may_dispatch),
            deliveries=_deliveries(settings, repairs, ports, seen),
            expired=seen.metrics.expired,
            spans=seen.reading(PostgresTraceparents(repairs)),
        )
        seen.metrics.watch("runs", "Runs in this process.", lambda: made.runs)
        seen.metrics.watch(
            "may_dispatch",
            "1 while this worker beats and does not drain.",
            lambda: float(process.may_dispatch()),
        )
        async with served_alone(settings, seen):
            yield made, process.executor_id


@asynccontextmanager
async def drill_worker(
    settings: Settings, login: DatabaseLogin, tenant_id: UUID, drill_id: UUID
) -> AsyncIterator[tuple[DrillWorker, str]]:
    """Give the worker of one drill that has not begun, and its executor id.

    Raises:
        As `worker`.
    """
    from effect_broker.drill_worker import DrillFault, DrillWorker

    fault = DrillFault()
    async with _worker_parts(settings, login, "drill", fault.reach) as (ports, repairs, _):
        process = cast(WorkerProcess, ports.process)
        made = DrillWorker(
            login.url,
            PostgresWorkerStore(repairs),
            PostgresDrills(repairs),
            ports,
            process,
            fault,
            (tenant_id, drill_id),
            ttl_seconds=settings.heartbeat_ttl_seconds,
            poll_seconds=settings.queue_poll_seconds,
            drain_seconds=settings.drain_seconds,
        )
        yield made, process.executor_id


@asynccontextmanager
async def _worker_parts(
    settings: Settings, login: DatabaseLogin, kind: str, reach: Callable[[str], None]
) -> AsyncIterator[tuple[Ports, Pool, Observed]]:
    """Give what the steps of a worker run on, the connections for all else that it does, and what
    watches it."""
    ring = key_ring(settings)
    probes = load_probes(settings.probes)
    await _check_database(settings, login, DatabaseRole.WORKER)
    ttl_seconds = settings.heartbeat_ttl_seconds
    clock = SystemClock()
    process = WorkerProcess(new_executor_id(), clock, ttl_seconds)
    effects = _worker_pool(login, "effect-broker-worker", WORKER_POOL_SIZE, ttl_seconds)
    repairs = _worker_pool(login, "effect-broker-repair", REPAIR_POOL_SIZE, ttl_seconds)
    async with effects, repairs, observed(settings, kind, process.executor_id) as seen:
        await _check_schema(repairs)
        await _check_keys(repairs, ring, settings)
        await _warm(effects)
        ports = Ports(
            store=PostgresWorkerStore(
                effects,
                signer=ring_signer(ring),
                trusted=ring_public_keys(ring),
                observer=seen.observer,
            ),
            adapters=adapters(
                SecretReferences(settings.secret_prefix, settings.secret_directory), probes
            ),
            vault=AesVault(ring),
            clock=clock,
            process=process,
            new_id=new_id,
            reach=reach,
        )
        yield ports, repairs, seen


async def _check_keys(pool: Pool, ring: KeyRing, settings: Settings) -> None:
    """See that the ring opens what is under way, so that a wrong ring fails here and not in runs.

    Raises:
        KeyRingProblem: it does not.
    """
    from effect_broker.store.diagnosis import encryption_keys_in_use

    named = set(await encryption_keys_in_use(pool))
    missing = sorted(named - ring.encryption.keys.keys() - settings.given_up_key_ids)
    if missing:
        raise KeyRingProblem(
            f"the key ring lacks encryption keys under which open effects are stored: "
            f"{', '.join(missing[:5])}. Put them back into the ring: a key may go when no row "
            "names it any more. If one is lost, name it in EFFECT_BROKER_LOST_KEY_IDS; its "
            "effects cannot be sent, and end up in manual review"
        )


@asynccontextmanager
async def reconciler(
    settings: Settings, login: DatabaseLogin
) -> AsyncIterator[tuple[Reconciler, str]]:
    """Give a reconciler that has not begun, and its id. It needs no key: it opens no payload.

    Raises:
        ConfigurationProblem: the database cannot be used, or its schema is older.
        FaultSpecInvalid.
    """
    from effect_broker.worker import Reconciler

    faults = fault_points(settings)
    await _check_database(settings, login, DatabaseRole.WORKER)
    ttl_seconds = settings.heartbeat_ttl_seconds
    pool = _worker_pool(login, "effect-broker-reconciler", REPAIR_POOL_SIZE, ttl_seconds)
    executor_id = new_executor_id()
    async with pool, observed(settings, "reconciler", executor_id) as seen:
        await _check_schema(pool)
        store = PostgresWorkerStore(pool, observer=seen.observer)
        async with served_alone(settings, seen):
            yield Reconciler(store, executor_id, faults), executor_id


def migrate(settings: Settings, login: DatabaseLogin) -> MigrationReport:
    """Bring the database up to this release, and make the logins that the other URLs name.

    Raises:
        ConfigurationProblem: a URL cannot be read, or the server not be reached.
        MigrationError: see `effect_broker.store.migrate`.
    """
    from effect_broker.durable import migrate_dbos
    from effect_broker.store import migrate as migration
    from effect_broker.store.roles import create_login

    trouble = connection_trouble(login.url, None, variable=login.source, migrated=False)
    if trouble is not None:
        raise ConfigurationProblem(trouble)
    report = migration.migrate(login.url, migrate_dbos=migrate_dbos)
    own = ((DatabaseRole.API, settings.api_database_url),
           (DatabaseRole.WORKER, settings.worker_database_url))  # fmt: skip
    for role, url in own:
        account = _account_in(url)
        # The account that migrates may act as every role already.
        if account is not None and account[0] != (_account_in(login.url) or ("", None))[0]:
            name, password = account
            create_login(login.url, name, role, password)
    return report


def _account_in(url: str | None) -> tuple[str, str | None] | None:
    """The user and the password in a URL, if it names a user."""
    parts = urlsplit(url or "")
    if not parts.username:
        return None
    return unquote(parts.username), None if parts.password is None else unquote(parts.password)


# Parts ---------------------------------------------------------------------------------------


async def _warn_of_lacking_keys(store: PostgresApiStore, ring: KeyRing) -> None:
    """Say at once that submits of some tenants will be refused."""
    lacking = sorted(await store.hmac_key_ids() - ring.hmac.keys.keys())
    if lacking:
        names = ", ".join(lacking[:5])
        _log.warning(
            "the key ring lacks hmac keys of tenants: %s",
            names,
            extra=event("key_ring_lacks_keys", key_ids=names),
        )


def _evidence_inbox(
    settings: Settings, inbox: PostgresInbox, store: PostgresApiStore, vault: AesVault
) -> EvidenceInbox:
    """Make the one part of the API that knows secrets: those of webhooks, by their own prefix."""
    references = SecretReferences(settings.webhook_secret_prefix, settings.webhook_secret_directory)
    matching = Matching(inbox, store, vault, new_id)
    return EvidenceInbox(inbox, matching, vault, references, SystemClock().boot_seconds, new_id)


def subscribing(settings: Settings, pool: Pool, vault: Vault) -> Subscribing:
    """Make what persons and programs do with subscriptions, over a pool of the API's role."""
    return Subscribing(
        PostgresSubscriptions(pool),
        PostgresStream(pool),
        vault,
        new_id,
        read_networks(settings.event_networks),
        plain_http=not settings.production,
    )


def _deliveries(settings: Settings, pool: Pool, ports: Ports, seen: Observed) -> Deliveries:
    process = cast(WorkerProcess, ports.process)
    return Deliveries(
        PostgresDeliveries(pool),
        ports.vault,
        process.executor_id,
        SystemClock().boot_seconds,
        read_networks(settings.event_networks),
        plain_http=not settings.production,
        may_go_on=process.may_dispatch,
        counts=seen.metrics.event_delivery,
    )


async def _warm(effects: Pool) -> None:
    """Make what the first effects of a backlog would wait for; they still can, and no more."""
    verifying_tls()
    try:
        with store_errors():
            await warm(effects)
    except StoreError as problem:
        kind = type(problem).__name__
        _log.warning("not warm: %s", kind, extra=event("warming_failed", problem=kind))


def _worker_pool(login: DatabaseLogin, name: str, size_max: int, ttl_seconds: float) -> Pool:
    return make_pool(
        login.url,
        DatabaseRole.WORKER,
        application_name=name,
        size_max=size_max,
        size_min=size_max,
        ttl_seconds=ttl_seconds,
    )


async def _check_database(settings: Settings, login: DatabaseLogin, role: DatabaseRole) -> None:
    """Try one connection first: a pool only says that it got none in time.

    Raises:
        ConfigurationProblem: it cannot be used; in production, also a superuser's cannot.
    """
    trouble = await asyncio.to_thread(
        connection_trouble,
        login.url,
        role,
        variable=login.source,
        keeps_settings=True,
        superuser=not settings.production,
    )
    if trouble is not None:
        raise ConfigurationProblem(trouble)


async def _check_schema(pool: Pool) -> DatabaseHealth:
    """Refuse to begin on a schema that this release does not know how to use."""
    found = await database_health(pool)
    if _schema_check(found) != "ok":
        raise ConfigurationProblem(
            f"the database's schema is of version {found.schema_version or 'none'}, and this "
            "release needs a newer one; run `effect-broker migrate`"
        )
    return found


def _schema_check(found: DatabaseHealth) -> str:
    """A newer schema is fine: migrations go forward only, and a rolling deploy runs through it."""
    from effect_broker.store.migrate import latest_version

    if found.schema_version is None:
        return "missing"
    return "ok" if found.schema_version >= latest_version() else "older"


async def _health(pool: Pool, store: PostgresApiStore, ring: KeyRing) -> Health:
    """Look whether submits can be accepted.

    Without the engine's schema or a live worker an effect waits; it is as safe as with both. A
    key ring that lacks the keys of some tenants refuses theirs, and takes those of the others.
    """
    checks = {"database": "unreachable", "key_ring": "unchecked"}
    try:
        async with asyncio.timeout(_HEALTH_SECONDS):
            found = await database_health(pool)
            schema = _schema_check(found)
            wanted = await store.hmac_key_ids() if schema == "ok" else frozenset()
    except (StoreError, TimeoutError):
        return Health(ready=False, degraded=False, checks=checks)
    lacking = wanted - ring.hmac.keys.keys()
    checks["database"] = "read_only" if found.read_only else "ok"
    checks["schema"] = schema
    checks["engine"] = "ok" if found.engine_present else "missing"
    if schema == "ok":
        checks["key_ring"] = "lacks_keys" if lacking else "ok"
    checks["workers"] = "ok" if found.live_workers else "none"
    some_can_submit = not lacking or lacking != wanted
    ready = checks["database"] == "ok" and schema == "ok" and some_can_submit
    degraded = checks["engine"] != "ok" or checks["workers"] != "ok" or bool(lacking)
    return Health(ready=ready, degraded=degraded, checks=checks)
