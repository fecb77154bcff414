"""What an effect gets from its contract document: numbers, checked arguments, a preview."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from effect_contracts.document import (
    ContractDocument,
    SimulatedSettings,
)
from effect_contracts.errors import ContractInvalid, InvalidArguments
from effect_contracts.facts import Policy, SafetyClass
from effect_contracts.keys import KeyFormat

from .documents import (
    IDEMPOTENT,
    RECONCILABLE,
    REMOVED,
    UNSAFE,
    document,
)

GOOD: dict[str, Any] = {"order": "o-1", "amount": 5}


def refusal(text: str) -> ContractInvalid:
    with pytest.raises(ContractInvalid) as refused:
        ContractDocument.parse_yaml(text)
    return refused.value


# What the protocol gets -------------------------------------------------------------------------


def test_the_policy_has_every_number_of_the_document() -> None:
    retry: dict[str, Any] = {
        "attempts_max": 7,
        "backoff_initial_seconds": 2,
        "backoff_factor": 3,
        "backoff_cap_seconds": 50,
        "retry_after_cap_seconds": 60,
        "in_progress_bound_seconds": 70,
        "replayed_errors_max": 4,
    }
    probe: dict[str, Any] = {
        "initial_seconds": 5,
        "factor": 1.5,
        "cap_seconds": 9,
        "horizon_seconds": 9999,
    }
    read = document(
        RECONCILABLE,
        ("/retry", retry),
        ("/probe", probe),
        ("/attempt_deadline_seconds", 11),
        ("/clock_margin_seconds", 0.25),
        ("/transit_seconds", 6),
    )
    assert read.policy() == Policy(
        safety=SafetyClass.RECONCILABLE,
        attempt_deadline_seconds=11,
        clock_margin_seconds=0.25,
        transit_seconds=6,
        key_retention_seconds=86400,
        settlement_bound_seconds=60,
        probes=True,
        **retry,
        **{f"probe_{name}": value for name, value in probe.items()},
    )


def test_a_document_without_numbers_has_the_defaults_of_the_policy() -> None:
    numbers = ("key_retention_seconds", REMOVED)
    assert document(UNSAFE, ("/" + numbers[0], numbers[1])).policy() == Policy(SafetyClass.UNSAFE)


def test_the_key_format_is_the_documents() -> None:
    read = document(IDEMPOTENT, ("/key", {"format": "hex", "length_max": 40, "prefix": "eb-"}))
    assert read.key_format == KeyFormat("hex", 40, None, "eb-")


def test_a_simulated_target_says_what_it_can() -> None:
    simulated = {"kind": "simulated", "target": "bank", "probes": True}
    read = document(RECONCILABLE, ("/adapter", simulated))
    assert isinstance(read.adapter, SimulatedSettings)
    assert read.policy().probes
    assert not read.policy().polls_operations


# Arguments --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "field", "keyword"),
    [
        ({"order": "o"}, "/amount", "required"),
        ({**GOOD, "amount": True}, "/amount", "type"),
        ({**GOOD, "amount": "5"}, "/amount", "type"),
        ({**GOOD, "amount": 0}, "/amount", "minimum"),
        ({**GOOD, "s3cret": 1}, "", "additionalProperties"),
        ({**GOOD, "card": {"number": 1}}, "/card/number", "type"),
        ({**GOOD, "lines": [{}, 5]}, "/lines/1", "type"),
        ({**GOOD, "idempotency_key": "x"}, "/idempotency_key", "forbidden"),
        ([GOOD], "", "type"),
        (None, "", "type"),
    ],
)
def test_wrong_arguments_are_named_by_place_and_keyword(
    arguments: Any, field: str, keyword: str
) -> None:
    read = document(IDEMPOTENT, ("/forbidden", ["/idempotency_key"]))
    with pytest.raises(InvalidArguments) as refused:
        read.check_arguments(arguments)
    assert (refused.value.field, refused.value.extras["keyword"]) == (field, keyword)


def test_good_arguments_pass_and_one_point_zero_is_an_integer() -> None:
    read = document(IDEMPOTENT)
    read.check_arguments(GOOD)
    read.check_arguments({**GOOD, "amount": 1.0, "lines": [{"note": None}]})


def test_forbidden_reaches_into_every_element() -> None:
    read = document(IDEMPOTENT, ("/forbidden", ["/lines/*/key"]))
    read.check_arguments({**GOOD, "lines": [{"note": 1}]})
    with pytest.raises(InvalidArguments, match="forbids"):
        read.check_arguments({**GOOD, "lines": [{"note": 1}, {"key": 1}]})


def test_a_refusal_of_arguments_carries_no_value_and_no_name_of_the_callers() -> None:
    schema = {
        "type": "object",
        "additionalProperties": {"type": "object", "additionalProperties": {"type": "integer"}},
    }
    read = document(IDEMPOTENT, ("/arguments", schema))
    with pytest.raises(InvalidArguments) as refused:
        read.check_arguments({"alice@example.com": {"s3cret": "hunter2"}})
    error = refused.value
    assert error.field == "/*/*"
    assert error.__cause__ is None
    assert error.__context__ is None
    assert not {"hunter2", "alice", "s3cret"} & set(str(error).split())
    assert "hunter2" not in repr(vars(error))


def test_arguments_that_exhaust_the_validator_are_refused_and_raise_nothing_else() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#"}}}
    read = document(IDEMPOTENT, ("/arguments", schema))
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"a": deep}
    with pytest.raises(InvalidArguments, match="recursion"):
        read.check_arguments(deep)


def test_a_preview_hides_what_is_sensitive_and_cuts_what_is_long() -> None:
    read = document(IDEMPOTENT, ("/sensitive", ["/card", "/lines/*/note"]))
    shown = read.preview(
        {
            "order": "x" * 500,
            "amount": 5,
            "card": {"number": "4242"},
            "lines": [{"note": "hunter2", "n": 1}, {"note": "hunter2"}],
        }
    )
    assert shown == {
        "order": "[500 characters]",
        "amount": 5,
        "card": "[redacted]",
        "lines": [{"note": "[redacted]", "n": 1}, {"note": "[redacted]"}],
    }


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=300),
        lambda below: st.lists(below, max_size=70) | st.dictionaries(st.text(), below),
    )
)
def test_a_preview_never_fails_and_never_shows_a_sensitive_value(value: Any) -> None:
    read = document(IDEMPOTENT, ("/sensitive", ["/order", "/lines/*/note"]))
    arguments = {"order": "hunter2", "lines": [{"note": ["hunter2", value]}], "amount": value}
    assert "hunter2" not in json.dumps({**read.preview(arguments), "amount": None})


def test_all_arguments_may_be_sensitive() -> None:
    assert document(IDEMPOTENT, ("/sensitive", [""])).preview(GOOD) == {}
