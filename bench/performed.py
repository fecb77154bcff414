"""An effect that its caller performs, beside two bare commits and an empty call of agent-ledger.

All three are taken in turns of a few calls each, by one caller, so that whatever else the machine
does meets them alike. The calls do nothing in between: what is left is what it costs to ask first
and to tell afterwards. All is taken twice: as the disk of this machine is, and as if each flush of
the log took `SLOW_FLUSH_SECONDS` longer.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, process_time
from typing import Self
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
from psycopg.rows import TupleRow

from bench import limit
from bench.parts import Findings, Ground, Table
from bench.peers_of.installation import NotInstalled, python_of_peers
from bench.report import Ratio
from effect_broker import AsyncBroker
from effect_broker.durable import migrate_dbos
from effect_broker.keyring import new_key_ring
from effect_broker.proof.broker import wait_until
from effect_broker.store.catalogue import Catalogue
from effect_broker.store.migrate import migrate
from effect_broker.store.pool import make_pool
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.tenants import Tenants
from effect_contracts.document import ContractDocument

# A turn is long enough for the caches of its side and short beside what disturbs a machine.
TURN = 20
# What storage over a network takes for a flush, roughly; local disks with a cache take far less.
# Postgres itself waits so long before each flush (`commit_delay`), for all sides alike.
SLOW_FLUSH_SECONDS = 0.002
_LEDGER = Path(__file__).with_name("no_op_ledger.py")
_KEY_ID = "bench"
_CONTRACT = {
    "name": "bench",
    "version": "1",
    "tool": "bench.charge",
    "safety": "idempotent",
    "account": "acct",
    "key_retention_seconds": 86400,
    "arguments": {"type": "object"},
    "adapter": {"kind": "caller", "target": "bench.example"},
}


def _as_role(url: str, role: DatabaseRole) -> str:
    parts = urlsplit(url)
    address = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{quote(role.value)}@{address}"))


async def _prepared(url: str) -> str:
    """Make the tenant and its contract; return an API key."""
    admin = _as_role(url, DatabaseRole.ADMIN)
    async with make_pool(admin, None, application_name="bench", size_max=1) as pool:
        await Catalogue(pool).apply(ContractDocument.parse_yaml(json.dumps(_CONTRACT)))
        await Tenants(pool).create("bench", _KEY_ID)
        return (await Tenants(pool).create_key("bench")).api_key


class _Ledger:
    """The process of agent-ledger; without it where its registry cannot be reached."""

    def __init__(self, url: str) -> None:
        self._process: subprocess.Popen[str] | None = None
        try:
            python = python_of_peers()
        except NotInstalled as problem:
            print(f"  without agent-ledger: {problem}", file=sys.stderr, flush=True)
            return
        self._process = subprocess.Popen(
            [python, _LEDGER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def calls(self, count: int, prefix: str) -> list[float]:
        """Return the milliseconds of so many new calls."""
        if self._process is None:
            return []
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count} {prefix}\n")
        self._process.stdin.flush()
        return [float(each) for each in json.loads(self._line())]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class _Taken:
    """The milliseconds of each side, and the caller's processor time for its performs."""

    def __init__(self) -> None:
        self.commits: list[float] = []
        self.performs: list[float] = []
        self.calls: list[float] = []
        self.caller_seconds = 0.0

    async def turns(
        self, broker: AsyncBroker, bare: str, ledger: _Ledger, count: int, prefix: str
    ) -> None:
        """Take all sides in turns; the first turn of each warms up and is forgotten."""
        for turn in range(count // TURN + 1):
            commits = [seconds * 1000 for seconds in await limit.two_commits(bare, TURN)]
            began = process_time()
            performs = [await _performed(broker, f"{prefix}:{turn}:{n}") for n in range(TURN)]
            spent = process_time() - began
            calls = await asyncio.to_thread(ledger.calls, TURN, f"{prefix[:2]}{turn}")
            if turn:
                self.commits += commits
                self.performs += performs
                self.calls += calls
                self.caller_seconds += spent

    def sides(self) -> dict[str, list[float]]:
        """Return what was taken of each side, by its name; agent-ledger only where it ran."""
        sides = {"two bare commits": self.commits, "`perform`, nothing performed": self.performs}
        if self.calls:
            sides["agent-ledger, a call that does nothing"] = self.calls
        return sides


async def _performed(broker: AsyncBroker, key: str) -> float:
    began = perf_counter()
    async with broker.perform("bench.charge", {"order": key}, operation_key=key) as effect:
        await effect.confirm()
    return (perf_counter() - began) * 1000


def _flush_takes(superuser: psycopg.Connection[TupleRow], seconds: float) -> None:
    superuser.execute(f"ALTER SYSTEM SET commit_delay = {int(seconds * 1e6)}")
    superuser.execute("ALTER SYSTEM SET commit_siblings = 0")  # also where nobody else commits
    superuser.execute("SELECT pg_reload_conf()")
    shown = f"{int(seconds * 1e6)}"
    wait_until(
        lambda: superuser.execute("SHOW commit_delay").fetchone() == (shown,) or None, "the reload"
    )


async def _taken(ground: Ground) -> tuple[_Taken, _Taken, float]:
    url, bare, other = (ground.database(f"bench_{name}") for name in ("performed", "two", "ledger"))
    migrate(url, migrate_dbos=migrate_dbos)
    await limit.prepare(bare)
    api_key = await _prepared(url)
    ring = new_key_ring(_KEY_ID, development=True)
    taken, slow = _Taken(), _Taken()
    count = ground.count(600 * ground.rounds, 2 * TURN)
    with _Ledger(other) as ledger, psycopg.connect(url, autocommit=True) as superuser:
        superuser.execute("CREATE EXTENSION pg_stat_statements")
        superuser.execute("SELECT pg_stat_statements_reset()")  # the migration named them too
        api = _as_role(url, DatabaseRole.API)
        async with AsyncBroker.on_postgres(api, api_key=api_key, key_ring=ring) as broker:
            await taken.turns(broker, bare, ledger, count, "disk")
            row = superuser.execute(
                "SELECT sum(total_exec_time / calls) FROM pg_stat_statements WHERE toplevel"
                " AND dbid = (SELECT oid FROM pg_database WHERE datname = current_database())"
                " AND query ~ 'elect_effect|settle_success'"
            ).fetchone()
            _flush_takes(superuser, SLOW_FLUSH_SECONDS)
            try:
                await slow.turns(broker, bare, ledger, count // 4, "slow")
            finally:
                _flush_takes(superuser, 0)
    assert row is not None
    return taken, slow, float(row[0])


def _row(name: str, took: Sequence[float]) -> list[str]:
    tenths = quantiles(took, n=10)
    return [name, f"{median(took):.2f}", f"{tenths[0]:.2f}", f"{tenths[8]:.2f}"]


def _ratios(taken: _Taken, suffix: str, words: str) -> list[Ratio]:
    others = {"two_commits": ("two bare commits", taken.commits)}
    if taken.calls:
        others["agent_ledger"] = ("an empty call of agent-ledger", taken.calls)
    return [
        Ratio(
            f"perform_to_{name}{suffix}",
            f"perform, time to {said}{words}",
            median(taken.performs) / median(took),
            more_is_better=False,
        )
        for name, (said, took) in others.items()
    ]


def measure(ground: Ground) -> Findings:
    """Measure two bare commits, `perform` and agent-ledger side by side."""
    taken, slow, server_ms = asyncio.run(_taken(ground))
    caller_ms = taken.caller_seconds * 1000 / len(taken.performs)
    flush = f"flushes {SLOW_FLUSH_SECONDS * 1000:.0f} ms longer"
    rows, ratios = [], []
    for each, name, words in ((taken, "", ""), (slow, "_slow_flush", f", {flush}")):
        ratios += _ratios(each, name, words)
        rows += [_row(side + words, took) for side, took in each.sides().items()]
    table = Table(
        "An effect that its caller performs",
        ("what", "median ms", "quickest tenth", "slowest tenth"),
        rows,
        f"Of one `perform`, the caller's process computes for {caller_ms:.2f} ms, and the server"
        f" takes {server_ms:.2f} ms for its two statements, their commits left out. agent-ledger"
        " writes no receipt and encrypts, signs and fences nothing.",
    )
    figures = {
        "two_commits_ms": round(median(taken.commits), 3),
        "perform_ms": round(median(taken.performs), 3),
        "agent_ledger_ms": round(median(taken.calls), 3) if taken.calls else None,
        "two_commits_slow_flush_ms": round(median(slow.commits), 3),
        "perform_slow_flush_ms": round(median(slow.performs), 3),
        "caller_cpu_ms": round(caller_ms, 3),
        "server_ms": round(server_ms, 3),
    }
    return Findings(ratios, figures, (table,))
