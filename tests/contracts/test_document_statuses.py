"""Which statuses a class such as 2xx covers: all of its hundred but those with a meaning apart."""

from __future__ import annotations

import pytest

from effect_contracts.http_settings import statuses_match

APART = {202, 206, 207, 408}


@pytest.mark.parametrize("hundred", [2, 3, 4, 5])
def test_a_class_covers_its_hundred_but_what_has_a_meaning_of_its_own(hundred: int) -> None:
    covered = {n for n in range(100, 700) if statuses_match([f"{hundred}xx"], n)}
    assert covered == set(range(100 * hundred, 100 * hundred + 100)) - APART


@pytest.mark.parametrize("status", [200, 202, 206, 207, 404, 408, 599])
def test_a_number_covers_itself(status: int) -> None:
    assert {n for n in range(100, 700) if statuses_match([status], n)} == {status}
    assert not any(statuses_match([], n) for n in range(100, 700))
