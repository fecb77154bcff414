"""One effect at a real target by the whole product, whose worker is killed on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import yaml

from adapter_calls import merged
from effect_broker.faultpoints import FaultPoint
from effect_broker.proof.broker import wait_until
from effect_contracts.catalog import catalog_texts
from effect_contracts.document import ContractDocument
from hosting.scenes import Scene
from real_targets.relay import Relay

# Shorter than in the contracts and the default, so that nobody waits; the ratios stay.
BOUND_SECONDS = 1.5
QUICK: Mapping[str, Any] = {
    # Whoever follows a dead worker waits for it; no longer than the dead one's heartbeat counts.
    "attempt_deadline_seconds": 2.0,
    "transit_seconds": 0.2,
    "clock_margin_seconds": 0.2,
    "retry": {"backoff_initial_seconds": 0.1, "backoff_cap_seconds": 1.0},
}
ASKED: Mapping[str, Any] = {
    **QUICK,
    "settlement_bound_seconds": BOUND_SECONDS,
    "probe": {"initial_seconds": 0.2, "cap_seconds": 1.0},
}


class Case:
    """One effect, under a contract that is applied here."""

    def __init__(self, scene: Scene, contract: str, key: str, arguments: Mapping[str, Any]) -> None:
        self._scene = scene
        document = ContractDocument.parse_yaml(contract)
        scene.broker.apply(document)
        self._request = (key, document.tool, arguments)

    def submit(self) -> str:
        """Submit for the first time; return the effect's id."""
        answer = self._scene.broker.submit(*self._request)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["effect_id"])

    def submit_and_kill(self, point: FaultPoint) -> str:
        """Submit, wait until the worker is dead at `point`; return the effect's id.

        Of two workers one is left, which may go on at once; a third one is started.
        """
        self._scene.ensure_workers(2)
        self._scene.broker.arm(point)
        effect_id = self.submit()
        self._scene.broker.wait_fired(point)
        self._scene.workers.append(self._scene.broker.stack.worker())
        return effect_id

    def submit_and_kill_all(self, done: Callable[[], bool]) -> str:
        """Submit, kill every worker once the target has done its work; return the effect's id.

        For adapters that load a library in the first attempt, which on a busy machine may take all
        the time of that one; another follows then.
        """
        self._scene.ensure_workers(2)
        effect_id = self.submit()
        wait_until(lambda: done() or None, "the target has done its work")
        self._scene.kill_workers()
        return effect_id

    def resubmit(self) -> tuple[int, str]:
        """Submit the same again; return the status and the effect's id."""
        answer = self._scene.broker.submit(*self._request)
        return answer.status_code, answer.json()["effect_id"]


def version(way: Relay) -> str:
    """A published version never changes, and every test has a target at another port."""
    return way.origin.rpartition(":")[2]


def receipt_of(scene: Scene, effect_id: str) -> dict[str, Any]:
    """Return the receipt of an effect that has one."""
    found = scene.broker.receipt(effect_id)
    assert found is not None
    receipt: dict[str, Any] = found["receipt"]
    return receipt


def of_catalog(name: str, version: str, **changes: Any) -> str:
    """Return a contract of the catalog as YAML, with `changes` laid over it."""
    value = yaml.safe_load(catalog_texts()[name])
    return yaml.safe_dump(merged(value, {"version": version, **changes}), sort_keys=False)
