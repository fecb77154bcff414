"""`ticket-create` behind a real worker, before a tracker whose search lags.

A lag within the bound that the contract states leads to no second ticket. One beyond it does: the
contract has promised too much, and the duplicate is counted and reported. Tickets are counted at
the tracker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from adapter_calls import merged
from effect_broker.proof.broker import wait_until
from effect_contracts.catalog import catalog_texts
from effect_contracts.document import ContractDocument, with_origin
from hosting.scenes import Scene
from peers import peer
from receivers import Tracker

TICKET: dict[str, Any] = {"title": "Disk is full", "body": "On db-1:\n97 %"}
# The lag leaves a busy machine time to ask in vain, and the bound leaves it time to ask again.
LAG_SECONDS = 2.0
BOUND_SECONDS = 6.0
SHORT_BOUND_SECONDS = 0.5


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """The tracker's token."""
    return {"EFFECT_BROKER_SECRET_TRACKER": "not-a-secret"}


@pytest.fixture
def tracker() -> Tracker:
    """A tracker whose first answer is lost, and whose search lags within the bound."""
    made = Tracker(LAG_SECONDS)
    made.losing = 1
    return made


@pytest.fixture
def origin(tracker: Tracker) -> Iterator[str]:
    """Where the tracker listens."""
    with peer(tracker) as running:
        yield running.url


def submit(scene: Scene, origin: str, bound_seconds: float) -> tuple[str, str]:
    """Apply the shipped contract with a bound of the test's own, and submit one ticket.

    Return the tool and the effect's id.
    """
    tool = f"ticket.bound_{bound_seconds:g}"
    changes = {
        "name": f"ticket-bound-{bound_seconds:g}".replace(".", "-"),
        "tool": tool,
        "settlement_bound_seconds": bound_seconds,
        "transit_seconds": 0.2,
        "retry": {"backoff_initial_seconds": 0.1},
        "probe": {"initial_seconds": 0.2, "cap_seconds": 0.5},
    }
    value = merged(yaml.safe_load(catalog_texts()["ticket-create"]), changes)
    document = ContractDocument.parse_yaml(yaml.safe_dump(value))
    scene.broker.apply(with_origin(document, origin))
    scene.ensure_workers(1)
    return tool, scene.broker.submitted(f"{tool}:1", tool, TICKET)


def test_a_search_that_lags_within_the_bound_leads_to_no_second_ticket(
    scene: Scene, tracker: Tracker, origin: str
) -> None:
    _, effect_id = submit(scene, origin, BOUND_SECONDS)
    effect = scene.broker.settled(effect_id)
    assert effect["state"] == "succeeded"
    assert len(tracker.tickets) == 1
    # It was asked before it could be seen, and "not there" was not believed.
    assert tracker.shown[0] == 0
    assert tracker.shown[-1] == 1
    found = scene.broker.receipt(effect_id)
    assert found is not None
    receipt = found["receipt"]
    assert (receipt["source"], receipt["attempts"], receipt["external_id"]) == ("probe", 1, "1")


def test_a_search_that_lags_beyond_the_bound_makes_a_duplicate_that_is_counted_and_reported(
    scene: Scene, tracker: Tracker, origin: str
) -> None:
    tracker.lag_seconds = 600.0
    tool, effect_id = submit(scene, origin, SHORT_BOUND_SECONDS)
    effect = scene.broker.settled(effect_id)
    # By the contract the first was never made, so it was made again: what a bound is for.
    assert effect["state"] == "succeeded"
    assert len(tracker.tickets) == 2
    assert set(tracker.shown) == {0}
    tracker.lag_seconds = 0.0  # the index has caught up
    alert = wait_until(lambda: scene.broker.effect(effect_id)["alert"], "the duplicate is counted")
    assert alert == "duplicate_detected"
    assert len(tracker.tickets) == 2, "what counts makes nothing"
    # Nobody is sent again on the word of this search.
    after = scene.broker.submitted(f"{tool}:2", tool, TICKET)
    wait_until(lambda: scene.broker.effect(after)["reason"] == "frozen" or None, "it is frozen")
    assert len(tracker.tickets) == 2
