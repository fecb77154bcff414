"""A contract that limits its target, over two workers: the target's own counters judge."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.commands import Cli
from effect_broker.faultpoints import FaultAction, FaultPoint
from effect_broker.keyring import ENV_KEY_RING_FILE
from effect_broker.proof.broker import wait_until
from effect_broker.proof.contracts import charge, tuned
from hosting.scenes import Scene, all_once, go_on

CHECKOUT = Path(__file__).parents[2]
READY = "counting target listening on "
EFFECTS = 60
CONCURRENCY_MAX = 3
PER_SECOND_MAX = 40.0
BURST_MAX = 4
TARGET_SECONDS = 0.05
SETTLE_SECONDS = 60.0
# What an effect takes beside it on a busy machine; the backlog alone takes a second and a half.
PROMPT_SECONDS = 30.0


class Counting:
    """The benchmark's target, which counts what it is asked to bear; a process of its own."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, what: str, **parameters: float) -> dict[str, Any]:
        """Set what it does, or see what it has counted."""
        url = f"{self.url}/_control/{what}"
        answer = httpx.get(url, params={"kind": "limited", **parameters}, trust_env=False)
        answer.raise_for_status()
        counted: dict[str, Any] = answer.json()
        return counted


@pytest.fixture(scope="module")
def counting() -> Iterator[Counting]:
    command = [sys.executable, "-m", "bench.counting_target", "0"]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        target = Counting(process.stdout.readline().removeprefix(READY).strip())
        target.ask("set", seconds=TARGET_SECONDS, held=0)
        yield target
        process.kill()


def _open(scene: Scene, tool: str) -> int:
    return int(
        scene.value(
            "SELECT count(*) FROM effect_broker.effect_intents"
            " WHERE tool = %s AND state <> 'succeeded'",
            tool,
        )
    )


def test_two_workers_drive_a_target_no_harder_than_its_contract_permits(
    scene: Scene,
    counting: Counting,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = tuned(
        "demo-charge-idempotent",
        counting.url,
        "limited",
        limits={
            "concurrency_max": CONCURRENCY_MAX,
            "per_second_max": PER_SECOND_MAX,
            "burst_max": BURST_MAX,
        },
        attempt_deadline_seconds=10.0,
    )
    scene.broker.apply(document)
    other = scene.offer("beside")
    scene.start_workers(2)
    scene.submit_many(document.tool, EFFECTS)
    began = time.monotonic()
    body = {"operation_key": "beside:1", "tool": other, "arguments": charge("1")}
    answer = scene.broker.http.post("/v1/effects", json=body, params={"wait": PROMPT_SECONDS})
    took = time.monotonic() - began
    assert answer.json()["state"] == "succeeded", answer.text
    assert took < PROMPT_SECONDS
    wait_until(lambda: not _open(scene, document.tool) or None, "all settled", SETTLE_SECONDS)

    seen = counting.ask("seen")
    assert (seen["requests"], seen["keys"]) == (EFFECTS, EFFECTS)
    assert seen["greatest_at_once"] <= CONCURRENCY_MAX
    # A grant is on its way for a moment, in which others may be on theirs.
    assert seen["greatest_in_a_second"] <= PER_SECOND_MAX + BURST_MAX + CONCURRENCY_MAX
    attempts = scene.rows(
        "SELECT effect_id, a.started_at FROM effect_broker.effect_attempts AS a"
        " JOIN effect_broker.effect_intents AS i USING (tenant_id, effect_id)"
        " WHERE i.tool = %s ORDER BY a.started_at",
        document.tool,
    )
    starts = [row["started_at"].timestamp() for row in attempts]
    assert len(starts) == EFFECTS  # who waited for a turn has used up no attempt
    for first, at in enumerate(starts):
        for count, later in enumerate(starts[first:], 1):
            assert count <= PER_SECOND_MAX * (later - at) + BURST_MAX + 1e-6
    waited = scene.value(
        "SELECT count(*) FROM effect_broker.effect_events AS e"
        " JOIN effect_broker.effect_intents AS i USING (tenant_id, effect_id)"
        " WHERE i.tool = %s AND e.reason = 'target_busy' AND e.to_state = 'prepared'",
        document.tool,
    )
    assert waited > 0

    # The account of it is in order, as anybody can check.
    monkeypatch.setenv("EFFECT_BROKER_HOME", str(scene.broker.directory))
    monkeypatch.setenv("EFFECT_BROKER_MIGRATE_DATABASE_URL", scene.broker.superuser_url)
    monkeypatch.setenv(ENV_KEY_RING_FILE, str(scene.broker.directory / "keyring.json"))
    command, trace = Cli(monkeypatch, capsys), str(scene.broker.directory / "trace")
    assert command("events", "export", "--out", trace).code == 0
    verified = command("events", "verify", trace)
    assert verified.code == 0, verified.out


def test_stopped_workers_hold_the_only_place_and_its_lock_for_a_while_and_no_longer(
    scene: Scene,
) -> None:
    """One stands still with the place, one with the lock under which places are given."""
    scene.ensure_workers(3)
    tool = scene.offer("stopped", limits={"concurrency_max": 1}, attempt_deadline_seconds=2.0)
    stopped = []
    effects = []
    for n, point in enumerate((FaultPoint.BEFORE_SOCKET_WRITE, FaultPoint.BEFORE_ATTEMPT_COMMIT)):
        scene.broker.arm(point, FaultAction.STOP)
        effects.append(scene.submit(tool, f"stops{n}"))
        stopped.append(scene.stopped_at(point))
        if not n:
            place_until = scene.value(
                "SELECT open_until FROM effect_broker.limited_attempts WHERE effect_id = %s",
                effects[0],
            )
    effects += scene.submit_many(tool, 4)
    settled = scene.settled(effects)
    assert [one["state"] for one in settled] == ["succeeded"] * 6
    attempts = scene.rows(
        "SELECT a.effect_id::text, a.started_at, coalesce(a.recorded_at, %s) AS ended_at"
        " FROM effect_broker.effect_attempts AS a JOIN effect_broker.effect_intents AS i"
        " USING (effect_id) WHERE i.tool = %s ORDER BY a.started_at",
        place_until,
        tool,
    )
    assert [one["effect_id"] for one in attempts].count(effects[0]) == 2
    assert len(attempts) == 7  # who was not granted the place has used up no attempt
    for one, after in pairwise(attempts):
        assert one["ended_at"] <= after["started_at"]

    for pid in stopped:
        go_on(pid)
    wait_until(
        lambda: scene.attempts(effects[0])[0]["outcome"] == "not_sent" or None, "its late word"
    )
    ledger = scene.ledger("stopped")
    assert (ledger.arrivals, all_once(ledger, 6)) == (6, True)
