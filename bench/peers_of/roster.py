"""Which peers are compared, and the documented ways of each that differ after a kill."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from effect_broker.proof.target.modes import ModeName

BOTH: Mapping[str, ModeName] = {"plain": "neither", "deduping": "dedupe"}
LOOKUP: Mapping[str, ModeName] = {"plain": "lookup"}
"""The plain target de-duplicates nothing either way; here it can be asked for a key."""


@dataclass(frozen=True)
class Use:
    """One documented way to use a peer.

    Attributes:
        row: its name in the table.
        variant: what its program knows it by.
        modes: the target's mode, by the column of the table.
    """

    row: str
    variant: str = ""
    modes: Mapping[str, ModeName] = field(default_factory=lambda: BOTH, hash=False)


@dataclass(frozen=True)
class PeerOf:
    """One peer.

    Attributes:
        name: of its figures; also its module in `bench.peers_of`.
        uses: the first is measured, all are killed.
        server: it has a server of its own.
        prepares: it has tables to make before it starts.
        worker: it has workers; else the caller's process sends.
        processes: how many processes eight callers are.
        npm: its server comes from the npm registry.
        installed: it is in the environment of peers; else in the broker's own.
    """

    name: str
    uses: tuple[Use, ...]
    server: bool = False
    prepares: bool = False
    worker: bool = False
    processes: int = 1
    npm: bool = False
    installed: bool = True

    @property
    def module(self) -> str:
        """Its module in `bench.peers_of`."""
        return self.name


PEERS = (
    PeerOf("bare_post", (Use("the POST alone"),), installed=False),
    PeerOf(
        "agent_ledger",
        (Use("agent-ledger"), Use("agent-ledger, stale after 10 s", "takeover")),
        prepares=True,
    ),
    PeerOf(
        "effect_ledger",
        (Use("effect-ledger"), Use("effect-ledger, policy that looks up", "lookup", LOOKUP)),
        prepares=True,
    ),
    PeerOf("effect_ledger_sqlite", (Use("effect-ledger, SQLite"),), prepares=True),
    PeerOf(
        "temporal",
        (Use("Temporal"), Use("Temporal, one attempt at most", "once")),
        server=True,
        worker=True,
    ),
    PeerOf(
        "restate",
        (Use("Restate"), Use("Restate, one attempt, then paused", "once")),
        server=True,
        worker=True,
        npm=True,
    ),
    PeerOf(
        "absurd",
        (Use("Absurd"), Use("Absurd, one attempt at most", "once")),
        prepares=True,
        worker=True,
    ),
    PeerOf(
        "powertools", (Use("Powertools for AWS Lambda"),), server=True, prepares=True, processes=8
    ),
    PeerOf("bare_dbos", (Use("bare DBOS"), Use("bare DBOS, no recovery", "once")), installed=False),
)
OURS = PeerOf(
    "effect_broker",
    (Use("effect-broker"), Use("effect-broker, look-up", "lookup", LOOKUP)),
    worker=True,
    installed=False,
)
PERFORMED = PeerOf(
    "effect_broker_performed", (Use("effect-broker, caller performs"),), installed=False
)
ALL = (*PEERS, OURS, PERFORMED)
