"""One run from beginning to end: work under faults, quiet, look at everything, judge.

The order is the promise. The faults end before the quiet begins; in the quiet every effect has to
come to rest within a bound; then every operation is submitted once more, and read again after a
pause, so that a final state which moves, or a request that comes late, is seen. Only then the
evidence is closed and handed to the auditor.

The supervisor adds to the judgement what is no matter of evidence: what stayed open, answers that
no caller may ever get, faults that failed, processes that did not come back, and a run that made
no progress, since a broker that does nothing makes no mistake.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from effect_chaos import records
from effect_chaos.auditor import Verdict, audit, idle, violations
from effect_chaos.callers import Callers, NobodyKnows
from effect_chaos.faults import Faults, Keeper, Tell
from effect_chaos.preparation import Prepared, prepared_broker
from effect_chaos.processes import READY_SECONDS, ProcessFailed, run_command
from effect_chaos.recorder import Recorder
from effect_chaos.run_clock import RunClock
from effect_chaos.schedule import Schedule, make_schedule
from effect_chaos.tools import REFUSED, TOOLS
from effect_chaos.workload import Manner, Plan, Workload, make_workload
from effect_contracts.counting import counted

T = TypeVar("T")
R = TypeVar("R")
Body = dict[str, Any]

EVIDENCE: Final = "evidence"
DUMP: Final = "database"

SETTLE_SECONDS: Final = 180.0
"""How long the quiet lasts at most. The longest honest way is a look-up with all its waits, behind
a backlog: some ten seconds on an idle machine, and a machine may be busy with other things."""
_WATCH_SECONDS: Final = 3.0  # more than a whole attempt: what would still be sent is sent
_BACKLOG_SECONDS: Final = 4.0
_LOOK_SECONDS: Final = 0.5
_LOOKS_MOST: Final = 20
_LOOKERS: Final = 6
_PROGRESS_LEAST: Final = 0.5  # of the operations that can succeed


@dataclass(frozen=True, slots=True)
class Result:
    """What a run came to.

    Attributes:
        verdicts: the auditor's, one for each rule.
        problems: what the supervisor itself found wrong.
        operations: how many there were of each tool.
        states: by tool, how many ended in each state.
        requests, effects: by tool, what the target received and holds.
        faults: how many of each kind were carried out.
        fired: how often each fault point was met, as `point.action`.
    """

    verdicts: tuple[Verdict, ...]
    problems: tuple[str, ...]
    operations: Counter[str]
    states: dict[str, Counter[str]]
    requests: Counter[str]
    effects: Counter[str]
    faults: Counter[str]
    fired: Counter[str]

    @property
    def clean(self) -> bool:
        """Whether nothing at all is wrong, and every rule that had to look has looked."""
        return not self.problems and not violations(self.verdicts) and not idle(self.verdicts)


def run(seed: int, seconds: float, directory: Path, tell: Tell) -> Result:
    """Run once; everything that was seen lies in `directory`.

    Raises:
        ProcessFailed: the run could not be prepared.
    """
    workload, schedule = make_workload(seed, seconds), make_schedule(seed, seconds)
    with (
        prepared_broker(directory, schedule.workers, tell) as prepared,
        Recorder(directory / EVIDENCE) as recorder,
    ):
        for plan in workload.plans:
            recorder.expect(plan.operation)
        callers = Callers(recorder, prepared.api_keys, prepared.addresses)
        keeper = Keeper(prepared.world, tell)
        keeper.start()
        phases = _Phases(prepared, workload, schedule, recorder, callers, keeper, tell)
        try:
            return phases.result()
        except BaseException:
            phases.dump()  # a run that broke down has shown something all the same
            raise
        finally:
            callers.hang_up()
            keeper.stop()


class _Phases:
    """The phases of one run."""

    def __init__(
        self,
        prepared: Prepared,
        workload: Workload,
        schedule: Schedule,
        recorder: Recorder,
        callers: Callers,
        keeper: Keeper,
        tell: Tell,
    ) -> None:
        self._world = prepared.world
        self._api_keys = set(prepared.api_keys.values())
        self._workload = workload
        self._schedule = schedule
        self._recorder = recorder
        self._callers = callers
        self._keeper = keeper
        self._tell = tell
        self._faults = Faults(prepared.world, keeper, tell)
        self._problems: list[str] = []

    def result(self) -> Result:
        """Go through all phases."""
        self._work()
        quiet_began_at = self._become_quiet()
        self._settle(self._found(), "all is at rest")
        last = self._look_again()
        folder = self._recorder.finish(
            ledger=self._world.outside.ledger,
            database_url=self._world.database.url,
            seed=self._workload.seed,
            quiet_began_at=quiet_began_at,
            settings={"seconds": self._workload.seconds, "workers": self._schedule.workers},
        )
        self.dump()
        database = self._world.database
        self._problems += self._leaks()
        self._problems += trace_problems(self._world.directory, database.environment)
        return self._judged(folder, last)

    def dump(self) -> None:
        """Write the broker's tables beside the evidence, for the reader of a failure."""
        try:
            self._world.database.dump(self._world.directory / DUMP)
        except Exception as problem:
            self._problems.append(f"no dump of the database: {type(problem).__name__}")

    # -- phases ----------------------------------------------------------------------------------

    def _work(self) -> None:
        """Callers and faults at the same time."""
        operations = counted(len(self._workload.plans), "operation")
        self._tell(f"{operations}, {counted(len(self._schedule.faults), 'fault')}")
        world, faults = self._world, self._faults
        clock = RunClock(lambda: world.staffed and not faults.recovering)
        calling = threading.Thread(
            target=self._callers.run, args=(self._workload, clock), daemon=True
        )
        clock.start()
        try:
            calling.start()
            faults.run(self._schedule, clock)
            calling.join()
        finally:
            clock.stop()

    def _become_quiet(self) -> float:
        self._tell("lifting all faults")
        self._faults.lift()
        self._problems += [f"a fault failed: {mishap}" for mishap in self._faults.mishaps]
        ends_at = time.monotonic() + READY_SECONDS
        while away := [slot.name for slot in self._world.slots if not slot.whole]:
            if time.monotonic() > ends_at:
                self._problems.append(f"did not come back: {', '.join(away)}")
                break
            time.sleep(_LOOK_SECONDS)
        # What has piled up meanwhile still meets what the target has in store.
        time.sleep(_BACKLOG_SECONDS)
        self._world.outside.be_honest()
        self._tell("quiet")
        return time.monotonic()

    def _found(self) -> list[tuple[Plan, str]]:
        """Every effect that stands; one whose caller was never told is found by its key."""
        if not self._callers.wait_idle(SETTLE_SECONDS):
            self._problems.append("a caller had no answer in all the quiet")

        ends_at = time.monotonic() + SETTLE_SECONDS

        def found(plan: Plan) -> tuple[Plan, str] | None:
            try:
                effect_id = self._callers.effect_id(plan) or self._callers.find(plan, ends_at)
            except NobodyKnows as problem:
                self._problems.append(str(problem))
                return None
            return None if effect_id is None else (plan, effect_id)

        return [each for each in self._each(found, self._workload.plans) if each is not None]

    def _settle(self, effects: list[tuple[Plan, str]], word: str) -> None:
        """Wait until every effect is final or visibly waits for a person."""
        ends_at = time.monotonic() + SETTLE_SECONDS
        open_ = effects
        while open_:
            shown = self._each(lambda each: self._callers.look(*each), open_)
            pairs = zip(open_, shown, strict=True)
            still = [(each, body) for each, body in pairs if not _at_rest(body)]
            open_ = [each for each, _ in still]
            if open_ and time.monotonic() > ends_at:
                for (plan, effect_id), body in still:
                    name = f"{plan.operation.name} ({effect_id})"
                    self._problems.append(f"{name} did not come to rest: {_shown(body)}")
                break
            if open_:
                time.sleep(_LOOK_SECONDS)
        self._tell(f"{counted(len(open_), 'effect')} did not come to rest" if open_ else word)

    def _look_again(self) -> list[Body | None]:
        """Submit every operation once more, wait, and read all; return the last views."""
        ends_at = time.monotonic() + SETTLE_SECONDS

        def submit(plan: Plan) -> None:
            if self._callers.submit(plan, Manner.REORDERED, 1, ends_at) not in (200, 202):
                self._problems.append(f"{plan.operation.name}: the last submit was not accepted")

        plans = self._workload.plans
        self._each(submit, plans)
        effects = [(p, e) for p in plans if (e := self._callers.effect_id(p)) is not None]
        # An operation whose only caller was gone may have begun just now.
        self._settle(effects, "every operation was submitted again")
        time.sleep(_WATCH_SECONDS)

        def read(each: tuple[Plan, str]) -> Body | None:
            self._callers.receipt(*each)
            for api in range(_LOOKS_MOST):
                if (body := self._callers.look(*each, api)) is not None:
                    return body
                time.sleep(_LOOK_SECONDS)
            return None

        return self._each(read, effects)

    # -- judging ---------------------------------------------------------------------------------

    def _leaks(self) -> list[str]:
        """Where the logs or the tables hold what only ciphertext may hold, or an API key."""
        secrets = {plan.tool.secret(plan.operation.marker) for plan in self._workload.plans}
        dump = self._world.directory / DUMP
        return leaks(secrets | self._api_keys, [*self._world.logs.iterdir(), *dump.iterdir()])

    def _judged(self, folder: Path, last: list[Body | None]) -> Result:
        self._tell("judging")
        evidence = records.read(folder)
        states: dict[str, Counter[str]] = {tool.name: Counter() for tool in TOOLS}
        for body in last:
            if body is not None:
                states[body["tool"]][body["state"]] += 1
        self._problems += self._callers.surprises
        self._problems += _no_progress(states)
        tool_of = {operation.marker: operation.tool for operation in evidence.operations}

        def by_tool(texts: Iterable[str]) -> Counter[str]:
            marks = (mark for text in texts for mark in set(records.MARKER.findall(text)))
            return Counter(tool_of.get(mark, "none") for mark in marks)

        return Result(
            verdicts=audit(evidence),
            problems=tuple(self._problems),
            operations=Counter(operation.tool for operation in evidence.operations),
            states=states,
            requests=by_tool(a.text for a in evidence.arrivals if a.mutating and a.received),
            effects=by_tool(
                [*(o.text for o in evidence.objects), *(r.text for r in evidence.rows)]
            ),
            faults=Counter(str(fault.kind) for fault in self._faults.done),
            fired=Counter(self._keeper.fired),
        )

    @staticmethod
    def _each(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        with ThreadPoolExecutor(_LOOKERS) as pool:
            return list(pool.map(work, items))


def trace_problems(directory: Path, environment: Mapping[str, str]) -> list[str]:
    """What the broker's own trace check finds in its account of the run."""
    trace = str(directory / "trace.jsonl")
    try:
        run_command(["events", "export", "--out", trace], environment)
        run_command(["events", "verify", "--whole", trace], environment)
    except ProcessFailed as problem:
        return [str(problem)]
    return []


def leaks(secrets: Iterable[str], files: Iterable[Path]) -> list[str]:
    """Say of each file that holds a secret that it does, and not which."""
    wanted = tuple(secrets)
    found = []
    for path in sorted(files):
        text = path.read_text(errors="replace")
        if any(secret in text for secret in wanted):
            found.append(f"a secret stands in {path.parent.name}/{path.name}")
    return found


def _at_rest(body: Body | None) -> bool:
    return body is not None and bool(body["final"] or body["waits_for_person"])


def _shown(body: Body | None) -> str:
    """What a reader wants to know first of an effect that stayed open."""
    if body is None:
        return "it could not be read"
    attempts = [f"{a['ordinal']} {a['outcome'] or 'open'} {a['code']}" for a in body["attempts"]]
    return (
        f"{body['state']} ({body['reason']}), next action at {body['next_action_at']}, "
        f"now {body['now']}, attempts: {', '.join(attempts) or 'none'}"
    )


def _no_progress(states: dict[str, Counter[str]]) -> list[str]:
    able = [states[tool.name] for tool in TOOLS if tool.legal_states != REFUSED]
    succeeded = sum(each["succeeded"] for each in able)
    all_ = sum(each.total() for each in able)
    if succeeded >= all_ * _PROGRESS_LEAST:
        return []
    all_that_can = counted(all_, "operation")
    return [f"only {succeeded} of {all_that_can} that can succeed did: this proves nothing"]
