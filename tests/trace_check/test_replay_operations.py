"""The replay of operations that the target accepted and then forgot."""

from __future__ import annotations

import json

import pytest

from effect_adapters.base import Answer, Finding
from effect_contracts.facts import CODE_OPERATION_GONE, Outcome, Verdict
from trace_check.forging import Line, judged, parsed
from trace_check.staged import account, world_of
from trace_check.test_replay import told


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


@pytest.mark.parametrize("code", ["a", "z", CODE_OPERATION_GONE])
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
    words = "it covers other attempts than its look-up did"
    assert (words in {one.what for one in found}) is (code != CODE_OPERATION_GONE)
