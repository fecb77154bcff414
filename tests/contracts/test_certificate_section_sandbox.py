"""A sandbox has the one spelling of an origin that a certificate is compared with."""

from __future__ import annotations

import pytest

from .documents import IDEMPOTENT, document, problems_in
from .test_certificate_section import HERE


@pytest.mark.parametrize(
    "sandbox",
    [
        # In capitals it sorts before its origin, with the default port behind it.
        "https://Sandbox.example.com", "https://SANDBOX.EXAMPLE.COM", "http://[2001:DB8::1]",
        "https://sandbox.example.com:443", "http://sandbox.example.com:80",
        "https://sandbox.example.com:08443", "https://sandbox.example.com?a=b",
        "https://user@sandbox.example.com",
    ],
)  # fmt: skip
def test_another_spelling_of_an_origin_is_refused(sandbox: str) -> None:
    assert problems_in(IDEMPOTENT, (HERE, {"sandbox": sandbox})) == {
        f"{HERE}/sandbox": (
            "a sandbox is scheme, host and port only, such as https://sandbox.example.com"
        )
    }


@pytest.mark.parametrize(
    "sandbox",
    [
        "https://sandbox.example.com", "http://[2001:db8::1]", "https://sandbox.example.com:80",
        "http://sandbox.example.com:443", "https://sandbox.example.com:8443",
    ],
)  # fmt: skip
def test_an_origin_in_its_own_spelling_is_taken(sandbox: str) -> None:
    demand = document(IDEMPOTENT, (HERE, {"sandbox": sandbox})).policy().certificate
    assert demand is not None
    assert demand.sandbox_identity == f"{sandbox}#acct_1"
