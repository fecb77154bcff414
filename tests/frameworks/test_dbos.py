"""DBOS: which ids survive a retry, a dead process and a fork."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from frameworks.running import Sightings, ran
from postgres import Database, RunningServer, clone, drop_database

KEY = "dbos:workflow:order-42:charge"


@pytest.fixture(scope="module")
def database(running_server: RunningServer, template_name: str) -> Iterator[Database]:
    made = clone(running_server, template_name)
    yield made
    drop_database(running_server, made.name)


@pytest.fixture(scope="module")
def seen(database: Database) -> Sightings:
    url = database.superuser_url
    crashed = ran(sys.executable, "dbos", url, "crash", exit_code=9)
    recovered = ran(sys.executable, "dbos", url, "recover")
    changed = ran(sys.executable, "dbos", url, "changed")
    return Sightings([*crashed, *recovered, *changed])


def _charges(seen: Sightings, *scenarios: str) -> Sightings:
    return Sightings(one for one in seen if one.scenario in {f"{s}.charge" for s in scenarios})


def test_a_retry_of_a_step_and_a_recovery_keep_workflow_and_step(seen: Sightings) -> None:
    charges = _charges(seen, "crash", "recover")
    assert [one.ids["attempt"] for one in charges] == [0, 1, 0, 1]
    assert charges.stable() >= {"workflow_id", "step_id", "same", "new"}
    assert charges[0].keys["same"] == KEY


def test_a_fork_is_another_workflow_and_the_same_intent(seen: Sightings) -> None:
    charges = _charges(seen, "recover", "first_fork", "fork_of_fork")
    assert len({one.ids["workflow_id"] for one in charges}) == 3
    assert charges.stable() >= {"step_id", "input", "same"}
    assert charges[0].keys["same"] == KEY
    assert len({one.keys["new"] for one in charges}) == 3


def test_a_fork_to_another_version_counts_its_steps_anew_and_is_the_same_intent(
    seen: Sightings,
) -> None:
    before, after = (_charges(seen, scenario) for scenario in ("recover", "changed_fork"))
    assert {one.ids["step_id"] for one in before} == {1}
    assert {one.ids["step_id"] for one in after} == {2}
    assert {one.keys["same"] for one in (*before, *after)} == {KEY}
    assert {one.keys["new"] for one in after} == {"dbos:fork:changed_fork:charge"}


def test_a_child_that_another_version_has_counted_gets_no_key(seen: Sightings) -> None:
    """Its number is another child's of the origin: the key of one would be that of the other."""
    (child,) = (one for one in seen if one.scenario == "changed_fork.ship")
    assert child.ids["workflow_id"] == "changed_fork-3"
    assert child.keys == {"same": "?counted", "new": "dbos:fork:changed_fork-3:ship"}


def test_a_child_that_dbos_has_named_has_the_key_of_the_origins_child(seen: Sightings) -> None:
    children = Sightings(
        one
        for one in seen
        if one.scenario in {"recover.ship", "first_fork.ship", "fork_of_fork.ship"}
    )
    assert len(children) == 3
    assert "workflow_id" in children.changing()
    assert {one.keys["same"] for one in children} == {"dbos:workflow:order-42-2:ship"}


def test_without_its_origin_a_fork_gets_no_key_but_its_own(seen: Sightings) -> None:
    orphans = [one for one in seen if one.scenario.startswith("orphan.")]
    assert len(orphans) == 3
    assert {one.keys["same"] for one in orphans} == {"?origin_unknown"}
    assert all(one.keys.get("new", "dbos:fork:").startswith("dbos:fork:") for one in orphans)


def test_the_id_of_a_fork_is_no_part_of_the_key(seen: Sightings) -> None:
    assert {one.keys["with_own_id"] for one in _charges(seen, "first_fork")} == {"?changes"}


def test_there_is_no_key_outside_of_a_workflow(seen: Sightings) -> None:
    assert [one.keys for one in seen if one.scenario == "outside"] == [{"same": "?no_id"}]
