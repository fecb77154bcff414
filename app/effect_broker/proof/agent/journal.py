"""The agent's journal: what a run has decided is on disk before anything is done about it.

One file for each run, one JSON document per line, appended and synced to disk. In this order:

    run      which run, which task, which tools; the first line
    turn     what the model answered, whole, before any of its calls is looked at
    step     a call has become step n of the run: tool, arguments, operation key; before the submit
    answer   what the model is told of a call; after it

A turn that is written is never asked for again, so a restarted run does not depend on a model that
says the same thing twice. A line that a crash has torn was not acted on: it is cut off. The file
holds the arguments of the calls; only its owner can read it.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from effect_broker.proof.agent.words import Reply

_LINE = ConfigDict(strict=True, frozen=True, extra="forbid")


class JournalProblem(Exception):
    """The journal cannot be used: in use, damaged, or of another run. The text says which."""


class RunLine(BaseModel):
    """What the run is about."""

    model_config = _LINE
    kind: Literal["run"] = "run"
    run_id: str
    task: str
    tools: str


class TurnLine(BaseModel):
    """A reply of the model."""

    model_config = _LINE
    kind: Literal["turn"] = "turn"
    reply: Reply


class StepLine(BaseModel):
    """Call `call` of turn `turn` (both from 0) is step `step` (from 1) of the run."""

    model_config = _LINE
    kind: Literal["step"] = "step"
    turn: int
    call: int
    step: int
    tool: str
    arguments: dict[str, Any]
    operation_key: str


class AnswerLine(BaseModel):
    """What the model is told of a call; `step` is None where the call became none."""

    model_config = _LINE
    kind: Literal["answer"] = "answer"
    turn: int
    call: int
    step: int | None
    content: dict[str, Any]


Line: TypeAlias = Annotated[RunLine | TurnLine | StepLine | AnswerLine, Field(discriminator="kind")]
_LINES: TypeAdapter[Line] = TypeAdapter(Line)


class Journal:
    """The journal of one run, held by one process.

    Attributes:
        turns, steps: in the order in which they were decided.
        answers: by turn and call.
    """

    def __init__(self, descriptor: int, run: RunLine) -> None:
        self.run = run
        self.turns: list[Reply] = []
        self.steps: list[StepLine] = []
        self.answers: dict[tuple[int, int], AnswerLine] = {}
        self._descriptor = descriptor

    @classmethod
    def open(cls, path: Path, run: RunLine) -> Self:
        """Begin the journal of a run, or go on with it.

        Raises:
            JournalProblem.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            return cls._opened(descriptor, path, run)
        except BaseException:
            os.close(descriptor)
            raise

    @classmethod
    def _opened(cls, descriptor: int, path: Path, run: RunLine) -> Self:
        try:
            # Two processes with one run would number their steps apart from each other.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JournalProblem(f"another process carries out the run of {path}") from None
        made = cls(descriptor, run)
        with os.fdopen(os.dup(descriptor), "rb") as file:
            file.seek(0)
            stored = file.read()
        whole = stored[: stored.rfind(b"\n") + 1]
        os.ftruncate(descriptor, len(whole))
        lines = whole.splitlines()
        if not lines:
            made.append(run)
            _sync_directory(path.parent)
        for number, text in enumerate(lines, start=1):
            made._replay(number, text)
        return made

    def _replay(self, number: int, text: bytes) -> None:
        try:
            line = _LINES.validate_json(text)
        except ValidationError:
            line = None
        if number == 1:
            if line is not None and line != self.run:
                raise JournalProblem(
                    "this run has begun with another task, or with other tools: a new task is a "
                    "run with a new id"
                )
        elif line is not None and not isinstance(line, RunLine):
            self._take(line)
            return
        if number > 1 or line is None:
            raise JournalProblem(f"line {number} of the journal cannot be read; nothing was done")

    def append(self, line: Line) -> None:
        """Write a line; return when it is on disk."""
        text = json.dumps(line.model_dump(mode="json"), ensure_ascii=True) + "\n"
        rest = memoryview(text.encode())
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        os.fsync(self._descriptor)
        self._take(line)

    def _take(self, line: Line) -> None:
        match line:
            case RunLine():
                pass
            case TurnLine(reply=reply):
                self.turns.append(reply)
            case StepLine():
                self.steps.append(line)
            case AnswerLine():
                self.answers[line.turn, line.call] = line

    def step_of(self, turn: int, call: int) -> StepLine | None:
        """Return the step that a call has become, if it has."""
        return next((s for s in self.steps if (s.turn, s.call) == (turn, call)), None)

    def answer_of(self, step: StepLine) -> AnswerLine | None:
        """Return what the model was told of a step."""
        return self.answers.get((step.turn, step.call))

    def close(self) -> None:
        """Let the run go."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
