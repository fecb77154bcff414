"""Temporal: which ids survive a replay, a retry, a reset, a second run and a second start."""

from __future__ import annotations

from pathlib import Path

import pytest

from frameworks.running import Sightings, ran

OF_WORKFLOW = ".workflow"


@pytest.fixture(scope="module")
def everything(python: Path) -> Sightings:
    return ran(python, "temporal", python.with_name("temporal"))


@pytest.fixture(scope="module")
def seen(everything: Sightings) -> Sightings:
    """What activities have seen."""
    return Sightings(one for one in everything if not one.scenario.endswith(OF_WORKFLOW))


@pytest.fixture(scope="module")
def replays(everything: Sightings) -> list[Sightings]:
    """What workflows have seen, by run: each time that a worker has run its code from the start."""
    told = [one for one in everything if one.scenario.endswith(OF_WORKFLOW)]
    runs = dict.fromkeys(one.ids["run_id"] for one in told)
    return [Sightings(one for one in told if one.ids["run_id"] == run) for run in runs]


def test_a_workflow_that_is_replayed_makes_the_same_keys_of_the_same_ids(
    seen: Sightings, replays: list[Sightings]
) -> None:
    assert len(replays) == len({one.ids["run_id"] for one in seen if one.ids["workflow_id"]})
    for run in replays:
        assert True in {one.ids["replaying"] for one in run}, run[0].scenario
        assert len(run) >= 2
        names = {*run[0].ids, *run[0].keys}
        assert run.stable() >= names - {"replaying"}
    # The first task of a workflow is no replay, so that the two kinds were compared.
    first_runs = [run for run in replays if run[0].scenario != f"reset{OF_WORKFLOW}"]
    assert all(run[0].ids["replaying"] is False for run in first_runs)


def test_the_key_of_a_replay_is_the_one_that_its_activity_was_given(
    seen: Sightings, replays: list[Sightings]
) -> None:
    given = {
        (one.ids["run_id"], one.keys["activity.workflow"]) for one in seen if one.ids["run_id"]
    }
    made = {(one.ids["run_id"], one.keys["workflow"]) for run in replays for one in run}
    assert made == given


def test_a_retry_of_an_activity_keeps_every_id_but_the_attempt(seen: Sightings) -> None:
    tries = seen.of("retry")
    assert [one.ids["attempt"] for one in tries] == [1, 2]
    assert tries.changing() == {"attempt"}


@pytest.mark.parametrize("again", ["reset", "workflow_retry", "continue_as_new", "second_start"])
def test_another_run_keeps_the_workflow_id_alone_and_counts_activities_anew(
    seen: Sightings, again: str
) -> None:
    runs = seen.of(again)
    assert "run_id" in runs.changing()
    assert runs.stable() >= {"workflow_id", "activity_id", "activity.workflow", "workflow.workflow"}
    assert runs.changing() >= {"activity.run", "activity.run.counted", "workflow.run"}
    key = f"temporal:default:workflow:order-42-{again}:charge"
    assert {one.keys["activity.workflow"] for one in runs} == {key}
    # Whether the workflow or its activity makes it: it is the same intent.
    assert {one.keys["workflow.workflow"] for one in runs} == {key}


@pytest.mark.parametrize(
    ("again", "chain", "execution"),
    [
        ("reset", "stable", "stable"),
        ("workflow_retry", "stable", "changing"),
        ("continue_as_new", "stable", "changing"),
        ("second_start", "changing", "changing"),
    ],
)
def test_a_wider_scope_joins_more_runs(
    seen: Sightings, again: str, chain: str, execution: str
) -> None:
    runs = seen.of(again)
    assert "workflow.chain" in getattr(runs, chain)()
    assert "workflow.execution" in getattr(runs, execution)()


def test_a_counted_activity_id_is_no_key_across_runs(seen: Sightings) -> None:
    counted = [one for one in seen if one.ids["activity_id"] == "1"]
    assert len(counted) == 10
    assert {one.keys["activity.counted"] for one in counted} == {"?counted"}


def test_an_activity_id_that_the_workflow_has_chosen_is_a_name(seen: Sightings) -> None:
    (named,) = (one for one in seen if one.scenario == "named")
    assert named.keys["activity.counted"] == "temporal:default:workflow:order-42-named:charge"


def test_the_run_id_is_no_part_of_a_step(seen: Sightings) -> None:
    of_workflows = [one for one in seen if one.scenario != "alone"]
    assert {one.keys["activity.with_run_id"] for one in of_workflows} == {"?changes"}


def test_an_activity_without_a_workflow_is_known_by_the_id_that_its_caller_chose(
    seen: Sightings,
) -> None:
    (alone,) = (one for one in seen if one.scenario == "alone")
    assert alone.ids["workflow_id"] is None
    assert alone.keys["activity.counted"] == "temporal:default:activity:order-42-charge"
