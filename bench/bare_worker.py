"""``python -m bench.bare_worker DATABASE_URL TARGET_URL POLL_SECONDS``: a plain DBOS worker.

Three steps through a queue, one of them the POST. It protects nothing: a crash after the POST sends
it again. It is what an engineer would write first, and what the broker is compared with.
"""

from __future__ import annotations

import asyncio
import sys

import httpx
from dbos import DBOS, DBOSConfig

NAME = "bench"
QUEUE = "bench"
VERSION = "1"
CONCURRENCY = 400
READY = "bare worker ready"

_http: list[httpx.AsyncClient] = []
_target: list[str] = []


@DBOS.step()
async def bare_reserve(order: str) -> str:
    """What the broker's first step stands for."""
    return order


@DBOS.step()
async def post(order: str) -> str:
    """The request."""
    answer = await _http[0].post(
        _target[0],
        json={"order": order, "amount": 1, "currency": "eur"},
        headers={"Idempotency-Key": order},
    )
    answer.raise_for_status()
    return str(answer.status_code)


@DBOS.step()
async def record(status: str) -> str:
    """What a receipt stands for."""
    return status


@DBOS.workflow()
async def effect(order: str) -> str:
    """One effect."""
    return await record(await post(await bare_reserve(order)))


def worker(url: str, target_url: str, poll_seconds: float) -> None:
    """Be the worker until the process is ended."""

    async def main() -> None:
        _http.append(httpx.AsyncClient(trust_env=False))
        _target.append(target_url)
        config: DBOSConfig = {
            "name": NAME,
            "system_database_url": url,
            "application_version": VERSION,
            "executor_id": "bench",
            "log_level": "WARNING",
            "console_log_level": "WARNING",
            # As the broker sets it, so that the two differ in what they do and not in settings.
            "db_engine_kwargs": {"pool_pre_ping": False},
        }
        DBOS(config=config)
        DBOS.launch()
        await DBOS.register_queue_async(
            QUEUE, worker_concurrency=CONCURRENCY, polling_interval_sec=poll_seconds
        )
        print(READY, flush=True)
        await asyncio.Event().wait()

    asyncio.run(main())


if __name__ == "__main__":
    worker(sys.argv[1], sys.argv[2], float(sys.argv[3]))
