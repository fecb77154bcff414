"""Registered probes: look-ups in code of one's own, for effects that their callers perform.

A registry is a mapping from the names that contracts use to functions (`effect_adapters.caller`),
named as `module:registry` by `effect-broker worker --probes` or EFFECT_BROKER_PROBES. The module is
looked for as Python does, in the working directory first.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Mapping
from typing import Any, Final

from effect_adapters.caller import Probe
from effect_broker.config import ConfigurationProblem

_SPEC: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_SETTING: Final = "EFFECT_BROKER_PROBES (--probes)"


def load_probes(spec: str | None) -> Mapping[str, Probe]:
    """Return the probes that a specification names; none without one.

    Raises:
        ConfigurationProblem: there is no such registry, or it holds something else than probes.
    """
    if not spec:
        return {}
    if not _SPEC.fullmatch(spec):
        raise ConfigurationProblem(f"{_SETTING}: must be like package.module:registry")
    module_name, _, attribute = spec.partition(":")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        module: Any = importlib.import_module(module_name)
    except Exception as problem:
        # Its text may be anything; the kind says what went wrong.
        kind = type(problem).__name__
        raise ConfigurationProblem(
            f"{_SETTING}: {module_name} cannot be imported ({kind})"
        ) from None
    registry = getattr(module, attribute, None)
    if not isinstance(registry, Mapping):
        raise ConfigurationProblem(f"{_SETTING}: {module_name} has no mapping named {attribute}")
    wrong = [str(name) for name, probe in registry.items() if not _fits(name, probe)]
    if wrong:
        raise ConfigurationProblem(
            f"{_SETTING}: every entry is a name and a function; these are not: {', '.join(wrong)}"
        )
    return dict(registry)


def _fits(name: object, probe: object) -> bool:
    return isinstance(name, str) and bool(name) and callable(probe)
