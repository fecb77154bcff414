"""Several lanes at once: which cell runs where, and the last look at all of them.

Cells are handed out by outfit: a lane goes on with cells of the outfit that its processes have, and
changes it only when there are none left. When a lane has run its last cell, it counts all of them
at the target once more: nothing may have been sent since.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from effect_broker.proof.matrix.axes import Cell
from effect_broker.proof.matrix.cells import CellResult, counted_again, run_cell
from effect_broker.proof.matrix.judge import Verdict
from effect_broker.proof.matrix.lane import Lane, Outfit, outfit_of, why_not

# Two cores carry four lanes: a lane waits most of its time for something to run out.
LANES_DEFAULT: Final = 4

Told = Callable[[CellResult], None]


def run_cells(
    directory: Path,
    cells: Sequence[Cell],
    lanes: int = LANES_DEFAULT,
    tell: Told = lambda result: None,
) -> list[CellResult]:
    """Run the cells on so many lanes; return their results in the order of the cells.

    `tell` is called for each as it ends, from several threads but one at a time.
    """
    runnable, results = [], []
    for cell in cells:
        reason = why_not(cell)
        if reason is None:
            runnable.append(cell)
        else:
            results.append(CellResult(cell, None, Verdict((), ()), 0.0, not_run=reason))
    queue = _Queue(runnable)
    telling = threading.Lock()

    def told(result: CellResult) -> None:
        with telling:
            tell(result)

    count = max(1, min(lanes, len(runnable)))
    with ThreadPoolExecutor(count) as threads:
        running = [
            threads.submit(_run_lane, directory / f"lane-{number}", queue, told)
            for number in range(1, count + 1)
            if runnable
        ]
        try:
            for lane in running:
                results += lane.result()
        finally:
            queue.close()  # interrupted: the lanes end with the cell that they are at
    order = {cell: place for place, cell in enumerate(cells)}
    return sorted(results, key=lambda result: order[result.cell])


def _run_lane(directory: Path, queue: _Queue, tell: Told) -> list[CellResult]:
    results: list[CellResult] = []
    try:
        with Lane(directory) as lane:
            outfit: Outfit | None = None
            while (cell := queue.take(outfit)) is not None:
                outfit = outfit_of(cell)
                result = run_cell(lane, cell)
                results.append(result)
                tell(result)
            return [counted_again(lane, result) for result in results]
    except BaseException:
        queue.close()  # the others need not go on for long
        raise


class _Queue:
    """The cells that are left, by outfit; for several threads."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._lock = threading.Lock()
        self._left: dict[Outfit, list[Cell]] = {}
        for cell in cells:
            self._left.setdefault(outfit_of(cell), []).append(cell)

    def take(self, outfit: Outfit | None) -> Cell | None:
        """Return the next cell, of this outfit if there is one, else where most are left."""
        with self._lock:
            left = {o: cells for o, cells in self._left.items() if cells}
            if not left:
                return None
            chosen = outfit if outfit in left else max(left, key=lambda o: len(left[o]))
            return left[chosen].pop(0)

    def close(self) -> None:
        """Hand out nothing any more."""
        with self._lock:
            self._left.clear()
