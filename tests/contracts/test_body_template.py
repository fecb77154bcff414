"""A body template says what it refers to, and what is none is refused in words."""

from __future__ import annotations

from typing import Any

import pytest

from effect_contracts.body_template import (
    header_variables,
    template_has_key,
    template_pointers,
    template_problem,
)

ARG, KEY = {"$arg": "/a"}, {"$key": True}


@pytest.mark.parametrize(
    "template",
    [
        None, "x", 7, [], {}, {"a": {"b": [1, None]}},
        {"$arg": ""}, {"$arg": "/"}, {"$arg": "/a~0b/c~1d/0"},
        {"$arg": "/a", "optional": True}, {"$arg": "/a", "optional": False},
        {"$arg": "/a", "default": None}, {"$arg": "/a", "default": {"$arg": 1}},
        KEY,
        {"$concat": []}, {"$concat": ["a", ARG, KEY]},
        {"$concat": [{"$arg": "/a", "default": "x"}]},
        {"$literal": {"$arg": "no pointer", "more": 1}}, {"$literal": None},
        {"deep": [{"$literal": {"$concat": 1}}, {"deeper": [ARG]}]},
    ],
)  # fmt: skip
def test_what_a_template_may_hold_is_accepted(template: Any) -> None:
    assert template_problem(template) is None
    assert template_problem([{"below": template}]) is None


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ({"$nonsense": 1}, "with nothing beside it"),
        ({"$arg": "/a", "$key": True}, "with nothing beside it"),
        ({"$arg": "/a", "$nonsense": True}, "with nothing beside it"),
        ({"$arg": "/a", "more": 1}, "with nothing beside it"),
        ({"$key": True, "optional": True}, "with nothing beside it"),
        ({"$concat": [], "default": "x"}, "with nothing beside it"),
        ({"$literal": 1, "optional": True}, "with nothing beside it"),
        ({"$arg": 1}, "a JSON Pointer"),
        ({"$arg": ["/a"]}, "a JSON Pointer"),
        ({"$arg": "a"}, "a JSON Pointer"),
        ({"$arg": "/a~2"}, "a JSON Pointer"),
        ({"$arg": "/a~"}, "a JSON Pointer"),
        ({"$arg": "/a", "optional": "yes"}, "not both"),
        ({"$arg": "/a", "optional": None}, "not both"),
        ({"$arg": "/a", "optional": True, "default": 1}, "not both"),
        ({"$arg": "/a", "optional": False, "default": 1}, "not both"),
        ({"$key": False}, "{$key: true}"),
        ({"$key": 1}, "{$key: true}"),
        ({"$key": "true"}, "{$key: true}"),
        ({"$concat": "text"}, "a list of texts"),
        ({"$concat": {"$arg": "/a"}}, "a list of texts"),
        ({"$concat": [1]}, "a list of texts"),
        ({"$concat": [None]}, "a list of texts"),
        ({"$concat": [["a"]]}, "a list of texts"),
        ({"$concat": [{}]}, "a list of texts"),
        ({"$concat": [{"plain": 1}]}, "a list of texts"),
        ({"$concat": ["a", {"$literal": "x"}]}, "a list of texts"),
        ({"$concat": [{"$concat": []}]}, "a list of texts"),
        ({"$concat": [{"$arg": "no"}]}, "a JSON Pointer"),
        ({"$concat": [{"$arg": "/a", "more": 1}]}, "with nothing beside it"),
    ],
)
def test_what_is_no_template_is_refused_in_words_however_deep_it_stands(
    template: Any, words: str
) -> None:
    for whole in (template, [template], {"a": {"b": [1, template]}}):
        assert words in (template_problem(whole) or "nothing is wrong")


def test_the_arguments_of_a_template_are_named_once_each_in_order() -> None:
    template = {
        "first": {"$arg": "/b"},
        "list": [1, {"$arg": "/a", "optional": True}, {"deep": {"$arg": "/b"}}],
        "text": {"$concat": ["x", {"$arg": "/c"}, KEY, {"$arg": "/a"}]},
        "raw": {"$literal": {"$arg": "/never"}},
        "other": {"$arg": "/d", "default": {"$arg": "/neither"}},
    }
    assert template_pointers(template) == ("/b", "/a", "/c", "/d")
    assert template_pointers("x") == ()


@pytest.mark.parametrize("template", [KEY, [1, KEY], {"a": {"b": KEY}}, {"$concat": ["k", KEY]}])
def test_a_template_with_the_key_in_it_has_the_key(template: Any) -> None:
    assert template_has_key(template)


@pytest.mark.parametrize("template", [None, "$key", ARG, {"$literal": KEY}, {"$concat": [ARG]}, []])
def test_a_template_without_the_key_has_none(template: Any) -> None:
    assert not template_has_key(template)


@pytest.mark.parametrize(
    ("template", "names"),
    [
        ("{b}-{a}:{b}", ("b", "a")),
        ("{key} {card.number} {_x1}", ("key", "card.number", "_x1")),
        ("no {1} {} { a } {a-b} {+a}", ()),
        ("", ()),
    ],
)
def test_the_variables_of_a_header_are_named_once_each_in_order(
    template: str, names: tuple[str, ...]
) -> None:
    assert header_variables(template) == names
