"""Rules of `sqs`, `s3`, `nats` and `smtp`: what each refuses, and the nearest that it accepts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from effect_contracts.catalog import catalog_documents

from .documents import REMOVED, document, problems_in

CATALOG = catalog_documents()


def _value(name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(CATALOG[name].canonical())
    return value


SQS, S3 = _value("sqs-order-event"), _value("s3-export")
NATS, MAIL, ARCHIVED = (
    _value(name) for name in ("nats-order-event", "mail-send", "mail-send-archived")
)
LOCAL_QUEUE = "http://127.0.0.1:4566/123456789012/orders.fifo"
Change = tuple[str, Any]

# Each row: the valid document, what breaks a rule, the place and words of the problem, and the
# change nearest to it that is accepted.
RULES: dict[str, tuple[dict[str, Any], list[Change], str, str, list[Change]]] = {
    "a queue is FIFO": (
        SQS,
        [("/adapter/queue_url", "https://sqs.example.com/123456789012/orders")],
        "/adapter/queue_url",
        "ends with .fifo",
        [("/adapter/queue_url", "https://sqs.example.com/123456789012/orders.fifo")],
    ),
    "a queue is the account's": (
        SQS,
        [("/adapter/queue_url", "https://sqs.example.com/210987654321/orders.fifo")],
        "/adapter/queue_url",
        "account",
        [("/adapter/queue_url", "https://sqs.example.com/123456789012/others.fifo")],
    ),
    "a queue elsewhere is reached by TLS": (
        SQS,
        [("/adapter/queue_url", "http://sqs.example.com/123456789012/orders.fifo")],
        "/adapter/queue_url",
        "in the clear",
        [("/adapter/queue_url", LOCAL_QUEUE)],
    ),
    "no argument chooses a queue": (
        SQS,
        [("/adapter/queue_url", "https://sqs.example.com/123456789012/{order}.fifo")],
        "/adapter/queue_url",
        "fixed",
        [],
    ),
    "SQS keeps an id for five minutes": (
        SQS,
        [("/key_retention_seconds", 301)],
        "/key_retention_seconds",
        "300 s",
        [("/key_retention_seconds", 300)],
    ),
    "an id has 128 characters": (
        SQS,
        [("/key/length_max", 129)],
        "/key/length_max",
        "128",
        [("/key/length_max", 128)],
    ),
    "a queue cannot be asked": (
        SQS,
        [("/safety", "reconcilable"), ("/settlement_bound_seconds", 5)],
        "/adapter",
        "has a probe",
        [("/safety", "unsafe")],
    ),
    "a group is made of arguments": (
        SQS,
        [("/adapter/group", "order-{nothing}")],
        "/adapter/group",
        "{nothing}",
        [("/adapter/group", "order-{order}-{key}")],
    ),
    "an account of AWS is twelve digits": (
        S3,
        [("/account", "acme")],
        "/account",
        "12 digits",
        [("/account", "210987654321")],
    ),
    "a create is refused and not replayed": (
        S3,
        [("/safety", "idempotent"), ("/key_retention_seconds", 86400)],
        "/safety",
        "reconcilable",
        [],
    ),
    "an endpoint has no path": (
        S3,
        [("/adapter/endpoint", "https://s3.example.com/path")],
        "/adapter/endpoint",
        "scheme, host and port",
        [("/adapter/endpoint", "https://s3.example.com")],
    ),
    "an endpoint elsewhere is reached by TLS": (
        S3,
        [("/adapter/endpoint", "http://s3.example.com")],
        "/adapter/endpoint",
        "in the clear",
        [("/adapter/endpoint", "http://127.0.0.1:9000")],
    ),
    "a bucket with a dot needs an endpoint": (
        S3,
        [("/adapter/bucket", "acme.exports")],
        "/adapter/bucket",
        "dot",
        [
            ("/adapter/bucket", "acme.exports"),
            ("/adapter/endpoint", "https://s3.eu-central-1.amazonaws.com"),
        ],
    ),
    "an object's name is a path": (
        S3,
        [("/adapter/object", "exports/{+report}.json")],
        "/adapter/object",
        "path of a URL",
        [("/adapter/object", "exports/{report}/{key}.json")],
    ),
    "an object's name is made of arguments": (
        S3,
        [("/adapter/object", "exports/{nothing}.json")],
        "/adapter/object",
        "{nothing}",
        [],
    ),
    "an object is made of arguments": (
        S3,
        [("/adapter/body/content", {"$arg": "/nothing"})],
        "/adapter/body/content",
        "/nothing",
        [("/adapter/body/content", {"$arg": "/rows"})],
    ),
    "a server of NATS elsewhere is reached by TLS": (
        NATS,
        [("/adapter/server", "nats://nats.example.com:4222")],
        "/adapter/server",
        "in the clear",
        [("/adapter/server", "nats://127.0.0.1:4222")],
    ),
    "a stream cannot be asked": (
        NATS,
        [("/safety", "reconcilable"), ("/settlement_bound_seconds", 5)],
        "/adapter",
        "has a probe",
        [("/safety", "unsafe")],
    ),
    "a password of mail goes over TLS": (
        MAIL,
        [("/adapter/security", "none")],
        "/adapter/security",
        "in the clear",
        [("/adapter/security", "none"), ("/adapter/host", "127.0.0.1")],
    ),
    "a password of a mailbox goes over TLS": (
        ARCHIVED,
        [("/adapter/mailbox/security", "none")],
        "/adapter/mailbox/security",
        "in the clear",
        [("/adapter/mailbox/security", "starttls")],
    ),
    "mail is never idempotent": (
        MAIL,
        [("/safety", "idempotent"), ("/key_retention_seconds", 86400)],
        "/safety",
        "unsafe",
        [],
    ),
    "mail is made of arguments": (
        MAIL,
        [("/adapter/subject", {"$arg": "/nothing"})],
        "/adapter/subject",
        "/nothing",
        [("/adapter/subject", {"$concat": ["Re: ", {"$arg": "/subject"}]})],
    ),
    "a template of mail is one": (
        MAIL,
        [("/adapter/text", {"$arg": 7})],
        "/adapter/text",
        "JSON Pointer",
        [("/adapter/text", "fixed")],
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_refuses_its_breach_and_accepts_the_neighbour(rule: str) -> None:
    base, breach, place, words, neighbour = RULES[rule]
    problems = problems_in(base, *breach)
    assert list(problems) == [place], "a breach of one rule is one problem, at its place"
    assert words in problems[place]
    document(base, *neighbour)


@pytest.mark.parametrize("base", [SQS, S3, NATS, MAIL, ARCHIVED], ids=lambda base: base["name"])
def test_no_setting_turns_the_verification_of_tls_off(base: dict[str, Any]) -> None:
    for name in ("verify", "validate_certs", "insecure", "tls"):
        assert problems_in(base, (f"/adapter/{name}", False))


@pytest.mark.parametrize(
    ("base", "place"),
    [
        (SQS, "/adapter/credentials/secret_access_key"),
        (S3, "/adapter/credentials/access_key_id"),
        (NATS, "/adapter/auth/password"),
        (MAIL, "/adapter/login/password"),
        (ARCHIVED, "/adapter/mailbox/login/password"),
    ],
)
def test_a_secret_is_a_reference_and_is_not_repeated(base: dict[str, Any], place: str) -> None:
    problems = problems_in(base, (place, "hunter2"))
    assert problems
    assert "hunter2" not in str(problems)


def test_credentials_of_aws_cannot_be_left_out() -> None:
    """Without them there would be a default to look for."""
    for base in (SQS, S3):
        assert problems_in(base, ("/adapter/credentials", REMOVED))
