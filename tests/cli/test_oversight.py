"""`effects approve`, `deny` and `confirm` on the command line: one's own word is not enough."""

from __future__ import annotations

import json

import pytest

from cli.commands import Cli
from effect_contracts.catalog import catalog_documents

CHARGE = json.loads(catalog_documents()["demo-charge-idempotent"].canonical())
ARGUMENTS = b'{"order": "42", "amount": 1200, "currency": "eur"}'


@pytest.fixture
def asked(broker: Cli) -> Cli:
    """A broker whose charges need an approval."""
    broker("tenants", "create", "acme")
    document = CHARGE | {"oversight": {"approval_valid_seconds": 600.0}}
    assert broker("contracts", "apply", "-", stdin=json.dumps(document).encode()).code == 0
    return broker


def _submitted(broker: Cli) -> dict[str, str]:
    made = broker("effects", "submit", "--tool", "demo.charge", "--key", "order:42",
                  "--arguments", "@-", "--json", stdin=ARGUMENTS)  # fmt: skip
    assert made.code == 0, made.err
    found: dict[str, str] = made.json
    return found


def test_whoever_submitted_it_does_not_approve_it_and_may_take_it_back(
    asked: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    effect = _submitted(asked)
    named = (effect["effect_id"], "--request-hash", effect["request_hash"])
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(variable, "somebody-else")
    refused = asked("effects", "approve", *named, "--reason", "mine").refused()
    assert "another person" in refused
    denied = asked("effects", "deny", *named, "--reason", "no such order", "--json").json
    assert denied["state"] == "cancelled"
    assert "does not permit" in asked("effects", "deny", *named, "--reason", "r").refused()


def test_whoever_has_forked_it_does_not_approve_the_fork(asked: Cli) -> None:
    original = _submitted(asked)["effect_id"]
    made = asked("effects", "fork", original, "--live", "--operation-key", "again", "--json").json
    effect = asked("effects", "inspect", made["effect_id"], "--json").json
    refused = asked("effects", "approve", effect["effect_id"], "--request-hash",
                    effect["request_hash"], "--reason", "mine").refused()  # fmt: skip
    assert "another person" in refused


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (("--request-hash", "0" * 64, "--reason", "r"), "another request"),
        (("--request-hash", "xyz", "--reason", "r"), "--request-hash"),
        (("--request-hash", "0" * 64, "--reason", " "), "--reason"),
        (("--request-hash", "0" * 64, "--reason", "a\x1bb"), "--reason"),
    ],
)
def test_only_what_was_read_is_decided(asked: Cli, changes: tuple[str, ...], said: str) -> None:
    effect = _submitted(asked)
    ended = asked("effects", "deny", effect["effect_id"], *changes)
    assert said in ended.refused(ended.code)
    assert ended.code in {1, 2}


def test_there_is_nothing_to_confirm_that_nobody_has_proposed(asked: Cli) -> None:
    effect = _submitted(asked)
    ended = asked("effects", "confirm", effect["effect_id"], "--decision-id", "none")
    assert ended.refused()
