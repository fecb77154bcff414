"""Every rule of a contract document: the document it refuses, and the nearest one it accepts."""

from __future__ import annotations

from typing import Any

import pytest

from effect_contracts.document_rules import recovery_horizon_seconds
from effect_contracts.facts import Policy, SafetyClass

from .documents import (
    IDEMPOTENT,
    RECONCILABLE,
    REMOVED,
    TRANSACTIONAL,
    UNSAFE,
    document,
    problems_in,
)

Change = tuple[str, Any]
HTTP = "/adapter"
TEXT_PROBE: dict[str, Any] = {
    "url": "https://api.example.com/notes/{key}",
    "found": {"statuses": [200], "content_type": "text/calendar"},
    "key_match": {"kind": "text", "prefix": "UID:"},
    "agree_lines": {"/order": {"prefix": "SUMMARY:"}},
    "absent": [{"statuses": [404]}],
}
BODY_PROBE: dict[str, Any] = {
    "method": "HEAD",
    "url": "https://api.example.com/objects/{key}",
    "key_match": {"kind": "etag", "algorithm": "md5"},
    "absent": [{"statuses": [404]}],
}
FAILED = {"type": "object", "properties": {"ok": {"const": False}}, "required": ["ok"]}


def retry_rule(**parts: Any) -> dict[str, Any]:
    return {"statuses": [429], "code": "busy", "proves_no_commit": True, **parts}


# Each row: the valid document, the change that breaks a rule, the place and words of the problem,
# and the change nearest to it that is accepted.
RULES: dict[str, tuple[dict[str, Any], list[Change], str, str, list[Change]]] = {
    "idempotent states its retention": (
        IDEMPOTENT,
        [("/key_retention_seconds", REMOVED)],
        "/key_retention_seconds",
        "states for how many seconds",
        [],
    ),
    "retention exceeds the recovery horizon": (
        # 2 attempts of 10 + 1 s, one wait of 4 s, 3 s of transit: 29 s.
        IDEMPOTENT,
        [
            ("/retry", {"attempts_max": 2, "backoff_initial_seconds": 4}),
            ("/attempt_deadline_seconds", 10),
            ("/clock_margin_seconds", 1),
            ("/transit_seconds", 3),
            ("/key_retention_seconds", 29),
        ],
        "/key_retention_seconds",
        "reaches 29 s",
        [
            ("/retry", {"attempts_max": 2, "backoff_initial_seconds": 4}),
            ("/attempt_deadline_seconds", 10),
            ("/clock_margin_seconds", 1),
            ("/transit_seconds", 3),
            ("/key_retention_seconds", 29.001),
        ],
    ),
    "reconcilable has a probe": (
        RECONCILABLE,
        [(f"{HTTP}/probe", REMOVED)],
        "/adapter/probe",
        "has a probe",
        [],
    ),
    "reconcilable states a settlement bound": (
        RECONCILABLE,
        [("/settlement_bound_seconds", REMOVED)],
        "/settlement_bound_seconds",
        "is final",
        [("/settlement_bound_seconds", 0)],
    ),
    "the probe horizon exceeds the settlement bound": (
        RECONCILABLE,
        [("/probe", {"horizon_seconds": 60})],
        "/probe/horizon_seconds",
        "raise the horizon",
        [("/probe", {"horizon_seconds": 61})],
    ),
    "the probe names a key match": (
        RECONCILABLE,
        [(f"{HTTP}/probe/key_match", REMOVED)],
        "/adapter/probe/key_match",
        "required",
        [(f"{HTTP}/probe/key_match", {"kind": "digest", "path": "sum", "of": "key"})],
    ),
    "a digest of the body alone names no effect": (
        RECONCILABLE,
        [(f"{HTTP}/probe", {**BODY_PROBE, "url": "https://api.example.com/objects/{order}"})],
        "/adapter/probe/url",
        "name the key by {key}",
        [(f"{HTTP}/probe", BODY_PROBE)],
    ),
    "a probe compares payload fields": (
        RECONCILABLE,
        [(f"{HTTP}/probe/agree", REMOVED)],
        "/adapter/probe/agree",
        "name at least one argument",
        [],
    ),
    "agree names arguments": (
        RECONCILABLE,
        [(f"{HTTP}/probe/agree", {"/amonut": "amount"})],
        "/adapter/probe/agree",
        "/amonut is no argument",
        [(f"{HTTP}/probe/agree", {"/card/number": "last4"})],
    ),
    "a text answer is compared by lines": (
        RECONCILABLE,
        [(f"{HTTP}/probe", {**TEXT_PROBE, "agree": {"/order": "x"}, "agree_lines": {}})],
        "/adapter/probe/agree",
        "use agree_lines",
        [(f"{HTTP}/probe", TEXT_PROBE)],
    ),
    "lines belong to text answers": (
        RECONCILABLE,
        [(f"{HTTP}/probe/agree_lines", {"/order": {}})],
        "/adapter/probe/agree_lines",
        "key_match text only",
        [(f"{HTTP}/probe", TEXT_PROBE)],
    ),
    "a text answer has its content type stated": (
        RECONCILABLE,
        [(f"{HTTP}/probe", {k: v for k, v in TEXT_PROBE.items() if k != "found"})],
        "/adapter/probe/found",
        "content type of the text",
        [(f"{HTTP}/probe", TEXT_PROBE)],
    ),
    "a single object has no pages": (
        RECONCILABLE,
        [(f"{HTTP}/probe", {**TEXT_PROBE, "paging": {"kind": "link"}})],
        "/adapter/probe/paging",
        "no pages",
        [(f"{HTTP}/probe/paging", {"kind": "link"})],
    ),
    "HEAD goes with etag": (
        RECONCILABLE,
        [(f"{HTTP}/probe/method", "HEAD")],
        "/adapter/probe/method",
        "HEAD has no body",
        [(f"{HTTP}/probe", BODY_PROBE)],
    ),
    "a forbidden answer is no absence": (
        RECONCILABLE,
        [(f"{HTTP}/probe/absent", [{"statuses": [403]}])],
        "/adapter/probe/absent/0/statuses",
        "403 does not say",
        [(f"{HTTP}/probe/absent", [{"statuses": [404, 410]}])],
    ),
    "a class of statuses is no absence": (
        RECONCILABLE,
        [(f"{HTTP}/probe/absent", [{"statuses": ["4xx"]}])],
        "/adapter/probe/absent/0/statuses",
        "name the statuses",
        [(f"{HTTP}/probe/absent", [{"statuses": [404]}])],
    ),
    "a bare 200 is no absence": (
        RECONCILABLE,
        [(f"{HTTP}/probe/absent", [{"statuses": [200]}])],
        "/adapter/probe/absent/0",
        "empty_list",
        [(f"{HTTP}/probe/absent", [{"statuses": [200], "body_schema": {"maxItems": 0}}])],
    ),
    "an error has no list": (
        RECONCILABLE,
        [(f"{HTTP}/probe/absent", [{"statuses": [404], "empty_list": True}])],
        "/adapter/probe/absent/0/empty_list",
        "has no list",
        [(f"{HTTP}/probe/absent", [{"statuses": [404]}])],
    ),
    "unsafe is not looked up": (
        {**RECONCILABLE, "safety": "unsafe"},
        [],
        "/adapter/probe",
        "make the contract reconcilable",
        [(f"{HTTP}/probe", REMOVED)],
    ),
    "a retryable answer states its proof": (
        IDEMPOTENT,
        [(f"{HTTP}/answers/retryable/0/proves_no_commit", REMOVED)],
        "/adapter/answers/retryable/0/proves_no_commit",
        "proves that nothing was done",
        [(f"{HTTP}/answers/retryable", [])],
    ),
    "unsafe never retries on a 503 alone": (
        UNSAFE,
        [(f"{HTTP}/answers/retryable", [retry_rule(statuses=[503])])],
        "/adapter/answers/retryable/0/statuses",
        "503 alone does not prove",
        [(f"{HTTP}/answers/retryable", [retry_rule(statuses=[503], body_schema=FAILED)])],
    ),
    "unsafe never retries on a 408 alone": (
        UNSAFE,
        [(f"{HTTP}/answers/retryable", [retry_rule(statuses=[408])])],
        "/adapter/answers/retryable/0/statuses",
        "408 alone does not prove",
        [(f"{HTTP}/answers/retryable", [retry_rule(statuses=["4xx"])])],
    ),
    "unsafe never retries on the class 5xx": (
        UNSAFE,
        [(f"{HTTP}/answers/retryable", [retry_rule(statuses=["5xx"])])],
        "/adapter/answers/retryable/0/statuses",
        "5xx alone does not prove",
        [(f"{HTTP}/answers/retryable", [retry_rule(statuses=["5xx"], body_schema=FAILED)])],
    ),
    "a header is no proof of its own for unsafe": (
        UNSAFE,
        [(f"{HTTP}/answers/retryable", [retry_rule(statuses=[503], header={"name": "X-Shed"})])],
        "/adapter/answers/retryable/0/statuses",
        "add a body_schema",
        [(f"{HTTP}/answers/retryable", [retry_rule(statuses=[429], header={"name": "X-Shed"})])],
    ),
    "a rejection by 504 needs a statement": (
        IDEMPOTENT,
        [(f"{HTTP}/answers/rejected", [{"statuses": [504], "code": "refused"}])],
        "/adapter/answers/rejected/0/statuses",
        "504 alone",
        [(f"{HTTP}/answers/rejected", [retry_rule(statuses=[504])])],
    ),
    "a bare 2xx is no refusal": (
        IDEMPOTENT,
        [(f"{HTTP}/answers/rejected", [{"statuses": [200], "code": "refused"}])],
        "/adapter/answers/rejected/0/statuses",
        "no refusal by itself",
        [
            (
                f"{HTTP}/answers/rejected",
                [{"statuses": [200], "code": "refused", "body_schema": FAILED}],
            )
        ],
    ),
    "success is stated": (
        IDEMPOTENT,
        [(f"{HTTP}/answers/success", [])],
        "/adapter/answers/success",
        "say which answers",
        [(f"{HTTP}/answers/success", [{"statuses": [204]}])],
    ),
    "a 5xx is no success": (
        IDEMPOTENT,
        [(f"{HTTP}/answers/success", [{"statuses": [500]}])],
        "/adapter/answers/success/0/statuses",
        "2xx or 3xx",
        [(f"{HTTP}/answers/success", [{"statuses": [303]}])],
    ),
    "unsafe cannot say whose object exists": (
        UNSAFE,
        [(f"{HTTP}/answers/already_exists", [{"statuses": [409], "code": "already_exists"}])],
        "/adapter/answers/already_exists",
        "cannot find out whose",
        [(f"{HTTP}/answers/rejected", [{"statuses": [409], "code": "exists"}])],
    ),
    "idempotent places its key": (
        IDEMPOTENT,
        [(f"{HTTP}/key", REMOVED)],
        "/adapter/key",
        "says where the downstream key goes",
        [],
    ),
    "reconcilable places its key": (
        RECONCILABLE,
        [(f"{HTTP}/key", REMOVED)],
        "/adapter/key",
        "says where the downstream key goes",
        [],
    ),
    "a key in the path stands in the path": (
        IDEMPOTENT,
        [(f"{HTTP}/key", {"in": "path"}), (f"{HTTP}/url", "https://a.example.com/x{?key}")],
        "/adapter/key",
        "write {key} into the path",
        [(f"{HTTP}/key", {"in": "path"}), (f"{HTTP}/url", "https://a.example.com/x/{key}")],
    ),
    "a key in the query is there once": (
        IDEMPOTENT,
        [
            (f"{HTTP}/key", {"in": "query", "name": "key"}),
            (f"{HTTP}/url", "https://a.example.com/x?key=1"),
        ],
        "/adapter/key/name",
        "already",
        [
            (f"{HTTP}/key", {"in": "query", "name": "key"}),
            (f"{HTTP}/url", "https://a.example.com/x?keyed=1"),
        ],
    ),
    "a key in a header has the header for itself": (
        IDEMPOTENT,
        [(f"{HTTP}/headers", {"idempotency-key": "mine"})],
        "/adapter/key/name",
        "has another value",
        [(f"{HTTP}/headers", {"X-Mine": "mine"})],
    ),
    "a key in the body needs a body with members": (
        IDEMPOTENT,
        [
            (f"{HTTP}/key", {"in": "body", "pointer": "/key"}),
            (f"{HTTP}/body", {"kind": "text", "content": {"$arg": "/order"}}),
        ],
        "/adapter/key/pointer",
        "only a json or form body",
        [
            (f"{HTTP}/key", {"in": "body", "pointer": "/key"}),
            (f"{HTTP}/body", {"kind": "form"}),
        ],
    ),
    "a key in the body is no argument": (
        IDEMPOTENT,
        [(f"{HTTP}/key", {"in": "body", "pointer": "/order"})],
        "/adapter/key/pointer",
        "callers do not choose the key",
        [(f"{HTTP}/key", {"in": "body", "pointer": "/key"})],
    ),
    "a key without a pointer stands in the template": (
        IDEMPOTENT,
        [(f"{HTTP}/key", {"in": "body"})],
        "/adapter/key",
        "give the pointer",
        [
            (f"{HTTP}/key", {"in": "body"}),
            (
                f"{HTTP}/body",
                {"kind": "text", "content": {"$concat": ["UID:", {"$key": True}]}},
            ),
        ],
    ),
    "a key format carries the key": (
        IDEMPOTENT,
        [("/key", {"format": "hex", "length_max": 30})],
        "/key",
        "cannot carry the key",
        [("/key", {"format": "hex", "length_max": 31})],
    ),
    "transactional is postgres": (
        IDEMPOTENT,
        [("/safety", "transactional")],
        "/safety",
        "needs the adapter postgres",
        [("/safety", "transactional"), (HTTP, TRANSACTIONAL["adapter"])],
    ),
    "postgres is transactional": (
        TRANSACTIONAL,
        [("/safety", "unsafe")],
        "/safety",
        "its class is transactional",
        [("/safety", "transactional"), (HTTP, {"kind": "simulated", "target": "t"})],
    ),
    "a lost connection is no answer of the function": (
        TRANSACTIONAL,
        [(f"{HTTP}/rejected", [{"sqlstates": ["57P01"], "code": "gone"}])],
        "/adapter/rejected/0/sqlstates",
        "lost connection",
        [(f"{HTTP}/rejected", [{"sqlstates": ["57014"], "code": "cancelled"}])],
    ),
    "a SQLSTATE has one meaning": (
        TRANSACTIONAL,
        [(f"{HTTP}/rejected", [{"sqlstates": ["40001"], "code": "refused"}])],
        "/adapter/retryable/0/sqlstates",
        "listed twice",
        [(f"{HTTP}/rejected", [{"sqlstates": ["40"], "code": "refused"}])],
    ),
    "plain http leaves this machine by statement only": (
        IDEMPOTENT,
        [(f"{HTTP}/url", "http://api.example.com/charges")],
        "/adapter/url",
        "in the clear",
        [
            (f"{HTTP}/url", "http://api.example.com/charges"),
            (f"{HTTP}/allow_plaintext", True),
        ],
    ),
    "a look-alike of localhost is not this machine": (
        IDEMPOTENT,
        [(f"{HTTP}/url", "http://localhost.example.com/charges")],
        "/adapter/url",
        "in the clear",
        [(f"{HTTP}/url", "http://[::1]:8090/charges")],
    ),
    "all URLs have one origin": (
        RECONCILABLE,
        [(f"{HTTP}/probe/url", "https://search.example.com/charges{?key}")],
        "/adapter/probe/url",
        "another origin is another contract",
        [(f"{HTTP}/probe/url", "https://api.example.com:443/charges{?key}")],
    ),
    "a secret is no part of a URL": (
        IDEMPOTENT,
        [(f"{HTTP}/url", "https://api.example.com/charges?token=env:TOKEN")],
        "/adapter/url",
        "ends in logs",
        [(f"{HTTP}/auth", {"kind": "bearer", "token": "env:TOKEN"})],
    ),
    "a secret is no part of a body": (
        IDEMPOTENT,
        [(f"{HTTP}/body", {"kind": "json", "content": {"token": "env:TOKEN"}})],
        "/adapter/body/content",
        "would be sent as text",
        [(f"{HTTP}/headers", {"X-Token": {"secret": "env:TOKEN"}})],
    ),
    "a secret as a header's text is refused": (
        IDEMPOTENT,
        [(f"{HTTP}/headers", {"X-Token": "env:TOKEN"})],
        "/adapter/headers/X-Token",
        "written {secret: …}",
        [(f"{HTTP}/headers", {"X-Token": {"secret": "file:/run/secrets/token"}})],
    ),
    "credentials are referred to": (
        IDEMPOTENT,
        [(f"{HTTP}/headers", {"Authorization": "Bearer abc"})],
        "/adapter/headers/Authorization",
        "no part of a document",
        [(f"{HTTP}/headers", {"Authorization": {"secret": "env:T", "prefix": "Bearer "}})],
    ),
    "auth writes Authorization": (
        IDEMPOTENT,
        [
            (f"{HTTP}/headers", {"authorization": {"secret": "env:T"}}),
            (f"{HTTP}/auth", {"kind": "bearer", "token": "env:T"}),
        ],
        "/adapter/headers/authorization",
        "keep one",
        [(f"{HTTP}/auth", {"kind": "basic", "username": "me", "password": "env:T"})],
    ),
    "a user name alone is a credential": (
        IDEMPOTENT,
        [(f"{HTTP}/auth", {"kind": "basic", "username": "sk_live"})],
        "/adapter/auth/username",
        "is a credential",
        [(f"{HTTP}/auth", {"kind": "basic", "username": "env:SK"})],
    ),
    "the adapter writes its own headers": (
        IDEMPOTENT,
        [(f"{HTTP}/headers", {"Content-Length": "3"})],
        "/adapter/headers/Content-Length",
        "itself",
        [(f"{HTTP}/headers", {"X-Content": "3"})],
    ),
    "a header is there once": (
        IDEMPOTENT,
        [(f"{HTTP}/headers", {"X-A": "1", "x-a": "2"})],
        "/adapter/headers/x-a",
        "twice",
        [(f"{HTTP}/headers", {"X-A": "1", "X-B": "2"})],
    ),
    "a header template has plain expressions": (
        IDEMPOTENT,
        [(f"{HTTP}/headers", {"X-A": {"template": "o={+order}"}})],
        "/adapter/headers/X-A",
        "{name} expressions only",
        [(f"{HTTP}/headers", {"X-A": {"template": "o={order}; k={key}"}})],
    ),
    "a header template names arguments": (
        IDEMPOTENT,
        [(f"{HTTP}/headers", {"X-A": {"template": "{odrer}"}})],
        "/adapter/headers/X-A",
        "{odrer} is no argument",
        [(f"{HTTP}/headers", {"X-A": {"template": "{order}"}})],
    ),
    "a URL names arguments": (
        IDEMPOTENT,
        [(f"{HTTP}/url", "https://api.example.com/{odrer}")],
        "/adapter/url",
        "{odrer} is no argument",
        [(f"{HTTP}/url", "https://api.example.com/{order}/{card.number}")],
    ),
    "a body template names arguments": (
        IDEMPOTENT,
        [(f"{HTTP}/body", {"kind": "json", "content": {"a": {"$arg": "/odrer"}}})],
        "/adapter/body/content",
        "$arg /odrer is no argument",
        [(f"{HTTP}/body", {"kind": "json", "content": {"a": {"$arg": "/order"}}})],
    ),
    "a template leaf stands alone": (
        IDEMPOTENT,
        [(f"{HTTP}/body", {"kind": "json", "content": {"$arg": "/order", "more": 1}})],
        "/adapter/body/content",
        "with nothing beside it",
        [
            (
                f"{HTTP}/body",
                {"kind": "json", "content": {"$literal": {"$arg": "/order", "more": 1}}},
            )
        ],
    ),
    "a form is an object": (
        IDEMPOTENT,
        [(f"{HTTP}/body", {"kind": "form", "content": ["a"]})],
        "/adapter/body/content",
        "name its fields",
        [(f"{HTTP}/body", {"kind": "form", "content": {"a": ["b"]}})],
    ),
    "a text body is a text": (
        IDEMPOTENT,
        [(f"{HTTP}/body", {"kind": "text", "content": {"a": 1}})],
        "/adapter/body/content",
        "a text body is a text",
        [(f"{HTTP}/body", {"kind": "text", "content": "x"})],
    ),
    "arguments are an object": (
        IDEMPOTENT,
        [("/arguments", {"type": "array"})],
        "/arguments",
        "type: object",
        [("/arguments", {"type": "object"})],
    ),
    "a sensitive pointer leads somewhere": (
        IDEMPOTENT,
        [("/sensitive", ["/card/nubmer"])],
        "/sensitive/0",
        "a misspelt pointer would show",
        [("/sensitive", ["/card/number", "/lines/*/note"])],
    ),
    "what is required is not forbidden": (
        IDEMPOTENT,
        [("/forbidden", ["/order"])],
        "/forbidden/0",
        "required by the schema",
        [("/forbidden", ["/idempotency_key"])],
    ),
    "not everything is forbidden": (
        IDEMPOTENT,
        [("/forbidden", [""])],
        "/forbidden/0",
        "would forbid all",
        [("/forbidden", [])],
    ),
    "a single object is no list": (
        RECONCILABLE,
        [(f"{HTTP}/probe", {**TEXT_PROBE, "absent": [{"statuses": [200], "empty_list": True}]})],
        "/adapter/probe/absent/0/empty_list",
        "is no list",
        [(f"{HTTP}/probe", TEXT_PROBE)],
    ),
    "a key in the body has a name": (
        IDEMPOTENT,
        [(f"{HTTP}/key", {"in": "body", "pointer": ""})],
        "/adapter/key/pointer",
        "names a member",
        [(f"{HTTP}/key", {"in": "body", "pointer": "/meta/key"})],
    ),
    "the back-off rises to its cap": (
        IDEMPOTENT,
        [("/retry", {"backoff_initial_seconds": 5, "backoff_cap_seconds": 4})],
        "/retry/backoff_cap_seconds",
        "not below",
        [("/retry", {"backoff_initial_seconds": 5, "backoff_cap_seconds": 5})],
    ),
    "the probe schedule rises to its cap": (
        RECONCILABLE,
        [("/probe", {"initial_seconds": 5, "cap_seconds": 4})],
        "/probe/cap_seconds",
        "not below",
        [("/probe", {"initial_seconds": 5, "cap_seconds": 5})],
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_refuses_its_breach_and_accepts_the_neighbour(rule: str) -> None:
    base, breach, place, words, neighbour = RULES[rule]
    problems = problems_in(base, *breach)
    assert words in problems.get(place, f"nothing at {place}, only {problems}")
    assert len(problems) == 1, "a breach of one rule is one problem"
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
