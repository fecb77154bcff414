"""Callers that perform effects, and die or stop where they are told to.

    caller.py JOBS        a JSON list; each job runs in a process of its own, one by one

A job performs some effects side by side, step by step, and names where its process ends: `elected`
(before the calls), `called` (before the confirms), `confirmed`, each by SIGKILL to itself;
`stopped` is SIGSTOP before the confirms; without an end it runs through. A job that names an `api`
asks that over HTTP, else it works directly on Postgres. What became of each effect
is written to a file of its own, as one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from effect_broker import AsyncBroker, AsyncPerformance, BrokerError
from unhurried import unhurried_sessions

Wanted = dict[str, Any]


def call(wanted: Wanted, key: str) -> dict[str, Any]:
    # As the contract's own section says that a worker does it: another body under the same key
    # would be another request to the target.
    body = json.dumps(wanted["arguments"], sort_keys=True, separators=(",", ":")).encode()
    headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
    with urlopen(Request(wanted["target"], body, headers), timeout=30) as answer:
        return dict(json.loads(answer.read()))


def reach(point: str, end: str | None) -> None:
    if point == end:
        os.kill(os.getpid(), signal.SIGSTOP if end == "stopped" else signal.SIGKILL)


async def perform(job: dict[str, Any]) -> None:
    wanted, end = job["performs"], job["end"]
    broker = (
        AsyncBroker(job["api"], job["api_key"])
        if job["api"]
        else AsyncBroker.on_postgres(job["url"], api_key=job["api_key"], key_ring=job["key_ring"])
    )
    async with broker, AsyncExitStack() as stack:
        begun = [
            await stack.enter_async_context(
                broker.perform(one["tool"], one["arguments"], operation_key=one["key"])
            )
            for one in wanted
        ]
        elected = [
            (one, effect) for one, effect in zip(wanted, begun, strict=True) if effect.elected
        ]
        reach("elected", end)
        charged = []
        for one, effect in elected:
            effect.check()
            charged.append(call(one, effect.downstream_key))
        reach("called", end)
        reach("stopped", end)
        for (one, effect), charge in zip(elected, charged, strict=True):
            await confirm(one, effect, charge)
        reach("confirmed", end)
    for one, effect in zip(wanted, begun, strict=True):
        tell(one, effect)


async def confirm(one: Wanted, effect: AsyncPerformance, charge: dict[str, Any]) -> None:
    try:
        await effect.confirm(charge, external_id=charge["id"])
    except BrokerError as error:
        write(one, {"error": type(error).__name__, "state": error.problem.get("state")})


def write(one: Wanted, seen: dict[str, Any]) -> None:
    Path(one["seen"]).write_text(json.dumps(seen))


def tell(one: Wanted, effect: AsyncPerformance) -> None:
    if Path(one["seen"]).exists():
        return
    outcome = effect.outcome
    seen = {
        "elected": effect.elected,
        "outcome": type(outcome).__name__,
        "replayed": getattr(outcome, "replayed", None),
    }
    write(one, seen)


def main() -> None:
    for job in json.loads(sys.argv[1]):
        pid = os.fork()
        if pid == 0:
            asyncio.run(perform(job))
            os._exit(0)
        Path(job["pid"]).write_text(str(pid))
        os.waitpid(pid, os.WUNTRACED)


if __name__ == "__main__":
    with unhurried_sessions():
        main()
