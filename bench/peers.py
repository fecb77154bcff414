"""The broker beside its peers: one protected POST, its cost, and what a kill leaves behind.

All of it is seen in this run: costs by one clock, requests and effects in the ledger of one target,
and what a peer says in that peer's own record. How each peer is used stands in its file in
`bench.peers_of`; what is the same for all of them stands here.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from bench.parts import Findings, Ground, Table
from bench.peers_of import installation
from bench.peers_of.broker import BrokerSession, bench_broker
from bench.peers_of.fates import Fate, missing
from bench.peers_of.processes import Ended, Means, PeerFailed, Session, free_ports
from bench.peers_of.program import Order, Place
from bench.peers_of.roster import ALL, OURS, PEERS, PERFORMED, PeerOf, Use
from bench.report import Ratio
from bench.rounds import Timed, middle
from effect_broker.postgres.embedded import find_binaries

CALLERS = 8
WARM_SECONDS = 0.5
LOAD_SECONDS = 2.5
ONE_SECONDS = 2.0
# Longer than any timeout in play; 30 s, for which a call of agent-ledger waits, is the longest.
WAIT_SECONDS = 45.0
_AGAIN_SECONDS = 1.0
FAILED_LENGTH = 300

COLUMNS = (
    "peer",
    "version",
    "effects/s",
    "median ms",
    "killed: plain target",
    "killed: deduping target",
    "what it says: plain; deduping",
)
NOTE = (
    "effects/s: eight callers, each with one call at a time; median ms: one caller. Killed: SIGKILL"
    " to the sender when the target had committed and not yet answered; then it was started again,"
    " and where the caller itself had died it called again with the same key. Requests/effects at"
    f" the target, and what the peer's record says, are those of {WAIT_SECONDS:.0f} s after the"
    " kill. POSTs may take 5 s; a timeout that a peer leaves to its user is 10 s. A dash: the row"
    " differs from the one above it only in what follows a kill, or the target does not matter to"
    " it."
)


@dataclass(frozen=True, slots=True)
class _Cost:
    """The rounds of one peer: with eight callers, and with one."""

    loaded: list[Timed] = field(default_factory=list)
    alone: list[Timed] = field(default_factory=list)

    def middle(self) -> Timed:
        """The rate of the one and the time of the other."""
        return Timed(middle(self.loaded).per_second, middle(self.alone).median_ms)


class _Run:
    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._broker = bench_broker(
            ground.directory / "broker", ground.database("peer_broker"), ground.poll_seconds
        )
        self._client = self._broker.target.client
        self._sessions = 0
        self.costs: dict[str, _Cost] = {}
        self.versions: dict[str, str] = {}
        self.fates: dict[str, dict[str, Fate]] = {}
        self.failed: dict[str, str] = {}

    def close(self) -> None:
        """End the broker and the target."""
        self._broker.stop()

    def _try(self, peer: PeerOf, work: Callable[[], None]) -> None:
        """Do something with a peer; what goes wrong fails its row and no other."""
        if peer.name in self.failed:
            return
        try:
            work()
        except Exception as error:  # a sceptic has to see it, whatever it is
            told = " ".join(f"{type(error).__name__}: {error}".split())
            self.failed[peer.name] = told[-FAILED_LENGTH:]  # the cause comes last
            print(f"  FAILED {peer.name}: {self.failed[peer.name]}", file=sys.stderr, flush=True)

    def _session(self, peer: PeerOf) -> Session:
        """Return a peer that has a database and a directory to itself."""
        self._sessions += 1
        directory = self._ground.directory / f"{peer.name}-{self._sessions}"
        directory.mkdir()
        place = Place(
            target_url=self._broker.target.url,
            database_url="",
            ports=free_ports(4),
            directory=str(directory),
        )
        if peer in (OURS, PERFORMED):
            means = Means(Path(sys.executable), place, directory)
            return BrokerSession(peer.module, means, self._broker, performs=peer is PERFORMED)
        url = self._ground.database(f"{peer.name}_{self._sessions}")
        server = str(installation.restate_server()) if peer.npm else ""
        python = installation.python_of_peers() if peer.installed else Path(sys.executable)
        postgres = find_binaries().found
        return Session(
            peer.module,
            Means(
                python,
                replace(place, database_url=url, server=server),
                directory,
                str(postgres.directory) if postgres else "",
            ),
            server=peer.server,
            prepares=peer.prepares,
            worker=peer.worker,
            processes=peer.processes,
        )

    # Costs ---------------------------------------------------------------------------------------

    def measure_round(self, number: int) -> None:
        """Measure each peer once."""
        for peer in ALL:
            print(f"    {peer.name}", file=sys.stderr, flush=True)
            self._try(peer, lambda peer=peer: self._measure(peer, f"r{number}"))  # type: ignore[misc]

    def _measure(self, peer: PeerOf, prefix: str) -> None:
        kind = f"load_{peer.name}"
        self._client.set_mode(kind, "dedupe")
        with self._session(peer) as session:
            self.versions[peer.name] = session.version
            self._load(session, f"{prefix}-warm", kind, CALLERS, WARM_SECONDS)
            scale = self._ground.scale
            loaded = self._load(session, f"{prefix}-8", kind, CALLERS, max(1, LOAD_SECONDS * scale))
            alone = self._load(session, f"{prefix}-1", kind, 1, max(1, ONE_SECONDS * scale))
        cost = self.costs.setdefault(peer.name, _Cost())
        cost.loaded.append(loaded)
        cost.alone.append(alone)

    def _load(
        self, session: Session, prefix: str, kind: str, clients: int, seconds: float
    ) -> Timed:
        """Take one measurement; each call has to be one request and one effect at the target."""
        before = self._client.ledger(kind=kind, rows=False)
        timed, calls = session.load(prefix, kind, clients, seconds)
        after = self._client.ledger(kind=kind, rows=False)
        seen = (after.arrivals - before.arrivals, after.effects - before.effects)
        if seen != (calls, calls):
            raise PeerFailed(f"{calls} calls, but requests and effects at the target: {seen}")
        return timed

    # Kills ---------------------------------------------------------------------------------------

    def kill_all(self) -> None:
        """Kill each sender at the worst moment; all wait at the same time."""
        print("  kills", file=sys.stderr, flush=True)
        with ThreadPoolExecutor(len(ALL)) as pool, ExitStack() as running:
            settling = [
                pool.submit(self._try, peer, self._killed(peer, running))
                for peer in ALL
                if peer.name not in self.failed
            ]
            for future in settling:
                future.result()

    def _killed(self, peer: PeerOf, running: ExitStack) -> Callable[[], None]:
        """Kill the sender of a peer; return the wait for what comes of it."""
        struck: list[tuple[Session, dict[tuple[Use, str], Order], list[Future[Any]]]] = []

        def strike() -> None:
            session = running.enter_context(self._session(peer))
            orders = {
                (use, target): self._held_order(peer, use, target)
                for use in peer.uses
                for target in use.modes
            }
            pending = [session.ask("call", order) for order in orders.values()]
            for order in orders.values():
                self._client.wait_effects(1, kind=order.kind, timeout_seconds=20)
            session.kill_sender()
            self._client.release(peer.name)
            for order in orders.values():
                if (arrived := self._client.ledger(kind=order.kind, rows=False).arrivals) != 1:
                    raise PeerFailed(f"{arrived} requests before the kill: it came too late")
            struck.append((session, orders, pending))

        def settle() -> None:
            for session, orders, pending in struck:
                self._settle(session, orders, pending)

        self._try(peer, strike)
        return settle

    def _held_order(self, peer: PeerOf, use: Use, target: str) -> Order:
        """Return an order that the target will commit and leave without an answer."""
        kind = "_".join(filter(None, (target, peer.name, use.variant)))
        self._client.set_mode(kind, use.modes[target])
        self._client.script(f"gate({peer.name})", kind=kind)
        return Order(f"kill-{kind}", kind, use.variant)

    def _settle(
        self,
        session: Session,
        orders: dict[tuple[Use, str], Order],
        pending: list[Future[Any]],
    ) -> None:
        killed_at = perf_counter()
        session.recover()
        with ThreadPoolExecutor(len(orders)) as pool:
            ends = list(
                pool.map(
                    lambda pair: self._end(session, pair[0], pair[1], killed_at),
                    zip(orders.values(), pending, strict=True),
                )
            )
        # Whatever still comes late is in the counts of all alike.
        threading.Event().wait(max(0.0, killed_at + WAIT_SECONDS - perf_counter()))
        for ((use, target), order), (done, ended, seconds) in zip(
            orders.items(), ends, strict=True
        ):
            says, asks = session.ask("state", order).result(WAIT_SECONDS)
            seen = self._client.ledger(kind=order.kind, rows=False)
            self.fates.setdefault(use.row, {})[target] = Fate(
                seen.arrivals, seen.effects, says, done, asks, ended, seconds
            )

    def _end(
        self, session: Session, order: Order, pending: Future[Any], killed_at: float
    ) -> tuple[bool, bool, float]:
        """Return whether the peer gave a result, whether it gave a last answer, and when."""
        pause = threading.Event()
        last = False
        while (left := killed_at + WAIT_SECONDS - perf_counter()) > 0:
            try:
                if session.calls_again:
                    pending = session.ask("call", order)
                pending.result(left)
                return True, True, perf_counter() - killed_at
            except (TimeoutError, Ended):
                break
            except PeerFailed:
                last = not session.calls_again
                if last:
                    break
            pause.wait(_AGAIN_SECONDS)
        return False, last, perf_counter() - killed_at

    # What was found ------------------------------------------------------------------------------

    def findings(self) -> Findings:
        """Return ratios, figures and the table."""
        figures = {peer.name: self._figures(peer) for peer in ALL}
        for line in missing(figures):
            print(f"  NOT THERE {line}", file=sys.stderr, flush=True)
        rows = [self._row(peer, use) for peer in ALL for use in peer.uses]
        table = Table("Peers, side by side", COLUMNS, rows, NOTE)
        return Findings(self._ratios(), figures, (table,))

    def _ratios(self) -> list[Ratio]:
        ratios: list[Ratio] = []
        for peer in PEERS:
            if peer.name not in self.costs or OURS.name not in self.costs:
                continue
            ours, theirs = self.costs[OURS.name].middle(), self.costs[peer.name].middle()
            ratios += [
                Ratio(
                    f"throughput_to_{peer.name}",
                    f"effects/s with 8 callers, to {peer.uses[0].row}",
                    ours.per_second / theirs.per_second,
                ),
                Ratio(
                    f"latency_to_{peer.name}",
                    f"median time of an effect, to {peer.uses[0].row}",
                    ours.median_ms / theirs.median_ms,
                    more_is_better=False,
                ),
            ]
        return ratios

    def _figures(self, peer: PeerOf) -> dict[str, Any]:
        cost = self.costs[peer.name].middle() if peer.name in self.costs else None
        return {
            "version": self.versions.get(peer.name),
            "failed": self.failed.get(peer.name),
            "per_second_8": round(cost.per_second, 1) if cost else None,
            "median_ms_1": round(cost.median_ms, 2) if cost else None,
            "after_a_kill": {
                use.row: {
                    target: asdict(fate) | {"verdict": fate.verdict}
                    for target, fate in self.fates.get(use.row, {}).items()
                }
                for use in peer.uses
            },
        }

    def _row(self, peer: PeerOf, use: Use) -> list[str]:
        if peer.name in self.failed:
            return [use.row, "—", "—", "—", "—", "—", f"FAILED: {self.failed[peer.name]}"]
        shown = ["—", "—"]
        if use is peer.uses[0]:
            cost = self.costs[peer.name].middle()
            shown = [f"{cost.per_second:.0f}", f"{cost.median_ms:.1f}"]
        fates = self.fates.get(use.row, {})
        shown += [fates[name].counts if name in fates else "—" for name in ("plain", "deduping")]
        told = "; ".join(fate.told for fate in fates.values())
        return [use.row, self.versions[peer.name], *shown, told]


def measure(ground: Ground) -> Findings:
    """Measure all peers round by round, then kill each once."""
    run = _Run(ground)
    try:
        for number in range(ground.rounds):
            print(f"  round {number + 1} of {ground.rounds}", file=sys.stderr, flush=True)
            run.measure_round(number)
        run.kill_all()
    finally:
        run.close()
    return run.findings()
