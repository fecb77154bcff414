"""Contract documents for tests: one valid document of each class, and ways to change a place."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from effect_contracts.document import ContractDocument
from effect_contracts.errors import ContractInvalid
from effect_contracts.expressions import pointer_tokens

REMOVED: Any = object()

_ARGUMENTS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "order": {"type": "string"},
        "amount": {"type": "integer", "minimum": 1},
        "card": {"type": "object", "properties": {"number": {"type": "string"}}},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"note": {}}}},
    },
    "required": ["order", "amount"],
    "additionalProperties": False,
}

IDEMPOTENT: dict[str, Any] = {
    "name": "charge",
    "version": "1",
    "tool": "charge",
    "safety": "idempotent",
    "account": "acct_1",
    "arguments": _ARGUMENTS,
    "key_retention_seconds": 86400,
    "adapter": {
        "kind": "http",
        "url": "https://api.example.com/charges",
        "key": {"in": "header", "name": "Idempotency-Key"},
        "answers": {
            "success": [{"statuses": [200], "body_schema": {"required": ["id"]}}],
            "retryable": [{"statuses": [429], "code": "limited", "proves_no_commit": True}],
        },
    },
}

RECONCILABLE: dict[str, Any] = {
    **IDEMPOTENT,
    "safety": "reconcilable",
    "settlement_bound_seconds": 60,
    "adapter": {
        **IDEMPOTENT["adapter"],
        "probe": {
            "url": "https://api.example.com/charges{?key}",
            "items": "data",
            "key_match": {"kind": "field", "path": "key"},
            "agree": {"/amount": "amount"},
            "absent": [{"statuses": [200], "empty_list": True}],
        },
    },
}

UNSAFE: dict[str, Any] = {**IDEMPOTENT, "safety": "unsafe"}

TRANSACTIONAL: dict[str, Any] = {
    **IDEMPOTENT,
    "safety": "transactional",
    "adapter": {"kind": "postgres", "function": "ledger.post_entry"},
}


def changed(base: dict[str, Any], *changes: tuple[str, Any]) -> dict[str, Any]:
    """Return a copy of `base` with each (JSON Pointer, value) set, or removed."""
    copied = copy.deepcopy(base)
    for pointer, value in changes:
        *outer, last = pointer_tokens(pointer)
        here: Any = copied
        for name in outer:
            here = here[int(name)] if isinstance(here, list) else here.setdefault(name, {})
        if value is REMOVED:
            del here[last]
        elif isinstance(here, list):
            here[int(last)] = value
        else:
            here[last] = value
    return copied


def document(base: dict[str, Any], *changes: tuple[str, Any]) -> ContractDocument:
    """Read the changed document through the same door as a person's file: JSON is YAML."""
    return ContractDocument.parse_yaml(json.dumps(changed(base, *changes)))


def problems_in(base: dict[str, Any], *changes: tuple[str, Any]) -> dict[str, str]:
    """Return the problems of a document that has to be refused: pointer to sentence."""
    with pytest.raises(ContractInvalid) as refused:
        document(base, *changes)
    problems = refused.value.extras["problems"]
    assert isinstance(problems, list)
    return {problem["field"]: problem["message"] for problem in problems}
