"""The `webhook` section of a contract: what it needs before a delivery can prove anything."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import ValidationError

from effect_broker.protocol.webhook import DeliveryStatus
from effect_contracts.catalog import catalog_documents
from effect_contracts.document import ContractDocument
from effect_contracts.webhook_settings import HmacScheme, WebhookScheme, WebhookSettings

from .documents import (
    IDEMPOTENT,
    REMOVED,
    TRANSACTIONAL,
    UNSAFE,
    changed,
    document,
    problems_in,
)

SECTION: dict[str, Any] = {
    "scheme": {"kind": "stripe"},
    "secrets": ["env:EFFECT_BROKER_WEBHOOK_KEY_ACME"],
    "delivery_id": "id",
    "committed": "type == 'charge.succeeded'",
    "failed": "type == 'charge.failed'",
    "key_match": {"kind": "field", "path": "data.object.metadata.key"},
    "agree": {"/amount": "data.object.amount"},
    "extraction": {"external_id": "data.object.id"},
}
WITH = changed(IDEMPOTENT, ("/webhook", SECTION))
PLACE = "/webhook"
HMAC = {"kind": "hmac", "header": "X-Sign"}
TIMED = {**HMAC, "content": "{timestamp}.{body}", "timestamp_header": "X-Time"}
KEYLESS = changed(WITH, ("/safety", "unsafe"), ("/adapter/key", REMOVED))

# As in the table of the other rules: the valid document, the breach, place and words, and the
# nearest change that is accepted.
Change = tuple[str, Any]
RULES: dict[str, tuple[dict[str, Any], list[Change], str, str, list[Change]]] = {
    "a transactional effect has no webhook": (
        TRANSACTIONAL,
        [(PLACE, {**SECTION, "agree": {"/amount": "amount"}})],
        PLACE,
        "in the same commit",
        [],
    ),
    "something counts": (
        WITH,
        [(f"{PLACE}/committed", REMOVED), (f"{PLACE}/failed", REMOVED)],
        f"{PLACE}/committed",
        "which deliveries count",
        [(f"{PLACE}/committed", REMOVED)],
    ),
    "it finds its effect": (
        WITH,
        [
            (f"{PLACE}/committed", REMOVED),
            (f"{PLACE}/key_match", REMOVED),
            (f"{PLACE}/extraction", REMOVED),
        ],
        f"{PLACE}/key_match",
        "where a delivery has our key",
        [(f"{PLACE}/committed", REMOVED), (f"{PLACE}/key_match", REMOVED)],
    ),
    "a commit is proved by our key": (
        WITH,
        [(f"{PLACE}/key_match", REMOVED)],
        f"{PLACE}/key_match",
        "only where it shows our key",
        [],
    ),
    "a commit is proved by the payload": (
        WITH,
        [(f"{PLACE}/agree", REMOVED)],
        f"{PLACE}/agree",
        "at least one argument",
        [(f"{PLACE}/agree", REMOVED), (f"{PLACE}/committed", REMOVED)],
    ),
    "agree names arguments": (
        WITH,
        [(f"{PLACE}/agree", {"/amonut": "amount"})],
        f"{PLACE}/agree",
        "/amonut is no argument",
        [(f"{PLACE}/agree", {"/card/number": "last4"})],
    ),
    "the target was told the key": (
        changed(KEYLESS, (PLACE, REMOVED)),
        [(PLACE, SECTION)],
        f"{PLACE}/key_match",
        "does not carry our key",
        [(PLACE, SECTION), ("/adapter/headers", {"X-Ref": {"template": "ref-{key}"}})],
    ),
    "all of the body is signed": (
        WITH,
        [(f"{PLACE}/scheme", {**HMAC, "content": "v0"})],
        f"{PLACE}/scheme/content",
        "{body} once",
        [(f"{PLACE}/scheme", {**HMAC, "content": "v0:{body}"})],
    ),
    "all of the body is signed, and once": (
        WITH,
        [(f"{PLACE}/scheme", {**HMAC, "content": "{body}.{body}"})],
        f"{PLACE}/scheme/content",
        "{body} once",
        [],
    ),
    "the body comes last": (
        WITH,
        [(f"{PLACE}/scheme", {**HMAC, "content": "{body}!"})],
        f"{PLACE}/scheme/content",
        "at the end",
        [(f"{PLACE}/scheme", HMAC)],
    ),
    "a time counts only if it is signed": (
        WITH,
        [(f"{PLACE}/scheme", {**HMAC, "timestamp_header": "X-Time"})],
        f"{PLACE}/scheme/timestamp_header",
        "only if it is signed",
        [(f"{PLACE}/scheme", TIMED)],
    ),
    "a signed time has a header": (
        WITH,
        [(f"{PLACE}/scheme", {**TIMED, "timestamp_header": None})],
        f"{PLACE}/scheme/timestamp_header",
        "only if it is signed",
        [],
    ),
    "one time is signed": (
        WITH,
        [(f"{PLACE}/scheme", {**TIMED, "content": "{timestamp}{timestamp}{body}"})],
        f"{PLACE}/scheme/content",
        "{timestamp} once",
        [],
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_refuses_its_breach_and_accepts_the_neighbour(rule: str) -> None:
    base, breach, place, words, neighbour = RULES[rule]
    problems = problems_in(base, *breach)
    assert list(problems) == [place], "a breach of one rule is one problem, at its place"
    assert words in problems[place]
    document(base, *neighbour)


_BODY, _HEADERS, _URL = "/adapter/body", "/adapter/headers", "/adapter/url"


@pytest.mark.parametrize(
    "change",
    [
        (_BODY, {"kind": "json", "content": {"ref": {"$key": True}}}),
        (_BODY, {"kind": "text", "content": {"$concat": ["ref ", {"$key": True}]}}),
        (_HEADERS, {"X-Plain": "x", "X-Ref": {"template": "{key}"}}),
        (_URL, "https://api.example.com/charges/{key}"),
        (_URL, "https://api.example.com/charges{?key}"),
    ],
)
def test_the_target_is_told_the_key_in_body_header_or_url(change: Change) -> None:
    document(KEYLESS, change)


@pytest.mark.parametrize(
    "change",
    [
        (_BODY, {"kind": "none"}),
        (_BODY, {"kind": "json"}),
        (_BODY, {"kind": "json", "content": {"ref": {"$arg": "/order"}}}),
        (_HEADERS, {"X-Plain": "{key}", "X-Ref": {"template": "{order}"}}),
        (_URL, "https://api.example.com/charges/{order}"),
    ],
)
def test_a_request_without_the_key_has_not_told_it(change: Change) -> None:
    (words,) = problems_in(KEYLESS, change).values()
    assert "does not carry our key" in words


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (f"{PLACE}/secrets", [], "at least 1"),
        (f"{PLACE}/secrets", ["env:A"] * 6, "at most 5"),
        (f"{PLACE}/secrets/0", "whsec_in_the_document", "pattern"),
        (f"{PLACE}/scheme/kind", "pgp", "kind must be one of"),
        (f"{PLACE}/scheme/tolerance_seconds", 0, "greater than 0"),
        (f"{PLACE}/scheme/tolerance_seconds", 1e6, "86400"),
        (f"{PLACE}/scheme/header", "X", "unknown field"),
        (f"{PLACE}/committed", "type ==", "not a JMESPath expression"),
        (f"{PLACE}/nonsense", 1, "unknown field"),
    ],
)
def test_a_wrong_field_is_named_by_place_and_remedy(place: str, value: Any, words: str) -> None:
    problems = problems_in(WITH, (place, value))
    parent = place.rpartition("/")[0]
    found = [problems[p] for p in problems if p == parent or p.startswith(place)]
    assert found, problems
    assert words in found[0]


def test_a_section_is_taken_up_to_its_bounds_and_no_further() -> None:
    long, many = "x" * (128 - len("{body}")) + "{body}", {f"/a{n}": "a" for n in range(32)}
    HmacScheme(kind="hmac", header="X-Sign", content=long)
    with pytest.raises(ValidationError, match="at most 128 characters"):
        HmacScheme(kind="hmac", header="X-Sign", content="x" + long)
    section = {**SECTION, "secrets": ["env:A"] * 5, "agree": many}
    WebhookSettings.model_validate_json(json.dumps(section))
    with pytest.raises(ValidationError, match="at most 32 items"):
        WebhookSettings.model_validate_json(json.dumps(section | {"agree": {**many, "/b": "b"}}))


def test_a_secret_in_the_document_is_not_repeated() -> None:
    assert "hunter2" not in str(problems_in(WITH, (f"{PLACE}/secrets/0", "whsec_hunter2")))


@pytest.mark.parametrize("base", [IDEMPOTENT, UNSAFE])
def test_a_document_without_the_section_is_stored_as_before(base: dict[str, Any]) -> None:
    stored = json.loads(document(base).canonical())
    assert "webhook" not in stored


# Documents of a release that knew no webhooks; a digest that moves would move every intent's.
DIGESTS = {
    "demo-charge-unsafe": "4163ef4b7ba03f1f4263ce089ffc5db260313b33223832f1229719dfb5e88c0e",
    "demo-charge-idempotent": "5387a22a2263d52ad7075f9efbde28fcbd2670b5f32c880c1677d1fe7429efc1",
    "caldav-event": "5a7d78a31dc871fbdb7ca3dd60fe42d56729d3c44afd4827a5abe7fe4ede89a5",
}


@pytest.mark.parametrize("name", DIGESTS)
def test_the_digests_of_older_documents_have_not_moved(name: str) -> None:
    assert catalog_documents()[name].digest().hex() == DIGESTS[name]


def test_the_section_survives_storing_with_its_defaults() -> None:
    read = document(WITH)
    again = ContractDocument.from_canonical(read.canonical())
    assert again.webhook == read.webhook
    stored = json.loads(read.canonical())["webhook"]
    assert stored["scheme"] == {"kind": "stripe", "tolerance_seconds": 300}
    assert stored["key_match"]["prefix"] == ""


# The documentation -------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "webhooks.md").read_text("utf-8")


def test_the_documented_section_is_valid() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    section = yaml.safe_load(example)["webhook"]
    currency = {"/arguments/properties/currency": {"type": "string"}}
    read = document(WITH, *currency.items(), (PLACE, section))
    assert read.webhook is not None


def test_every_field_of_the_section_and_its_schemes_is_documented() -> None:
    (union, _) = get_args(WebhookScheme)
    names = set(WebhookSettings.model_fields)
    for scheme in get_args(union):
        names |= set(scheme.model_fields)
        assert f"`{get_args(scheme.model_fields['kind'].annotation)[0]}`" in PAGE
    assert not {name for name in names if not re.search(rf"\b{name}\b", PAGE)}


def test_every_status_of_a_delivery_is_documented() -> None:
    assert not {status for status in DeliveryStatus if f"`{status.value}`" not in PAGE}
