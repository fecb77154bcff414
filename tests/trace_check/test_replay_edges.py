"""The replay at its edges: what begins an effect, and what may stand before and after its end."""

from __future__ import annotations

from effect_contracts.trace.findings import Rule
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
