"""The SDK repeats calls of which nothing is known, and one effect results, whatever dies."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from effect_broker import Broker, NotYet, Succeeded, Unavailable
from effect_broker.faultpoints import FaultPoint
from effect_broker.postgres.embedded import EmbeddedPostgres
from effect_broker.proof.broker import API_READY_SECONDS, ProofBroker
from effect_broker.proof.contracts import charge
from hosting.scenes import Scene
from sdk.conftest import TENANT, Access, access_to

CALLERS = 10
PATIENT = timedelta(seconds=90)


@pytest.mark.parametrize("point", [FaultPoint.BEFORE_SUBMIT_COMMIT, FaultPoint.AFTER_SUBMIT_COMMIT])
def test_an_api_killed_inside_a_submit_is_asked_again_and_one_effect_results(
    scene: Scene, access: Access, point: FaultPoint
) -> None:
    scene.ensure_workers(1)
    kind = f"killed_{point.value}"
    tool = scene.offer(kind)
    api = scene.broker.stack.api()
    url = api.wait_ready(API_READY_SECONDS)
    with Broker(url, access.api_key, patience=PATIENT) as broker, ThreadPoolExecutor(1) as caller:
        scene.broker.arm(point)
        submitting = caller.submit(broker.submit, tool, charge("1"), operation_key=f"{tool}:1")
        assert scene.broker.wait_fired(point) == api.pid
        api.wait_ended()
        again = scene.broker.stack.api(port=urlsplit(url).port or 0)
        again.wait_ready(API_READY_SECONDS)
        effect = submitting.result()
        # What had been committed is met again; what had not is new.
        assert effect.replayed is (point is FaultPoint.AFTER_SUBMIT_COMMIT)
        assert isinstance(broker.result(effect, deadline=PATIENT), Succeeded)
        again.terminate()
    ledger = scene.ledger(kind)
    assert (ledger.arrivals, ledger.effects) == (1, 1)


def test_a_broker_that_is_not_there_is_told_when_the_patience_ends(
    scene: Scene, access: Access
) -> None:
    api = scene.broker.stack.api()
    url = api.wait_ready(API_READY_SECONDS)
    api.kill()
    patience = timedelta(seconds=1.5)
    with Broker(url, access.api_key, patience=patience) as broker:
        begun = time.monotonic()
        with pytest.raises(Unavailable, match="ConnectError") as unavailable:
            broker.submit("any", {}, operation_key="nobody:1")
        assert 0.3 < time.monotonic() - begun < 30
        assert (unavailable.value.code, unavailable.value.status) == (None, None)
        begun = time.monotonic()
        with pytest.raises(Unavailable, match="deadline"):
            broker.result("00000000-0000-0000-0000-000000000000", deadline=timedelta(seconds=3))
        assert 2.5 < time.monotonic() - begun < 30


def test_a_process_that_is_stopped_is_left_after_the_time_for_an_answer(
    scene: Scene, access: Access
) -> None:
    scene.ensure_workers(1)
    tool = scene.offer("stopped")
    api = scene.broker.stack.api()
    url = api.wait_ready(API_READY_SECONDS)
    answer_time = timedelta(seconds=2)
    with Broker(url, access.api_key, answer_time=answer_time, patience=PATIENT) as broker:
        effect = broker.submit(tool, charge("1"), operation_key=f"{tool}:1")
        api.pause()
        # Nobody wakes it before that has ended.
        assert isinstance(broker.result(effect, deadline=timedelta(seconds=1)), NotYet)
        waking = threading.Timer(3, api.resume)
        waking.start()
        begun = time.monotonic()
        again = broker.submit(tool, charge("1"), operation_key=f"{tool}:1")
        assert time.monotonic() - begun > 2
        waking.join()
        assert (again.effect_id, again.replayed) == (effect.effect_id, True)
    api.terminate()


def test_ten_threads_with_one_key_make_one_effect(scene: Scene, broker: Broker) -> None:
    tool = scene.offer("shared_key")
    together = threading.Barrier(CALLERS)

    def call() -> Succeeded:
        together.wait()
        effect = broker.submit(tool, charge("1"), operation_key=f"{tool}:1")
        outcome = broker.result(effect, deadline=PATIENT)
        assert isinstance(outcome, Succeeded)
        return outcome

    with ThreadPoolExecutor(CALLERS) as callers:
        outcomes = [running.result() for running in [callers.submit(call) for _ in range(CALLERS)]]
    assert len({outcome.external_id for outcome in outcomes}) == 1
    ledger = scene.ledger("shared_key")
    assert (ledger.arrivals, ledger.effects) == (1, 1)


@pytest.fixture
def fragile(own_postgres: EmbeddedPostgres, tmp_path: Path) -> Iterator[Scene]:
    """A broker on a durable server of its own."""
    broker = ProofBroker(tmp_path, own_postgres.url)
    with broker, Scene(broker) as made:
        broker.prepare(TENANT)
        broker.start_api()
        made.start_workers(1)
        yield made


@pytest.mark.timeout(240)
def test_an_outage_of_the_database_is_sat_out_by_submit_and_result(
    fragile: Scene, own_postgres: EmbeddedPostgres
) -> None:
    tool = fragile.offer("outage", attempt_deadline_seconds=60.0)
    access = access_to(fragile)
    with access.broker(PATIENT) as broker, ThreadPoolExecutor(2) as callers:
        fragile.broker.target.client.script("hold(outage)", kind="outage")
        first = broker.submit(tool, charge("1"), operation_key=f"{tool}:1")
        fragile.broker.target.client.wait_held()
        waiting = callers.submit(broker.result, first)
        own_postgres.halt("immediate")
        submitting = callers.submit(broker.submit, tool, charge("2"), operation_key=f"{tool}:2")
        with (
            access.broker(timedelta(seconds=1)) as hasty,
            pytest.raises(Unavailable, match="storage_unavailable") as told,
        ):
            hasty.submit(tool, charge("3"), operation_key=f"{tool}:3")
        assert told.value.status == 503
        assert not waiting.done()
        assert not submitting.done()
        own_postgres.start()
        fragile.broker.target.client.release("outage")
        assert isinstance(waiting.result(), Succeeded)
        assert isinstance(broker.result(submitting.result(), deadline=PATIENT), Succeeded)
    ledger = fragile.ledger("outage")
    assert (ledger.arrivals, ledger.effects) == (2, 2)
