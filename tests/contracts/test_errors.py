"""The error tree: every code has one leaf, one status, and a body that carries no values."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator
from datetime import UTC, datetime
from inspect import signature
from uuid import UUID

import pytest

from effect_contracts import errors
from effect_contracts.errors import (
    POINTER_CHARS_MAX,
    ContractProblem,
    EffectError,
    OperationKeyReason,
    PayloadReason,
    ProblemCode,
    RequestReason,
    json_pointer,
    problem,
    status_of,
)
from effect_contracts.facts import EffectState

_MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

# Published meanings: a line here is never edited, only added.
_STATUSES = {
    "request_malformed": 400,
    "unauthenticated": 401,
    "forbidden": 403,
    "tenant_disabled": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "payload_conflict": 409,
    "stale_version": 409,
    "too_early": 409,
    "decision_conflict": 409,
    "another_request": 409,
    "another_alert": 409,
    "cursor_superseded": 409,
    "limit_reached": 409,
    "election_lost": 409,
    "not_for_callers": 422,
    "second_person_required": 403,
    "illegal_transition": 409,
    "contract_conflict": 409,
    "payload_too_large": 413,
    "unsupported_media_type": 415,
    "invalid_request": 422,
    "invalid_payload": 422,
    "invalid_operation_key": 422,
    "invalid_arguments": 422,
    "unknown_tool": 422,
    "contract_invalid": 422,
    "rate_limited": 429,
    "key_ring_missing": 500,
    "configuration_invalid": 500,
    "internal": 500,
    "storage_unavailable": 503,
}

_EXAMPLES: list[EffectError] = [
    errors.RequestMalformed(parameter="wait"),
    errors.MethodNotAllowed(),
    errors.PayloadTooLarge(limit_bytes=262144),
    errors.UnsupportedMediaType(),
    errors.InvalidRequest(RequestReason.UNKNOWN, field="/tenant_id"),
    errors.InvalidPayload(PayloadReason.NUMBER_RANGE, field="/arguments/amount"),
    errors.InvalidOperationKey(OperationKeyReason.TOO_LONG, limit=255),
    errors.InvalidArguments(field="/arguments/amount", keyword="type"),
    errors.UnknownTool(),
    errors.Unauthenticated(),
    errors.Forbidden(scope="operate"),
    errors.TenantDisabled(),
    errors.NotFound(),
    errors.RateLimited(retry_after_seconds=3),
    errors.PayloadConflict(
        field="/arguments/amount", effect_id=UUID(int=7), state=EffectState.SUCCEEDED
    ),
    errors.StaleVersion(expected=3, found=4),
    errors.DecisionConflict(),
    errors.AnotherRequest(),
    errors.AnotherAlert(),
    errors.CursorSuperseded(resume="AQ"),
    errors.LimitReached(limit=20),
    errors.SecondPersonRequired(),
    errors.TooEarly(not_before=_MOMENT),
    errors.TransitionRefused(state=EffectState.SUCCEEDED),
    errors.ContractInvalid([ContractProblem("/safety", "one"), ContractProblem("/retry", "two")]),
    errors.ContractConflict(),
    errors.StorageUnavailable(),
    errors.KeyRingMissing(key_id="k1"),
    errors.ConfigurationInvalid(setting="EFFECT_BROKER_DATABASE_URL", remedy="set it"),
    errors.InternalError(),
    errors.NotForCallers(),
    errors.ElectionLost(effect_id=UUID(int=7), state=EffectState.SUCCEEDED),
]


def _leaves(root: type[EffectError]) -> Iterator[type[EffectError]]:
    branches = root.__subclasses__()
    if not branches:
        yield root
    for branch in branches:
        yield from _leaves(branch)


def _name(error: EffectError) -> str:
    return error.code.value


def test_every_code_has_its_published_status() -> None:
    assert {code.value: status_of(code) for code in ProblemCode} == _STATUSES


def test_every_code_has_one_leaf_and_every_leaf_an_example() -> None:
    leaves = list(_leaves(EffectError))
    assert sorted(leaf.code for leaf in leaves) == sorted(ProblemCode)
    assert {type(example) for example in _EXAMPLES} == set(leaves)


def test_the_tree_at_the_head_names_every_class_with_its_status_and_code() -> None:
    tree = errors.__doc__ or ""
    for leaf in _leaves(EffectError):
        drawn = [line.split()[-3:] for line in tree.splitlines() if leaf.__name__ in line.split()]
        assert drawn == [[leaf.__name__, str(status_of(leaf.code)), leaf.code.value]]
        assert f" {leaf.__mro__[1].__name__} " in tree


def test_an_error_stands_in_the_module_of_its_branch() -> None:
    for branch in EffectError.__subclasses__():
        module = f"effect_contracts.errors.{branch.__name__.removesuffix('Error').lower()}"
        assert {branch.__module__, *(leaf.__module__ for leaf in _leaves(branch))} == {module}


@pytest.mark.parametrize("error", _EXAMPLES, ids=_name)
def test_a_problem_body_has_the_members_of_rfc_9457_and_is_json(error: EffectError) -> None:
    body = problem(error, "/v1/effects/1")
    assert body["type"] == f"urn:effect-broker:problem:{error.code.value}"
    assert body["status"] == _STATUSES[error.code.value]
    assert body["title"]
    assert body["detail"] == error.detail
    assert body["code"] == error.code.value
    assert body["instance"] == "/v1/effects/1"
    assert json.loads(json.dumps(body)) == body
    assert "instance" not in problem(error)


@pytest.mark.parametrize("error", _EXAMPLES, ids=_name)
def test_an_error_survives_copy_and_pickle(error: EffectError) -> None:
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(twin) is type(error)
        assert problem(twin) == problem(error)
        assert str(twin) == str(error)


def test_a_payload_conflict_names_the_field_and_the_state_of_the_effect() -> None:
    body = problem(_EXAMPLES[14])
    assert body["field"] == "/arguments/amount"
    assert body["state"] == "succeeded"
    assert body["effect_id"] == str(UUID(int=7))


def test_too_early_says_when() -> None:
    assert problem(errors.TooEarly(not_before=_MOMENT))["not_before"] == "2026-01-02T03:04:05+00:00"


def test_what_may_be_sent_again_later_says_when() -> None:
    assert errors.RateLimited(retry_after_seconds=3).retry_after_seconds == 3
    assert errors.StorageUnavailable().retry_after_seconds == 1
    assert errors.NotFound().retry_after_seconds is None


def test_an_extra_never_overwrites_a_member_of_the_standard() -> None:
    error = errors.NotFound()
    error.extras["status"] = 200
    assert problem(error)["status"] == 404


@pytest.mark.parametrize("reason", RequestReason)
def test_every_request_reason_has_a_sentence(reason: RequestReason) -> None:
    error = errors.InvalidRequest(reason, field="/tool")
    assert error.reason is reason
    assert error.detail.endswith(".")


@pytest.mark.parametrize("reason", PayloadReason)
def test_every_payload_reason_has_a_sentence(reason: PayloadReason) -> None:
    error = errors.InvalidPayload(reason)
    assert error.reason is reason
    assert error.detail.endswith(".")


@pytest.mark.parametrize("reason", OperationKeyReason)
def test_every_operation_key_reason_has_a_sentence(reason: OperationKeyReason) -> None:
    error = errors.InvalidOperationKey(reason)
    assert error.reason is reason
    assert error.detail.endswith(".")


def test_a_pointer_escapes_its_tokens() -> None:
    assert json_pointer([]) == ""
    assert json_pointer(["a/b", "m~n", 0, ""]) == "/a~1b/m~0n/0/"


@pytest.mark.parametrize("name", ["\n2026 forged log line", "\x1b[31m", "\ud800", "\u202e"])
def test_a_pointer_is_cut_before_a_name_that_could_forge_a_line(name: str) -> None:
    assert json_pointer(["a", name, "b"]) == "/a"


def test_a_pointer_is_cut_at_a_member_when_it_grows_too_long() -> None:
    pointer = json_pointer(["abc"] * 1000)
    assert len(pointer) <= POINTER_CHARS_MAX
    assert set(pointer.split("/")) == {"", "abc"}


# Every parameter of every leaf that may hold text. All of them name something of ours: a new line
# here is a new way for an argument or a secret to reach a log.
_TEXT_PARAMETERS = {
    ("RequestMalformed", "parameter"),
    ("RequestMalformed", "choices"),  # names of states, reasons and the like, which are ours
    ("InvalidRequest", "field"),
    ("InvalidPayload", "field"),
    ("InvalidArguments", "field"),
    ("InvalidArguments", "keyword"),
    ("InvalidArguments", "expected"),  # a type's name or a number of the contract's schema
    ("Forbidden", "scope"),
    ("PayloadConflict", "field"),
    ("CursorSuperseded", "resume"),  # a cursor: a place, and a seal over it
    ("ContractInvalid", "problems"),
    ("KeyRingMissing", "key_id"),
    ("ConfigurationInvalid", "setting"),
    ("ConfigurationInvalid", "remedy"),
}
_VALUELESS = {
    "ParameterReason", "RequestReason", "PayloadReason", "OperationKeyReason", "EffectState",
    "UUID", "datetime", "int", "None",
}  # fmt: skip


def test_a_constructor_has_no_place_for_a_value() -> None:
    holds_text = {
        (leaf.__name__, name)
        for leaf in _leaves(EffectError)
        for name, parameter in signature(leaf.__init__).parameters.items()
        if name != "self" and not set(str(parameter.annotation).split(" | ")) <= _VALUELESS
    }
    assert holds_text == _TEXT_PARAMETERS
