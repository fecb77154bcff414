"""Rules of the adapter `http` at what sorts before and after a name, and at the ends of a class."""

from __future__ import annotations

from typing import Any

import pytest

from .documents import IDEMPOTENT, RECONCILABLE, UNSAFE, document, problems_in

URL = "https://api.example.com/charges"
ACCEPTED = "/adapter/answers/accepted"


@pytest.mark.parametrize("host", ["aaa.example.com", "zzz.example.com"])
def test_another_origin_is_another_contract_however_it_sorts(host: str) -> None:
    url = ("/adapter/probe/url", f"https://{host}/charges{{?key}}")
    assert "another origin" in problems_in(RECONCILABLE, url)["/adapter/probe/url"]


@pytest.mark.parametrize("name", ["aaa", "key0", "operatio", "operations", "zzz"])
def test_a_variable_is_an_argument_key_or_operation(name: str) -> None:
    said = f"{{{name}}} is no argument of this contract (nor {{key}})"
    assert problems_in(IDEMPOTENT, ("/adapter/url", f"{URL}/{{{name}}}")) == {"/adapter/url": said}
    behind_the_key = ("/adapter/url", f"{URL}/{{key}}/{{{name}}}")
    assert problems_in(IDEMPOTENT, behind_the_key) == {"/adapter/url": said}
    poll_url = f"{URL}/{{operation}}/{{{name}}}"
    accepted = {
        "statuses": [202],
        "reference": {"in": "body", "path": "id"},
        "poll_url": poll_url,
        "succeeded": [{"statuses": [200]}],
    }
    found = problems_in(RECONCILABLE, (ACCEPTED, accepted))
    assert found[f"{ACCEPTED}/poll_url"] == said


@pytest.mark.parametrize("name", ["Accept", "authorizatio", "authorizations", "X-Account"])
def test_only_the_header_of_credentials_is_for_auth(name: str) -> None:
    auth = {"kind": "bearer", "token": "env:T"}
    with_auth = (("/adapter/auth", auth), ("/adapter/headers", {name: "text"}))
    assert document(IDEMPOTENT, *with_auth).adapter.kind == "http"
    assert document(IDEMPOTENT, ("/adapter/headers", {name: "text"})).adapter.kind == "http"


@pytest.mark.parametrize(
    ("name", "headers", "places"),
    [
        ("Host", {}, ["/adapter/key/name"]),
        ("host", {"HOST": "x"}, ["/adapter/headers/HOST", "/adapter/key/name"]),
        ("X-Key", {"x-key": "x"}, ["/adapter/key/name"]),
    ],
)
def test_the_key_takes_no_header_that_has_a_value(
    name: str, headers: dict[str, str], places: list[str]
) -> None:
    key = ("/adapter/key", {"in": "header", "name": name})
    found = problems_in(IDEMPOTENT, key, ("/adapter/headers", headers))
    assert sorted(found) == places
    assert found["/adapter/key/name"].startswith("this header has another value already")


@pytest.mark.parametrize("pointer", ["", "/", "//key"])
def test_the_key_is_a_named_member_of_the_body(pointer: str) -> None:
    found = problems_in(IDEMPOTENT, ("/adapter/key", {"in": "body", "pointer": pointer}))
    assert found == {"/adapter/key/pointer": "the pointer names a member"}


@pytest.mark.parametrize("statuses", [[200], [299], [300], [399], ["2xx", "3xx"]])
def test_a_class_of_statuses_has_a_hundred(statuses: list[int | str]) -> None:
    made = document(IDEMPOTENT, ("/adapter/answers/success/0/statuses", statuses))
    assert made.adapter.kind == "http"


@pytest.mark.parametrize("status", [400, 499, 500])
def test_a_status_beside_the_class_is_not_of_it(status: int) -> None:
    found = problems_in(IDEMPOTENT, ("/adapter/answers/success/0/statuses", [status]))
    assert found == {"/adapter/answers/success/0/statuses": "statuses of this kind are 2xx or 3xx"}


@pytest.mark.parametrize(
    ("base", "proof", "words"),
    [
        (UNSAFE, True, "500 alone does not prove that nothing was done, and an unsafe effect"),
        (IDEMPOTENT, False, "500 alone does not prove that nothing was done: add a body_schema"),
    ],
)
def test_of_doubtful_statuses_the_first_is_named(
    base: dict[str, Any], proof: bool, words: str
) -> None:
    rule = {"statuses": [400, 500, 503], "code": "no", "proves_no_commit": proof}
    found = problems_in(base, ("/adapter/answers/rejected", [rule]))
    assert found["/adapter/answers/rejected/0/statuses"].startswith(words)
