"""The broker as a peer: its API, one worker, and the contracts that its rows stand on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from bench.peers_of.processes import Means, Session
from bench.peers_of.program import LEASE_SECONDS, POST_SECONDS
from effect_broker.proof.broker import ProofBroker
from effect_broker.proof.contracts import tuned
from effect_broker.proof.stack import ManagedProcess
from effect_broker.store.roles import DatabaseRole
from effect_contracts.document import ContractDocument

# By kind of object: what the target can do decides which class of contract is honest.
CONTRACTS = {
    "load_effect_broker": "demo-charge-idempotent",
    "deduping_effect_broker": "demo-charge-idempotent",
    "plain_effect_broker": "demo-charge-unsafe",
    "plain_effect_broker_lookup": "demo-charge-reconcilable",
    "load_effect_broker_performed": "demo-charge-idempotent",
    "deduping_effect_broker_performed": "demo-charge-idempotent",
    "plain_effect_broker_performed": "demo-charge-unsafe",
}


def _performed(document: ContractDocument) -> ContractDocument:
    """Return the same contract for callers who make the call themselves.

    Where it may be sent again a worker may do so too.
    """
    members = json.loads(document.canonical())
    adapter = {"kind": "caller", "target": "demo.target"}
    http = {"http": members["adapter"]} if members["safety"] == "idempotent" else {}
    members |= {"adapter": adapter | http, "attempt_deadline_seconds": LEASE_SECONDS}
    return ContractDocument.parse_yaml(json.dumps(members))


def bench_broker(directory: Path, url: str, poll_seconds: float) -> ProofBroker:
    """Return a migrated broker with its contracts and a running target, and no process yet."""
    broker = ProofBroker(
        directory, url, environment={"EFFECT_BROKER_QUEUE_POLL_SECONDS": str(poll_seconds)}
    )
    try:
        broker.prepare()
        for kind, name in CONTRACTS.items():
            # The times of the catalog's documents, which a proof would shorten.
            document = tuned(
                name,
                broker.target.url,
                kind,
                attempt_deadline_seconds=POST_SECONDS,
                transit_seconds=1.0,
                clock_margin_seconds=0.5,
                retry={"backoff_initial_seconds": 0.5, "backoff_cap_seconds": 30.0},
            )
            broker.apply(_performed(document) if kind.endswith("_performed") else document)
    except BaseException:
        broker.stop()
        raise
    return broker


class BrokerSession(Session):
    """The broker while it runs; its callers are programs like every peer's.

    Where a caller `performs`, it is what is killed, and the worker goes on.
    """

    def __init__(
        self, module: str, means: Means, broker: ProofBroker, *, performs: bool = False
    ) -> None:
        super().__init__(module, means, server=False, worker=not performs)
        self._broker, self._performs = broker, performs
        self._processes_of_ours: list[ManagedProcess] = []

    def start(self) -> None:
        self._processes_of_ours.append(self._broker.start_api())
        self.start_worker()
        http = self._broker.http
        key = http.headers["Authorization"].removeprefix("Bearer ")
        place = replace(
            self._means.place,
            api_url=str(http.base_url),
            api_key=key,
            database_url=self._broker.url(DatabaseRole.API),
            key_ring=str(self._broker.directory / "keyring.json"),
        )
        self._means = replace(self._means, place=place)
        self.start_callers()

    def start_worker(self) -> None:
        self._processes_of_ours += self._broker.start_workers(1)

    def kill_sender(self) -> None:
        if self._performs:
            super().kill_sender()
        else:
            self._processes_of_ours[-1].kill()

    def stop(self) -> None:
        super().stop()
        while self._processes_of_ours:
            self._processes_of_ours.pop().terminate()
