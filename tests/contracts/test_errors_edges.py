"""What an error says at its edges: of many problems, of no place, of nothing that is known."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest

from effect_contracts import errors
from effect_contracts.errors import ContractInvalid, ContractProblem, problem
from effect_contracts.facts import EffectState


@pytest.mark.parametrize(
    ("count", "more"), [(1, None), (2, "(1 more)"), (3, "(2 more)"), (7, "(6 more)")]
)
def test_the_first_problem_is_told_and_the_others_are_counted(count: int, more: str | None) -> None:
    problems = [ContractProblem(f"/part{n}", f"sentence {n}.") for n in range(count)]
    told = str(ContractInvalid(problems))
    assert "sentence 0." in told
    assert "sentence 1." not in told
    if more is None:
        assert "more)" not in told
    else:
        assert more in told


def test_a_contract_that_is_invalid_has_a_problem() -> None:
    with pytest.raises(AssertionError, match="at least one problem"):
        ContractInvalid([])


@pytest.mark.parametrize(
    ("field", "place"), [(None, ""), ("", " (at the root)"), ("/a", " (at /a)")]
)
def test_a_place_is_told_where_there_is_one(field: str | None, place: str) -> None:
    error = errors.PayloadConflict(field=field)
    assert str(error) == f"payload_conflict: {error.detail}{place}"
    told = problem(error)
    assert told.get("field") == field
    assert ("field" in told) is (field is not None)


def test_what_is_not_known_is_no_member() -> None:
    assert errors.PayloadConflict(field=None).extras == {}
    assert errors.StaleVersion(expected=0).extras == {"expected_version": 0}
    too_long = errors.OperationKeyReason.TOO_LONG
    told = errors.InvalidOperationKey(too_long, offset_chars=0).extras
    assert told == {"reason": "too_long", "offset": 0}
    known = errors.PayloadConflict(field=None, effect_id=UUID(int=7), state=EffectState.PREPARED)
    assert known.extras == {"effect_id": str(UUID(int=7)), "state": "prepared"}


def test_an_occurrence_is_named_where_it_has_a_name() -> None:
    assert problem(errors.NotFound(), "")["instance"] == ""
    assert list(problem(errors.RateLimited(retry_after_seconds=2), "/x")) == [
        "type", "title", "status", "detail", "code", "instance", "retry_after_seconds",
    ]  # fmt: skip


def test_a_title_is_the_code_in_words() -> None:
    assert problem(errors.StorageUnavailable())["title"] == "Storage unavailable"


def test_a_moment_is_told_in_utc_and_has_a_zone() -> None:
    moment = datetime(2026, 1, 2, 3, tzinfo=timezone(timedelta(hours=2)))
    error = errors.TooEarly(not_before=moment)
    assert error.extras == {"not_before": "2026-01-02T01:00:00+00:00"}
    assert "from 2026-01-02T01:00:00+00:00 on" in error.detail
    assert errors.TooEarly(not_before=moment.astimezone(UTC)).detail == error.detail
    with pytest.raises(AssertionError, match="no moment"):
        errors.TooEarly(not_before=datetime(2026, 1, 2, 3))
