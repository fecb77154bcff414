"""The template of a request body: JSON with leaves that arguments and the key fill in.

Owns what a template may hold and what it refers to. Filling it in is the adapter's:

- `{"$arg": "/pointer"}` is the argument there; it must exist, unless `"optional": true` (then the
  member or element is left out) or `"default": <JSON>` is given.
- `{"$key": true}` is the downstream key.
- `{"$concat": [...]}` joins texts, `$arg` scalars and `$key` to one text.
- `{"$literal": <JSON>}` is the JSON itself, unfilled.
"""

from __future__ import annotations

import re
from typing import Any, Final

_LEAVES: Final = {
    "$arg": {"$arg", "optional", "default"},
    "$key": {"$key"},
    "$concat": {"$concat"},
    "$literal": {"$literal"},
}


def template_problem(template: Any) -> str | None:
    """Say what is wrong with a body template, or None."""
    pending = [template]
    while pending:
        here = pending.pop()
        if isinstance(here, list):
            pending.extend(here)
        elif isinstance(here, dict):
            mark = next((name for name in here if name.startswith("$")), None)
            if mark is None:
                pending.extend(here.values())
                continue
            problem = _leaf_problem(here, mark)
            if problem is not None:
                return problem
            pending.extend(here.get("$concat", ()))
    return None


def _leaf_problem(leaf: dict[str, Any], mark: str) -> str | None:
    if mark not in _LEAVES or not leaf.keys() <= _LEAVES[mark]:
        return (
            "a template object with '$' is one of {$arg: /pointer, optional or default}, "
            "{$key: true}, {$concat: […]} and {$literal: …}, with nothing beside it"
        )
    if mark == "$arg":
        pointer = leaf["$arg"]
        if not isinstance(pointer, str) or not re.fullmatch(r"(/([^~/]|~[01])*)*", pointer):
            return "$arg is a JSON Pointer into the arguments, for example /customer/id"
        if leaf.get("optional", False) not in (True, False) or (
            "optional" in leaf and "default" in leaf
        ):
            return "$arg takes optional (true or false) or default, not both"
    if mark == "$key" and leaf["$key"] is not True:
        return "the downstream key is written {$key: true}"
    if mark == "$concat":
        parts = leaf["$concat"]
        if not isinstance(parts, list) or not all(
            isinstance(p, str) or (isinstance(p, dict) and (p.keys() & {"$arg", "$key"}))
            for p in parts
        ):
            return "$concat is a list of texts, {$arg: …} and {$key: true}"
    return None


def template_pointers(template: Any) -> tuple[str, ...]:
    """Return the argument pointers of a checked template, each once, in order."""
    return tuple(dict.fromkeys(leaf["$arg"] for leaf in _leaves(template) if "$arg" in leaf))


def template_has_key(template: Any) -> bool:
    """Whether a checked template contains `{"$key": true}`."""
    return any("$key" in leaf for leaf in _leaves(template))


def _leaves(template: Any) -> list[dict[str, Any]]:
    if isinstance(template, list):
        return [leaf for part in template for leaf in _leaves(part)]
    if not isinstance(template, dict) or "$literal" in template:
        return []
    if "$concat" in template:
        return _leaves(template["$concat"])
    if "$arg" in template or "$key" in template:
        return [template]
    return [leaf for part in template.values() for leaf in _leaves(part)]


def header_variables(template: str) -> tuple[str, ...]:
    """Return the names of the `{name}` expressions of a header template, each once, in order."""
    return tuple(dict.fromkeys(re.findall(r"\{([A-Za-z_][A-Za-z0-9_.]*)\}", template)))
