"""The contract document: what is read, what is refused with which words, what an effect gets."""

from __future__ import annotations

import json
import re
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from effect_contracts.bounded_schema import CheckTooCostly, Work
from effect_contracts.catalog import (
    SCHEMA_NAME,
    catalog_documents,
    catalog_path,
    catalog_texts,
)
from effect_contracts.document import (
    ContractDocument,
    contract_json_schema,
    field_names,
    with_origin,
)
from effect_contracts.document_rules import recovery_horizon_seconds
from effect_contracts.errors import ContractInvalid, InvalidArguments
from effect_contracts.expressions import UrlExpansionError, expand_url, search
from effect_contracts.facts import Policy, SafetyClass
from effect_contracts.http_settings import HttpSettings, statuses_match

from .documents import (
    IDEMPOTENT,
    RECONCILABLE,
    REMOVED,
    TRANSACTIONAL,
    UNSAFE,
    changed,
    document,
    problems_in,
)

GOOD: dict[str, Any] = {"order": "o-1", "amount": 5}


def refusal(text: str) -> ContractInvalid:
    with pytest.raises(ContractInvalid) as refused:
        ContractDocument.parse_yaml(text)
    return refused.value


# Reading YAML -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("# only a comment\n", "empty"),
        ("name: [", "line 2"),
        ("name: a\nname: b\n", "line 2, column 1: this member is there twice"),
        ('"name": a\n"\\u006eame": b\n', "twice"),
        ("name: a\n---\nname: b\n", "second document"),
        ("version: 2026-11-29\n", "line 1, column 10: a date"),
        ("version: 2026-11-29T10:00:00Z\n", "a date"),
        ("version: .inf\n", "infinities"),
        ("version: .NaN\n", "infinities"),
        ("version: 90071992547409931234\n", "2^53-1"),
        ("version: 1e20\n", "2^53-1"),
        ("version: !!python/object:os.system x\n", "tags"),
        ("version: !!binary aGk=\n", "tags"),
        ("version: !!set {a}\n", "tags"),
        ("a: &x {b: 1}\n<<: *x\n", "merge"),
        ("1: a\n", "member name is a text"),
        ("? [a]\n: b\n", "member name is a text"),
        ("a: *nothing\n", "alias"),
        ("a: &x [*x]\n", "alias"),
        ("a: " + "[" * 100 + "]" * 100, "deeper than 64"),
        ("a: " + "[" * 120_000, "nest"),
        ("a: \0", "U+0000"),
        ("a: \ud800", "valid Unicode"),
        ("a: \x07", "not valid YAML"),
        ("\t- a: b\n\t\tc", "not valid YAML"),
        ("- a\n", "is an object"),
        ("just text", "is an object"),
        ("a: " + "x" * 270_000, "larger than 262144 bytes"),
    ],
)
def test_text_that_is_no_json_document_is_refused_with_what_to_do(text: str, words: str) -> None:
    error = refusal(text)
    assert words in error.detail
    assert error.__cause__ is None


def test_an_alias_bomb_ends_at_the_limit_and_quickly() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    began = time.monotonic()
    assert "more than 20000 values" in refusal("\n".join(lines)).detail
    assert time.monotonic() - began < 1


def test_a_chain_of_aliases_cannot_nest_deeper_than_the_limit() -> None:
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 80)]
    assert "deeper than 64" in refusal("\n".join(lines)).detail


def test_an_honest_alias_is_read() -> None:
    text = json.dumps(IDEMPOTENT).replace('"statuses": [200]', '"statuses": &s [200]')
    text = text.replace('"statuses": [429]', '"statuses": *s', 1)
    assert "no refusal by itself" in str(refusal(text).extras)  # the alias became 200


@pytest.mark.parametrize("word", ["no", "on", "yes", "017", "1_000", "0x1F", "1:30", "+1", "True"])
def test_a_plain_word_is_never_silently_another_type(word: str) -> None:
    text = json.dumps(IDEMPOTENT).replace('"acct_1"', word)
    assert ContractDocument.parse_yaml(text).account == word


def test_items_that_are_refused_are_not_missed_as_well() -> None:
    place = "/adapter/answers/retryable/0/statuses"
    assert list(problems_in(IDEMPOTENT, (place, ["429"]))) == [f"{place}/0"]
    assert problems_in(IDEMPOTENT, (place, [])) == {place: "must have at least 1 item"}


# Types and fields -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ("/nonsense", 1, "unknown field; remove it"),
        ("/key_retention_second", 1, "did you mean 'key_retention_seconds'?"),
        ("/adapter/answers/sucess", [], "did you mean 'success'?"),
        ("/adapter/answers/retryable/0/proves", True, "did you mean 'proves_no_commit'?"),
        ("/version", 1.0, "put it in quotes"),
        ("/version", None, "must be a text"),
        ("/safety", "exactly_once", "'idempotent'"),
        ("/attempt_deadline_seconds", True, "must be a number"),
        ("/attempt_deadline_seconds", "30", "must be a number"),
        ("/attempt_deadline_seconds", "PT30S", "must be a number"),
        ("/attempt_deadline_seconds", 0, "greater than 0"),
        ("/attempt_deadline_seconds", 3601, "3600"),
        ("/transit_seconds", -1, "greater than or equal to 0"),
        ("/key_retention_seconds", 1e9, "315360000"),
        ("/retry/attempts_max", 1.5, "whole number"),
        ("/retry/attempts_max", True, "whole number"),
        ("/retry/attempts_max", 0, "greater than or equal to 1"),
        ("/retry/backoff_factor", 0.5, "greater than or equal to 1"),
        ("/account", "", "pattern"),
        ("/account", "a b", "pattern"),
        ("/adapter/kind", "soap", "kind must be one of"),
        ("/adapter/kind", REMOVED, "member kind is required"),
        ("/adapter/url", REMOVED, "required"),
        ("/adapter/key/in", "cookie", "in must be one of"),
        ("/adapter/method", "GET", "'POST'"),
        ("/adapter/headers/X-A", "a\r\nX: 1", "pattern"),
        ("/adapter/headers/X-A", "a\u00e9", "pattern"),
        ("/adapter/headers/X-A", "a ", "pattern"),
        ("/adapter/headers/X-A", 5, "a header value is a text"),
        ("/adapter/headers/X-A", {"secret": "vault:x"}, "pattern"),
        ("/adapter/headers/X-A", {"secret": "file:/run/../etc/passwd"}, "pattern"),
        ("/adapter/headers/X-A", {"secret": "file:relative"}, "pattern"),
        ("/adapter/headers/X-A", {"secret": "env:A\n"}, "pattern"),
        ("/adapter/answers/success/0/statuses", [], "at least 1"),
        ("/adapter/answers/success/0/statuses", [200.0], "whole number"),
        ("/adapter/answers/success/0/statuses", [99], "200"),
        ("/adapter/answers/success/0/statuses", ["200"], "'2xx'"),
        ("/adapter/answers/success/0/body_schema", {"type": "strng"}, "keyword"),
        ("/adapter/answers/retryable/0/code", "Too Many", "pattern"),
        ("/adapter/extraction/external_id", "data[", "not a JMESPath expression"),
        ("/adapter/extraction/external_id", "lenght(@)", "no function 'lenght'"),
        ("/adapter/extraction/external_id", "length()", "takes 1 argument"),
        ("/adapter/extraction/external_id", "(" * 900, "not a JMESPath expression"),
        ("/sensitive/0", "card/number", "begins with '/'"),
        ("/sensitive/0", "/card~2", "~0"),
        ("/adapter/response_bytes_max", 10, "1024"),
    ],
)
def test_a_wrong_field_is_named_by_place_and_remedy(place: str, value: Any, words: str) -> None:
    base = changed(IDEMPOTENT, ("/sensitive", ["/order"]))
    problems = problems_in(base, (place, value))
    parent = place.rpartition("/")[0]
    found = [problems[p] for p in problems if p in (place, parent) or p.startswith(f"{place}/")]
    assert found, f"nothing at {place}, only {problems}"
    assert words in found[0]


def test_every_wrong_field_is_listed() -> None:
    problems = problems_in(
        IDEMPOTENT, ("/version", 1), ("/nonsense", 1), ("/adapter/url", 3), ("/account", None)
    )
    assert set(problems) == {"/version", "/nonsense", "/adapter/url", "/account"}


def test_a_refusal_repeats_no_value_of_the_document() -> None:
    problems = problems_in(
        IDEMPOTENT,
        ("/adapter/headers", {"Authorization": "Bearer hunter2", "X-A": "hunter2\n"}),
        ("/account", "hunter2 hunter2"),
        ("/adapter/url", "ftp://hunter2/"),
    )
    assert "hunter2" not in str(problems)


# URL templates ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://a.example.com/", "begins with https://"),
        ("//a.example.com/", "begins with https://"),
        ("https://{order}/x", "host"),
        ("https://api.{order}/x", "host"),
        ("https://api.example.com{order}", "the host is fixed"),
        ("https://api.example.com:{order}/", "host"),
        ("{order}://api.example.com/", "begins with https://"),
        ("https://me:pw@api.example.com/", "no user name"),
        ("https://api.example.com/x#y", "fragment"),
        ("https://api.example.com/{#order}", "fragment"),
        ("https://api.example.com/{+order}", "'+'"),
        ("https://api.example.com/{order", "not closed"),
        ("https://api.example.com/{}", "not an expression"),
        ("https://api.example.com/{a b}", "without blanks"),
        ("https://api.example.com/a/../b", "'.' or '..'"),
        ("https://api.example.com/a/%2e%2E/b", "'.' or '..'"),
        ("https://api.example.com/\u00e9", "printable ASCII"),
        ("https://api.example.com/a\r\nb", "printable ASCII"),
        ("https://\u0430pi.example.com/", "printable ASCII"),
        ("https://api.example.com:99999/", "port"),
        ("https://api.example.com:0/", "port"),
        ("https://[::1/", "host"),
        ("https://api.example.com\\@evil.example/", "no user name"),
        ("https:///x", "host"),
    ],
)
def test_a_url_that_arguments_could_bend_is_refused(url: str, words: str) -> None:
    assert words in problems_in(IDEMPOTENT, ("/adapter/url", url))["/adapter/url"]


def test_arguments_fill_a_url_escaped() -> None:
    template = "https://a.example.com/c/{card.number}{?order,amount,key}"
    arguments = {"card": {"number": "4/2?x=1#é"}, "order": "a&b=c", "amount": 5.0}
    assert expand_url(template, arguments, "K") == (
        "https://a.example.com/c/4%2F2%3Fx%3D1%23%C3%A9?order=a%26b%3Dc&amount=5&key=K"
    )


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("..", "url_dot_segment"),
        (".", "url_dot_segment"),
        ("", "url_variable_missing"),
        (None, "url_variable_missing"),
        ({"a": 1}, "url_variable_not_scalar"),
        (["a"], "url_variable_not_scalar"),
    ],
)
def test_an_argument_cannot_climb_in_a_path(value: Any, code: str) -> None:
    with pytest.raises(UrlExpansionError) as refused:
        expand_url("https://a.example.com/c/{order}/cancel", {"order": value}, "K")
    assert refused.value.code == code


@given(st.text() | st.integers() | st.booleans())
def test_no_argument_changes_origin_or_shape_of_a_url(value: Any) -> None:
    template = "https://a.example.com/c/{order}/d{?amount}"
    try:
        url = expand_url(template, {"order": value, "amount": value}, "K")
    except UrlExpansionError:
        return
    head, _, query = url.partition("?")
    assert head.startswith("https://a.example.com/c/")
    assert head.endswith("/d")
    assert head.count("/") == 5
    assert query.startswith("amount=")
    assert "&" not in query
    assert url.isascii()


# JSON Schemas -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "strng"}, "draft 2020-12"),
        ({"$ref": "https://evil.example/schema"}, "only local references"),
        ({"$ref": "other.json"}, "only local references"),
        ({"properties": {"const": {"$ref": "file:///etc/passwd"}}}, "only local references"),
        ({"$dynamicRef": "https://evil.example/#x"}, "only local references"),
        ({"$ref": "#/$defs/none"}, "leads nowhere"),
        ({"$ref": "#none"}, "leads nowhere"),
        ({"$ref": "#"}, "leads back to itself"),
        ({"properties": {"a": {"allOf": [{"$ref": "#/properties/a"}]}}}, "leads back to itself"),
        ({"$id": "https://x.example/"}, "leave $id out"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "$schema"),
        ({"properties": {"a": {"pattern": "("}}}, "regular expression"),
        ({"patternProperties": {"[": True}}, "regular expression"),
        ({"properties": {"a": {"pattern": "a{99999999999}"}}}, "regular expression"),
        ({"properties": {"a": {"pattern": "(?!a)b"}}}, "linear time"),
        ({"additionalProperties": {"patternProperties": {r"(a)\1": True}}}, "linear time"),
        ({"patternProperties": {"a": True}, "unevaluatedProperties": False}, "do not go together"),
        ({"$ref": "#/examples/0", "examples": [{"pattern": "("}]}, "leads to no schema"),
    ],
)
def test_a_schema_that_could_fail_later_is_refused_now(schema: Any, words: str) -> None:
    problems = problems_in(IDEMPOTENT, ("/arguments", {"type": "object", **schema}))
    assert words in problems["/arguments"]


def test_a_schema_may_refer_to_itself_below_and_hold_references_as_data() -> None:
    tree = {
        "type": "object",
        "properties": {
            "name": {"const": {"$ref": "https://data.example/"}},
            "$ref": {"type": "string"},
            "below": {"$ref": "#"},
            "other": {"$ref": "#/$defs/text"},
        },
        "$defs": {"text": {"type": "string"}},
    }
    read = document(IDEMPOTENT, ("/arguments", tree))
    read.check_arguments({"$ref": "x", "below": {"below": {"other": "y"}}})
    with pytest.raises(InvalidArguments):
        read.check_arguments({"below": {"below": {"other": 1}}})


# Canonical form and digest ----------------------------------------------------------------------


def test_order_spelling_and_comments_do_not_change_the_digest() -> None:
    first = document(IDEMPOTENT)
    turned = dict(reversed(IDEMPOTENT.items())) | {"key_retention_seconds": 86400.0}
    second = ContractDocument.parse_yaml("# a comment\n" + json.dumps(turned, indent=3))
    assert first == second
    assert first.digest() == second.digest()
    assert hash(first) == hash(second)


def test_defaults_are_pinned_by_the_digest_and_absent_options_are_not() -> None:
    read = document(IDEMPOTENT)
    assert document(IDEMPOTENT, ("/retry/attempts_max", 3)).digest() == read.digest()
    assert document(IDEMPOTENT, ("/retry/attempts_max", 4)).digest() != read.digest()
    stored = json.loads(read.canonical())
    assert stored["retry"]["attempts_max"] == 3
    assert not {"settlement_bound_seconds", "sensitive", "description"} & stored.keys()
    assert "probe" not in stored["adapter"]


def test_null_inside_a_schema_is_kept() -> None:
    schema = {"type": "object", "properties": {"order": {"enum": [None, "a"], "default": None}}}
    read = document(IDEMPOTENT, ("/arguments", schema))
    assert json.loads(read.canonical())["arguments"] == schema


@pytest.mark.parametrize("base", [IDEMPOTENT, RECONCILABLE, UNSAFE, TRANSACTIONAL])
def test_the_stored_form_reads_back_as_the_same_document(base: dict[str, Any]) -> None:
    read = document(base)
    again = ContractDocument.from_canonical(read.canonical())
    assert again == read
    assert again.canonical() == read.canonical()
    assert read.digest() == sha256(read.canonical()).digest()


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"name":"a"}',
        b"[" * 100_000,
        document(IDEMPOTENT).canonical() + b" ",
        document(IDEMPOTENT).canonical().replace(b'"name":', b' "name":'),
        document(IDEMPOTENT).canonical().replace(b'"retry":', b'"name":"b","retry":'),
        document(IDEMPOTENT).canonical().replace(b'{"account"', b'{"a_new_field":1,"account"'),
    ],
)
def test_what_is_not_the_canonical_form_of_a_document_is_refused(stored: bytes) -> None:
    with pytest.raises(ContractInvalid):
        ContractDocument.from_canonical(stored)


def test_a_document_cannot_be_changed() -> None:
    read: Any = document(IDEMPOTENT)
    with pytest.raises(ValueError, match="frozen"):
        read.version = "2"


# Answers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("patterns", "status", "matches"),
    [
        ((200,), 200, True),
        ((200,), 201, False),
        (("2xx",), 201, True),
        (("2xx",), 202, False),
        (("2xx",), 207, False),
        (("2xx", 202), 202, True),
        (("4xx",), 404, True),
        (("4xx",), 408, False),
        (("5xx",), 599, True),
        (("5xx",), 499, False),
    ],
)
def test_a_class_never_covers_the_statuses_with_a_meaning_of_their_own(
    patterns: tuple[int | str, ...], status: int, matches: bool
) -> None:
    assert statuses_match(patterns, status) is matches


def test_a_body_predicate_judges_the_parsed_body() -> None:
    adapter = document(IDEMPOTENT).adapter
    assert isinstance(adapter, HttpSettings)
    success = adapter.answers.success[0]
    assert success.body_satisfies({"id": 1}, Work(100))
    assert not success.body_satisfies({}, Work(100))
    with pytest.raises(CheckTooCostly):
        success.body_satisfies({"id": 1}, Work(0))


def test_an_odd_body_extracts_nothing() -> None:
    assert search("length(data)", {"data": 5}) is None
    assert search("data[0].id", {"data": [{"id": "x"}]}) == "x"


# Catalog and schema -----------------------------------------------------------------------------


def test_every_document_of_the_catalog_is_valid_and_named_like_its_file() -> None:
    documents = catalog_documents()
    assert list(documents) == list(catalog_texts())
    assert {d.safety for d in documents.values()} == set(SafetyClass)


def test_the_committed_schema_is_the_models() -> None:
    committed = catalog_path().joinpath(SCHEMA_NAME).read_text(encoding="utf-8")
    assert json.loads(committed) == contract_json_schema(), "write the schema anew"


def test_the_schema_accepts_what_the_models_accept() -> None:
    validator = Draft202012Validator(contract_json_schema())
    for read in catalog_documents().values():
        validator.validate(json.loads(read.canonical()))
    assert not validator.is_valid(changed(IDEMPOTENT, ("/nonsense", 1)))
    assert not validator.is_valid(changed(IDEMPOTENT, ("/adapter/url", REMOVED)))


@pytest.mark.parametrize("name", ["demo-charge-idempotent", "demo-charge-reconcilable"])
def test_an_origin_replaces_that_of_every_url(name: str) -> None:
    moved = with_origin(catalog_documents()[name], "http://127.0.0.1:18090/")
    assert isinstance(moved.adapter, HttpSettings)
    assert moved.adapter.url == "http://127.0.0.1:18090/charges"
    assert b":8090" not in moved.canonical()
    if moved.adapter.probe is not None:
        assert moved.adapter.probe.url == "http://127.0.0.1:18090/charges{?key}"


@pytest.mark.parametrize("origin", ["http://elsewhere.example.com", "nonsense", "https://a@b"])
def test_an_origin_obeys_the_rules(origin: str) -> None:
    with pytest.raises(ContractInvalid):
        with_origin(catalog_documents()["demo-charge-idempotent"], origin)


def test_only_http_has_an_origin() -> None:
    with pytest.raises(ContractInvalid):
        with_origin(document(TRANSACTIONAL), "http://127.0.0.1:1")


# The documentation ------------------------------------------------------------------------------

DOCS = Path(__file__).parents[2] / "docs" / "contracts.md"


def test_the_documented_contract_is_valid() -> None:
    [example] = re.findall(r"```yaml\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert ContractDocument.parse_yaml(example).safety is SafetyClass.UNSAFE


def test_every_field_of_a_document_is_documented() -> None:
    text = DOCS.read_text(encoding="utf-8")
    missing = [name for name in field_names() if not re.search(rf"\b{name}\b", text)]
    assert not missing


def test_the_documented_horizon_is_the_computed_one() -> None:
    assert recovery_horizon_seconds(Policy(SafetyClass.IDEMPOTENT)) == 99.5
    assert "99.5 s" in DOCS.read_text(encoding="utf-8")
