"""The demo's contracts, tuned for a proof: shorter times, an origin and a kind of their own.

They are the documents of the catalog; only numbers and addresses are changed, so that a proof runs
in seconds and its kinds of objects do not disturb each other at the target.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from effect_contracts.catalog import catalog_documents
from effect_contracts.document import ContractDocument

# Short, but longer than what a loaded machine of two cores may lose between two steps.
QUICK: Mapping[str, Any] = {
    "attempt_deadline_seconds": 1.5,
    "transit_seconds": 0.2,
    "clock_margin_seconds": 0.2,
}
QUICK_RETRY: Mapping[str, Any] = {"backoff_initial_seconds": 0.1, "backoff_cap_seconds": 1.0}


def tuned(
    name: str,
    origin: str,
    kind: str,
    *,
    version: str = "1",
    retry: Mapping[str, Any] | None = None,
    **members: Any,
) -> ContractDocument:
    """Return a document of the catalog for objects of `kind` at `origin`.

    It serves the tool `proof.<kind>`. `members` replace members of the document, `retry` members
    of its retry section.

    Raises:
        ContractInvalid: the result breaks a rule.
    """
    document = json.loads(catalog_documents()[name].canonical())
    document |= {
        "name": f"proof-{kind.replace('_', '-')}",
        "version": version,
        "tool": f"proof.{kind}",
    }
    document |= {**QUICK, **members}
    document["retry"] |= {**QUICK_RETRY, **(retry or {})}
    adapter = document["adapter"]
    adapter["url"] = f"{origin}/objects/{kind}"
    if "probe" in adapter:
        adapter["probe"]["url"] = f"{origin}/objects/{kind}{{?key}}"
    return ContractDocument.parse_yaml(json.dumps(document))


def charge(order: str, amount: int = 1200) -> dict[str, Any]:
    """Return arguments that every charge contract takes."""
    return {"order": order, "amount": amount, "currency": "eur"}
