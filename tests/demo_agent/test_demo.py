"""`demo agent`, whole: processes, SIGKILL, and the target's ledger."""

from __future__ import annotations

import json

from effect_broker.proof.agent.demo import Choice, run_agent
from hosting.scenes import Scene


def test_a_killed_agent_makes_each_effect_once_and_hands_the_unknown_one_to_a_person(
    scene: Scene,
) -> None:
    scene.ensure_workers(1)
    result = run_agent(scene.broker, Choice(), lambda _: None)
    assert [check.name for check in result.checks if not check.held] == []
    assert result.passed
    assert [(row.tool, row.safety, row.state, row.effects) for row in result.rows] == [
        ("charge_card", "idempotent", "succeeded", 1),
        ("refund_payment", "reconcilable", "succeeded", 1),
        ("pay_courier", "unsafe", "outcome_unknown", 1),
    ]
    assert result.for_person == (3,)
    journal = (scene.broker.directory / "agent-journal.jsonl").read_text().splitlines()
    told = [line["content"] for line in map(json.loads, journal) if line["kind"] == "answer"]
    assert [content["do_not_retry"] for content in told[2:4]] == [True, True]
    assert told[2]["happened"] == "unknown"
