"""Celery: which ids survive a retry, a second delivery and a second publication."""

from __future__ import annotations

from pathlib import Path

import pytest

from frameworks.running import Sightings, ran


@pytest.fixture(scope="module")
def seen(python: Path) -> Sightings:
    return ran(python, "celery")


@pytest.mark.parametrize("again", ["retry", "autoretry", "redelivery"])
def test_a_retry_and_a_second_delivery_keep_the_task_id(seen: Sightings, again: str) -> None:
    tries = seen.of(again)
    assert len(tries) == 2
    assert tries.stable() >= {"id", "task"}
    assert tries[0].keys["task"] == f"celery:{tries[0].ids['id']}:charge"
    assert ("retries" in tries.changing()) == (again != "redelivery")


def test_a_second_publication_is_another_task(seen: Sightings) -> None:
    assert seen.of("published_again").changing() == {"id", "task"}


def test_a_task_id_of_the_callers_own_survives_a_second_publication(seen: Sightings) -> None:
    tries = seen.of("own_id")
    assert tries.stable() >= {"id", "task"}
    assert tries[0].ids["id"] == "order:42:charge"


def test_a_task_that_is_called_like_a_function_has_no_key(seen: Sightings) -> None:
    assert {one.keys["task"] for one in seen.of("like_a_function")} == {"?no_id"}


def test_the_number_of_retries_is_no_name_of_a_step(seen: Sightings) -> None:
    tasks = [one for one in seen if one.ids["id"]]
    assert {one.keys["without_a_name"] for one in tasks} == {"?no_name"}
