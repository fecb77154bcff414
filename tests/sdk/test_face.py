"""The synchronous face is thin, safe to share, light to import, and typed."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import inspect
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import effect_broker
from effect_broker import AsyncBroker, Broker, Closed, Succeeded, sdk
from effect_broker.proof.broker import wait_until
from effect_broker.proof.contracts import charge
from hosting.scenes import Scene
from repository.checkout import CHECKOUT
from sdk.conftest import Access

PATIENT = timedelta(seconds=60)
THREAD = "effect-broker"
METHODS = (
    "submit", "get", "wait", "result", "receipt", "reconcile", "cancel", "resolve", "tool", "close",
)  # fmt: skip


def own_threads() -> int:
    return sum(thread.name == THREAD for thread in threading.enumerate())


@pytest.mark.parametrize("method", [*METHODS, "__init__", "from_environment", "on_postgres"])
def test_both_faces_take_the_same_arguments(method: str) -> None:
    plain, awaited = (getattr(face, method) for face in (Broker, AsyncBroker))
    assert inspect.signature(plain) == inspect.signature(awaited)


async def test_the_face_works_inside_a_running_loop(scene: Scene, access: Access) -> None:
    await asyncio.to_thread(scene.ensure_workers, 1)
    tool = await asyncio.to_thread(scene.offer, "inside_a_loop")
    with access.broker() as broker:
        effect = broker.submit(tool, charge("1"), operation_key=f"{tool}:1")
        assert isinstance(broker.result(effect, deadline=PATIENT), Succeeded)


def test_a_closed_face_calls_nothing_and_leaves_no_thread(broker: Broker, access: Access) -> None:
    before = own_threads()
    made = access.broker()
    assert own_threads() == before, "no thread before the first call"
    with pytest.raises(effect_broker.NotFound):
        made.get("00000000-0000-0000-0000-000000000000")
    assert own_threads() == before + 1
    made.close()
    made.close()
    assert own_threads() == before
    with pytest.raises(Closed):
        made.get("00000000-0000-0000-0000-000000000000")


def test_a_face_that_is_closed_during_a_call_ends_the_call(scene: Scene, access: Access) -> None:
    scene.ensure_workers(1)
    tool = scene.offer("closed_meanwhile", attempt_deadline_seconds=60.0)
    scene.broker.target.client.script("hold(closed)", kind="closed_meanwhile")
    made = access.broker()
    effect = made.submit(tool, charge("1"), operation_key=f"{tool}:1")
    closing = threading.Timer(1, made.close)
    closing.start()
    with pytest.raises(Closed):
        made.result(effect)
    closing.join()
    scene.broker.target.client.release("closed")
    with access.broker() as other:
        assert isinstance(other.result(effect, deadline=PATIENT), Succeeded)


def test_what_the_collector_ends_in_the_clients_own_thread_does_not_wait_for_itself(
    access: Access,
) -> None:
    # Python collects in whichever thread it comes to it; here that is the client's own.
    with access.broker() as made:
        ended: concurrent.futures.Future[type[BaseException]] = concurrent.futures.Future()

        def left() -> Iterator[None]:
            try:
                yield
            finally:
                try:
                    made.get("00000000-0000-0000-0000-000000000000")
                except BaseException as problem:
                    ended.set_result(type(problem))

        with pytest.raises(effect_broker.NotFound):
            made.get("00000000-0000-0000-0000-000000000000")
        running = made._running
        assert running is not None
        generators = [left()]
        next(generators[0])
        running._loop.call_soon_threadsafe(generators.clear)
        assert ended.result(20) is Closed
        with pytest.raises(effect_broker.NotFound):
            made.get("00000000-0000-0000-0000-000000000000")


def test_a_face_that_nobody_holds_ends_its_thread(access: Access) -> None:
    before = own_threads()
    made = access.broker()
    with pytest.raises(effect_broker.NotFound):
        made.get("00000000-0000-0000-0000-000000000000")
    assert own_threads() == before + 1
    del made
    gc.collect()
    wait_until(lambda: own_threads() == before or None, "the thread has ended")


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises as at a terminal, also where the tests run in the background of a shell."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_caller_interrupts_no_effect(scene: Scene, broker: Broker) -> None:
    tool = scene.offer("interrupted", attempt_deadline_seconds=60.0)
    scene.broker.target.client.script("hold(interrupted)", kind="interrupted")
    effect = broker.submit(tool, charge("1"), operation_key=f"{tool}:1")
    scene.broker.target.client.wait_held()
    interrupting = threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT))
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        broker.result(effect)
    interrupting.join()
    running = broker._running
    assert running is not None
    # Nobody goes on to wait for a caller who has gone.
    wait_until(lambda: not asyncio.all_tasks(running._loop) or None, "the call has ended")
    scene.broker.target.client.release("interrupted")
    assert isinstance(broker.result(effect, deadline=PATIENT), Succeeded)


async def test_an_asynchronous_client_stays_in_its_loop(access: Access) -> None:
    broker = access.async_broker()
    with pytest.raises(effect_broker.NotFound):
        await broker.get("00000000-0000-0000-0000-000000000000")

    def elsewhere() -> None:
        asyncio.run(broker.get("00000000-0000-0000-0000-000000000000"))

    with pytest.raises(Closed, match="event loop"):
        await asyncio.to_thread(elsewhere)
    await broker.close()
    with pytest.raises(Closed):
        await broker.get("00000000-0000-0000-0000-000000000000")


FORKING = """
import os, sys
from effect_broker import Broker, NotFound

def look() -> None:
    try:
        broker.get("00000000-0000-0000-0000-000000000000")
    except NotFound:
        return
    raise AssertionError

broker = Broker.from_environment()
look()
child = os.fork()
look()
if child == 0:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
look()
print("both")
"""


def test_a_forked_child_has_connections_of_its_own(access: Access) -> None:
    assert _run(FORKING, access.environment) == "both"


# The package ------------------------------------------------------------------------------------

HEAVY = {
    "alembic", "dbos", "effect_adapters", "fastapi", "jinja2", "jsonschema", "opentelemetry",
    "prometheus_client", "psycopg", "psycopg_pool", "pydantic", "sqlalchemy", "starlette", "typer",
    "uvicorn", "yaml",
}  # fmt: skip
IMPORTED = """
import json, sys
import effect_broker
first = sorted(sys.modules)
from effect_broker import Broker
Broker("http://127.0.0.1:9", "key")
print(json.dumps([first, sorted(sys.modules)]))
"""


def test_a_caller_over_http_imports_no_server_no_engine_and_no_database() -> None:
    package, client = json.loads(_run(IMPORTED, {}))
    assert "effect_broker.sdk" not in package
    assert "httpx" not in package
    assert "effect_broker.sdk.http" in client
    assert HEAVY & {name.partition(".")[0] for name in client} == set()
    own = {name for name in client if name.startswith("effect_broker.")}
    assert {name for name in own if not name.startswith("effect_broker.sdk")} == {
        "effect_broker.clock"
    }


def test_the_package_offers_what_the_sdk_offers() -> None:
    assert set(effect_broker.__all__) == {*sdk.__all__, "__version__"}
    for name in sdk.__all__:
        assert getattr(effect_broker, name) is getattr(sdk, name)
    assert set(effect_broker.__all__) <= set(dir(effect_broker))
    with pytest.raises(AttributeError, match="Brokr"):
        effect_broker.Brokr  # type: ignore[attr-defined]  # noqa: B018


TYPED = """
from datetime import timedelta
from typing import assert_never

from effect_broker import (
    AsyncBroker, Broker, Cancelled, Compensated, Failed, NotYet, Succeeded, Unknown, WaitsForPerson,
)


def charge(broker: Broker) -> str | None:
    effect = broker.submit("acme.charge", {"amount": 1}, operation_key="order:1:charge:v1")
    match broker.result(effect, deadline=timedelta(minutes=5)):
        case Succeeded() as done:
            return done.external_id
        case Failed() | Cancelled() | Compensated() as over:
            return over.receipt.reason
        case Unknown() | WaitsForPerson() | NotYet() as open_:
            return open_.effect.reason
        case never:
            assert_never(never)


async def charge_async(broker: AsyncBroker) -> int:
    effect = await broker.submit("acme.charge", {"amount": 1}, operation_key="order:1:charge:v1")
    return (await broker.result(effect)).raise_for_failure().effect.version
"""
WRONG = """
from effect_broker import Broker, Brokr, NotYet, Succeeded


def wrong(broker: Broker) -> None:
    broker.submit("acme.charge", {"amount": 1})
    outcome = broker.result("id")
    outcome.receipt
    broker.result("id", deadline=30)
"""


@pytest.mark.timeout(300)
def test_a_program_that_uses_it_is_typed_and_a_wrong_one_is_found(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(TYPED)
    bad.write_text(WRONG)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(good), str(bad)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    found = [line.removeprefix(str(tmp_path) + "/") for line in checked.stdout.splitlines()]
    wrong = [line.rpartition("[")[2].rstrip("]") for line in found if ": error:" in line]
    # Three of the seven outcomes have no receipt.
    assert wrong == ["attr-defined", "call-arg", *["union-attr"] * 3, "arg-type"], checked.stdout
    assert all("bad.py" in line for line in found if ": error:" in line)
    assert 'Missing named argument "operation_key"' in checked.stdout


def _run(program: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()
