"""What a document shows, checks and permits, at each of its bounds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from effect_contracts.bounded_schema import CheckTooCostly, Work
from effect_contracts.catalog import catalog_documents
from effect_contracts.document import ContractDocument, contract_json_schema, with_origin
from effect_contracts.errors import ContractInvalid, InvalidArguments
from effect_contracts.http_settings import HttpSettings
from effect_contracts.limit_settings import LimitSettings

from .documents import IDEMPOTENT, RECONCILABLE, REMOVED, UNSAFE, changed, document

CATALOG = catalog_documents()
OPEN: dict[str, Any] = {"type": "object"}


def open_document(*changes: tuple[str, Any]) -> ContractDocument:
    """A document whose arguments may be anything."""
    return document(IDEMPOTENT, ("/arguments", OPEN), *changes)


# Previews -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "shown"), [(119, None), (120, None), (121, "[121 characters]")])
def test_a_preview_shows_120_characters(size: int, shown: str | None) -> None:
    text = "x" * size
    assert open_document().preview({"a": text}) == {"a": shown or text}
    named: Any = {text: 1}
    assert open_document().preview(named) == {text[:120]: 1}


@pytest.mark.parametrize("size", [49, 50, 51, 70])
def test_a_preview_shows_fifty_members(size: int) -> None:
    more = size - 50
    elements = [*range(min(size, 50)), *([f"[{more} more]"] if more > 0 else [])]
    assert open_document().preview({"a": list(range(size))}) == {"a": elements}
    members: dict[str, Any] = {f"m{n}": n for n in range(min(size, 50))}
    if more > 0:
        members["…"] = f"[{more} more]"
    assert open_document().preview({f"m{n}": n for n in range(size)}) == members


def test_a_preview_shows_eight_levels() -> None:
    def nested(levels: int, innermost: Any) -> Any:
        return innermost if not levels else {"a": nested(levels - 1, innermost)}

    for inner in ([1, 2, 3], {"b": 1, "c": 2, "d": 3}):
        assert open_document().preview(nested(7, inner)) == nested(7, inner)
        assert open_document().preview(nested(8, inner)) == nested(8, "[3 members]")
    assert open_document().preview(nested(8, 5)) == nested(8, 5)


def test_what_is_hidden_is_hidden_at_its_own_place_alone() -> None:
    hiding = open_document(("/sensitive", ["/a/b", "/l/*/n", "/*/every"]))
    assert hiding.preview(
        {"a": {"b": 1, "c": 2, "every": 3}, "b": 4, "l": [{"n": 5, "m": 6}], "z": {"a": {"b": 7}}}
    ) == {
        "a": {"b": "[redacted]", "c": 2, "every": "[redacted]"},
        "b": 4,
        "l": [{"n": "[redacted]", "m": 6}],
        "z": {"a": {"b": 7}},
    }
    others: tuple[Any, ...] = ([1], 7, None, "x")
    for value in others:
        assert hiding.preview(value) == {}


# Arguments ----------------------------------------------------------------------------------------


def refused(read: ContractDocument, arguments: Any) -> tuple[str | None, Any]:
    with pytest.raises(InvalidArguments) as refusal:
        read.check_arguments(arguments)
    return refusal.value.field, refusal.value.extras["keyword"]


def test_what_is_forbidden_is_found_by_its_whole_pointer() -> None:
    read = open_document(("/forbidden", ["/a/b", "/l/0/n", "/every/*/*/x"]))
    goods: tuple[Any, ...] = (
        {"a": {"c": 1}, "b": 2}, {"a": [1]}, {"a": "b"}, {"l": [{"m": 1}, {"n": 2}]},
        {"every": {"p": {"q": {"y": 1}}}}, {"every": [[{"y": 1}]]}, {"every": 7}, {},
    )  # fmt: skip
    for good in goods:
        read.check_arguments(good)
    assert refused(read, {"a": {"b": None}}) == ("/a/b", "forbidden")
    assert refused(read, {"l": [{"n": 1}]}) == ("/l/0/n", "forbidden")
    assert refused(read, {"every": {"p": {"q": {"x": 1}}}}) == ("/every/*/*/x", "forbidden")
    assert refused(read, {"every": [1, [2, {"x": 1}]]}) == ("/every/*/*/x", "forbidden")


def test_a_look_for_what_is_forbidden_is_paid_for_by_each_step() -> None:
    read = open_document(("/forbidden", ["/l/*/n"]))
    arguments: dict[str, Any] = {"l": [{}] * 5}
    # One for the member, one for the list, one for each element.
    with pytest.raises(CheckTooCostly):
        read.check_arguments_within(arguments, Work(6))
    steps = next(n for n in range(7, 200) if _fits(read, arguments, n))
    without = next(n for n in range(1, 200) if _fits(open_document(), arguments, n))
    assert steps - without == 7


def _fits(read: ContractDocument, arguments: Any, steps: int) -> bool:
    try:
        read.check_arguments_within(arguments, Work(steps))
    except CheckTooCostly:
        return False
    return True


def test_the_first_of_several_mismatches_is_named_by_its_place() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}, "c": {"minimum": 5}},
        "required": ["r", "s"],
    }
    read = document(IDEMPOTENT, ("/arguments", schema))
    assert refused(read, {"b": "x", "a": "y", "r": 1, "s": 1}) == ("/a", "type")
    assert refused(read, {"c": 1, "b": "x", "r": 1, "s": 1}) == ("/b", "type")
    # What is missing is found at the object itself, which comes first; the first name is told.
    assert refused(read, {"a": "y"}) == ("/r", "required")
    assert refused(read, {"a": "y", "r": 1}) == ("/s", "required")


# What each adapter can ----------------------------------------------------------------------------

ABLE = {
    "caldav-event": True, "demo-charge-idempotent": False, "demo-charge-reconcilable": True,
    "demo-charge-unsafe": False, "demo-ledger-transactional": True, "idempotent-server-mcp": True,
    "mail-send-archived": True, "mail-send": False, "mcp-sqlite-write": False,
    "nats-order-event": False, "s3-export": True, "sqs-order-event": False,
}  # fmt: skip
SIMULATED: dict[str, Any] = {"kind": "simulated", "target": "t"}


@pytest.mark.parametrize("name", ABLE)
def test_a_contract_can_look_where_its_adapter_can(name: str) -> None:
    policy = CATALOG[name].policy()
    assert policy.probes is ABLE[name]
    assert policy.polls_operations is False
    assert policy.awaits_caller is False
    assert policy.lease_seconds_max is None


@pytest.mark.parametrize("probes", [False, True])
@pytest.mark.parametrize("polls", [False, True])
def test_a_simulated_target_can_what_it_says(probes: bool, polls: bool) -> None:
    adapter = {**SIMULATED, "probes": probes, "polls_operations": polls}
    policy = document(IDEMPOTENT, ("/adapter", adapter)).policy()
    assert (policy.probes, policy.polls_operations) == (probes, polls)


@pytest.mark.parametrize("with_http", [False, True])
@pytest.mark.parametrize("safety", ["idempotent", "unsafe"])
def test_a_worker_sends_what_a_caller_performs_only_as_a_replay(
    safety: str, with_http: bool
) -> None:
    adapter: dict[str, Any] = {"kind": "caller", "target": "api.example.com"}
    if with_http:
        adapter["http"] = IDEMPOTENT["adapter"]
    caller = document(
        UNSAFE, ("/safety", safety), ("/adapter", {**adapter, "lease_seconds_max": 90})
    ).policy()
    assert caller.awaits_caller is not (safety == "idempotent" and with_http)
    assert (caller.probes, caller.polls_operations) == (False, False)
    assert caller.lease_seconds_max == 90


def test_what_stands_in_a_document_is_what_the_protocol_gets() -> None:
    read = document(
        UNSAFE,
        ("/oversight", {"approval_valid_seconds": 70, "certificate": {"age_seconds_max": 60}}),
        ("/limits", {"concurrency_max": 3}),
    )
    policy = read.policy()
    assert policy.approval_valid_seconds == 70
    assert policy.certificate is not None
    assert policy.certificate.age_seconds_max == 60
    assert isinstance(read.limits, LimitSettings)
    assert policy.limits is not None
    assert policy.limits.concurrency_max == 3


# Forms --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "rest"),
    [
        ("https://api.example.com", ""),
        ("https://api.example.com?a={order}", "?a={order}"),
        ("https://api.example.com{/order}", "{/order}"),
        ("https://api.example.com{?order}", "{?order}"),
        ("https://api.example.com/a/b?c=d/e", "/a/b?c=d/e"),
        ("https://api.example.com:8443/a://b", "/a://b"),
    ],
)
def test_an_origin_takes_the_place_of_scheme_host_and_port_alone(url: str, rest: str) -> None:
    for origin in ("http://127.0.0.1:1", "http://127.0.0.1:1/", "http://localhost"):
        moved = with_origin(document(IDEMPOTENT, ("/adapter/url", url)), origin)
        assert isinstance(moved.adapter, HttpSettings)
        assert moved.adapter.url == origin.rstrip("/") + rest


def test_an_origin_is_that_of_probe_and_poll_too() -> None:
    accepted = {
        "statuses": [202],
        "reference": {"in": "body", "path": "op"},
        "poll_url": "https://api.example.com/operations/{operation}",
        "succeeded": [{"statuses": [200]}],
    }
    read = document(RECONCILABLE, ("/adapter/answers/accepted", accepted))
    moved = with_origin(read, "http://127.0.0.1:1")
    assert b"example.com" not in moved.canonical()
    assert moved.canonical().count(b"http://127.0.0.1:1/") == 3


@pytest.mark.parametrize("change", [{"transit_seconds": 4}, {"transit_seconds": 6}])
def test_a_stored_document_has_every_default_in_its_one_spelling(change: dict[str, Any]) -> None:
    stored = document(IDEMPOTENT).canonical()
    assert ContractDocument.from_canonical(stored).canonical() == stored
    value = json.loads(stored)
    # Longer, shorter, and of the same length but in another order.
    bare = json.dumps(IDEMPOTENT, separators=(",", ":"), sort_keys=True).encode()
    spaced = json.dumps(value).encode()
    turned = json.dumps(dict(reversed(value.items())), separators=(",", ":")).encode()
    for other in (bare, spaced, turned):
        with pytest.raises(ContractInvalid, match="not in canonical form"):
            ContractDocument.from_canonical(other)
    changed_document = document(IDEMPOTENT, *((f"/{k}", v) for k, v in change.items()))
    assert changed_document.digest() != document(IDEMPOTENT).digest()
    assert hash(changed_document) != hash(document(IDEMPOTENT))


def test_equal_documents_have_one_hash() -> None:
    assert hash(document(IDEMPOTENT)) == hash(document(changed(IDEMPOTENT)))
    assert len({document(IDEMPOTENT), document(IDEMPOTENT), document(UNSAFE)}) == 2


def test_the_schema_of_documents_is_of_one_draft_under_one_title() -> None:
    schema = contract_json_schema()
    assert list(schema)[:2] == ["$schema", "title"]
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["title"] == "effect-broker contract document"


def test_what_is_removed_from_a_document_is_not_there() -> None:
    assert document(IDEMPOTENT, ("/sensitive", [])).sensitive == ()
    assert document(UNSAFE, ("/key_retention_seconds", REMOVED)).key_retention_seconds is None


@pytest.mark.parametrize(
    ("stored", "field"),
    [(b'{"a":1,"a":2}', "/a"), (b'{"a":{"b":1e20}}', "/a/b"), (b"", ""), (b"{", ""), (b"7", "")],
)
def test_stored_bytes_that_are_no_document_are_named_by_their_place(
    stored: bytes, field: str
) -> None:
    with pytest.raises(ContractInvalid) as refusal:
        ContractDocument.from_canonical(stored)
    problems = refusal.value.extras["problems"]
    assert isinstance(problems, list)
    assert [problem["field"] for problem in problems] == [field]


def test_a_number_that_json_cannot_hold_is_named_by_its_place() -> None:
    with pytest.raises(ContractInvalid) as refusal:
        ContractDocument.parse_yaml("name: a\nretry: {attempts_max: 1e20}\n")
    problems = refusal.value.extras["problems"]
    assert isinstance(problems, list)
    assert [problem["field"] for problem in problems] == ["/retry/attempts_max"]
