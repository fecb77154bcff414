"""What a check says of the neighbours of a rule, and which of the library's ends are its own."""

from __future__ import annotations

from typing import Any

import pytest

from effect_contracts.bounded_schema import (
    ARGUMENT_STEPS_MAX,
    BoundedSchema,
    CheckTooCostly,
    Work,
)


def accepts(schema: Any, value: Any) -> bool:
    return BoundedSchema(schema).accepts(value, Work(ARGUMENT_STEPS_MAX))


class _Ends(Work):
    """Work that ends a check as the compiled part of the library may."""

    def __init__(self, module: str) -> None:
        super().__init__(ARGUMENT_STEPS_MAX)
        self.error = type("Ended", (BaseException,), {"__module__": module})

    def spend(self, steps: int) -> None:
        raise self.error()


def test_an_end_of_the_compiled_part_is_a_depth_that_cannot_be_checked() -> None:
    with pytest.raises(CheckTooCostly) as problem:
        BoundedSchema({"type": "object"}).mismatches({}, _Ends("pyo3_runtime"))
    assert problem.value.reason == "recursion"


@pytest.mark.parametrize("module", ["builtins", "pyo3_runtimd", "pyo3_runtimes", "zlib"])
def test_no_other_end_is_held_back(module: str) -> None:
    work = _Ends(module)
    with pytest.raises(work.error):
        BoundedSchema({"type": "object"}).mismatches({}, work)


@pytest.mark.parametrize("value", [{"a": 1, "z": 2}, {"z": 2, "a": 1}, {"p1": 1, "z": 2}])
def test_a_declared_member_does_not_hide_one_that_is_not(value: dict[str, int]) -> None:
    schema = {
        "properties": {"a": {}},
        "patternProperties": {"^p": {}},
        "additionalProperties": False,
    }
    assert not accepts(schema, value)
    assert accepts(schema, {"a": 1, "p1": 1})
    of_texts = schema | {"additionalProperties": {"type": "string"}}
    assert not accepts(of_texts, value)
    assert accepts(of_texts, {"a": 1, "z": "2"})


@pytest.mark.parametrize(
    ("value", "fits"), [(None, False), ("x", True), (1, True), ("one", False), (1.5, False)]
)
def test_of_some_schemas_exactly_one_fits(value: Any, fits: bool) -> None:
    schema = {"oneOf": [{"type": "string"}, {"type": "integer"}, {"const": "one"}]}
    assert accepts(schema, value) is fits


def test_true_and_false_are_two_values() -> None:
    assert accepts({"uniqueItems": True}, [True, False, 1, 0, "true", "false"])
    assert not accepts({"uniqueItems": True}, [True, False, True])
    assert accepts({"enum": [True]}, True)
    assert not accepts({"enum": [True]}, False)
