"""The order in which files of tests are given out, by what each of them takes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, cast

import pytest

import heaviest_first
from heaviest_first import TABLE, HeaviestFirst, Weight, in_order, read_table

FILES = {
    "tests/a/test_light.py": Weight(1.0, 0.0),
    "tests/a/test_heavy.py": Weight(50.0, 1.0),
    "tests/b/test_computes.py": Weight(20.0, 19.0),
    "tests/b/test_waits.py": Weight(40.0, 2.0),
}


def test_the_heaviest_folder_is_first_and_stays_together() -> None:
    assert in_order(FILES) == [
        "tests/b/test_waits.py",
        "tests/b/test_computes.py",
        "tests/a/test_heavy.py",
        "tests/a/test_light.py",
    ]


class Node:
    """A test process, as far as the order needs it."""

    shutting_down = False

    def __init__(self) -> None:
        self.given: list[str] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += [NAMES[index] for index in indices]

    def shutdown(self) -> None:
        self.shutting_down = True


NAMES = [f"{path}::test" for path in [*FILES, "tests/c/test_new.py"]]


def test_one_process_in_three_computes_and_each_file_is_given_out_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heaviest_first, "read_table", lambda text: FILES)
    made = HeaviestFirst.__new__(HeaviestFirst)
    nodes = [Node(), Node(), Node()]
    made.workqueue = OrderedDict((name.partition("::")[0], {name: False}) for name in NAMES)
    made.assigned_work = {node: {} for node in nodes}
    made.registered_collections = cast(dict[Any, list[str]], dict.fromkeys(nodes, NAMES))
    for turn in range(len(NAMES)):
        made._assign_work_unit(nodes[turn % 3])
    assert [node.given for node in nodes] == [
        ["tests/b/test_waits.py::test", "tests/a/test_light.py::test"],
        ["tests/a/test_heavy.py::test", "tests/c/test_new.py::test"],
        ["tests/b/test_computes.py::test"],
    ]
    assert not made.workqueue


def test_the_table_can_be_read_and_knows_most_files() -> None:
    table = read_table(TABLE.read_text())
    there = {str(path.relative_to(TABLE.parents[1])) for path in TABLE.parent.rglob("test_*.py")}
    assert len(there & set(table)) > 0.8 * len(there), "measure again: see heaviest_first.py"
