"""Cells of the crash matrix: commits whose answer is cut off, and wrong wall clocks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from effect_broker.proof.matrix.axes import Cell
from matrix.sampled import CELL_TIMEOUT_SECONDS, SPECIAL_CELLS, SampledLane, sampled_lane

pytestmark = pytest.mark.timeout(CELL_TIMEOUT_SECONDS)


@pytest.fixture(scope="module")
def lane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SampledLane]:
    """The module's lane."""
    with sampled_lane(tmp_path_factory.mktemp("lane")) as made:
        yield made


@pytest.mark.parametrize("cell", SPECIAL_CELLS, ids=lambda c: c.name)
def test_the_cell_holds(lane: SampledLane, cell: Cell) -> None:
    lane.expect_held(cell)


def test_nothing_more_was_sent_afterwards(lane: SampledLane) -> None:
    lane.expect_nothing_more_was_sent()
