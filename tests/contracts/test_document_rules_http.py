"""Rules of the adapter `http`, on either side of where they hold."""

from __future__ import annotations

from typing import Any

import pytest

from .documents import IDEMPOTENT, RECONCILABLE, REMOVED, document, problems_in

AUTH: dict[str, Any] = {"kind": "bearer", "token": "env:T"}


@pytest.mark.parametrize("name", ["Authorization", "authorization"])
def test_a_key_is_written_where_auth_is_only_if_there_is_none(name: str) -> None:
    place = ("/adapter/key", {"in": "header", "name": name})
    assert document(IDEMPOTENT, place).adapter.kind == "http"
    assert list(problems_in(IDEMPOTENT, place, ("/adapter/auth", AUTH))) == ["/adapter/key/name"]
    assert document(IDEMPOTENT, ("/adapter/auth", AUTH)).adapter.kind == "http"


def test_a_digest_of_the_key_names_an_effect_and_one_of_the_body_does_not() -> None:
    def probing(of: str, *changes: tuple[str, Any]) -> tuple[tuple[str, Any], ...]:
        match = {"kind": "digest", "path": "sum", "of": of}
        return (("/adapter/probe/key_match", match), *changes)

    nameless = ("/adapter/probe/url", "https://api.example.com/charges{?order}")
    assert document(RECONCILABLE, *probing("key", nameless)).policy().probes
    assert document(RECONCILABLE, *probing("body")).policy().probes
    assert list(problems_in(RECONCILABLE, *probing("body", nameless))) == ["/adapter/probe/url"]
    bare = ("/adapter/probe/agree", REMOVED)
    assert list(problems_in(RECONCILABLE, *probing("key", bare))) == ["/adapter/probe/agree"]
    assert document(RECONCILABLE, *probing("body", bare)).policy().probes
