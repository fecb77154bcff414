"""A trial that could not be sent says nothing of its target, and says so by its exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.commands import Cli
from effect_contracts.catalog import catalog_texts
from effect_contracts.document import ContractDocument

ARGUMENTS = {"order": "42", "amount": 1200, "currency": "eur", "customer_email": "a@example.com"}
SECRET = {"Authorization": {"secret": "env:EFFECT_BROKER_SECRET_ACME"}}


def _demo(adapter: dict[str, Any], safety: str = "idempotent") -> str:
    text = catalog_texts()[f"demo-charge-{safety}"]
    document = json.loads(ContractDocument.parse_yaml(text).canonical())
    document["adapter"] |= adapter
    return json.dumps(document)


def _tried(cli: Cli, folder: Path, document: str, given: dict[str, Any]) -> str:
    contract, arguments = folder / "contract.yaml", folder / "arguments.json"
    contract.write_text(document)
    arguments.write_text(json.dumps(given))
    return cli("contracts", "conformance", contract, "--arguments", arguments).refused(4)


def test_a_missing_secret_is_no_broken_promise(cli: Cli, tmp_path: Path) -> None:
    said = _tried(cli, tmp_path, _demo({"headers": SECRET}), ARGUMENTS)
    assert "nothing was learned of the target" in said
    assert "This command could not read the secret env:EFFECT_BROKER_SECRET_ACME" in said
    assert "Set EFFECT_BROKER_SECRET_ACME for this command;" in said
    assert "worker" not in said


def test_a_target_that_is_not_there_is_no_broken_promise(cli: Cli, tmp_path: Path) -> None:
    document = _demo({"url": "http://127.0.0.1:1/charges"}, "unsafe")
    assert "Nothing listens" in _tried(cli, tmp_path, document, ARGUMENTS)


def test_a_missing_program_is_no_broken_promise(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mcp")
    document, given = catalog_texts()["mcp-sqlite-write"], {"query": "INSERT INTO t VALUES (1)"}
    assert "EFFECT_BROKER_MCP_PROGRAMS" in _tried(cli, tmp_path, document, given)
    listed = tmp_path / "programs.yaml"
    listed.write_text("sqlite: {command: /no/such/program}")
    monkeypatch.setenv("EFFECT_BROKER_MCP_PROGRAMS", str(listed))
    assert "could not be started" in _tried(cli, tmp_path, document, given)
