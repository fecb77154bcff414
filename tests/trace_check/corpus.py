"""Traces of schedules over the in-memory store: few, and of every kind that there is."""

from __future__ import annotations

import asyncio
import json
from unittest.mock import patch

from protocol import walk
from protocol.walk import DOCUMENTS, Walk
from trace_check.memory_log import LoggedStore
from trace_check.staged import SCENES, account

SEEDS = 150


def walked(safety: str, seed: int) -> list[bytes]:
    """Return the trace of one schedule."""
    with patch.object(walk, "MemoryStore", LoggedStore):
        schedule = Walk(safety, seed)
    schedule.run()
    store = schedule.memory
    assert isinstance(store, LoggedStore)
    return store.trace()


def chosen() -> list[list[bytes]]:
    """Return the first schedule that shows each kind of event, state and outcome of each class."""
    found: list[list[bytes]] = []
    for safety in DOCUMENTS:
        seen: set[str] = set()
        for seed in range(SEEDS):
            lines = walked(safety, seed)
            shown = _features(lines[2])
            if not shown <= seen:
                seen |= shown
                found.append(lines)
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
