"""Every value of the steps is frozen and holds nothing but what it declares."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import is_dataclass

import pytest

from effect_broker import protocol

MODULES = sorted(
    module.name for module in pkgutil.walk_packages(protocol.__path__, "effect_broker.protocol.")
)


def values(module_name: str) -> list[type]:
    """The dataclasses that the module itself defines."""
    return [
        value
        for value in vars(importlib.import_module(module_name)).values()
        if isinstance(value, type) and is_dataclass(value) and value.__module__ == module_name
    ]


@pytest.mark.parametrize("module_name", MODULES)
def test_a_value_cannot_change_once_it_is_made(module_name: str) -> None:
    """What a decision was made on must still be what was stored."""
    changeable = [v for v in values(module_name) if not vars(v)["__dataclass_params__"].frozen]
    assert changeable == []


@pytest.mark.parametrize("module_name", MODULES)
def test_a_misspelt_member_is_an_error(module_name: str) -> None:
    """Without slots, an assignment past the freeze would make a member that nobody reads."""
    open_ended = [v for v in values(module_name) if "__slots__" not in vars(v)]
    assert open_ended == []
