"""Rules that join several fields, on either side of where they hold."""

from __future__ import annotations

from typing import Any

import pytest

from .documents import IDEMPOTENT, RECONCILABLE, REMOVED, UNSAFE, document, problems_in

SIMULATED: dict[str, Any] = {"kind": "simulated", "target": "ledger"}


def test_a_certificate_is_demanded_of_what_can_be_tried_only() -> None:
    place = "/oversight/certificate"
    assert document(IDEMPOTENT, (place, {"trials": ["key_is_kept"]})).oversight is not None
    assert document(IDEMPOTENT, ("/oversight", {"second_person": True})).oversight is not None
    problems = problems_in(IDEMPOTENT, (place, {"trials": ["absence_is_shown"]}))
    assert list(problems) == [f"{place}/trials/0"]


@pytest.mark.parametrize("seconds", [1, 28, 28.999])
def test_a_key_that_dies_before_the_schedule_has_ended_is_too_short(seconds: float) -> None:
    """2 attempts of 10 + 1 s, one wait of 4 s, 3 s of transit: 29 s."""
    problems = problems_in(
        IDEMPOTENT,
        ("/retry", {"attempts_max": 2, "backoff_initial_seconds": 4}),
        ("/attempt_deadline_seconds", 10),
        ("/clock_margin_seconds", 1),
        ("/transit_seconds", 3),
        ("/key_retention_seconds", seconds),
    )
    assert list(problems) == ["/key_retention_seconds"]


@pytest.mark.parametrize(("horizon", "fits"), [(1, False), (59, False), (60, False), (61, True)])
def test_probes_go_on_beyond_the_bound_of_a_negative_answer(horizon: float, fits: bool) -> None:
    changes = (("/settlement_bound_seconds", 60), ("/probe", {"horizon_seconds": horizon}))
    if fits:
        assert document(RECONCILABLE, *changes).settlement_bound_seconds == 60
    else:
        assert list(problems_in(RECONCILABLE, *changes)) == ["/probe/horizon_seconds"]


def test_a_missing_probe_is_named_where_it_would_stand() -> None:
    assert list(problems_in(RECONCILABLE, ("/adapter/probe", REMOVED))) == ["/adapter/probe"]
    # This adapter has no section for it.
    assert list(problems_in(RECONCILABLE, ("/adapter", SIMULATED))) == ["/adapter"]


def test_an_unsafe_contract_is_looked_up_by_no_adapter() -> None:
    probing = {**SIMULATED, "probes": True}
    assert list(problems_in(UNSAFE, ("/adapter", probing))) == ["/adapter/probe"]
    assert list(problems_in(UNSAFE, ("/adapter/probe", RECONCILABLE["adapter"]["probe"]))) == [
        "/adapter/probe"
    ]
    assert document(UNSAFE, ("/adapter", SIMULATED)).adapter.kind == "simulated"


@pytest.mark.parametrize("kind", ["array", "string", REMOVED])
def test_arguments_are_an_object_and_nothing_before_or_after_it(kind: Any) -> None:
    changes = [("/arguments/type", kind), ("/arguments/required", REMOVED)]
    assert list(problems_in(IDEMPOTENT, *changes)) == ["/arguments"]


def test_a_part_of_what_is_required_may_be_forbidden() -> None:
    assert document(IDEMPOTENT, ("/forbidden", ["/order/x", "/card"])).forbidden
    assert list(problems_in(IDEMPOTENT, ("/forbidden", ["/order/x", "/amount"]))) == [
        "/forbidden/1"
    ]
