"""The adapter `caller` in a contract: how long a lease may last, and who looks."""

from __future__ import annotations

from typing import Any

import pytest

from effect_contracts.document import CallerSettings

from .documents import IDEMPOTENT, RECONCILABLE, REMOVED, changed, document, problems_in

LEASE = 30
ADAPTER: dict[str, Any] = {"kind": "caller", "target": "api.example.com"}
BARE = changed(IDEMPOTENT, ("/adapter", ADAPTER), ("/attempt_deadline_seconds", LEASE))
BY_HTTP = changed(BARE, ("/adapter/http", IDEMPOTENT["adapter"]))
LOOKED_UP = changed(
    RECONCILABLE, ("/adapter", {**ADAPTER, "http": RECONCILABLE["adapter"]}),
    ("/key_retention_seconds", REMOVED),
)  # fmt: skip
REGISTERED = changed(LOOKED_UP, ("/adapter", {**ADAPTER, "probe": "shop"}))


def _settings(value: dict[str, Any]) -> CallerSettings:
    settings = document(value).adapter
    assert isinstance(settings, CallerSettings)
    return settings


@pytest.mark.parametrize("longest", [LEASE - 1, LEASE])
def test_a_lease_that_is_extended_lasts_longer_than_one_that_is_not(longest: float) -> None:
    problems = problems_in(BARE, ("/adapter/lease_seconds_max", longest))
    assert set(problems) == {"/adapter/lease_seconds_max"}
    assert "lasts 30 s already" in problems["/adapter/lease_seconds_max"]
    accepted = document(BARE, ("/adapter/lease_seconds_max", LEASE + 0.5))
    assert accepted.policy().lease_seconds_max == LEASE + 0.5
    assert document(BARE).policy().lease_seconds_max is None


def test_one_look_up_is_the_authority() -> None:
    problems = problems_in(LOOKED_UP, ("/adapter/probe", "shop"))
    assert set(problems) == {"/adapter/probe"}
    assert "one look-up is the authority" in problems["/adapter/probe"]
    document(REGISTERED)
    document(LOOKED_UP)
    # Beside a section that only sends, a registered one may look.
    document(BY_HTTP, ("/adapter/probe", "shop"))


def test_a_worker_can_look_where_one_of_the_two_is_named() -> None:
    assert [_settings(one).probes for one in (BARE, BY_HTTP, LOOKED_UP, REGISTERED)] == [
        False, False, True, True,
    ]  # fmt: skip


def test_a_callers_operation_cannot_be_polled() -> None:
    accepted = {
        "statuses": [202], "reference": {"in": "header"}, "succeeded": [{"statuses": [200]}],
    }  # fmt: skip
    problems = problems_in(BY_HTTP, ("/adapter/http/answers/accepted", accepted))
    assert "no reference" in problems["/adapter/http/answers/accepted"]


def test_what_is_wrong_with_the_http_section_is_told_at_its_place() -> None:
    problems = problems_in(BY_HTTP, ("/adapter/http/url", "http://api.example.com/charges"))
    assert set(problems) == {"/adapter/http/url"}
    # What is wrong elsewhere keeps its place.
    elsewhere = problems_in(
        BY_HTTP, ("/adapter/http/body", {"kind": "json", "content": {"$arg": "/nothing"}})
    )
    assert set(elsewhere) == {"/adapter/http/body/content"}
