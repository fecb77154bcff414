"""Every rule of a contract document: the document it refuses, and the nearest one it accepts."""

from __future__ import annotations

import pytest

from effect_contracts.document_rules import recovery_horizon_seconds
from effect_contracts.facts import Policy, SafetyClass

from .document_rule_table import HTTP, RULES
from .documents import (
    IDEMPOTENT,
    REMOVED,
    document,
    problems_in,
)


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_refuses_its_breach_and_accepts_the_neighbour(rule: str) -> None:
    base, breach, place, words, neighbour = RULES[rule]
    problems = problems_in(base, *breach)
    assert list(problems) == [place], "a breach of one rule is one problem, at its place"
    assert words in problems[place]
    document(base, *neighbour)


def test_all_broken_rules_are_listed_together() -> None:
    problems = problems_in(
        IDEMPOTENT,
        ("/key_retention_seconds", REMOVED),
        (f"{HTTP}/key", REMOVED),
        (f"{HTTP}/url", "http://api.example.com/{nothing}"),
    )
    assert set(problems) == {"/key_retention_seconds", "/adapter/key", "/adapter/url"}


def test_a_poll_names_its_operation() -> None:
    accepted = {
        "statuses": [202],
        "reference": {"in": "body", "path": "op"},
        "poll_url": "https://api.example.com/operations/{operation}",
        "succeeded": [{"statuses": [200]}],
    }
    place = f"{HTTP}/answers/accepted"
    assert document(IDEMPOTENT, (place, accepted)).policy().polls_operations
    problems = problems_in(
        IDEMPOTENT, (place, accepted), (f"{place}/poll_url", "https://api.example.com/ops")
    )
    assert "name the operation" in problems[f"{place}/poll_url"]
    assert "{operation} is no argument" in str(
        problems_in(IDEMPOTENT, (f"{HTTP}/url", "https://api.example.com/{operation}"))
    )


@pytest.mark.parametrize("attempts", [1, 2, 5, 12])
def test_the_recovery_horizon_is_the_longest_run_of_the_schedule(attempts: int) -> None:
    policy = Policy(
        SafetyClass.IDEMPOTENT,
        attempts_max=attempts,
        attempt_deadline_seconds=10,
        clock_margin_seconds=1,
        transit_seconds=7,
        backoff_initial_seconds=2,
        backoff_factor=3,
        backoff_cap_seconds=50,
    )
    waits = [2, 6, 18, 50, 50, 50, 50, 50, 50, 50, 50][: attempts - 1]
    assert recovery_horizon_seconds(policy) == attempts * 11 + sum(waits) + 7
