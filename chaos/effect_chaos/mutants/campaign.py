"""One module after the other: its tests once without a bug, then every mutant that is still due.

Owns which tests meet a mutant, and in which order. A test meets the mutants in functions that it
enters, and those outside of functions. Tests that have killed in the same function go first, as
cheap kills are what makes thousands of mutants affordable; the others follow, quickest first. To
import and collect all files of a suite costs more than most tests, so the file that has killed most
is tried alone, and the others only if it has not noticed.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from effect_chaos.mutants.mutations import Mutant, Mutants, diff, mutants_of
from effect_chaos.mutants.plan import Target
from effect_chaos.mutants.session import Result, Session, Status, Texts
from effect_chaos.mutants.stage import Lane, Stage, StageFailed
from effect_contracts.counting import counted

Tell = Callable[[str], None]
_PROGRESS_EVERY = 50


@dataclass(frozen=True, slots=True)
class Task:
    """A module, its mutants, and those of them that were asked for."""

    target: Target
    source: str
    all: Mutants
    asked: tuple[Mutant, ...]
    tests: tuple[str, ...]
    texts: Texts

    @classmethod
    def of(cls, target: Target, tree: Path, sample: int | None, seed: int) -> Task:
        """Make the mutants of the module as it is in the tree.

        Args:
            target: the module.
            tree: the checkout, or a copy of it.
            sample: how many mutants to draw; None for all.
            seed: the same seed draws the same mutants of the same text.
        """
        source = (tree / target.path).read_text("utf-8")
        found = mutants_of(source)
        asked = found.mutants
        if sample is not None and sample < len(asked):
            chosen = random.Random(f"{seed}/{target.name}").sample(range(len(asked)), sample)
            asked = tuple(asked[place] for place in sorted(chosen))
        tests = target.tests(tree)
        return cls(target, source, found, asked, tuple(tests), Texts(tree, tests))

    def known(self, session: Session, mutant: Mutant) -> Result | None:
        """What the session says of the mutant, if that still holds."""
        return session.find(self.target.name, mutant.place, self.all.digest, self.texts)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far a run goes.

    Attributes:
        until: when to begin no further mutant (monotonic clock); None to go on to the end.
        test_seconds: only tests that take no longer; None for all. What these do not kill is shown,
            and stays due: the slower ones have not met it.
    """

    until: float | None = None
    test_seconds: float | None = None

    def late(self) -> bool:
        """Whether the time is up."""
        return self.until is not None and time.monotonic() >= self.until

    def quick(self, seconds: float) -> bool:
        """Whether a test of that length runs."""
        return self.test_seconds is None or seconds <= self.test_seconds


def run(stage: Stage, session: Session, task: Task, bounds: Bounds, tell: Tell) -> bool:
    """Run what is due of the task; False if the time was up. Every result is stored at once.

    Args:
        stage: the lanes, which are busy until this returns.
        session: where results are kept.
        task: the module and its mutants.
        bounds: how far to go.
        tell: told about the progress, and about each survivor as a diff.

    Raises:
        StageFailed: the tests fail without a bug, or a lane has gone.
    """
    due = [mutant for mutant in task.asked if task.known(session, mutant) is None]
    name = task.target.name
    tell(f"{name}: {counted(len(task.asked), 'mutant')}, {len(due)} to run")
    if not due:
        return True
    if not task.tests:
        raise StageFailed(f"{name}: no file of its suite is there")
    told = _baseline(stage.lanes[0], session, task)
    bench = _Bench(task, told["seconds"], told["entered"], frozenset(told["always"]))
    for mutant in task.asked:
        if (known := task.known(session, mutant)) is not None:
            bench.learn(mutant, known.killer)
    for lane in stage.lanes:
        lane.prepare(task.target.path, told["imported"])
        lane.compile(task.tests, list(bench.seconds))
    tell(f"{name}: {counted(len(bench.seconds), 'test passes', 'tests pass')} without a bug")
    return _Crew(stage.lanes, session, bench, bounds, tell).work(due)


def _baseline(lane: Lane, session: Session, task: Task) -> dict[str, Any]:
    """The tests without a bug; those of an earlier run serve while nothing of them has changed."""
    key = f"{task.all.digest}/{task.texts.suite}"
    told = session.baseline(task.target.name, key)
    if told is None:
        told = lane.baseline(task.tests, task.target.path)
        session.keep_baseline(task.target.name, key, told)
    return told


@dataclass(slots=True)
class _Bench:
    """What is known of a module's tests, and learned while mutants die."""

    task: Task
    seconds: dict[str, float]
    entered: dict[str, list[int]]
    always: frozenset[int]
    kills: dict[int | None, Counter[str]] = field(default_factory=dict)

    def order(self, mutant: Mutant) -> dict[str, float]:
        """The tests that meet the mutant, in their order, each with its usual time."""
        everywhere = mutant.scope is None or mutant.scope in self.always
        met = [
            test
            for test in self.seconds
            if everywhere or mutant.scope in self.entered.get(test, ())
        ]
        kills = self.kills.get(mutant.scope, Counter())
        met.sort(key=lambda t: (-kills[t] / (self.seconds[t] + 0.05), self.seconds[t]))
        return {test: self.seconds[test] for test in met}

    def parts(self, mutant: Mutant, order: dict[str, float]) -> list[dict[str, float]]:
        """The tests of the file that has killed most, and the rest; all at once where none has."""
        there, anywhere = Counter[str](), Counter[str]()
        for scope, kills in self.kills.items():
            for test, count in kills.items():
                if test in order:
                    anywhere[_file(test)] += count
                    there[_file(test)] += count if scope == mutant.scope else 0
        if not anywhere:
            return [order]
        first = max(anywhere, key=lambda file: (there[file], anywhere[file]))
        promising = {test: s for test, s in order.items() if _file(test) == first}
        rest = {test: s for test, s in order.items() if test not in promising}
        return [promising, rest] if rest else [promising]

    def learn(self, mutant: Mutant, killer: str | None) -> None:
        """A test has killed."""
        if killer in self.seconds:
            self.kills.setdefault(mutant.scope, Counter())[str(killer)] += 1


class _Crew:
    """The lanes at work on one module."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        session: Session,
        bench: _Bench,
        bounds: Bounds,
        tell: Tell,
    ) -> None:
        self._lanes = lanes
        self._session = session
        self._bench = bench
        self._bounds = bounds
        self._tell = tell
        self._lock = threading.Lock()
        self._due: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
        self._failure: Exception | None = None
        self._done = 0

    def work(self, due: Sequence[Mutant]) -> bool:
        """Run them; whether all were run."""
        for mutant in due:
            self._due.put(mutant)
        # Daemons: an interrupt ends the run while lanes still answer.
        crew = [threading.Thread(target=self._lane, args=[x], daemon=True) for x in self._lanes]
        for thread in crew:
            thread.start()
        for thread in crew:
            thread.join()
        if self._failure is not None:
            raise self._failure
        return self._done == len(due)

    def _lane(self, lane: Lane) -> None:
        try:
            while self._failure is None and not self._bounds.late():
                try:
                    mutant = self._due.get_nowait()
                except queue.Empty:
                    return
                self._keep(mutant, *self._met(lane, mutant))
        except Exception as problem:
            self._failure = problem

    def _met(self, lane: Lane, mutant: Mutant) -> tuple[Result, bool]:
        """What became of the mutant, and whether it has met all that it has to meet."""
        task = self._bench.task
        with self._lock:
            all_tests = self._bench.order(mutant)
        order = {test: s for test, s in all_tests.items() if self._bounds.quick(s)}
        complete = len(order) == len(all_tests)
        if not order:
            return self._result(mutant, Status.SURVIVED, None, 0.0), complete
        with self._lock:
            parts = self._bench.parts(mutant, order)
        status, killer, seconds = Status.SURVIVED, None, 0.0
        for part in parts:
            found = {_file(test) for test in part}
            files = [name for name in task.tests if name in found]
            skipped = [t for t in self._bench.seconds if t not in part and _file(t) in found]
            told = lane.attempt(task.target.path, mutant.code, files, part, skipped)
            seconds += told["seconds_all"]
            status, killer = _judged(told, lane)
            if status is not Status.SURVIVED:
                break
        return self._result(mutant, status, killer, seconds), complete

    def _result(self, mutant: Mutant, status: Status, killer: str | None, seconds: float) -> Result:
        task = self._bench.task
        return Result(
            module=task.target.name,
            place=mutant.place,
            source=task.all.digest,
            status=status,
            tests=task.texts.rests_on(killer),
            killer=killer,
            seconds=seconds,
        )

    def _keep(self, mutant: Mutant, result: Result, complete: bool) -> None:
        task = self._bench.task
        with self._lock:
            if complete or result.status is not Status.SURVIVED:
                self._session.add(result)
            self._bench.learn(mutant, result.killer)
            self._done += 1
            if result.status is Status.SURVIVED:
                self._tell(diff(task.target.path, task.source, mutant))
            if self._done % _PROGRESS_EVERY == 0:
                self._tell(f"{task.target.name}: {self._done} run")


def _file(test: str) -> str:
    """The file of a test."""
    return test.partition("::")[0]


def _judged(told: dict[str, Any], lane: Lane) -> tuple[Status, str | None]:
    """What an answer of a lane says of the mutant: its fate, and the test that noticed."""
    if "code" not in told:
        if told["hung"]:
            return Status.TIMED_OUT, told["at"]
        if not told["ended_by"]:
            raise StageFailed(f"a run has ended without a word\n{lane.output()}")
        return Status.KILLED, told["at"]  # the interpreter itself has crashed
    if told["code"] == 0:
        return Status.SURVIVED, None
    if told["hung"]:
        return Status.TIMED_OUT, told["failed"]
    return Status.KILLED, told["failed"]
