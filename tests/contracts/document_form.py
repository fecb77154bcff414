"""The form of contract documents: every member of every section, with its type, bounds, default.

Printed as a program: `python tests/contracts/document_form.py > tests/contracts/golden/form.txt`
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from effect_contracts.document import ContractDocument


def lines() -> Iterator[str]:
    """One line for each member, sorted."""
    schema = ContractDocument.model_json_schema(by_alias=True)
    sections = {"ContractDocument": schema, **schema.pop("$defs")}
    for name, section in sorted(sections.items()):
        rest = {key: part for key, part in section.items() if key not in {"properties", "required"}}
        yield f"{name} {_text(rest)}"
        for member, part in sorted(section.get("properties", {}).items()):
            required = "required " if member in section.get("required", ()) else ""
            yield f"{name}.{member} {required}{_text(part)}"


def _text(part: Any) -> str:
    return json.dumps(_without_words(part), sort_keys=True, ensure_ascii=True)


def _without_words(part: Any) -> Any:
    """Titles and descriptions are for readers and may change."""
    if isinstance(part, dict):
        return {
            name: _without_words(inner)
            for name, inner in part.items()
            if not (name in {"title", "description"} and isinstance(inner, str))
        }
    return [_without_words(inner) for inner in part] if isinstance(part, list) else part


if __name__ == "__main__":
    for line in lines():
        print(line)
