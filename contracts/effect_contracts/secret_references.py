"""Which secrets a contract names: by reference, never by value.

A reference is text of one form, and a document may hold such a text nowhere else
(`effect_contracts.http_rules` refuses it), so that finding the form is finding the references.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from effect_contracts.document import ContractDocument

_REFERENCE: Final = re.compile(r"(env:[A-Za-z_][A-Za-z0-9_]*|file:/.+)")


def sending_secrets(document: ContractDocument) -> tuple[str, ...]:
    """Return the references that a worker resolves to send and to look up, sorted."""
    return tuple(sorted(set(_references(document.adapter.model_dump(mode="json")))))


def webhook_secrets(document: ContractDocument) -> tuple[str, ...]:
    """Return the references that the API resolves to judge the target's webhooks, as written."""
    return () if document.webhook is None else document.webhook.secrets


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for member in value.values():
            yield from _references(member)
    elif isinstance(value, list):
        for element in value:
            yield from _references(element)
    elif isinstance(value, str) and _REFERENCE.fullmatch(value):
        yield value
