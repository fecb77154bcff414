"""The limits of a contract: what they may say, and that contracts without them stay as they are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contracts.test_certificate_section import BOTH, CALLER, PUBLISHED
from effect_contracts.pacing import Limits

from .documents import IDEMPOTENT, TRANSACTIONAL, document, problems_in

HERE = "/limits"


@pytest.mark.parametrize(("base", "oversight", "digest"), PUBLISHED)
def test_a_contract_without_limits_has_the_digest_that_it_always_had(
    base: dict[str, Any], oversight: dict[str, Any] | None, digest: str
) -> None:
    changes = () if oversight is None else (("/oversight", oversight),)
    read = document(base, *changes)
    assert read.digest().hex() == digest
    assert b"limits" not in read.canonical()
    assert read.policy().limits is None


@pytest.mark.parametrize(
    ("section", "limits"),
    [
        ({"concurrency_max": 3}, Limits(3, None, 1)),
        ({"per_second_max": 40}, Limits(None, 40.0, 4)),
        ({"per_second_max": 0.5}, Limits(None, 0.5, 1)),
        (
            {"concurrency_max": 3, "per_second_max": 40, "burst_max": 1},
            Limits(3, 40.0, 1),
        ),
    ],
)
def test_limits_are_part_of_the_contract_and_of_its_digest(
    section: dict[str, Any], limits: Limits
) -> None:
    read = document(IDEMPOTENT, (HERE, section), ("/oversight", BOTH))
    assert read.policy().limits == limits
    assert type(read).from_canonical(read.canonical()) == read
    assert json.loads(read.canonical())["limits"] == section
    assert read.digest() != document(IDEMPOTENT, ("/oversight", BOTH)).digest()
    assert document(TRANSACTIONAL, (HERE, section)).policy().limits == limits


@pytest.mark.parametrize(
    ("base", "section", "places"),
    [
        (IDEMPOTENT, {}, {HERE}),
        (IDEMPOTENT, {"concurrency_max": 2, "burst_max": 2}, {f"{HERE}/burst_max"}),
        (IDEMPOTENT, {"concurrency_max": 0}, {f"{HERE}/concurrency_max"}),
        (IDEMPOTENT, {"concurrency_max": 1.5}, {f"{HERE}/concurrency_max"}),
        (IDEMPOTENT, {"per_second_max": 0}, {f"{HERE}/per_second_max"}),
        (IDEMPOTENT, {"per_second_max": 1001}, {f"{HERE}/per_second_max"}),
        (IDEMPOTENT, {"per_second_max": 1, "burst_max": 0}, {f"{HERE}/burst_max"}),
        (IDEMPOTENT, {"per_minute_max": 1}, {f"{HERE}/per_minute_max"}),
        (CALLER, {"concurrency_max": 1}, {HERE}),
    ],
)
def test_limits_that_limit_nothing_or_cannot_be_kept_are_refused(
    base: dict[str, Any], section: dict[str, Any], places: set[str]
) -> None:
    assert set(problems_in(base, (HERE, section))) == places
