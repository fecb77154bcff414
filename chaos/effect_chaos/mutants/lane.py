"""A fork server: imports what never changes once, and runs each mutant's tests in a child of it.

    python -P -m effect_chaos.mutants.lane

runs in the top of a copy of the checkout, and speaks JSON lines: an order on standard input, its
answer on standard output. A child has imported pytest, the libraries, and those modules of the
project that do not import the mutated one. All others, and the tests, it imports itself; so
whatever the mutant changes at import is changed in the child.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from effect_chaos.mutants import trial

# Mutants that allocate without end must not take the machine with them.
_MEMORY_BYTES: Final = 4 << 30
_OUTPUT: Final = "output.txt"
_OURS: Final = frozenset({"effect_contracts", "effect_adapters", "effect_broker"})
_running: Final[list[int]] = []


def main() -> None:
    """Serve until the input ends."""
    assert not any(name.split(".")[0] in _OURS for name in sys.modules), "nothing under test yet"
    signal.signal(signal.SIGTERM, _end)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever is printed here must not be read as an answer
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "import":
            answer: dict[str, Any] = {"modules": _import(order["modules"])}
        else:
            answer = _forked(order)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _end(_signal: int, _frame: object) -> None:
    """Told to end: nothing that a mutant has started stays behind."""
    if _running:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(_running[0], signal.SIGKILL)
    os._exit(0)


def _import(modules: list[str]) -> list[str]:
    """Import before any fork; what cannot be imported alone is left to the children.

    Returns the modules under test that are there now: the mutated one must not be among them.
    """
    for name in modules:
        with suppress(Exception):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # pages that are not touched by the collector stay shared
    return [name for name in sys.modules if name.split(".")[0] in _OURS]


def _forked(order: dict[str, Any]) -> dict[str, Any]:
    """Run the order in a child and wait for its end, or end it with all that it has started."""
    read_end, write_end = os.pipe()
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        _child(order, write_end)
    with suppress(PermissionError):  # the child does the same; whoever comes first
        os.setpgid(pid, pid)
    _running.append(pid)
    os.close(write_end)
    told = _read(read_end, order["wall_seconds"])
    os.close(read_end)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    _running.clear()
    seconds = round(time.monotonic() - began, 3)
    if told:
        return {**json.loads(told), "seconds_all": seconds}
    # Nothing was said: it was ended by a timer, from outside, or by its own bug.
    ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    late = seconds >= order["wall_seconds"]
    spun = ended_by in {signal.SIGPROF, signal.SIGXCPU}
    at = trial.CURRENT.read_text("utf-8") if trial.CURRENT.exists() else ""
    return {"ended_by": ended_by, "hung": late or spun, "at": at or None, "seconds_all": seconds}


def _read(end: int, seconds: float) -> bytes:
    """All that the child says; b"" if it does not end in time, or says nothing."""
    until = time.monotonic() + seconds
    told = b""
    while True:
        left = until - time.monotonic()
        if left <= 0 or not select.select([end], [], [], left)[0]:
            return b""
        part = os.read(end, 1 << 16)
        if not part:
            return told
        told += part


def _child(order: dict[str, Any], write_end: int) -> None:
    """Never returns."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setpgid(0, 0)
        with open(_OUTPUT, "w", encoding="utf-8") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
        # A mutant's bytecode must never be found by the next one, not even by a child's child.
        if order["do"] == "try":
            sys.dont_write_bytecode = True
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        traced = Path(order["traced"]) if order.get("traced") else None
        skipped = frozenset(order.get("skipped", ()))
        verdict = trial.run(trial.Order(order["files"], order.get("seconds"), skipped), traced)
        told = json.dumps(asdict(verdict)).encode()
        while told:
            told = told[os.write(write_end, told) :]
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
