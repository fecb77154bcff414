"""Without the SDK, or with tracing off, nothing of it is loaded; contexts are stored anyhow."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import httpx
import pytest

from api.deployment import Deployment, charge
from effect_broker.tracing import Spans

TRACE = "0af7651916cd43dd8448eb211c80319c"
HEADER = f"00-{TRACE}-b7ad6b7169203331-01"

# An interpreter in which the SDK cannot be imported, whoever tries.
_BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter", "opentelemetry.proto")):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocked())
"""
_LOADED = """
import effect_broker.assembly, effect_broker.worker, effect_broker.durable, effect_broker.api.app
import effect_broker.metrics_listener
print(sorted(name for name in sys.modules if name.startswith("opentelemetry.sdk")
             or name.startswith("opentelemetry.exporter")))
"""


def program(text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-c", text],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PATH": "/usr/bin:/bin", **environment},
    )


def test_every_process_starts_without_the_sdk_and_loads_nothing_of_it() -> None:
    for blocked in (_BLOCKED, "import sys\n"):
        result = program(blocked + _LOADED)
        assert result.returncode == 0, result.stderr
        assert result.stdout.strip() == "[]"


def test_tracing_without_the_sdk_is_a_sentence() -> None:
    wanted = """
import asyncio
from effect_broker.config import ConfigurationProblem
from effect_broker.tracing import exported
async def main():
    async with exported("worker", "w", on=True):
        pass
try:
    asyncio.run(main())
except ConfigurationProblem as problem:
    print(problem)
"""
    result = program(_BLOCKED + wanted)
    assert "install effect-broker[otel]" in result.stdout, result.stderr
    assert result.stdout.startswith("EFFECT_BROKER_TRACING: ")


async def test_a_step_that_nobody_traces_reads_nothing_and_costs_microseconds() -> None:
    class Reads:
        async def traceparent(self, *_: object) -> str | None:
            raise AssertionError("nobody asked")

    spans = Spans(reads=Reads())
    rounds, steps = 10, 500
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(steps):
            async with spans.step("dispatch", "t", "e") as ended:
                ended({})
        took.append(time.perf_counter() - began)
    # Some six microseconds; the bound is for a machine that is busy with other things, and stands
    # still now and then.
    assert min(took) / steps < 0.0005
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        (HEADER, HEADER),
        (HEADER.replace("-01", "-00"), HEADER.replace("-01", "-00")),
        (HEADER.upper(), None),
        ("00-" + "0" * 32 + "-b7ad6b7169203331-01", None),
        (f"ff-{TRACE}-b7ad6b7169203331-01", None),
        (f"00-{TRACE}-b7ad6b7169203331-01-more", None),
        ("x" * 5000, None),
        ("", None),
        (None, None),
    ],
)
def test_only_a_valid_context_is_kept(sent: str | None, stored: str | None) -> None:
    with Spans().submit(sent) as span:
        assert span.traceparent == stored


async def test_an_api_that_traces_nothing_stores_the_callers_context(
    api: httpx.AsyncClient, deployment: Deployment
) -> None:
    for n, header in enumerate((HEADER, "no context at all", None)):
        headers = {} if header is None else {"traceparent": header}
        answer = await api.post("/v1/effects", json=charge(f"order-{n}"), headers=headers)
        assert answer.status_code == 202
    twice = [("traceparent", HEADER), ("traceparent", HEADER)]
    assert (
        await api.post(
            "/v1/effects", json=charge("order-3"), headers=[*api.headers.items(), *twice]
        )
    ).status_code == 202
    rows = deployment.execute(
        "SELECT operation_key, traceparent FROM effect_broker.effect_intents ORDER BY operation_key"
    )
    assert [row[1] for row in rows] == [HEADER, None, None, None]
