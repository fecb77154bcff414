"""`doctor` on webhooks whose secrets are missing, and on receipts that nobody has signed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.commands import Cli
from cli.sender import Sender
from effect_contracts.catalog import catalog_texts
from effect_contracts.document import ContractDocument
from effect_contracts.facts import Outcome
from postgres import Database

ARGUMENTS = '{"order": "42", "amount": 1200, "currency": "eur", "customer_email": "a@example.com"}'
WEBHOOK = {
    "scheme": {"kind": "standard_webhooks"},
    "secrets": ["env:EFFECT_BROKER_WEBHOOK_KEY_OLD", "env:EFFECT_BROKER_WEBHOOK_KEY_NEW"],
    "committed": "type == 'done'", "key_match": {"kind": "field", "path": "data.key"},
    "agree": {"/amount": "data.amount"}, "extraction": {"external_id": "data.id"},
}  # fmt: skip


def _findings(broker: Cli, check: str) -> list[dict[str, Any]]:
    return [f for f in broker("doctor", "--json").json["findings"] if f["check"] == check]


def test_a_webhook_without_its_secrets_and_a_receipt_without_a_signature_are_warnings(
    broker: Cli, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert broker("tenants", "create", "acme").code == 0
    document = json.loads(
        ContractDocument.parse_yaml(catalog_texts()["demo-charge-idempotent"]).canonical()
    )
    path = tmp_path / "contract.yaml"
    path.write_text(json.dumps(document | {"webhook": WEBHOOK}))
    applied = broker("contracts", "apply", path)
    assert applied.code == 0, applied.err
    (finding,) = _findings(broker, "webhook_secrets")
    assert finding["level"] == "warn"
    assert "every delivery is refused" in finding["text"]
    assert "EFFECT_BROKER_WEBHOOK_KEY_OLD does not resolve" in finding["text"]
    monkeypatch.setenv("EFFECT_BROKER_WEBHOOK_KEY_NEW", "whsec_" + "A" * 43 + "=")
    monkeypatch.setenv("EFFECT_BROKER_WEBHOOK_KEY_OLD", "no base64")
    (finding,) = _findings(broker, "webhook_secrets")
    assert "some may be refused" in finding["text"]
    assert "KEY_OLD is not written as its scheme asks" in finding["text"]
    assert "no base64" not in finding["text"]
    monkeypatch.setenv("EFFECT_BROKER_WEBHOOK_KEY_OLD", "whsec_" + "B" * 43 + "=")
    assert [f["level"] for f in _findings(broker, "webhook_secrets")] == ["ok"]

    assert _findings(broker, "unsigned_receipts") == []
    asked = ("--tool", "demo.charge", "--key", "order:1", "--arguments", ARGUMENTS)
    effect_id = broker("effects", "submit", *asked, "--json").json["effect_id"]
    (tenant,) = broker("tenants", "list", "--json").json
    Sender(database, tenant["tenant_id"]).show(effect_id, Outcome.COMMITTED, "ch_1")
    (finding,) = _findings(broker, "unsigned_receipts")
    assert (finding["level"], finding["text"]) == (
        "warn", "1 of 1 receipt looked at bears no signature",
    )  # fmt: skip
    assert "receipts sign" in finding["remedy"]
    assert broker("receipts", "sign").code == 0
    assert [f["level"] for f in _findings(broker, "unsigned_receipts")] == ["ok"]
