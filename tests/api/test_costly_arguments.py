"""A submit whose arguments are made to be slow to check holds up nobody but itself."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from api.deployment import CHARGE, Deployment, charge, versioned
from effect_broker.store.api import ACTIVE_CONTRACT_SECONDS
from effect_broker.store.catalogue import Catalogue
from effect_broker.store.pool import Pool

PATH = "/v1/effects"

pytestmark = pytest.mark.timeout(120)

_NODE = {
    "anyOf": [
        {"properties": {"below": {"$ref": "#/$defs/node"}, "kind": {"const": kind}}}
        for kind in (1, 2)
    ]
}


@pytest.fixture
async def slow_api(api: httpx.AsyncClient, admin_pool: Pool) -> httpx.AsyncClient:
    """A contract whose schema has what an attacker would look for."""
    schema = json.loads(CHARGE.canonical())["arguments"]
    schema["$defs"] = {"node": _NODE}
    schema["properties"] |= {
        "note": {"type": "string", "pattern": "^(a+)+$"},
        "tags": {"type": "array", "uniqueItems": True},
        "tree": {"$ref": "#/$defs/node"},
    }
    await Catalogue(admin_pool).apply(versioned(CHARGE, "2", arguments=schema))
    await asyncio.sleep(ACTIVE_CONTRACT_SECONDS)
    return api


def _submit(**arguments: Any) -> dict[str, Any]:
    body = charge()
    body["arguments"] |= arguments
    return body


def _deep(levels: int) -> Any:
    value: Any = {"kind": 3}
    for _ in range(levels):
        value = {"below": value, "kind": 3}
    return value


_SLOW: dict[str, tuple[Any, str | None]] = {
    "note": ("a" * 40 + "!", "pattern"),
    "tags": ([{"a": number} for number in range(15_000)], None),
    "tree": (_deep(45), "check_limit"),
}


@pytest.mark.parametrize("name", sorted(_SLOW))
async def test_others_are_answered_while_arguments_are_checked(
    slow_api: httpx.AsyncClient, deployment: Deployment, name: str
) -> None:
    value, keyword = _SLOW[name]
    submit = asyncio.create_task(slow_api.post(PATH, json=_submit(**{name: value}), timeout=60))
    longest = 0.0
    loop = asyncio.get_running_loop()
    while not submit.done():
        began = loop.time()
        assert (await slow_api.get("/healthz")).status_code == 200
        longest = max(longest, loop.time() - began)
        await asyncio.sleep(0.01)
    answer = submit.result()
    assert answer.status_code == (422 if keyword else 202)
    if keyword:
        assert (answer.json()["code"], answer.json()["keyword"]) == ("invalid_arguments", keyword)
    assert deployment.count("effect_intents") == (0 if keyword else 1)
    assert longest < 5  # of a loaded machine; unbounded, it would be longer than the test


async def test_a_final_newline_is_no_part_of_a_currency(api: httpx.AsyncClient) -> None:
    answer = await api.post(PATH, json=_submit(currency="eur\n"))
    assert (answer.status_code, answer.json()["field"]) == (422, "/arguments/currency")
