"""A contract names its secrets, wherever they stand in it, and nothing else is taken for one."""

from __future__ import annotations

import json
from typing import Any

from effect_contracts.catalog import catalog_texts
from effect_contracts.document import ContractDocument
from effect_contracts.secret_references import sending_secrets, webhook_secrets

WEBHOOK = {
    "scheme": {"kind": "stripe"},
    "secrets": ["env:EFFECT_BROKER_WEBHOOK_KEY_B", "env:EFFECT_BROKER_WEBHOOK_KEY_A"],
    "committed": "type == 'done'", "key_match": {"kind": "field", "path": "data.key"},
    "agree": {"/amount": "data.amount"}, "extraction": {"external_id": "data.id"},
}  # fmt: skip


def _document(**changes: Any) -> ContractDocument:
    content = json.loads(ContractDocument.parse_yaml(catalog_texts()["stripe-charge"]).canonical())
    content["adapter"] |= changes.pop("adapter", {})
    return ContractDocument.parse_yaml(json.dumps(content | changes))


def test_references_are_found_in_headers_and_credentials_sorted_and_once() -> None:
    secret = {"secret": "file:/run/secrets/extra"}
    document = _document(adapter={"headers": {"X-One": secret, "X-Two": secret}})
    assert sending_secrets(document) == (
        "env:EFFECT_BROKER_SECRET_STRIPE",
        "file:/run/secrets/extra",
    )
    assert webhook_secrets(document) == ()


def test_text_that_only_holds_such_a_name_is_none() -> None:
    document = _document(adapter={"headers": {"X-One": "see env:EFFECT_BROKER_SECRET_X"}})
    assert sending_secrets(document) == ("env:EFFECT_BROKER_SECRET_STRIPE",)


def test_the_secrets_of_a_webhook_are_told_apart_and_in_their_order() -> None:
    document = _document(webhook=WEBHOOK)
    assert webhook_secrets(document) == tuple(WEBHOOK["secrets"])
    assert sending_secrets(document) == ("env:EFFECT_BROKER_SECRET_STRIPE",)


def test_a_contract_without_secrets_names_none() -> None:
    document = ContractDocument.parse_yaml(catalog_texts()["demo-charge-unsafe"])
    assert sending_secrets(document) == ()
