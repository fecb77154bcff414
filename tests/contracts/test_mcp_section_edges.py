"""The adapter `mcp`: what is nearest to a broken rule and is taken."""

from __future__ import annotations

from typing import Any

import pytest

from .documents import REMOVED, document, problems_in
from .test_mcp_section import ASKED, RULE, UNSAFE, WITH

HEADERS = "/adapter/server/headers"
PROVED = {**RULE, "proves_no_commit": True}


def test_plain_http_is_taken_where_it_is_stated() -> None:
    url = ("/adapter/server/url", "http://mcp.acme.example/mcp")
    assert set(problems_in(WITH, url)) == {"/adapter/server/url"}
    document(WITH, url, ("/adapter/server/allow_plaintext", True))
    document(WITH, ("/adapter/server/allow_plaintext", True))


@pytest.mark.parametrize(
    "name",
    ["Accept", "accept-encoding", "Connection", "content-length", "Content-Type", "HOST",
     "last-event-id", "mcp-method", "mcp-name", "MCP-Protocol-Version", "mcp-session-id",
     "transfer-encoding", "upgrade"],
)  # fmt: skip
def test_the_transports_headers_are_its_own(name: str) -> None:
    problems = problems_in(WITH, (HEADERS, {name: "x"}))
    assert problems == {f"{HEADERS}/{name}": "the transport writes this header itself"}


def test_other_headers_are_taken_and_credentials_by_reference() -> None:
    secret = {"secret": "env:EFFECT_BROKER_SECRET_MCP", "prefix": "Bearer "}
    document(WITH, (HEADERS, {"Authorization": secret, "X-A": "1", "X-B": "1"}))


def test_a_key_is_an_argument_that_callers_do_not_have() -> None:
    document(WITH, ("/adapter/key", {"in": "argument", "name": "idempotency_key"}))
    document(WITH, ("/adapter/key", {"in": "meta", "name": "amount"}))
    anything: list[tuple[str, Any]] = [
        ("/arguments", {"type": "object"}),
        ("/adapter/key", {"in": "argument", "name": "amount"}),
    ]
    document(WITH, *anything)


@pytest.mark.parametrize("kind", ["rejected", "retryable"])
def test_each_refusal_without_a_proof_is_named(kind: str) -> None:
    place = f"/adapter/answers/{kind}"
    document(WITH, (place, [PROVED, PROVED]))
    problems = problems_in(WITH, (place, [PROVED, RULE, PROVED, RULE]))
    assert set(problems) == {f"{place}/{n}/proves_no_commit" for n in (1, 3)}


def test_other_answers_need_no_proof() -> None:
    for kind in ("in_progress", "key_conflict", "already_exists"):
        document(ASKED, (f"/adapter/answers/{kind}", [RULE]))
    document(UNSAFE, ("/adapter/answers/key_conflict", [RULE]))


def test_a_look_up_that_is_not_the_only_hope_need_not_deny() -> None:
    """An idempotent effect is sent again in any case."""
    probe = {**ASKED["adapter"]["probe"]}
    document(WITH, ("/adapter/probe", probe), ("/adapter/probe/complete", REMOVED))


def test_each_fault_of_a_look_up_is_named() -> None:
    problems = problems_in(
        ASKED,
        ("/adapter/probe/arguments", {"a": {"$arg": "/nothing"}, "b": {"$arg": "/amount"}}),
        ("/adapter/probe/agree", {"/amount": "x", "/none": "y"}),
    )
    assert problems == {
        "/adapter/probe/arguments": "$arg /nothing is no argument of this contract",
        "/adapter/probe/agree": "/none is no argument of this contract",
    }
