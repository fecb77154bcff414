"""Every value of the protocol is frozen and holds nothing but what it declares."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import is_dataclass

import pytest

import effect_contracts

MODULES = sorted(
    module.name for module in pkgutil.walk_packages(effect_contracts.__path__, "effect_contracts.")
)
# Work under way, which changes while one call lasts and is never handed out.
UNDER_WAY = {"effect_contracts.patterns._Scan", "effect_contracts.trace.check._Check"}


def values(module_name: str) -> list[type]:
    """The dataclasses that the module itself defines."""
    return [
        value
        for value in vars(importlib.import_module(module_name)).values()
        if isinstance(value, type) and is_dataclass(value) and value.__module__ == module_name
        if f"{module_name}.{value.__name__}" not in UNDER_WAY
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
