"""What an error says of many problems: the first one in full, and how many more there are."""

from __future__ import annotations

import pytest

from effect_contracts.errors import ContractInvalid, ContractProblem


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
