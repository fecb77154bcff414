"""The stored request: a pure function of arguments, contract and key, without any secret."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from adapter_calls import ARGUMENTS, KEY, SECRET, http_contract, secrets
from effect_adapters.base import RenderError, SecretUnavailable
from effect_adapters.http import HttpAdapter
from effect_adapters.http.rendering import SecretInvalid, outgoing, render, same_origin_url
from effect_contracts.http_settings import HttpSettings


def settings(**changes: Any) -> HttpSettings:
    adapter = http_contract(**changes).adapter
    assert isinstance(adapter, HttpSettings)
    return adapter


def envelope(arguments: Any = None, **changes: Any) -> dict[str, Any]:
    wire = render(settings(**changes), ARGUMENTS if arguments is None else arguments, KEY)
    parsed: dict[str, Any] = json.loads(wire)
    return parsed


def refusal(arguments: Any = None, **changes: Any) -> tuple[str, str]:
    with pytest.raises(RenderError) as caught:
        envelope(arguments, **changes)
    return caught.value.code, caught.value.pointer


def test_the_same_input_gives_the_same_bytes_in_another_process() -> None:
    program = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from adapter_calls import *\n"
        "from effect_adapters.http import HttpAdapter\n"
        "print(HttpAdapter(secrets).render(http_contract(), ARGUMENTS, KEY).hex())"
    )
    there = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        env={"PYTHONHASHSEED": "7", "LC_ALL": "C"},
    )  # fmt: skip
    here = HttpAdapter(secrets).render(http_contract(), ARGUMENTS, KEY)
    assert bytes.fromhex(there.stdout) == here


def test_the_order_of_members_does_not_reach_the_wire() -> None:
    shuffled = dict(reversed(ARGUMENTS.items()))
    assert render(settings(), shuffled, KEY) == render(settings(), ARGUMENTS, KEY)


def test_secrets_stay_references_until_the_request_is_sent() -> None:
    basic = {"kind": "basic", "username": "user", "password": "env:EFFECT_BROKER_SECRET_X"}
    for auth in ({"kind": "bearer", "token": "env:EFFECT_BROKER_SECRET_X"}, basic):
        wire = render(settings(auth=auth), ARGUMENTS, KEY)
        assert b"env:EFFECT_BROKER_SECRET_X" in wire
        assert SECRET.encode() not in wire
        request = outgoing(settings(auth=auth), wire, secrets)
        sent = dict(request.headers)[b"Authorization"].decode()
        assert sent in {f"Bearer {SECRET}", "Basic dXNlcjpza19saXZlX25ldmVyX3ByaW50X21l"}
        assert SECRET not in repr(request)


def test_a_secret_that_cannot_be_had_or_sent_stops_the_request() -> None:
    wire = render(settings(), ARGUMENTS, KEY)

    def broken(_reference: str) -> str:
        raise RuntimeError(SECRET)

    with pytest.raises(SecretUnavailable) as caught:
        outgoing(settings(), wire, broken)
    assert SECRET not in str(caught.value)
    for value in ("", "a\r\nX-Evil: 1", "ключ", "a\0b", " edge "):
        with pytest.raises(SecretInvalid):
            outgoing(settings(), wire, {"env:EFFECT_BROKER_SECRET_X": value}.__getitem__)


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ({"in": "header", "name": "X-Key", "prefix": "p-"}, ("headers", ["X-Key", f"p-{KEY}"])),
        ({"in": "query", "name": "key"}, ("url", f"https://example.com/charges?key={KEY}")),
        ({"in": "body", "pointer": "/meta/key"}, ("body", f'"meta":{{"key":"{KEY}"}}')),
    ],
)
def test_the_key_goes_where_the_contract_says(key: dict[str, Any], place: tuple[str, Any]) -> None:
    assert place[1] in envelope(key=key)[place[0]]


def test_the_key_goes_into_the_path_and_is_percent_encoded() -> None:
    changed = settings(key={"in": "path"}, url="https://example.com/charges/{key}{?order}")
    wire = json.loads(render(changed, {**ARGUMENTS, "order": "a/b ?&=é"}, "k/1"))
    assert wire["url"] == ("https://example.com/charges/k%2F1?order=a%2Fb%20%3F%26%3D%C3%A9")


def test_an_argument_never_takes_the_place_of_the_key() -> None:
    key = {"in": "body", "pointer": "/meta/key"}
    code, _ = refusal({**ARGUMENTS, "meta": {"key": "mine"}}, key=key)
    assert code == "key_place_taken"
    code, _ = refusal({**ARGUMENTS, "meta": "text"}, key=key)
    assert code == "key_place_not_an_object"


def test_a_nested_form_has_one_spelling() -> None:
    arguments = {
        "b": [{"x": 1.5}, {"x": True}],
        "a": {"é": "1 2", "none": None},
        "amount": 700,
        "empty": {},
    }
    body = envelope(arguments, body={"kind": "form"})["body"]
    assert body == ("a%5B%C3%A9%5D=1+2&amount=700&b%5B0%5D%5Bx%5D=1.5&b%5B1%5D%5Bx%5D=true")


def test_a_form_has_no_word_for_null_in_a_list() -> None:
    assert refusal({"b": [1, None]}, body={"kind": "form"}) == ("form_null_element", "/b/1")


def test_a_body_template_is_filled_and_what_is_missing_is_named() -> None:
    content = {
        "amount": {"$arg": "/amount"},
        "note": {"$arg": "/note", "optional": True},
        "kind": {"$arg": "/tags", "default": ["x"]},
        "ref": {"$concat": ["order ", {"$arg": "/order"}, "/", {"$key": True}]},
        "raw": {"$literal": {"$arg": "no"}},
    }
    assert json.loads(envelope(body={"kind": "json", "content": content})["body"]) == {
        "amount": 700,
        "kind": ["x"],
        "ref": f"order o-1/{KEY}",
        "raw": {"$arg": "no"},
    }
    body = {"kind": "json", "content": content}
    assert refusal({"order": "o"}, body=body) == ("body_field_missing", "/amount")
    code, _ = refusal({"amount": 1, "order": {}}, body=body)
    assert code == "body_field_not_scalar"


def test_a_text_body_is_sent_as_text() -> None:
    content = {"$concat": ["note: ", {"$arg": "/note"}]}
    shown = envelope({"note": "é\r\nx"}, body={"kind": "text", "content": content})
    assert shown["body"] == "note: é\r\nx"
    assert ["Content-Type", "text/plain; charset=utf-8"] in shown["headers"]


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "é", "a\x01", " edge", "edge ", "x" * 5000])
def test_a_header_value_that_could_be_more_than_a_value_makes_no_request(value: str) -> None:
    headers = {"X-Order": {"template": "{order}"}}
    code, pointer = refusal({**ARGUMENTS, "order": value}, headers=headers)
    assert (code, pointer) in {("header_value_invalid", "/order"), ("header_value_invalid", "")}


def test_a_header_template_takes_arguments_and_key() -> None:
    headers = {"X-Ref": {"template": "{order}:{amount}:{key}"}}
    assert ["X-Ref", f"o-1:700:{KEY}"] in envelope(headers=headers)["headers"]
    assert refusal({"order": "o"}, headers=headers) == ("header_value_missing", "/amount")


def test_what_the_transport_owns_cannot_be_set() -> None:
    changed = settings().model_copy(update={"headers": {"Content-Length": "0"}})
    with pytest.raises(RenderError) as caught:
        render(changed, ARGUMENTS, KEY)
    assert caught.value.code == "header_reserved"


def test_a_missing_path_argument_is_named() -> None:
    url = "https://example.com/orders/{order}/charges"
    assert refusal({"amount": 1}, url=url) == ("url_variable_missing", "/order")
    assert refusal({"order": ".."}, url=url)[0] == "url_dot_segment"


HOSTILE = ["//evil.example", "@evil.example", "\\evil.example", "?@evil", "evil.example:443", "#"]


@pytest.mark.parametrize("value", HOSTILE)
def test_arguments_never_choose_the_host(value: str) -> None:
    for url in ("https://example.com/{order}", "https://example.com/x{/order}{?note}"):
        shown = envelope({**ARGUMENTS, "order": value, "note": value}, url=url)
        assert shown["url"].startswith("https://example.com/")
        changed = settings(url=url)
        wire = render(changed, {**ARGUMENTS, "order": value, "note": value}, KEY)
        assert outgoing(changed, wire, secrets).origin.host == "example.com"


def test_a_stored_request_for_another_origin_is_not_sent() -> None:
    wire = render(settings(), ARGUMENTS, KEY).replace(b"example.com", b"evil.example")
    with pytest.raises(RenderError) as caught:
        outgoing(settings(), wire, secrets)
    assert caught.value.code == "origin_changed"


@pytest.mark.parametrize(
    "reference",
    ["https://evil.example/ops/1", "//evil.example/x", "http://example.com/x", "ftp://example.com/",
     "https://user@example.com/", "https://example.com:444/", "ops/1", "", "/a\r\nb", "/\\evil",
     "https://[bad/", "javascript:1"],
)  # fmt: skip
def test_a_reference_of_the_target_stays_at_its_origin(reference: str) -> None:
    with pytest.raises(RenderError):
        same_origin_url("https://example.com/charges", reference)


def test_a_reference_at_the_same_origin_is_followed() -> None:
    for reference in (
        "/ops/1?x=2",
        "https://example.com/ops/1?x=2",
        "https://example.com:443/ops/1?x=2",
    ):
        assert same_origin_url("https://example.com/c", reference).endswith("/ops/1?x=2")


def test_a_request_beyond_all_measure_is_refused() -> None:
    content = {"a": [{"$arg": "/note"}] * 64}
    code, _ = refusal({"note": "x" * 200_000}, body={"kind": "json", "content": content})
    assert code == "body_invalid"


def test_no_refusal_repeats_a_value() -> None:
    error = RenderError("body_field_missing", "/amount")
    assert str(error) == "body_field_missing at '/amount'"
