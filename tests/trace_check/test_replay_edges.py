"""The replay at its edges: what begins an effect, and what may stand before and after its end."""

from __future__ import annotations

import json

import pytest

from effect_adapters.base import Answer, Finding
from effect_contracts.facts import CODE_OPERATION_GONE, Outcome, Verdict
from effect_contracts.trace.findings import Rule
from trace_check.forging import Line, judged, parsed
from trace_check.staged import account, world_of
from trace_check.test_replay import both, column, said, told


def test_an_effect_begins_with_its_submit() -> None:
    waits = both(
        column("submitted", kind="wait", actor="worker:w"),
        told("wait", contract_digest=None, request_hash=None, row=7),
    )
    assert (Rule.KIND, "an effect begins with its submit", 1) in said("expired", waits)


def test_what_belongs_after_the_end_does_not_stand_before_it_nor_the_other_way_round() -> None:
    early = both(
        column("settle", kind="count_given_up"),
        told("count_given_up", row=None, receipt_digest=None, why="x", generation=1),
    )
    assert (Rule.AFTER_END, "count_given_up before the end", 2) in said("expired", early)
    late = both(
        column("late_fact", kind="wait", actor="worker:w"),
        told("wait", contradicts=None, code=None, source=None, verdict=None, covers_through=None,
             evidence_id=None, fact_digest=None, row=2),
    )  # fmt: skip
    assert (Rule.AFTER_END, "wait after the end", 5) in said("resolved_as_failed", late)


async def _forgotten_and_sent_again() -> list[bytes]:
    """The target forgets an operation; the next one is asked for twice."""
    adapter = {"kind": "simulated", "target": "ledger", "polls_operations": True}
    world = world_of("idempotent", adapter=adapter)
    await world.submit()
    for operation in ("op-1", "op-2"):
        world.target.answers.append(Answer(Outcome.IN_PROGRESS, "accepted", operation=operation))
    # What is looked for too soon may only not be shown yet.
    gone = Finding(Verdict.UNKNOWN, CODE_OPERATION_GONE)
    world.target.findings.extend([gone] * 4)
    world.target.findings.append(Finding(Verdict.UNKNOWN, "m"))
    world.target.findings.append(Finding(Verdict.COMMITTED, "done", ("sim_1",)))
    await world.run_until_at_rest()
    assert (world.state[0], len(world.target.sent)) == ("succeeded", 2)
    return account(world)


@pytest.mark.parametrize("code", ["a", "z"])
async def test_only_an_operation_that_is_gone_or_failed_speaks_of_its_own_attempt_alone(
    code: str,
) -> None:
    trace = parsed(await _forgotten_and_sent_again())
    assert judged(trace, lambda _effect: None, rechain=True).violations == ()

    def forge(effect: Line) -> None:
        (row,) = (one for one in effect["evidence"] if one["code"] == "m")
        row.update(code=code, covers_through=1)
        nth = [json.loads(one["metadata"]).get("code") for one in effect["events"]
               if one["kind"] == "evidence_added"].index("m")  # fmt: skip
        told("evidence_added", nth, code=code, covers_through=1, fact_digest=None)(effect)

    found = judged(trace, forge, rechain=True).violations
    assert "it covers other attempts than its look-up did" in {one.what for one in found}
