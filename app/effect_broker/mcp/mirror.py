"""How a tool of the upstream is shown: as it is, with the operation key where it has a contract.

Nothing is taken from a tool and no word of it is changed. Its input gets one required property;
its output may also be what the broker tells of an effect (`effect_broker.mcp.words.Told`), since an
outcome that nobody knows has no other form; a client that checks results would refuse it otherwise.
"""

from __future__ import annotations

from typing import Any, Final

from mcp_types import Tool

from effect_broker.mcp.words import Told

KEY_PROPERTY: Final[dict[str, Any]] = {
    "type": "string",
    "minLength": 1,
    "maxLength": 255,
    "pattern": "^[!-~]+$",
    "description": "The stable name of the business intent, such as order:42:refund:v1. The same "
    "on every retry, never random: for one name the change is made at most once.",
}

# Where schemas of a result may point to, and what may be moved to the root beside another schema.
_DEFINITIONS: Final = ("$defs", "definitions")


def mirror_problem(tool: Tool, key_name: str) -> str | None:
    """Say why a tool cannot be shown with an operation key, or None."""
    properties, required = tool.input_schema.get("properties"), tool.input_schema.get("required")
    if not isinstance(properties, dict | None) or not isinstance(required, list | None):
        return "the input schema of the tool is none: nothing can be added to it"
    if key_name in (properties or {}):
        return (
            f"the tool has a property {key_name!r} of its own: name another one with operation_key"
        )
    return None


def mirrored(tool: Tool, key_name: str) -> Tool:
    """Return the tool as it is shown with an operation key."""
    schema = dict(tool.input_schema)
    schema["properties"] = {key_name: KEY_PROPERTY, **(schema.get("properties") or {})}
    schema["required"] = [key_name, *(schema.get("required") or [])]
    changes: dict[str, Any] = {"input_schema": schema}
    if tool.output_schema is not None:
        changes["output_schema"] = _or_told(tool.output_schema)
    return tool.model_copy(update=changes)


def _or_told(schema: dict[str, Any]) -> dict[str, Any]:
    definitions: dict[str, Any] = {n: schema[n] for n in _DEFINITIONS if n in schema}
    own = {name: part for name, part in schema.items() if name not in (*definitions, "$schema")}
    shown: dict[str, Any] = {"type": "object", **definitions}
    if "$schema" in schema:
        shown["$schema"] = schema["$schema"]
    if _points_elsewhere(own) or _points_elsewhere(definitions):
        # Below another schema such a reference would lead to another place; then nothing is said.
        return {"type": "object"}
    return {**shown, "anyOf": [own, Told.model_json_schema(mode="serialization")]}


def _points_elsewhere(part: Any) -> bool:
    if isinstance(part, list):
        return any(_points_elsewhere(below) for below in part)
    if not isinstance(part, dict):
        return False
    reference = part.get("$ref")
    if isinstance(reference, str) and not reference.startswith(("#/$defs/", "#/definitions/")):
        return True
    if {"$id", "$dynamicRef", "$anchor"} & part.keys():
        return True
    return any(_points_elsewhere(below) for below in part.values())
