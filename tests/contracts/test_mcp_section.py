"""The adapter `mcp` in a contract: what it needs before a call of a server's tool may be made."""

from __future__ import annotations

import json
from typing import Any

import pytest

from effect_contracts.document import ContractDocument

from .documents import IDEMPOTENT, REMOVED, changed, document, problems_in

ADAPTER: dict[str, Any] = {
    "kind": "mcp",
    "server": {"kind": "http", "url": "https://mcp.acme.example/mcp"},
    "tool": "create_charge",
    "extraction": {"external_id": "structuredContent.id"},
}
PROBE: dict[str, Any] = {
    "tool": "find_charges",
    "arguments": {"key": {"$key": True}},
    "items": "structuredContent.charges",
    "key_path": "key",
    "agree": {"/amount": "amount"},
    "complete": "isError == `false`",
}
WITH = changed(IDEMPOTENT, ("/adapter", ADAPTER))
UNSAFE = changed(WITH, ("/safety", "unsafe"), ("/key_retention_seconds", REMOVED))
ASKED = changed(
    WITH,
    ("/safety", "reconcilable"),
    ("/key_retention_seconds", REMOVED),
    ("/settlement_bound_seconds", 60),
    ("/adapter/probe", PROBE),
)
RULE = {"match": "isError", "code": "refused"}

# The valid document, the breach, and its place and words.
Change = tuple[str, Any]
RULES: dict[str, tuple[dict[str, Any], list[Change], str, str]] = {
    "plain http to others": (
        WITH,
        [("/adapter/server/url", "http://mcp.acme.example/mcp")],
        "/adapter/server/url",
        "in the clear",
    ),
    "a url with a variable": (
        WITH,
        [("/adapter/server/url", "https://mcp.acme.example/{amount}")],
        "/adapter/server/url",
        "is fixed",
    ),
    "a credential in the document": (
        WITH,
        [("/adapter/server/headers", {"authorization": "Bearer abc"})],
        "/adapter/server/headers/authorization",
        "{secret: env:NAME}",
    ),
    "a header of the transport": (
        WITH,
        [("/adapter/server/headers", {"Mcp-Session-Id": "1"})],
        "/adapter/server/headers/Mcp-Session-Id",
        "writes this header itself",
    ),
    "the same header twice": (
        WITH,
        [("/adapter/server/headers", {"X-A": "1", "x-a": "2"})],
        "/adapter/server/headers/x-a",
        "there twice",
    ),
    "a key that callers could choose": (
        WITH,
        [("/adapter/key", {"in": "argument", "name": "amount"})],
        "/adapter/key/name",
        "callers do not choose the key",
    ),
    "a refusal without a proof": (
        WITH,
        [("/adapter/answers", {"rejected": [RULE]})],
        "/adapter/answers/rejected/0/proves_no_commit",
        "may have done its work",
    ),
    "a repeat without a proof": (
        WITH,
        [("/adapter/answers", {"retryable": [RULE]})],
        "/adapter/answers/retryable/0/proves_no_commit",
        "may have done its work",
    ),
    "already there, and nobody can ask whose": (
        UNSAFE,
        [("/adapter/answers", {"already_exists": [RULE]})],
        "/adapter/answers/already_exists",
        "cannot find out whose",
    ),
    "a look-up by the tool itself": (
        ASKED,
        [("/adapter/probe/tool", "create_charge")],
        "/adapter/probe/tool",
        "read-only tool",
    ),
    "a look-up that compares nothing": (
        ASKED,
        [("/adapter/probe/agree", {})],
        "/adapter/probe/agree",
        "at least one argument",
    ),
    "a look-up for what is no argument": (
        ASKED,
        [("/adapter/probe/agree", {"/nothing": "x"})],
        "/adapter/probe/agree",
        "is no argument",
    ),
    "a template that asks for what is no argument": (
        ASKED,
        [("/adapter/probe/arguments", {"a": {"$arg": "/nothing"}})],
        "/adapter/probe/arguments",
        "is no argument",
    ),
    "a template that is none": (
        ASKED,
        [("/adapter/probe/arguments", {"a": {"$what": 1}})],
        "/adapter/probe/arguments",
        "$arg",
    ),
    "a look-up that can never deny": (
        ASKED,
        [("/adapter/probe/complete", REMOVED)],
        "/adapter/probe/complete",
        "can be denied",
    ),
    "reconcilable without a look-up": (
        ASKED,
        [("/adapter/probe", REMOVED)],
        "/adapter/probe",
        "has a probe",
    ),
    "unsafe with a look-up": (
        UNSAFE,
        [("/adapter/probe", PROBE)],
        "/adapter/probe",
        "never looked up",
    ),
    "a command in the document": (
        WITH,
        [("/adapter/server", {"kind": "program", "command": "rm"})],
        "/adapter/server/command",
        "unknown field",
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_a_broken_rule_is_told_with_its_place(name: str) -> None:
    valid, breach, place, words = RULES[name]
    document(valid)
    problems = problems_in(changed(valid, *breach))
    assert words in problems.get(place, ""), problems


@pytest.mark.parametrize("valid", [WITH, UNSAFE, ASKED])
def test_a_document_is_read_back_from_its_canonical_form(valid: dict[str, Any]) -> None:
    made = document(valid)
    assert ContractDocument.from_canonical(made.canonical()) == made
    assert json.loads(made.canonical())["adapter"]["key"]["in"] == "meta"
    assert made.policy().probes is ("probe" in valid["adapter"])


def test_plain_http_to_this_machine_needs_no_statement() -> None:
    made = document(WITH, ("/adapter/server/url", "http://127.0.0.1:8000/mcp"))
    assert made.adapter.kind == "mcp"
