"""`python -m effect_chaos.mutants`: mutate the core, run the tests, say what they did not notice.

Exit codes: 0 if every mutant that was asked for has been run and at least 95% were killed; 1 if
fewer were; 2 if nothing could be judged (arguments, a stale list, tests that fail without a bug);
3 if the time was up before the end: the next run goes on from there.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from effect_chaos.mutants import plan, report
from effect_chaos.mutants.campaign import Bounds, Task, run
from effect_chaos.mutants.equivalents import LIST, BadList, Equivalents
from effect_chaos.mutants.session import FOLDER, Session
from effect_chaos.mutants.stage import Stage, StageFailed

CHECKOUT = Path(__file__).resolve().parents[3]

KILLED_ENOUGH, KILLED_TOO_FEW, NOT_JUDGED, NOT_AT_THE_END = 0, 1, 2, 3


def main(
    arguments: Sequence[str] | None = None,
    checkout: Path = CHECKOUT,
    targets: Sequence[plan.Target] | None = None,
    listed: Path = LIST,
) -> int:
    """Run once as the command line says; returns the exit code.

    Args:
        arguments: the words of the command line.
        checkout: the tree whose modules are mutated; only its folder of results is written.
        targets: the modules under mutation; None for those of `plan`.
        listed: the list of equivalents.
    """
    given = _parser().parse_args(arguments)
    known = list(plan.targets(checkout) if targets is None else targets)
    try:
        asked = [plan.named(name, known) for name in given.module] or known
        equivalents = Equivalents.read(listed)
        session = Session(checkout / FOLDER)
        if given.report:
            tasks = [Task.of(target, checkout, given.sample, given.seed) for target in asked]
            equivalents.refuse_stale({t.target.name: t.all.mutants for t in tasks}, _names(known))
        else:
            tasks = _run(given, checkout, asked, known, equivalents, session)
    except (BadList, ValueError) as problem:
        print(problem, file=sys.stderr)
        return NOT_JUDGED
    except StageFailed as problem:
        print(f"the mutants could not be judged: {problem}", file=sys.stderr)
        return NOT_JUDGED
    except KeyboardInterrupt:
        print("interrupted; the next run goes on from here", file=sys.stderr)
        return 130
    return _concluded(tasks, session, equivalents)


def _run(
    given: argparse.Namespace,
    checkout: Path,
    asked: Sequence[plan.Target],
    known: Sequence[plan.Target],
    equivalents: Equivalents,
    session: Session,
) -> list[Task]:
    """Run what is due, in the time that was given; returns the tasks as they were at the start."""
    began = time.monotonic()
    until = None if given.seconds is None else began + given.seconds
    bounds = Bounds(until, given.test_seconds)

    def tell(text: str) -> None:
        print(f"{time.monotonic() - began:8.1f}  {text}", flush=True)

    with Stage(checkout, given.lanes) as stage:
        tasks = [Task.of(target, stage.tree, given.sample, given.seed) for target in asked]
        equivalents.refuse_stale({t.target.name: t.all.mutants for t in tasks}, _names(known))
        for task in tasks:
            if not run(stage, session, task, bounds, tell):
                break
    return tasks


def _names(targets: Sequence[plan.Target]) -> list[str]:
    return [target.name for target in targets]


def _concluded(tasks: Sequence[Task], session: Session, equivalents: Equivalents) -> int:
    named = [(task.target.name, report.figures(task, session, equivalents)) for task in tasks]
    for task in tasks:
        if text := report.survivors_text(task, session, equivalents):
            print(f"\nsurvived in {task.target.name}:\n\n{text}")
    print("\n" + report.table(named))
    whole = report.total(part for _, part in named)
    if not whole.good:
        return KILLED_TOO_FEW
    return NOT_AT_THE_END if whole.due else KILLED_ENOUGH


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m effect_chaos.mutants",
        description="Plant bugs into the core, one by one, and see whether the tests notice.",
    )
    parser.add_argument(
        "--module",
        action="append",
        default=[],
        help="only this module (decide, protocol.steps, …); may be given again",
    )
    parser.add_argument(
        "--sample", type=_count, help="only so many mutants of each module, drawn by the seed"
    )
    parser.add_argument("--seed", type=int, default=1, help="the same seed, the same sample")
    parser.add_argument(
        "--report", action="store_true", help="run nothing; print what is known so far"
    )
    parser.add_argument("--seconds", type=float, help="begin no further mutant after this time")
    parser.add_argument(
        "--test-seconds",
        type=float,
        help="only tests that take no longer; what they do not kill is shown and stays due",
    )
    parser.add_argument("--lanes", type=_count, default=1, help="how many mutants at a time")
    return parser


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("1 or more")
    return number


if __name__ == "__main__":
    # Told to end, it ends its lanes as it does after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
