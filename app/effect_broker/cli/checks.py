"""The judgement of `doctor`: from facts to findings, each with what to do.

A failure is what breaks a promise or stops the work; a warning is what will, or may. Every finding
names its check, so that a program can act on one of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final
from urllib.parse import urlsplit

from effect_adapters.extras import ExtraMissing, require_extra
from effect_broker.cli.durations import span
from effect_broker.config import API_POOL_SIZE, WORKER_SESSIONS
from effect_broker.keyring import KeyRing
from effect_broker.store.diagnosis import FleetFacts, ServerFacts, SessionFacts
from effect_broker.store.tenants import KeyRecord
from effect_contracts.counting import counted
from effect_contracts.document import ContractDocument
from effect_contracts.document_rules import recovery_horizon_seconds
from effect_contracts.expressions import unknown_keywords
from effect_contracts.facts import SafetyClass
from effect_contracts.secret_references import sending_secrets

# The versions that design and tests know.
SERVER_MAJORS: Final = (15, 18)
# Longer than a take-over takes, and as long as a run may hang before the reconcile loop acts.
OVERDUE_SECONDS: Final = 60.0
# Session settings must let a successor in before a heartbeat's TTL is over; a second of slack for
# deployments that have set a longer TTL is no harm.
TIMEOUT_SECONDS_MAX: Final = 60.0
# Who waits for so long at a limited target is no peak that passes.
BUSY_SECONDS: Final = 3600.0
# For `doctor`, `migrate` and a person with psql, at the moment when they are needed.
CONNECTIONS_SPARE: Final = 5
# Long enough to hand a new key to every caller.
KEY_WARNING_SECONDS: Final = 14 * 86_400.0
# PgBouncer's usual port.
_POOLER_PORT: Final = 6432
# A retention within this factor of the recovery horizon leaves no room for an outage of ours.
_RETENTION_ROOM: Final = 1.25
# What `effect_broker.clock.new_executor_id` makes: host, process id, random part.
_EXECUTOR_ID: Final = re.compile(r".+-[0-9]+-[0-9a-f]{12}")
_MANY: Final = frozenset(
    {"to", "cc", "bcc", "recipients", "emails", "addresses", "phones", "numbers", "users",
     "accounts", "items", "targets", "messages", "payments", "transfers", "batch"}
)  # fmt: skip


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check; `remedy` says what to do, and is None for `ok`."""

    check: str
    level: Level
    text: str
    remedy: str | None = None


Findings = Iterator[Finding]


def ok(check: str, text: str) -> Finding:
    """Return a finding that all is well."""
    return Finding(check, Level.OK, text)


def warn(check: str, text: str, remedy: str) -> Finding:
    """Return a finding that something will go wrong, or may."""
    return Finding(check, Level.WARN, text, remedy)


def fail(check: str, text: str, remedy: str) -> Finding:
    """Return a finding that a promise is broken or the work has stopped."""
    return Finding(check, Level.FAIL, text, remedy)


# The server -----------------------------------------------------------------------------------


def server_findings(facts: ServerFacts) -> Findings:
    """Judge version, durability, replication and whether it takes writes."""
    major = facts.version // 10_000
    lowest, highest = SERVER_MAJORS
    if lowest <= major <= highest:
        yield ok("postgres_version", f"PostgreSQL {major}")
    else:
        judged = fail if major < lowest else warn
        yield judged(
            "postgres_version",
            f"PostgreSQL {major} is outside of {lowest} to {highest}",
            f"use PostgreSQL {lowest} to {highest}",
        )
    if facts.in_recovery or facts.read_only:
        what = "a standby" if facts.in_recovery else "read-only"
        yield fail(
            "writable", f"the server is {what} and takes no writes",
            "point the URLs at the primary (target_session_attrs=read-write finds it)",
        )  # fmt: skip
    else:
        yield ok("writable", "the server takes writes")
    yield from _durability(facts)


def _durability(facts: ServerFacts) -> Findings:
    losses = {
        "fsync": "a crash of the machine can lose or corrupt what was acknowledged",
        "full_page_writes": "a crash of the machine can leave torn pages",
    }
    for name, loss in losses.items():
        value = getattr(facts, name)
        if value == "off":
            yield fail(name, f"{name} is off: {loss}", f"set {name} = on in postgresql.conf")
        else:
            yield ok(name, f"{name} is {value}")
    if facts.synchronous_commit == "off":
        yield fail(
            "synchronous_commit",
            "synchronous_commit is off by default here: the broker's own sessions set it on, and "
            "so does a submit inside a caller's transaction, but what else commits beside them "
            "can be acknowledged and then lost",
            "set synchronous_commit = on for the server, the database or the callers' roles",
        )
    else:
        yield ok("synchronous_commit", f"synchronous_commit is {facts.synchronous_commit}")
    if not facts.standbys:
        return
    if not facts.synchronous_standby_names:
        yield warn(
            "failover",
            f"{facts.standbys} standby follows without synchronous replication: a failover can "
            "lose acknowledged effects",
            "set synchronous_standby_names, or treat every failover as a restore",
        )
    elif facts.synchronous_commit == "local":
        yield warn(
            "failover", "synchronous_commit is local: commits do not wait for the standby",
            "set synchronous_commit = on",
        )  # fmt: skip
    else:
        yield ok("failover", "commits wait for a synchronous standby")


def connection_findings(server: ServerFacts, live_workers: int) -> Findings:
    """Judge whether the sessions that our processes may open at most find room on the server.

    How many API processes there are is seen by their sessions only; one is assumed.
    """
    check = "connections"
    workers = live_workers * WORKER_SESSIONS
    api = max(API_POOL_SIZE, server.api_sessions)
    needed = workers + api + server.foreign_sessions + CONNECTIONS_SPARE
    room = server.connections_max - server.connections_reserved
    text = (
        f"{needed} of {counted(room, 'connection')} may be used at once: "
        f"{counted(live_workers, 'worker')} {workers}, the API {api}, others "
        f"{server.foreign_sessions}, and {CONNECTIONS_SPARE} to look and migrate"
    )
    if needed > room:
        yield warn(
            check, f"{text}; who comes last is refused, and so is this command",
            "raise max_connections (it takes a restart), run fewer workers, or put a pool in "
            "session mode between",
        )  # fmt: skip
    else:
        yield ok(check, text)


def pooler_findings(url: str, shared: bool | None, *, check: str, variable: str) -> Findings:
    """Judge what stands between us and the server; `shared` is None where it was not found out."""
    if shared:
        yield fail(
            check, f"{variable} leads through a pooler in transaction mode: session settings, "
            "prepared statements and locks do not survive from one transaction to the next",
            "connect to PostgreSQL itself, or to a pool in session mode",
        )  # fmt: skip
    elif shared is None:
        yield warn(
            check, f"{variable}: it could not be found out whether a pooler stands between",
            "see that the server lets in two more connections, and ask again",
        )  # fmt: skip
    elif _port(url) == _POOLER_PORT:
        yield warn(
            check, f"{variable} has PgBouncer's port {_POOLER_PORT}; sessions are kept for now",
            "see that the pool is in session mode, or connect to PostgreSQL itself",
        )  # fmt: skip
    else:
        yield ok(check, f"{variable}: sessions are kept")


def _port(url: str) -> int | None:
    try:
        return urlsplit(url).port
    except ValueError:
        return None


# Roles ----------------------------------------------------------------------------------------


def session_findings(
    facts: SessionFacts, *, process: str, sees_all_tenants: bool, production: bool
) -> Findings:
    """Judge a session of the API's or the workers' role."""
    check = f"role_{process}"
    bad = fail if production else warn
    if facts.login_superuser:
        yield bad(
            check, f"the {process} logs in as a superuser ({facts.login}), whom nothing binds",
            f"give it a login of its own: EFFECT_BROKER_{process.upper()}_DATABASE_URL as "
            f"effect_broker_{process}",
        )  # fmt: skip
    elif facts.passes_row_security and not sees_all_tenants:
        yield fail(
            check, f"the {process}'s role passes row-level security, so tenants are not parted",
            f"ALTER ROLE effect_broker_{process} NOSUPERUSER NOBYPASSRLS",
        )  # fmt: skip
    else:
        yield ok(check, f"the {process} logs in as {facts.login}, which is no superuser")
    if process == "api":
        yield from _api_findings(facts)
    yield from _session_settings(facts, process)


def _api_findings(facts: SessionFacts) -> Findings:
    if facts.enters_engine:
        yield fail(
            "api_and_engine", "the API's role has rights in the schema dbos: a row there starts "
            "a run", "REVOKE ALL ON SCHEMA dbos FROM effect_broker_api, then run "
            "`effect-broker migrate`",
        )  # fmt: skip
    else:
        yield ok("api_and_engine", "the API has no rights in the engine's schema")
    if facts.unguarded_tables:
        yield fail(
            "row_security", "row-level security is not forced on: "
            + ", ".join(facts.unguarded_tables),
            "ALTER TABLE effect_broker.<table> FORCE ROW LEVEL SECURITY, ENABLE ROW LEVEL SECURITY",
        )  # fmt: skip
    else:
        yield ok("row_security", "row-level security is forced on every table of tenants")


def _session_settings(facts: SessionFacts, process: str) -> Findings:
    check = f"session_{process}"
    limits = {
        "lock_timeout": facts.lock_timeout_seconds,
        "idle_in_transaction_session_timeout": facts.idle_timeout_seconds,
    }
    missing = [n for n, seconds in limits.items() if not 0 < seconds <= TIMEOUT_SECONDS_MAX]
    if facts.synchronous_commit in {"off", "local"}:
        missing.append("synchronous_commit")
    if missing:
        yield fail(
            check, f"the {process}'s sessions do not get our {', '.join(missing)}, so a stopped "
            "process could block its successor or lose a commit",
            "see what takes the session options away: a pooler, or `options` in the URL",
        )  # fmt: skip
    else:
        yield ok(
            check,
            f"lock_timeout {facts.lock_timeout_seconds:g} s, idle transactions end after "
            f"{facts.idle_timeout_seconds:g} s, commits wait for the disk",
        )


# Workers, runs, effects -------------------------------------------------------------------------


def fleet_findings(facts: FleetFacts, latest_version: str) -> Findings:
    """Judge schemas, workers, the queue, and effects that do not move."""
    if facts.schema_version != latest_version:
        yield fail(
            "schema", f"the schema is version {facts.schema_version}, this release needs "
            f"{latest_version}", "run `effect-broker migrate` with this release",
        )  # fmt: skip
    else:
        yield ok("schema", f"the schema is version {latest_version}")
    if facts.engine_version is None:
        yield fail(
            "engine", "the engine's schema dbos is missing: submits are accepted, runs wait",
            "run `effect-broker migrate`",
        )  # fmt: skip
    else:
        yield ok("engine", f"the engine's schema is version {facts.engine_version}")
    if facts.queue_registered is False:
        yield warn(
            "queue", "the engine's queue is not registered",
            "start a worker: it registers the queue, and again if it goes missing",
        )  # fmt: skip
    elif facts.queue_registered:
        yield ok("queue", "the engine's queue is registered")
    yield from _worker_findings(facts)
    yield from _executor_findings(facts)
    yield from _effect_findings(facts)


def _worker_findings(facts: FleetFacts) -> Findings:
    if facts.live_workers:
        draining = f", {facts.draining_workers} ending" if facts.draining_workers else ""
        yield ok("workers", f"{facts.live_workers} live{draining}")
    elif facts.waiting:
        yield fail(
            "workers", "no worker is live, and "
            f"{counted(facts.waiting, 'effect waits', 'effects wait')} for one",
            "start one: `effect-broker worker`",
        )  # fmt: skip
    else:
        yield warn(
            "workers", "no worker is live; submits are safe and will wait",
            "start one: `effect-broker worker`",
        )  # fmt: skip


def _executor_findings(facts: FleetFacts) -> Findings:
    beating = set(facts.beating)
    shared = sorted(
        executor
        for executor in beating | set(facts.holders)
        if not _EXECUTOR_ID.fullmatch(executor)
    )
    if shared:
        yield fail(
            "executor_ids",
            f"executor ids that are not unique to one process: {', '.join(shared[:5])}. Two "
            "processes with one id each run the other's live work again",
            "unset DBOS__VMID and whatever else fixes the id, and end processes that are not ours",
        )
    else:
        yield ok("executor_ids", "every executor id belongs to one process")
    dead = {e: runs for e, runs in facts.holders.items() if e not in beating}
    if dead:
        yield warn(
            "dead_executors",
            f"held by {counted(len(dead), 'executor')} without a heartbeat: "
            f"{counted(sum(dead.values()), 'run')}",
            "a live worker hands them back within seconds; start one if there is none, and ask "
            "again",
        )
    else:
        yield ok("dead_executors", "no run is held by a dead executor")


def _busy_findings(facts: FleetFacts) -> Findings:
    """Whether the limits of contracts keep effects waiting, and for how long the last of them."""
    listed = ", ".join(
        f"{counted(one.effects, 'effect')} of {one.contract_name} (the last "
        f"{'now' if one.last_turn_seconds < 1 else f'in {span(one.last_turn_seconds)}'})"
        for one in facts.busy
    )
    if not listed:
        yield ok("limits", "no effect waits for a turn at a limited target")
    elif facts.busy[0].last_turn_seconds < BUSY_SECONDS:
        yield ok("limits", f"they wait for their turns at limited targets: {listed}")
    else:
        yield warn(
            "limits", f"more is submitted than contracts permit at their targets: {listed}",
            "submit less, or apply a version with higher limits for what comes; nobody has to act "
            "on what waits",
        )  # fmt: skip


def _effect_findings(facts: FleetFacts) -> Findings:
    if facts.overdue:
        yield fail(
            "overdue",
            f"{counted(facts.overdue, 'effect is', 'effects are')} overdue, the longest for "
            f"{facts.overdue_longest_seconds:.0f} s, and nobody acts",
            "see that workers live and can reach the database; their logs name what fails",
        )
    else:
        yield ok("overdue", "no effect is overdue")
    if facts.parked:
        parked = sum(facts.parked.values())
        listed = ", ".join(f"{reason} {number}" for reason, number in facts.parked.items())
        yield warn(
            "parked", f"{counted(parked, 'effect waits', 'effects wait')} for a person: {listed}",
            "`effect-broker effects list --unresolved`, then `effects inspect ID`",
        )  # fmt: skip
    else:
        yield ok("parked", "no effect waits for a person")
    yield from _busy_findings(facts)
    if facts.alerts:
        listed = ", ".join(f"{alert} {number}" for alert, number in facts.alerts.items())
        yield fail(
            "alerts", f"targets say otherwise than receipts: {listed}",
            "`effect-broker effects inspect ID` shows what was seen; the contract promises more "
            "than its target keeps",
        )  # fmt: skip
    else:
        yield ok("alerts", "no target has contradicted a receipt")
    if facts.halted:
        yield fail(
            "restored", "the database went back in time: only idempotent effects are sent",
            "record the lost interval before anything else is sent",
        )  # fmt: skip
    if facts.holds:
        yield warn(
            "holds", f"nothing is sent: {', '.join(facts.holds)}",
            "`effect-broker holds list` tells who has stopped it and why; `holds lift` lets it "
            "go on",
        )  # fmt: skip


# Key ring ---------------------------------------------------------------------------------------


def ring_findings(ring: KeyRing, facts: FleetFacts | None) -> Findings:
    """Judge whether the ring holds every key that stored rows name, and one that signs."""
    kind = "a development ring" if ring.development else "a ring"
    if ring.signing is None:
        yield warn(
            "receipts", "the key ring has no signing key, so receipts are not signed",
            "add the section `signing` of a ring that `effect-broker keys ring` prints; then "
            "`effect-broker receipts sign` signs those that there are",
        )  # fmt: skip
    else:
        yield ok("receipts", f"receipts are signed with key {ring.signing.active}")
    if facts is None:
        yield ok("key_ring", f"{kind} is there")
        return
    missing = {
        "hmac": sorted(set(facts.hmac_key_ids) - set(ring.hmac.keys)),
        "encryption": sorted(set(facts.payload_key_ids) - set(ring.encryption.keys)),
    }
    for name, key_ids in missing.items():
        if key_ids:
            yield fail(
                "key_ring", f"the ring lacks {name} keys that stored rows name: "
                + ", ".join(key_ids[:5]),
                "put them back into the ring; a key is removed only when no row names it",
            )  # fmt: skip
    if not any(missing.values()):
        yield ok("key_ring", f"{kind} is there and holds every key that rows name")


# API keys ---------------------------------------------------------------------------------------


def api_key_findings(records: Sequence[KeyRecord]) -> Findings:
    """Judge when the keys of tenants end; what is revoked or past asks for nothing."""
    soon = [
        record
        for record in records
        if record.revoked_at is None
        and record.expires_in_seconds is not None
        and 0 < record.expires_in_seconds <= KEY_WARNING_SECONDS
    ]
    for record in sorted(soon, key=lambda r: r.expires_in_seconds or 0):
        yield warn(
            "api_keys",
            f"key {record.key_id} of {record.tenant} expires in "
            f"{span(record.expires_in_seconds or 0)}",
            f"`effect-broker keys create --tenant {record.tenant}`, and give it to its callers",
        )
    if not soon:
        yield ok("api_keys", "no API key expires within 14 days")


# Contracts --------------------------------------------------------------------------------------


def contract_findings(
    documents: Sequence[ContractDocument], resolves: Callable[[str], bool]
) -> Findings:
    """Judge active contracts for what is allowed and still dangerous."""
    holes = [finding for d in documents for finding in _holes(d, resolves)]
    yield from holes
    if not documents:
        yield warn(
            "contracts", "no contract is active, so nothing can be submitted",
            "`effect-broker contracts apply FILE`; `contracts catalog` lists examples",
        )  # fmt: skip
    elif not holes:
        yield ok("contracts", f"{len(documents)} active, none with a known hole")


def _holes(document: ContractDocument, resolves: Callable[[str], bool]) -> Findings:
    check, named = "contracts", f"{document.name} {document.version}"
    policy = document.policy()
    if document.safety is SafetyClass.IDEMPOTENT:
        horizon = recovery_horizon_seconds(policy)
        retention = policy.key_retention_seconds or 0.0
        if retention < horizon * _RETENTION_ROOM:
            yield warn(
                check, f"{named}: the target keeps a key for {retention:g} s and the retries take "
                f"up to {horizon:g} s, so an outage of ours leaves effects in key_expired",
                "fewer or quicker retries, or a longer retention at the target",
            )  # fmt: skip
    if document.safety is SafetyClass.RECONCILABLE and not policy.settlement_bound_seconds:
        yield warn(
            check, f"{named}: settlement_bound_seconds is 0, which says that a look-up sees every "
            "write at once, also one that is still on its way",
            "state a bound that you can prove; a second costs nothing",
        )  # fmt: skip
    strange = unknown_keywords(document.arguments)
    if strange:
        yield warn(
            check, f"{named}: the schema of the arguments has members that JSON Schema does not "
            f"know ({', '.join(strange[:5])}), and that check nothing",
            "correct the spelling; what is meant for readers begins with x-",
        )  # fmt: skip
    if document.safety is SafetyClass.UNSAFE:
        many = sorted(_batches(document.arguments))
        if many:
            yield warn(
                check, f"{named}: unsafe, and its arguments hold many ({', '.join(many[:5])}): one "
                "lost answer leaves all of them unknown",
                "one effect for each, so that each has its own operation key",
            )  # fmt: skip
    if document.safety is SafetyClass.UNSAFE and policy.certificate is not None:
        yield warn(
            check, f"{named}: demands a certificate, which shows little of an unsafe target: that "
            "a request is taken, and with --counter that the route delivers it once",
            "leave the demand out, or certify with --counter",
        )  # fmt: skip
    lost = [ref for ref in sending_secrets(document) if not resolves(ref)]
    if lost:
        yield warn(
            check, f"{named}: secrets that do not resolve here: {', '.join(lost)}",
            "set them where workers run (below EFFECT_BROKER_SECRET_PREFIX or …_DIRECTORY), and "
            "ask doctor there",
        )  # fmt: skip
    try:
        require_extra(document.adapter.kind)
    except ExtraMissing as missing:
        yield warn(check, f"{named}: {missing}", "install it where workers run, and ask there")


def _batches(schema: Mapping[str, Any]) -> Iterator[str]:
    """Names of arguments that are arrays of several things which happen each."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return
    for name, inner in properties.items():
        if not isinstance(inner, Mapping) or inner.get("type") != "array":
            continue
        if inner.get("maxItems") == 1:
            continue
        items = inner.get("items")
        mail = isinstance(items, Mapping) and items.get("format") == "email"
        if mail or str(name).lower() in _MANY:
            yield str(name)
