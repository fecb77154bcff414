"""What becomes of a call of the model: a step with a key, or an answer and no step.

Pure: the same journal gives the same ruling, before a crash and after it. A step is named by its
run and its number among the steps of the run, and by nothing else. The tool is no part of the
name on purpose: if a journal is lost and the model plans in another order, the numbers meet the
effects of the first plan, the broker answers that the key stands for another request, and the run
stops. With the tool in the name, the new order would be new keys, and a second charge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from jsonschema import Draft202012Validator

from effect_broker.operation_keys import from_steps
from effect_broker.proof.agent.journal import Journal, StepLine
from effect_broker.proof.agent.words import Call, Tool
from effect_contracts.canonical import canonical_bytes, parse_strict
from effect_contracts.errors import EffectError


@dataclass(frozen=True, slots=True)
class NewStep:
    """The call is carried out, as this step."""

    line: StepLine


@dataclass(frozen=True, slots=True)
class SameStep:
    """The call asks for what an earlier step is: its answer is told again."""

    step: StepLine


@dataclass(frozen=True, slots=True)
class Refused:
    """The call is not carried out. `reason` is a stable code."""

    reason: str
    message: str
    do_not_retry: bool = True


Ruling: TypeAlias = NewStep | SameStep | Refused


def operation_key(run_id: str, step: int) -> str:
    """Return the key of a step.

    Raises:
        KeyRefused: the id of the run cannot be part of a key.
    """
    return from_steps("agent-run", run_id, f"step-{step}")


def rule(journal: Journal, tools: Sequence[Tool], turn: int, number: int) -> Ruling:
    """Return what becomes of call `number` of turn `turn`, by the journal alone."""
    call = journal.turns[turn].calls[number]
    tool = next((t for t in tools if t.name == call.tool), None)
    if tool is None:
        return Refused("no_such_tool", "There is no such tool.", do_not_retry=False)
    try:
        arguments = arguments_of(call, tool)
    except ValueError as problem:
        return Refused("invalid_arguments", str(problem), do_not_retry=False)
    earlier = [step for step in journal.steps if step.tool == tool.name]
    wanted = canonical_bytes(arguments)
    for step in earlier:
        if canonical_bytes(step.arguments) == wanted:
            return SameStep(step)
    if any(_open(journal, step) for step in earlier):
        return Refused(
            "outcome_not_settled",
            "An earlier call of this tool has no settled outcome, and a person has to look at it. "
            "Do not try again, neither in other words nor by another tool.",
        )
    if len(earlier) >= tool.times_max:
        return Refused(
            "limit_reached",
            f"This run may use the tool {tool.times_max} times, and has done so. Do not look for "
            "another way; report it.",
        )
    step_number = len(journal.steps) + 1
    return NewStep(
        StepLine(
            turn=turn,
            call=number,
            step=step_number,
            tool=tool.name,
            arguments=arguments,
            operation_key=operation_key(journal.run.run_id, step_number),
        )
    )


def _open(journal: Journal, step: StepLine) -> bool:
    answer = journal.answer_of(step)
    return answer is None or answer.content.get("happened") not in {"yes", "no"}


def arguments_of(call: Call, tool: Tool) -> dict[str, Any]:
    """Return the arguments of a call.

    Raises:
        ValueError: they are no JSON object, or not what the tool takes; the text says where.
    """
    try:
        arguments = parse_strict(call.arguments.encode("utf-8", "surrogatepass"))
    except EffectError:
        raise ValueError("The arguments are no JSON that can be sent.") from None
    if not isinstance(arguments, dict):
        raise ValueError("The arguments have to be a JSON object.")
    _check(arguments, tool.parameters)
    return arguments


def _check(arguments: dict[str, Any], schema: Mapping[str, Any]) -> None:
    problem = next(iter(Draft202012Validator(schema).iter_errors(arguments)), None)
    if problem is None:
        return
    where = "/".join(map(str, problem.absolute_path)) or "the arguments"
    # The message of the validator may quote what a stranger has put into the model's mouth.
    raise ValueError(f"{where}: breaks the rule {problem.validator!r} of the tool's parameters.")
