"""An attempt is granted by its own number, and by the rules of whoever makes it."""

from __future__ import annotations

from effect_contracts.facts import Outcome
from effect_contracts.trace.kinds import read_event
from effect_contracts.trace.log import AttemptRecord, EventRecord
from effect_contracts.trace.replay import Replay
from trace_check.asked_alone import attempt
from trace_check.test_replay import both, column, event, row
from trace_check.test_replay_callers import _trace as of_callers
from trace_check.test_replay_callers import said as said_of_callers
from trace_check.test_replay_steps import POLICY, _broken, known, record
from trace_check.test_timeline import timeline


def test_a_worker_waits_where_a_caller_performs() -> None:
    start = event(of_callers()[2], "attempt_started", 0)["sequence"]
    forge = both(
        row("attempts", 0, executor_id="w"), column("attempt_started", 0, actor="worker:w")
    )
    found = [what for _, what, at in said_of_callers(forge) if at == start]
    assert found == ["the facts said park (awaiting_caller) instead"]


def _granted(row_of: AttemptRecord, reason: str) -> EventRecord:
    told_of = {"ordinal": row_of.ordinal, "attempt_id": str(row_of.attempt_id)}
    columns = {"event": "attempt_started", "reason": reason, "from_state": "retryable"}
    return record("attempt_started", told_of, to_state="dispatching", **columns)


def test_an_attempt_has_the_number_that_the_facts_give_it() -> None:
    """Neither one that was there before, nor one that is still to come."""
    unsent = attempt(1, Outcome.NOT_SENT, starts=60.0, recorded=1)
    second = attempt(2, None, starts=60.0)
    replay = known(unsent)
    again = _broken(replay, _granted(unsent, "no_commit_proved"))
    assert again == "the facts said dispatch (no_commit_proved) instead"
    early = Replay(timeline(second, policy=POLICY))
    assert _broken(early, _granted(second, "first_attempt")) == (
        "the facts said dispatch (first_attempt) instead"
    )
    made = timeline(unsent, second, policy=POLICY)
    made.start(unsent)
    made.record(unsent)
    Replay(made).step(read_event(_granted(second, "no_commit_proved")))
