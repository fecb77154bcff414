"""The contract documents that ship with the broker: examples, and what the demo runs on.

Owns where they are. In a wheel they are package data; in a checkout they lie beside the package.
Reading them is the only I/O of this package, and nothing of the protocol depends on it.
"""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable

from effect_contracts.document import ContractDocument

SCHEMA_NAME = "contract.schema.json"


def catalog_path() -> Traversable:
    """Return the directory of the catalog."""
    package = files("effect_contracts")
    shipped = package.joinpath("catalog")
    if shipped.is_dir():
        return shipped
    # An editable install maps the package to contracts/effect_contracts of the checkout.
    return package.joinpath("..", "catalog")


def catalog_texts() -> dict[str, str]:
    """Return the YAML text of every document, by file name without its ending, sorted."""
    found = [entry for entry in catalog_path().iterdir() if entry.name.endswith(".yaml")]
    return {
        entry.name.removesuffix(".yaml"): entry.read_text(encoding="utf-8")
        for entry in sorted(found, key=lambda entry: entry.name)
    }


def catalog_documents() -> dict[str, ContractDocument]:
    """Return every document of the catalog by its name, sorted."""
    documents = (ContractDocument.parse_yaml(text) for text in catalog_texts().values())
    return {document.name: document for document in documents}
