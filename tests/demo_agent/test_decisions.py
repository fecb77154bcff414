"""What a call becomes, and what the journal keeps: no broker is needed to see it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from effect_broker.operation_keys import key_smells
from effect_broker.proof.agent.journal import (
    AnswerLine,
    Journal,
    JournalProblem,
    RunLine,
    StepLine,
    TurnLine,
)
from effect_broker.proof.agent.rulings import NewStep, Refused, SameStep, operation_key, rule
from effect_broker.proof.agent.scripted import call
from effect_broker.proof.agent.toolbox import TOOLS
from effect_broker.proof.agent.words import Call, Reply

RUN = RunLine(run_id="r1", task="Pay.", tools="digest")
PAY = {"order": "42", "amount": 300, "currency": "eur"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def planned(path: Path, *calls: Call) -> Journal:
    journal = Journal.open(path, RUN)
    journal.append(TurnLine(reply=Reply(text="", calls=calls)))
    return journal


def answered(journal: Journal, number: int, **content: Any) -> StepLine:
    """Make a call a step, and tell the model of it."""
    ruling = rule(journal, TOOLS, 0, number)
    assert isinstance(ruling, NewStep)
    journal.append(ruling.line)
    journal.append(AnswerLine(turn=0, call=number, step=ruling.line.step, content=content))
    return ruling.line


def test_what_a_model_sees_of_a_tool_has_no_lever() -> None:
    for tool in TOOLS:
        shown = json.dumps(tool.schema())
        assert tool.tool not in shown, "the broker's name of the tool"
        for word in ("key", "safety", "idempotent", "reconcilable", "unsafe", "retry", "attempt"):
            assert word not in shown.lower()
        assert tool.parameters["additionalProperties"] is False


def test_a_key_is_made_of_run_and_number_and_of_nothing_that_a_model_says(path: Path) -> None:
    with planned(path, call("a", "charge_card", **PAY), call("b", "pay_courier", **PAY)) as journal:
        keys = [answered(journal, number, happened="yes").operation_key for number in (0, 1)]
    assert keys == ["agent-run:r1:step-1", "agent-run:r1:step-2"]
    assert keys == [operation_key("r1", 1), operation_key("r1", 2)]
    assert key_smells(keys[0]) == ()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("{", "invalid_arguments"),
        ("[]", "invalid_arguments"),
        ('{"order": "42", "amount": NaN, "currency": "eur"}', "invalid_arguments"),
        ('{"order": "1", "order": "2", "amount": 1, "currency": "eur"}', "invalid_arguments"),
        (json.dumps(PAY | {"operation_key": "mine"}), "invalid_arguments"),
        (json.dumps(PAY | {"amount": True}), "invalid_arguments"),
        ("[" * 5000, "invalid_arguments"),
        ('"\ud800"', "invalid_arguments"),
    ],
)
def test_a_call_that_is_not_understood_becomes_no_step(
    path: Path, arguments: str, reason: str
) -> None:
    with planned(path, Call(call_id="a", tool="charge_card", arguments=arguments)) as journal:
        ruling = rule(journal, TOOLS, 0, 0)
    assert isinstance(ruling, Refused)
    assert ruling.reason == reason
    assert "mine" not in ruling.message


def test_a_tool_that_nobody_gave_out_is_refused(path: Path) -> None:
    with planned(path, call("a", "proof.agent_charge", **PAY)) as journal:
        ruling = rule(journal, TOOLS, 0, 0)
    assert isinstance(ruling, Refused)
    assert ruling.reason == "no_such_tool"


@pytest.mark.parametrize(
    ("happened", "reason"),
    [
        ("yes", "limit_reached"),
        ("no", "limit_reached"),
        ("unknown", "outcome_not_settled"),
        ("not_yet", "outcome_not_settled"),
    ],
)
def test_the_same_call_is_the_same_step_and_another_one_is_refused(
    path: Path, happened: str, reason: str
) -> None:
    same = call("b", "pay_courier", currency="eur", amount=300, order="42")
    other = call("c", "pay_courier", **(PAY | {"amount": 301}))
    with planned(path, call("a", "pay_courier", **PAY), same, other) as journal:
        step = answered(journal, 0, happened=happened)
        assert rule(journal, TOOLS, 0, 1) == SameStep(step)
        ruling = rule(journal, TOOLS, 0, 2)
    assert isinstance(ruling, Refused)
    assert (ruling.reason, ruling.do_not_retry) == (reason, True)


def test_a_journal_gives_back_what_was_written_and_cuts_off_what_a_crash_has_torn(
    path: Path,
) -> None:
    with planned(path, call("a", "charge_card", **PAY)) as journal:
        answered(journal, 0, happened="yes")
        kept = (journal.turns, journal.steps, journal.answers)
    assert path.stat().st_mode & 0o777 == 0o600
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"kind": "turn", "rep')
    with Journal.open(path, RUN) as journal:
        assert (journal.turns, journal.steps, journal.answers) == kept
        journal.append(TurnLine(reply=Reply(text="Done.")))
    assert path.read_bytes().startswith(whole)
    with Journal.open(path, RUN) as journal:
        assert [reply.text for reply in journal.turns] == ["", "Done."]


def test_a_run_belongs_to_one_process_one_task_and_one_set_of_tools(path: Path) -> None:
    with Journal.open(path, RUN), pytest.raises(JournalProblem, match="another process"):
        Journal.open(path, RUN)
    for other in ({"task": "Pay twice."}, {"tools": "other"}, {"run_id": "r2"}):
        with pytest.raises(JournalProblem, match="another task, or with other tools"):
            Journal.open(path, RUN.model_copy(update=other))


@pytest.mark.parametrize("line", [b"{}", b"no json", b'{"kind": "run", "run_id": "r1"}'])
def test_a_damaged_journal_is_not_gone_on_with(path: Path, line: bytes) -> None:
    planned(path).close()
    lines = path.read_bytes().splitlines()
    for number in (0, 1):
        path.write_bytes(b"\n".join([*lines[:number], line, *lines[number:]]) + b"\n")
        with pytest.raises(JournalProblem, match=f"line {number + 1} of the journal"):
            Journal.open(path, RUN)
