"""``python -m effect_chaos --seed N --seconds S``: a seeded workload under faults, judged.

Exit codes: 0 nothing is wrong; 1 something is, and the folder with the evidence is kept and named;
2 the command was not understood; 130 interrupted.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from effect_chaos.faults import Tell
from effect_chaos.processes import ProcessFailed
from effect_chaos.report import result_text, schedule_text
from effect_chaos.schedule import make_schedule
from effect_chaos.supervisor import EVIDENCE, Result, run
from effect_chaos.workload import make_workload

SECONDS = 60.0
SECONDS_LEAST = 10.0
"""Shorter runs do not hold the gravest faults."""

Runner = Callable[[int, float, Path, Tell], Result]


def main(arguments: Sequence[str] | None = None, runner: Runner = run) -> int:
    """Run once as the command line says; returns the exit code."""
    given = _parser().parse_args(arguments)
    print(f"seed {given.seed}", flush=True)
    if given.list:
        workload = make_workload(given.seed, given.seconds)
        print(schedule_text(workload, make_schedule(given.seed, given.seconds)))
        print(f"seed {given.seed}")
        return 0
    try:
        directory = _directory(given.folder)
    except OSError as problem:
        print(f"--folder is no new directory: {problem}", file=sys.stderr)
        return 2
    code = _run(given, directory, runner)
    _clear(directory, keep=given.keep or code != 0)
    if given.keep or code != 0:
        print(f"evidence kept in {directory}")
        print(f"judge it again: python -m effect_chaos.auditor {directory / EVIDENCE}")
    print(f"seed {given.seed}", flush=True)
    return code


def _run(given: argparse.Namespace, directory: Path, runner: Runner) -> int:
    began_at = time.monotonic()

    def tell(text: str) -> None:
        print(f"{time.monotonic() - began_at:8.2f}  {text}", flush=True)

    try:
        result = runner(given.seed, given.seconds, directory, tell)
    except ProcessFailed as problem:
        print(f"the run could not be made: {problem}")
        return 1
    except KeyboardInterrupt:
        print("interrupted")
        return 130
    except Exception:
        # A run that breaks down is a failed one: what it has seen is kept and its seed printed.
        traceback.print_exc()
        return 1
    text = result_text(result)
    (directory / "result.txt").write_text(f"seed {given.seed}\n{text}\n")
    print(text)
    print("clean" if result.clean else "NOT CLEAN")
    return 0 if result.clean else 1


def _directory(folder: Path | None) -> Path:
    """A directory of the run's own, which the account of the database may enter."""
    if folder is None:
        made = Path(tempfile.mkdtemp(prefix="effect-chaos-"))
    else:
        folder.mkdir(parents=True)
        made = folder.absolute()
    made.chmod(0o755)
    return made


def _clear(directory: Path, *, keep: bool) -> None:
    """Remove the server's files, which say nothing that the dump does not; or everything."""
    home = directory / "home"
    # Where the server's account could not enter the directory, its files lie behind a link.
    storage = (home / "postgres").resolve()
    for each in (storage, home if keep else directory):
        shutil.rmtree(each, ignore_errors=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m effect_chaos",
        description="A seeded workload under faults, judged by an independent auditor.",
    )
    parser.add_argument("--seed", type=int, default=1, help="the same seed, the same run")
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=SECONDS,
        help=f"how long callers and faults go on, {SECONDS_LEAST:g} or more (default {SECONDS:g})",
    )
    parser.add_argument("--list", action="store_true", help="print workload and faults, run none")
    parser.add_argument("--keep", action="store_true", help="keep the evidence of a clean run too")
    parser.add_argument("--folder", type=Path, help="a new directory for everything of the run")
    return parser


def _seconds(text: str) -> float:
    seconds = float(text)
    if not SECONDS_LEAST <= seconds < 86400:
        raise argparse.ArgumentTypeError(f"{SECONDS_LEAST:g} or more")
    return seconds


if __name__ == "__main__":
    # Told to end, it ends its processes as it does after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
