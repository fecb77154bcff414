"""A request that cannot be taken gets problem details with a stable code, and stores nothing."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from api.deployment import Deployment, charge, deployed
from effect_contracts.canonical import BODY_BYTES_MAX, DEPTH_MAX
from postgres import RunningServer, clone, drop_database

# One application for all of them: what is refused leaves nothing behind, which is also asserted.
pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/effects"
JSON = {"Content-Type": "application/json"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployment(
    running_server: RunningServer, template_name: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Deployment]:
    """One deployment for the module."""
    database = clone(running_server, template_name)
    async with deployed(database, tmp_path_factory.mktemp("api")) as made:
        yield made
    drop_database(running_server, database.name)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(deployment: Deployment) -> AsyncIterator[httpx.AsyncClient]:
    """A client with the key of the tenant `acme`."""
    async with deployment.application() as app, deployment.client(app) as client:
        yield client


def _refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    body: dict[str, Any] = answer.json()
    assert (answer.status_code, body["code"]) == (status, code), body
    assert answer.headers["content-type"] == "application/problem+json"
    assert body["status"] == status
    assert body["type"] == f"urn:effect-broker:problem:{code}"
    assert body["title"]
    assert body["detail"]
    assert body["instance"]
    return body


def _envelope(arguments: str) -> bytes:
    return f'{{"operation_key":"k","tool":"demo.charge","arguments":{arguments}}}'.encode()


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "empty"),
        (b"{", "syntax"),
        (b'{"a": NaN}', "number_not_finite"),
        (b'{"a": -Infinity}', "number_not_finite"),
        (b'{"a": 9007199254740993}', "number_range"),
        (b"{} {}", "trailing_text"),
        (b"\xef\xbb\xbf{}", "byte_order_mark"),
        (b'{"a": "\xff"}', "not_utf8"),
        (b'{"a": "\\ud800"}', "lone_surrogate"),
        (b'{"a": "\\u0000"}', "nul_character"),
        (b'{"tool": "a", "tool": "b"}', "duplicate_member"),
        (b'{"tool": "a", "to\\u006fl": "b"}', "duplicate_member"),
        (_envelope('{"amount": 1, "\\u0061mount": 2}'), "duplicate_member"),
        (_envelope("[" * DEPTH_MAX + "1" + "]" * DEPTH_MAX + ","), "syntax"),
        (_envelope("[" * (DEPTH_MAX + 1) + "]" * (DEPTH_MAX + 1)), "too_deep"),
        (b"[" * 100_000, "too_deep"),
        (b"[]", "not_an_object"),
        (b'"text"', "not_an_object"),
        (_envelope("[]"), "not_an_object"),
        (_envelope("null"), "not_an_object"),
    ],
)
async def test_a_payload_without_a_canonical_form_is_refused(
    api: httpx.AsyncClient, deployment: Deployment, raw: bytes, reason: str
) -> None:
    body = _refused(await api.post(PATH, content=raw, headers=JSON), 422, "invalid_payload")
    assert body["reason"] == reason
    assert deployment.count("effect_intents") == 0


async def test_arguments_have_all_levels_to_themselves(api: httpx.AsyncClient) -> None:
    """What is refused is what the schema says of them, not their depth."""
    levels = DEPTH_MAX - 1  # the arguments object is the first
    deep = _envelope('{"x":' + "[" * levels + "]" * levels + "}")
    _refused(await api.post(PATH, content=deep, headers=JSON), 422, "invalid_arguments")


@pytest.mark.parametrize(
    ("changes", "reason", "field"),
    [
        ({"tool": None}, "type", "/tool"),
        ({"tool": 7}, "type", "/tool"),
        ({"tool": ""}, "length", "/tool"),
        ({"tool": "t" * 256}, "length", "/tool"),
        ({"tenant_id": "00000000-0000-0000-0000-000000000000"}, "unknown", "/tenant_id"),
        ({"a/b~c": 1}, "unknown", "/a~1b~0c"),
        ({"trace_id": 1}, "type", "/trace_id"),
        ({"trace_id": "t" * 256}, "length", "/trace_id"),
        ({"send_before": 1767225600}, "type", "/send_before"),
        ({"send_before": "soon"}, "format", "/send_before"),
        ({"send_before": "2030-01-02T03:04:05"}, "format", "/send_before"),
        ({"send_before": "9999-12-31T23:59:59-01:00"}, "format", "/send_before"),
        ({"send_before": True}, "type", "/send_before"),
    ],
)
async def test_a_member_at_fault_is_named(
    api: httpx.AsyncClient,
    deployment: Deployment,
    changes: dict[str, Any],
    reason: str,
    field: str,
) -> None:
    body = _refused(await api.post(PATH, json=charge() | changes), 422, "invalid_request")
    assert (body["reason"], body["field"]) == (reason, field)
    assert deployment.count("effect_intents") == 0


@pytest.mark.parametrize("member", ["tool", "arguments"])
async def test_a_missing_member_is_named(api: httpx.AsyncClient, member: str) -> None:
    request = charge()
    del request[member]
    body = _refused(await api.post(PATH, json=request), 422, "invalid_request")
    assert (body["reason"], body["field"]) == ("missing", f"/{member}")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"operation_key": None}, "not_text"),
        ({"operation_key": 42}, "not_text"),
        ({"operation_key": ""}, "empty"),
        ({"operation_key": "k" * 256}, "too_long"),
        ({"operation_key": "order 42"}, "illegal_character"),
        ({"operation_key": "örder"}, "illegal_character"),
    ],
)
async def test_a_bad_operation_key_has_a_code_of_its_own(
    api: httpx.AsyncClient, changes: dict[str, Any], reason: str
) -> None:
    body = _refused(await api.post(PATH, json=charge() | changes), 422, "invalid_operation_key")
    assert body["reason"] == reason


async def test_a_missing_operation_key_too(api: httpx.AsyncClient) -> None:
    request = charge()
    del request["operation_key"]
    _refused(await api.post(PATH, json=request), 422, "invalid_operation_key")


async def test_arguments_that_break_the_schema_are_named(api: httpx.AsyncClient) -> None:
    request = charge()
    request["arguments"]["amount"] = "1200"
    body = _refused(await api.post(PATH, json=request), 422, "invalid_arguments")
    assert (body["field"], body["keyword"]) == ("/arguments/amount", "type")
    assert body["detail"].endswith("asks for integer.")
    assert "1200" not in json.dumps(body)


async def test_an_unknown_tool_is_refused(api: httpx.AsyncClient, deployment: Deployment) -> None:
    _refused(await api.post(PATH, json=charge() | {"tool": "no.such"}), 422, "unknown_tool")
    assert deployment.count("effect_intents") == 0


async def test_a_body_over_the_limit_is_refused_and_one_at_the_limit_is_read(
    api: httpx.AsyncClient,
) -> None:
    padding = b" " * BODY_BYTES_MAX
    _refused(await api.post(PATH, content=padding, headers=JSON), 422, "invalid_payload")
    answer = await api.post(PATH, content=padding + b" ", headers=JSON)
    assert _refused(answer, 413, "payload_too_large")["limit"] == BODY_BYTES_MAX


async def test_a_body_without_an_end_is_not_read_to_its_end(
    api: httpx.AsyncClient,
) -> None:
    piece = b" " * 65536
    given = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal given
        while True:
            given += len(piece)
            yield piece

    _refused(await api.post(PATH, content=endless(), headers=JSON), 413, "payload_too_large")
    assert given <= 6 * BODY_BYTES_MAX


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "application/json", "Content-Encoding": "gzip"},
    ],
)
async def test_what_is_not_declared_as_json_is_refused(
    api: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    answer = await api.post(PATH, content=json.dumps(charge()), headers=headers)
    _refused(answer, 415, "unsupported_media_type")


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/effects/", "/v2/effects", "/v1/effects/x/y/z", "/%00", "/v1//effects"]
)
async def test_an_unknown_route_is_a_problem_too(api: httpx.AsyncClient, path: str) -> None:
    _refused(await api.get(path), 404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("DELETE", PATH, "GET, POST"),
        ("PUT", PATH, "GET, POST"),
        ("POST", f"{PATH}/0c0e3a1f-7a64-8e0c-9b3f-2d5a4d1c8e77", "GET"),
        ("DELETE", f"{PATH}/0c0e3a1f-7a64-8e0c-9b3f-2d5a4d1c8e77/receipt", "GET"),
        ("POST", "/healthz", "GET"),
    ],
)
async def test_a_wrong_method_says_which_are_right(
    api: httpx.AsyncClient, method: str, path: str, allow: str
) -> None:
    answer = await api.request(method, path)
    _refused(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == allow


@pytest.mark.parametrize(
    ("query", "reason", "said"),
    [
        ("wait=soon", "type", "no number"),
        ("wait=nan", "type", "no number"),
        ("wait=inf", "type", "no number"),
        ("wait=-1", "range", "The limit is 0."),
        ("wait=61", "range", "The limit is 60."),
    ],
)
async def test_a_bad_wait_is_named_with_what_is_wrong(
    api: httpx.AsyncClient, query: str, reason: str, said: str
) -> None:
    answer = await api.post(f"{PATH}?{query}", json=charge())
    body = _refused(answer, 400, "request_malformed")
    assert (body["parameter"], body["reason"]) == ("wait", reason)
    assert said in body["detail"]


@pytest.mark.parametrize(
    ("query", "parameter", "reason"),
    [
        ("status=no_such_state", "status", "choice"),
        ("limit=0", "limit", "range"),
        ("limit=201", "limit", "range"),
        ("limit=ten", "limit", "type"),
        ("cursor=nonsense", "cursor", "format"),
        ("cursor=%C3%A9", "cursor", "format"),
        ("older_than_seconds=inf", "older_than_seconds", "type"),
        ("older_than_seconds=1e300", "older_than_seconds", "range"),
        ("operation_prefix=%00", "operation_prefix", "format"),
        ("tool=%00", "tool", "format"),
        ("reason=%00", "reason", "format"),
        ("unresolved=perhaps", "unresolved", "type"),
        ("stauts=prepared", "stauts", "unknown"),
        ("sta%20tus=prepared", None, "unknown"),
    ],
)
async def test_a_bad_filter_is_refused_and_not_ignored(
    api: httpx.AsyncClient, query: str, parameter: str | None, reason: str
) -> None:
    body = _refused(await api.get(f"{PATH}?{query}"), 400, "request_malformed")
    assert (body.get("parameter"), body["reason"]) == (parameter, reason)


async def test_the_values_that_a_filter_knows_are_named_and_the_wrong_one_is_not(
    api: httpx.AsyncClient,
) -> None:
    body = _refused(await api.get(f"{PATH}?status=secret-word"), 400, "request_malformed")
    assert "There are 'prepared'" in body["detail"]
    assert "secret-word" not in str(body)


async def test_poison_text_in_a_path_comes_back_escaped(api: httpx.AsyncClient) -> None:
    body = _refused(await api.get("/v1/effects/%0d%0aX-Forged:%201"), 404, "not_found")
    assert body["instance"].lower() == "/v1/effects/%0d%0ax-forged:%201"
    long = await api.get("/" + "a" * 5000)
    assert "instance" not in long.json()
