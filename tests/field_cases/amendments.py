"""What several cases change in a contract of the catalog."""

from __future__ import annotations

from effect_contracts.catalog import catalog_documents
from field_cases.cases import Document


def any_value(document: Document) -> None:
    """Let the contract take any JSON value as the argument `value`."""
    document["arguments"]["properties"]["value"] = {}


def look_up_too(document: Document) -> None:
    """Give the idempotent contract the look-up of the reconcilable one, without a bound."""
    other = catalog_documents()["demo-charge-reconcilable"].model_dump(mode="json", by_alias=True)
    probe = other["adapter"]["probe"]
    probe["url"] = document["adapter"]["url"] + "{?key}"
    document["adapter"]["probe"] = probe
