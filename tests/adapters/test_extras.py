"""Optional packages: not imported before a contract needs them, and named where one is missing."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from adapter_calls import KEY, dispatch_call
from effect_adapters import extras
from effect_adapters.extras import EXTRA_BY_KIND, ExtraMissing, require_extra
from effect_adapters.registry import adapters
from effect_broker.cli.checks import Level, contract_findings
from effect_contracts.catalog import catalog_documents
from effect_contracts.facts import Outcome

ARGUMENTS: dict[str, Any] = {
    "mail-send": {"to": "ada@example.com", "subject": "Hello", "text": "Ada"},
    "nats-order-event": {"order": "o-1", "event": "paid"},
    "s3-export": {"report": "daily", "day": "2026-10-05", "rows": []},
    "sqs-order-event": {"order": "o-1", "event": "paid"},
}

# Every adapter is made and renders a request, as in a process that takes requests.
TAKING = """
import sys
from effect_adapters.registry import adapters
from effect_contracts.catalog import catalog_documents
served, documents = adapters(lambda _: "x"), catalog_documents()
for kind in served:
    served[kind]
arguments = eval(sys.argv[1])
for name in arguments:
    document = documents[name]
    served[document.adapter.kind].render(document, arguments[name], "k_5f0c0b1e9d")
print(*sorted({"aiosmtplib", "boto3", "botocore", "nats"} & sys.modules.keys()))
"""


def test_a_process_that_only_takes_requests_loads_no_client() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TAKING, repr(ARGUMENTS)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("name", ARGUMENTS)
async def test_without_its_package_an_adapter_sends_nothing_and_names_the_extra(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = catalog_documents()[name]
    kind = document.adapter.kind
    extra, package = EXTRA_BY_KIND[kind]
    monkeypatch.setattr(extras, "find_spec", lambda wanted: None if wanted == package else object())
    adapter: Any = adapters(lambda _: "x")[kind]
    wire = adapter.render(document, ARGUMENTS[name], KEY)
    unsent = await adapter.dispatch(dispatch_call(document, wire))
    assert (unsent.outcome, unsent.code) == (Outcome.NOT_SENT, f"extra_missing_{extra}")
    with pytest.raises(ExtraMissing, match=rf"pip install 'effect-broker\[{extra}\]'"):
        require_extra(kind)


def test_doctor_and_the_validation_of_a_contract_name_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda _wanted: None)
    document = catalog_documents()["mail-send"]
    [finding] = contract_findings([document], lambda _reference: True)
    assert "pip install 'effect-broker[smtp]'" in finding.text
    plain = catalog_documents()["stripe-refund"]
    [fine] = contract_findings([plain], lambda _reference: True)
    assert fine.level is Level.OK


def test_every_extra_is_one_of_the_distribution() -> None:
    project = Path(__file__).parents[2] / "pyproject.toml"
    offered = tomllib.loads(project.read_text())["project"]["optional-dependencies"]
    assert {extra for extra, _ in EXTRA_BY_KIND.values()} <= set(offered)
