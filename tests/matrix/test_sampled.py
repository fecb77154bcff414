"""The sample that every test run plays is large enough, and no file of the three leaves a gap."""

from __future__ import annotations

from effect_broker.proof.matrix.axes import Fault, TargetClass
from matrix.sampled import HELD_CELLS, PLAIN_CELLS, SAMPLE, SPECIAL_CELLS


def test_the_three_files_play_the_whole_sample() -> None:
    played = [*PLAIN_CELLS, *HELD_CELLS, *SPECIAL_CELLS]
    assert sorted(c.name for c in played) == sorted(c.name for c in SAMPLE)


def test_the_sample_has_forty_cells_and_every_class_and_fault() -> None:
    assert len(SAMPLE) >= 40
    assert {cell.fault for cell in SAMPLE} == set(Fault)
    assert {cell.target for cell in SAMPLE} == set(TargetClass)
