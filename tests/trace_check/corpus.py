"""Traces of simulated schedules: few, and of every kind that there is."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from unittest.mock import patch

from effect_broker.proof.simulation import world as simulated
from effect_broker.proof.simulation.campaign import worlds
from effect_broker.proof.simulation.schedule import run_seed, silence
from effect_contracts.facts import SafetyClass
from trace_check.memory_log import LoggedSimulationStore
from trace_check.staged import SCENES, account

SEEDS = 50
# One effect each; the larger worlds show nothing else of one.
WORLDS = tuple(sorted(name for name, scope in worlds().items() if scope.effects == 1))


def scheduled(world: str, seed: int) -> list[bytes]:
    """Return the trace of one schedule of the simulator."""
    stores: list[LoggedSimulationStore] = []

    def logged(*arguments: Any) -> LoggedSimulationStore:
        stores.append(LoggedSimulationStore(*arguments))
        return stores[-1]

    with patch.object(simulated, "SimulationStore", logged), silence():
        outcome = run_seed(worlds()[world], seed)
    assert outcome.violation is None, f"{world}, seed {seed}: {outcome.violation}"
    (store,) = stores
    return store.trace()


def chosen() -> list[list[bytes]]:
    """Return few short accounts that together show what all schedules of their class do.

    That is each kind of event, state, outcome and verdict. A long account costs far more to forge
    than a short one, so what counts is how much it shows for its length.
    """
    found: list[list[bytes]] = []
    for safety in SafetyClass:
        names = [name for name in WORLDS if worlds()[name].safety is safety]
        lines = [scheduled(name, seed) for name in names for seed in range(SEEDS)]
        shown = [(_features(each[2]), each) for each in lines]
        left = set().union(*(features for features, _ in shown))
        while left:
            features, best = max(shown, key=lambda each: len(each[0] & left) / len(each[1][2]))
            left -= features
            found.append(best)
    return [*found, *staged()]


def staged() -> list[list[bytes]]:
    """Return the accounts of all scenes."""

    async def all_of_them() -> list[list[bytes]]:
        return [account(await scene()) for scene in SCENES.values()]

    return asyncio.run(all_of_them())


def _features(effect: bytes) -> set[str]:
    told = json.loads(effect)
    return (
        {event["kind"] for event in told["events"]}
        | {f"state {told['intent']['state']}"}
        | {f"outcome {attempt['outcome']}" for attempt in told["attempts"]}
        | {f"verdict {evidence['verdict']}" for evidence in told["evidence"]}
    )
