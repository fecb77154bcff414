"""`effect-broker doctor`: is this deployment fit to keep its promises, and if not, what to do.

It asks as the broker's own roles ask, writes nothing, and goes on after a failure, so that one run
shows all that is wrong. Exit 1 if any check fails; warnings alone are exit 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from contextlib import ExitStack
from datetime import datetime
from typing import Final, TypeVar

import typer

from effect_adapters.base import SecretUnavailable
from effect_adapters.registry import adapters
from effect_broker.cli import checks
from effect_broker.cli.access import Login, Logins, logins, opened, variable_name
from effect_broker.cli.certificate_checks import (
    CERTIFICATES_MAX,
    certificate_findings,
    demand_findings,
)
from effect_broker.cli.checks import Finding, Level
from effect_broker.cli.desk import trusted
from effect_broker.cli.evidence_checks import receipt_findings, webhook_findings
from effect_broker.cli.key_scope import key_scope_findings
from effect_broker.cli.output import AsJson, print_json, print_table
from effect_broker.cli.subscription_checks import STANDINGS_MAX, subscription_findings
from effect_broker.config import ConfigurationProblem, Role, Settings, load_settings
from effect_broker.keyring import KeyRingProblem, key_ring
from effect_broker.postgres.choice import PostgresNotFound
from effect_broker.protocol.ports import StoreError
from effect_broker.secretrefs import SecretReferences
from effect_broker.store import diagnosis
from effect_broker.store.certificates import CertificateRecord, Certificates
from effect_broker.store.documents import active_documents
from effect_broker.store.pool import Pool
from effect_broker.store.reachability import connection_trouble
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.signatures import unsigned_receipts
from effect_broker.store.subscriptions import standings
from effect_broker.store.tenants import Tenants
from effect_contracts.document import ContractDocument
from effect_contracts.errors import ContractInvalid

# Some milliseconds.
T = TypeVar("T")

_RECEIPTS_LOOKED_AT: Final = 10_000
_Certified = tuple[tuple[CertificateRecord, ...], tuple[ContractDocument, ...], datetime]
_PROCESSES: Final = {DatabaseRole.API: "api", DatabaseRole.WORKER: "worker"}
_MARKS: Final = {Level.OK: "ok", Level.WARN: "WARN", Level.FAIL: "FAIL"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(doctor)


def doctor(as_json: AsJson = False) -> None:
    """Check database, roles, workers, contracts and keys; exit 1 if anything is broken."""
    findings = list(_examine())
    failed = any(finding.level is Level.FAIL for finding in findings)
    if as_json:
        print_json(
            {
                "healthy": not failed,
                "findings": [
                    {"check": f.check, "level": f.level.value, "text": f.text, "remedy": f.remedy}
                    for f in findings
                ],
            }
        )
    else:
        rows = [(_MARKS[f.level], f.check, f.text, f.remedy) for f in findings]
        print_table("doctor", ("", "check", "finding", "to do"), rows)
    if failed:
        raise typer.Exit(1)


def _examine() -> Iterator[Finding]:
    try:
        settings = load_settings()
    except ConfigurationProblem as problem:
        yield checks.fail("settings", str(problem), "correct the environment of this process")
        return
    yield checks.ok("settings", f"the environment is read, for {settings.env.value}")
    with ExitStack() as stack:
        try:
            found = stack.enter_context(logins())
        except (ConfigurationProblem, PostgresNotFound) as problem:
            yield checks.fail("database", str(problem), "give the broker a database")
            yield from _ring(settings, None)
            return
        yield from _examine_database(found)


def _examine_database(found: Logins) -> Iterator[Finding]:
    usable: dict[DatabaseRole, Login] = {}
    for role in (DatabaseRole.API, DatabaseRole.WORKER, DatabaseRole.ADMIN):
        check = f"database_{role.value.removeprefix('effect_broker_')}"
        try:
            login = found.of(role)
        except ConfigurationProblem as problem:
            yield checks.warn(check, str(problem), "or run doctor where that role is configured")
            continue
        trouble = connection_trouble(login.url, role, variable=login.variable)
        if trouble is None:
            usable[role] = login
            yield checks.ok(check, f"{login.variable} lets {role.value} in")
        else:
            yield checks.fail(check, trouble, "nothing works for this role before this is mended")
    server = yield from _server(usable)
    for role, process in _PROCESSES.items():
        # A login of `migrate` that stands in says nothing of the process's own.
        if role in usable and usable[role].variable != variable_name(Role.MIGRATE):
            yield from _session(usable[role], process, found.settings)
    worker = usable.get(DatabaseRole.WORKER)
    fleet: diagnosis.FleetFacts | None = None
    if worker is not None:
        try:
            fleet = diagnosis.look_at_fleet(worker.url, checks.OVERDUE_SECONDS)
        except StoreError as problem:
            yield _unlooked("fleet", problem)
    if fleet is not None:
        yield from checks.fleet_findings(fleet, _latest_version())
        if server is not None:
            live = fleet.live_workers + fleet.draining_workers
            yield from checks.connection_findings(server, live)
    if worker is not None:
        yield from _contracts(worker, found.settings)
        yield from _certificates(worker, found.settings)
        yield from _subscriptions(worker)
        yield from _receipts(worker)
    yield from _ring(found.settings, fleet)
    if DatabaseRole.ADMIN in usable:
        yield from _api_keys(usable[DatabaseRole.ADMIN])
    if fleet is not None:
        yield from key_scope_findings(fleet.recent_keys)


def _server(
    usable: dict[DatabaseRole, Login],
) -> Generator[Finding, None, diagnosis.ServerFacts | None]:
    # Each server once: the URLs of several roles mostly lead to one.
    if not usable:
        return None
    login = usable.get(DatabaseRole.WORKER) or next(iter(usable.values()))
    facts: diagnosis.ServerFacts | None = None
    try:
        facts = diagnosis.look_at_server(login.url)
        yield from checks.server_findings(facts)
    except StoreError as problem:
        yield _unlooked("server", problem)
    seen: set[str] = set()
    for role, process in _PROCESSES.items():
        own = usable.get(role)
        if own is None or own.url in seen:
            continue
        seen.add(own.url)
        shared: bool | None = None
        try:
            shared = asyncio.run(diagnosis.shares_sessions(own.url))
        except StoreError:
            shared = None
        check = f"pooler_{process}"
        yield from checks.pooler_findings(own.url, shared, check=check, variable=own.variable)
    return facts


def _session(login: Login, process: str, settings: Settings) -> Iterator[Finding]:
    try:
        facts = diagnosis.look_at_session(login.url, login.role)
    except StoreError as problem:
        yield _unlooked(f"role_{process}", problem)
        return
    yield from checks.session_findings(
        facts,
        process=process,
        sees_all_tenants=login.role is DatabaseRole.WORKER,
        production=settings.production,
    )


def _contracts(login: Login, settings: Settings) -> Iterator[Finding]:
    async def read() -> tuple[ContractDocument, ...]:
        async with opened(login) as pool:
            return await active_documents(pool)

    try:
        documents = asyncio.run(read())
    except (StoreError, ConfigurationProblem) as problem:
        yield _unlooked("contracts", problem)
        return
    except ContractInvalid as problem:
        yield checks.fail(
            "contracts", f"this release cannot read an active contract: {problem}",
            "apply it again with this release",
        )  # fmt: skip
        return
    yield from checks.contract_findings(documents, _resolver(settings))
    secrets = SecretReferences(settings.webhook_secret_prefix, settings.webhook_secret_directory)
    yield from webhook_findings(documents, secrets)


def _certificates(login: Login, settings: Settings) -> Iterator[Finding]:
    async def read() -> _Certified:
        async with opened(login) as pool:
            certificates = Certificates(pool)
            found = await certificates.listing(limit=CERTIFICATES_MAX)
            return found, await active_documents(pool), await certificates.now()

    try:
        found, documents, now = asyncio.run(read())
    except (StoreError, ConfigurationProblem) as problem:
        yield _unlooked("certificates", problem)
        return
    except ContractInvalid:
        return  # told by the check of the contracts
    yield from certificate_findings(found)
    known = adapters(SecretReferences("", None))
    yield from demand_findings(
        documents, found, trusted(settings), lambda d: known[d.adapter.kind].identity(d), now
    )


def _subscriptions(login: Login) -> Iterator[Finding]:
    return _looked(
        "subscriptions",
        login,
        lambda pool: standings(pool, STANDINGS_MAX),
        subscription_findings,
    )


def _receipts(login: Login) -> Iterator[Finding]:
    return _looked(
        "unsigned_receipts",
        login,
        lambda pool: unsigned_receipts(pool, _RECEIPTS_LOOKED_AT),
        receipt_findings,
    )


def _api_keys(login: Login) -> Iterator[Finding]:
    return _looked("api_keys", login, lambda pool: Tenants(pool).keys(), checks.api_key_findings)


def _looked(
    name: str,
    login: Login,
    read: Callable[[Pool], Awaitable[T]],
    judged: Callable[[T], Iterable[Finding]],
) -> Iterator[Finding]:
    """Judge what one read shows; a read that fails is a finding of that name."""

    async def looked() -> T:
        async with opened(login) as pool:
            return await read(pool)

    try:
        found = asyncio.run(looked())
    except (StoreError, ConfigurationProblem) as problem:
        yield _unlooked(name, problem)
        return
    yield from judged(found)


def _resolver(settings: Settings) -> Callable[[str], bool]:
    references = SecretReferences(settings.secret_prefix, settings.secret_directory)

    def resolves(reference: str) -> bool:
        try:
            references(reference)
        except SecretUnavailable:
            return False
        return True

    return resolves


def _ring(settings: Settings, fleet: diagnosis.FleetFacts | None) -> Iterator[Finding]:
    try:
        ring = key_ring(settings)
    except KeyRingProblem as problem:
        yield checks.fail("key_ring", str(problem), "give this process the broker's key ring")
        return
    yield from checks.ring_findings(ring, fleet)


def _unlooked(check: str, problem: Exception) -> Finding:
    return checks.fail(
        check, f"the database could not be looked at ({type(problem).__name__}: {problem})",
        "see that `effect-broker migrate` of this release has run, and ask again",
    )  # fmt: skip


def _latest_version() -> str:
    # Imported late: it loads the whole of Alembic, which no other command here needs.
    from effect_broker.store.migrate import latest_version

    return latest_version()
