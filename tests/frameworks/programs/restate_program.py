"""Restate: a handler that is retried, and requests that are sent again with and without a key.

    python restate_program.py SERVER DIRECTORY

The server is the real one, in a process of its own with its files in DIRECTORY. All listen on
loopback.
"""

# The framework is in the environment that this program runs in, not in the one that checks it.
# mypy: disable-error-code="import-not-found,misc,untyped-decorator"

from __future__ import annotations

import asyncio
import os
import random
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import restate
from hypercorn.asyncio import serve
from hypercorn.config import Config
from sightings import sighted

from effect_broker.operation_keys.restate import invocation_key

SECONDS = 60.0
orders = restate.Service("orders")


class Now:
    """How often the handler still fails."""

    failures = 0


@orders.handler()
async def charge(context: restate.Context, scenario: str) -> str:
    """Tells what it is called with; fails as often as is wanted."""
    sighted(
        scenario,
        {
            "invocation_id": context.request().id,
            "uuid": str(context.uuid()),
        },
        {"invocation": invocation_key(context, "charge")},
    )
    if Now.failures:
        Now.failures -= 1
        raise ConnectionError("the handler fails")
    return "charged"


def free_port() -> int:
    """Return a port that nobody listens on, and that the kernel gives to nobody meanwhile."""
    while True:
        port = random.randrange(15_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def started(server: str, directory: Path, ingress: int, admin: int) -> subprocess.Popen[bytes]:
    """Start the server, small and without telemetry."""
    node = free_port()
    settings = {
        "ADMIN__BIND_ADDRESS": f"127.0.0.1:{admin}",
        "ADMIN__DISABLE_WEB_UI": "true",
        "INGRESS__BIND_ADDRESS": f"127.0.0.1:{ingress}",
        "BIND_ADDRESS": f"127.0.0.1:{node}",
        "ADVERTISED_ADDRESS": f"http://127.0.0.1:{node}",
        "LISTEN_MODE": "tcp",
        "DEFAULT_NUM_PARTITIONS": "1",
        "DEFAULT_RETRY_POLICY__INITIAL_INTERVAL": "10ms",
        "DISABLE_TELEMETRY": "true",
        "ROCKSDB_TOTAL_MEMORY_SIZE": "256 MiB",
        "LOG_FILTER": "error",
    }
    with (directory / "server.log").open("wb") as log:
        return subprocess.Popen(
            [server, "--base-dir", directory / "files", "--no-logo"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={"PATH": "/usr/bin:/bin", **{f"RESTATE_{k}": v for k, v in settings.items()}},
        )


async def registered(admin: httpx.AsyncClient, service: int) -> None:
    """Tell the server where the handlers are, as soon as it listens."""
    for _ in range(int(SECONDS / 0.05)):
        try:
            answer = await admin.post("/deployments", json={"uri": f"http://127.0.0.1:{service}"})
        except httpx.TransportError:
            answer = None
        if answer is not None and answer.is_success:
            return
        await asyncio.sleep(0.05)
    raise TimeoutError("the server does not take the handlers")


async def called(ingress: httpx.AsyncClient, scenario: str, key: str | None = None) -> str:
    """Send one request; return the id of the invocation that has answered it."""
    headers = {} if key is None else {"idempotency-key": key}
    answer = await ingress.post("/orders/charge", json=scenario, headers=headers)
    answer.raise_for_status()
    return answer.headers["x-restate-id"]


async def scenarios(ingress: httpx.AsyncClient, admin: httpx.AsyncClient) -> None:
    """Run every scenario."""
    Now.failures = 2
    await called(ingress, "retry")
    for _ in range(2):
        await called(ingress, "sent_again")
    for _ in range(2):
        answered: dict[str, Any] = {
            "invocation_id": await called(ingress, "sent_again_with_a_key", "order-42")
        }
        sighted("answers_to_the_same_key", answered, {})
    # What the server does a day later by itself.
    purged = await admin.patch(f"/invocations/{answered['invocation_id']}/purge")
    purged.raise_for_status()
    await called(ingress, "sent_again_with_a_key", "order-42")


async def main(server: str, directory: Path) -> None:
    """Serve the handlers, start the server, run the scenarios."""
    service, ingress_port, admin_port = free_port(), free_port(), free_port()
    config = Config()
    config.bind = [f"127.0.0.1:{service}"]
    config.loglevel = "CRITICAL"
    serving = asyncio.create_task(serve(restate.app([orders]), config))
    process = started(server, directory, ingress_port, admin_port)
    try:
        async with (
            httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{admin_port}", timeout=SECONDS, trust_env=False
            ) as admin,
            httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{ingress_port}", timeout=SECONDS, trust_env=False
            ) as ingress,
        ):
            await registered(admin, service)
            await scenarios(ingress, admin)
    finally:
        process.kill()
        process.wait()
    assert not serving.done(), "the handlers were served to the end"
    # The service is not ended in order: its open connections would each tell that they were cut.
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
