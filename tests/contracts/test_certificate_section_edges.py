"""A sandbox that is no URL at all is refused in the same words as one with a path."""

from __future__ import annotations

import pytest

from .documents import IDEMPOTENT, problems_in
from .test_certificate_section import HERE


@pytest.mark.parametrize(
    "sandbox",
    [
        "https://[",
        "https://[::1",
        "https://sandbox.example.com:x",
        "https://sandbox.example.com:0x",
    ],
)
def test_a_sandbox_that_cannot_be_read_is_refused(sandbox: str) -> None:
    problems = problems_in(IDEMPOTENT, (HERE, {"sandbox": sandbox}))
    assert "scheme, host and port only" in problems[f"{HERE}/sandbox"]
