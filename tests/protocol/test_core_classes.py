"""Whatever the protocol's modules declare with members is a value, and shows no payload."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import pytest

from effect_broker import protocol

MODULES = sorted(
    module.name for module in pkgutil.walk_packages(protocol.__path__, "effect_broker.protocol.")
)


def classes(module_name: str) -> list[type[Any]]:
    """The classes that the module itself defines, but for ports, words and errors."""
    return [
        one
        for one in vars(importlib.import_module(module_name)).values()
        if isinstance(one, type) and one.__module__ == module_name
        if not issubclass(one, Enum | Exception) and not getattr(one, "_is_protocol", False)
    ]


@pytest.mark.parametrize("module_name", MODULES)
def test_a_class_with_members_is_a_value(module_name: str) -> None:
    declared = [one for one in classes(module_name) if vars(one).get("__annotations__")]
    assert [one for one in declared if not is_dataclass(one)] == []


@pytest.mark.parametrize("module_name", MODULES)
def test_what_an_approver_is_shown_is_not_shown_to_a_log(module_name: str) -> None:
    values = [one for one in classes(module_name) if is_dataclass(one)]
    shown = [(one, part.name) for one in values for part in fields(one) if part.repr]
    assert [one for one, name in shown if name == "preview"] == []
