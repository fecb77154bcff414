"""LangGraph: which ids survive a retry, a resume, an interrupt, a replay and a fork."""

from __future__ import annotations

from pathlib import Path

import pytest

from frameworks.running import Sightings, ran


@pytest.fixture(scope="module")
def seen(python: Path) -> Sightings:
    return ran(python, "langgraph")


@pytest.mark.parametrize("again", ["retry", "resume", "interrupt"])
def test_going_on_keeps_thread_and_task(seen: Sightings, again: str) -> None:
    tries = seen.of(again)
    assert tries.stable() >= {"thread_id", "task_id", "checkpoint_id", "thread", "task"}
    assert tries[0].ids["configured_thread"] == tries[0].ids["thread_id"] == f"thread-{again}"


def test_the_number_of_a_try_begins_anew_in_a_resumed_run(seen: Sightings) -> None:
    assert [one.ids["attempt"] for one in seen.of("retry")] == [1, 2]
    assert [one.ids["attempt"] for one in seen.of("resume")] == [1, 1]


@pytest.mark.parametrize("again", ["replay", "replay_at_the_node", "fork", "second_turn"])
def test_going_back_and_a_second_turn_keep_the_thread_alone(seen: Sightings, again: str) -> None:
    tries = seen.of(again)
    assert tries.changing() == {"task_id", "checkpoint_id", "task"}
    assert {one.keys["thread"] for one in tries} == {f"langgraph:thread:thread-{again}:charge"}


def test_without_a_checkpointer_there_is_no_key(seen: Sightings) -> None:
    tries = seen.of("without_checkpointer")
    assert "task_id" in tries.changing()
    assert {key for one in tries for key in one.keys.values()} == {"?no_id"}


def test_a_task_id_is_no_part_of_a_step(seen: Sightings) -> None:
    threads = [one for one in seen if one.ids["thread_id"]]
    assert {one.keys["with_task_id"] for one in threads} == {"?changes"}
