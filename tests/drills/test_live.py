"""A drill in a running broker: a worker dies for real; its effect is not lost and not doubled.

Counts come from the target's own ledger.
"""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

import pytest

from drills.live import CLASSES, FIRST, NEVER_TAKEOVER_SECONDS, SECOND, Live, LiveBroker
from effect_broker.store import demo_ledger
from effect_contracts.trace import verify_lines
from hosting.scenes import LEASE_SECONDS

pytestmark = pytest.mark.timeout(600)

HOW = {
    "idempotent": ("succeeded", "redispatch", 2),
    "reconcilable": ("succeeded", "probe", 1),
    "unsafe": ("outcome_unknown", "person_needed", 1),
    "transactional": ("succeeded", "receipt", 1),
}


@pytest.mark.parametrize("safety", CLASSES)
def test_the_effect_ends_as_its_class_promises(live: Live, safety: str) -> None:
    state, settled_by, attempts = HOW[safety]
    assert live.codes[safety] == 0
    assert live.effects[safety]["state"] == state
    assert len(live.effects[safety]["attempts"]) == attempts
    shown = live.shown[safety]
    assert (shown["status"], shown["settled_by"], shown["promise_kept"]) == (
        "settled", settled_by, True,
    )  # fmt: skip
    assert shown["effect_id"] == live.effects[safety]["effect_id"]


@pytest.mark.parametrize("safety", CLASSES[:-1])
def test_the_target_holds_one_object_of_it(live: Live, safety: str) -> None:
    ledger = live.scene.ledger(f"drilled_{safety}")
    assert len([r for r in ledger.effect_rows if r.content["order"] == FIRST]) == 1
    sent = [r for r in ledger.arrival_rows if r.method == "POST" and FIRST.encode() in r.body]
    assert len(sent) == (2 if safety == "idempotent" else 1)


def test_the_transactional_mutation_happened_once(live: Live) -> None:
    assert demo_ledger.count(live.scene.broker.superuser_url, FIRST) == 1


@pytest.mark.parametrize("safety", CLASSES)
def test_the_first_attempt_is_the_drill_workers_and_it_died_of_it(live: Live, safety: str) -> None:
    shown = live.shown[safety]
    first, *later = live.effects[safety]["attempts"]
    assert shown["died_at_point"]
    assert first["executor_id"] == shown["executor_id"]
    assert all(attempt["executor_id"] != shown["executor_id"] for attempt in later)
    died_at = datetime.fromisoformat(shown["died_at"])
    assert datetime.fromisoformat(first["started_at"]) < died_at
    worker = live.scene.rows(
        "SELECT * FROM effect_broker.workers WHERE executor_id = %s", shown["executor_id"]
    )[0]
    assert worker["stopped_at"] is None  # nobody said goodbye


@pytest.mark.parametrize("safety", CLASSES)
def test_it_is_told_how_long_the_settlement_took(live: Live, safety: str) -> None:
    shown = live.shown[safety]
    if safety == "transactional":
        assert shown["seconds_to_settlement"] == 0  # the receipt stood
        return
    took = datetime.fromisoformat(shown["settled_at"]) - datetime.fromisoformat(shown["died_at"])
    assert shown["seconds_to_settlement"] == pytest.approx(took.total_seconds(), abs=0.01)
    assert 0 < shown["seconds_to_settlement"] < 60


@pytest.mark.parametrize("safety", CLASSES)
def test_the_timeline_tells_it_in_order(live: Live, safety: str) -> None:
    timeline = live.shown[safety]["timeline"]
    moments = [datetime.fromisoformat(one["at"]) for one in timeline]
    assert moments == sorted(moments)
    words = [one["what"] for one in timeline]
    place = {w: n for n, w in enumerate(words)}
    died = next(w for w in words if "is dead (SIGKILL at " in w)
    assert words[0].startswith("armed by operator:")
    assert place["attempt 1 begun by the drill's worker"] < place[died]


def test_the_drills_worker_takes_no_other_effect(live: Live) -> None:
    for effect in live.others:
        assert (effect["state"], effect["attempts"]) == ("prepared", [])
    for safety in CLASSES[:-1]:
        ledger = live.scene.ledger(f"drilled_{safety}")
        assert len([r for r in ledger.effect_rows if r.content["order"] == SECOND]) == 1


def test_a_tools_drill_takes_the_first_effect_alone(live: Live) -> None:
    drilled = live.scene.rows(
        "SELECT effect_id::text FROM effect_broker.effect_events"
        " WHERE sequence = 1 AND metadata::jsonb ? 'drill_id'"
    )
    wanted = {effect["effect_id"] for effect in live.effects.values()}
    assert {row["effect_id"] for row in drilled} >= wanted
    assert not wanted & {effect["effect_id"] for effect in live.others}
    for effect in live.others:
        (first,) = [e for e in live.scene.events(effect["effect_id"]) if e["sequence"] == 1]
        assert "drill_id" not in first["metadata"]


@pytest.mark.parametrize("safety", CLASSES)
def test_the_history_of_the_effect_names_the_drill(live: Live, safety: str) -> None:
    shown = live.shown[safety]
    first = live.scene.events(shown["effect_id"])[0]
    assert f'"drill_id":"{shown["drill_id"]}"' in first["metadata"]
    over_http = live.over_http[safety]
    same = ("status", "settled_by", "seconds_to_settlement", "effect_id", "reason", "armed_by")
    assert {name: over_http[name] for name in same} == {name: shown[name] for name in same}


def test_no_run_and_no_queue_of_a_drill_stays_behind(live: Live) -> None:
    live.scene.wait_for(
        "the engine has forgotten the drills",
        "SELECT (SELECT count(*) = 0 FROM dbos.queues WHERE name LIKE 'effects-drill-%')"
        " AND (SELECT count(*) = 0 FROM dbos.workflow_status"
        "      WHERE queue_name LIKE 'effects-drill-%' AND status IN ('ENQUEUED', 'PENDING'))",
    )


def test_a_log_with_drilled_effects_verifies(
    live: Live, live_broker: LiveBroker, tmp_path: Path
) -> None:
    report = verify_lines(live_broker.exported(tmp_path / "trace.jsonl"), whole=True)
    assert report.violations == ()
    assert report.effects >= 2 * len(CLASSES)


def test_an_effect_whose_drill_has_no_worker_is_taken_over_in_time(
    live: Live, live_broker: LiveBroker, tmp_path: Path
) -> None:
    tool = live.scene.offer("unattended")
    order = {"tool": tool, "reason": "nobody comes", "takeover_seconds": NEVER_TAKEOVER_SECONDS}
    armed = live_broker.http.post("/v1/drills", json=order)
    assert armed.status_code == 201, armed.text
    began = time.monotonic()
    effect_id = live_broker.submit(tool, FIRST)
    waiting = live_broker.exported(tmp_path / "waiting.jsonl")
    assert live.scene.intent(effect_id)["state"] == "prepared"
    assert verify_lines(waiting, whole=True).violations == ()
    effect = live.scene.broker.settled(effect_id)
    assert effect["state"] == "succeeded"
    assert NEVER_TAKEOVER_SECONDS <= time.monotonic() - began < NEVER_TAKEOVER_SECONDS + 20
    assert live.scene.ledger("unattended").effects == 1
    drill = live_broker.drill(armed.json()["drill_id"])
    assert (drill["status"], drill["died_at"], drill["promise_kept"]) == ("missed", None, None)


def test_a_drill_armed_over_http_for_a_key_is_run_by_id(
    live: Live, live_broker: LiveBroker
) -> None:
    tool = live.scene.offer("by_key", attempt_deadline_seconds=LEASE_SECONDS)
    order = {
        "operation_key": f"{tool}:{FIRST}",
        "reason": "over http",
        "fault_point": "before_socket_write",
    }
    drill_id = live_broker.http.post("/v1/drills", json=order).json()["drill_id"]
    command = live_broker.start("--armed", drill_id)
    command.wait_said("armed for operation key")
    effect_id = live_broker.submit(tool, FIRST)
    code, out, said = command.ended()
    assert code == 0, out + said
    effect = live.scene.broker.effect(effect_id)
    assert (effect["state"], len(effect["attempts"])) == ("succeeded", 2)
    ledger = live.scene.ledger("by_key")
    assert (ledger.effects, len(ledger.arrival_rows)) == (1, 1)  # the first was never written


def test_an_abandoned_command_leaves_nothing_armed_that_would_put_an_effect_off(
    live: Live, live_broker: LiveBroker
) -> None:
    tool = live.scene.offer("abandoned")
    command = live_broker.start("--tool", tool)
    command.wait_said("armed for tool")
    row = "SELECT executor_id FROM effect_broker.drills WHERE tool = %s"
    executor_id = live.scene.wait_for("the worker is announced", row, tool)
    command.kill()
    live.scene.wait_for(
        "the worker has ended in order",
        "SELECT stopped_at FROM effect_broker.workers WHERE executor_id = %s",
        executor_id,
    )
    effect_id = live_broker.submit(tool, FIRST)
    effect = live.scene.broker.settled(effect_id)
    assert effect["state"] == "succeeded"
    assert "drill_id" not in live.scene.events(effect_id)[0]["metadata"]
