"""Resolving, reconciling and cancelling on the command line."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cli.commands import Cli
from cli.sender import Sender
from effect_contracts.catalog import catalog_texts
from effect_contracts.facts import Outcome
from postgres import Database

ARGUMENTS = '{"order": "42", "amount": 1200, "currency": "eur"}'
SEEN = "kind=dashboard,ref=ch_1,observed=2026-01-01T00:00:00Z"  # before any effect of these tests


@pytest.fixture
def acme(broker: Cli, tmp_path: Path) -> Cli:
    """A tenant, with an unsafe tool."""
    assert broker("tenants", "create", "acme").code == 0
    path = tmp_path / "unsafe.yaml"
    path.write_text(catalog_texts()["demo-charge-unsafe"])
    assert broker("contracts", "apply", path).code == 0
    return broker


@pytest.fixture
def submit(acme: Cli) -> Callable[[], str]:
    """Submit and return the effect's id."""

    def submitted() -> str:
        arguments = ("--tool", "demo.charge_once", "--key", "k-1", "--arguments", ARGUMENTS)
        return str(acme("effects", "submit", *arguments, "--json").json["effect_id"])

    return submitted


@pytest.fixture
def in_doubt(acme: Cli, submit: Callable[[], str], database: Database) -> str:
    """An effect whose answer was lost."""
    effect_id = submit()
    (tenant,) = acme("tenants", "list", "--json").json
    Sender(database, tenant["tenant_id"]).show(effect_id, Outcome.AMBIGUOUS)
    return effect_id


def test_a_person_settles_an_effect_and_says_it_twice(acme: Cli, in_doubt: str) -> None:
    version = acme("effects", "inspect", in_doubt, "--json").json["version"]
    seen = f"kind=dashboard,ref=ch_1,observed={datetime.now(UTC).isoformat()}"
    words = (
        "effects", "resolve", in_doubt, "--as", "committed", "--version", version,
        "--reason", "seen in the dashboard", "--evidence", seen, "--external-id", "ch_1",
        "--decision-id", "d-1", "--json",
    )  # fmt: skip
    first = acme(*words).json
    assert (first["state"], first["replayed"]) == ("succeeded", False)
    assert acme(*words).json["replayed"]
    receipt = acme("effects", "receipt", in_doubt, "--json").json["receipt"]
    assert (receipt["source"], receipt["external_id"]) == ("operator", "ch_1")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"--version": "99"}, "the effect has changed"),
        ({"--as": "not_committed"}, "too early"),
        ({"--as": "committed"}, "too early: this conclusion counts only if you looked from"),
        ({"--evidence": "dashboard"}, "write kind=WORD"),
        ({"--evidence": SEEN.replace("kind=", "kind=a ")}, "kind=WORD is one word"),
        ({"--evidence": SEEN.replace("ref=ch_1,", "")}, "ref=WHERE or digest"),
        ({"--reason": ""}, "--reason is 1 to 2000"),
        ({"--external-id": "ch_1"}, "--external-id goes with --as committed"),
        ({"--evidence": "kind=log,ref=x,observed=yesterday"}, "observed=2026-11-30T05:08:00Z"),
    ],
)
def test_what_cannot_be_taken_says_what_to_do(
    acme: Cli, in_doubt: str, changed: dict[str, str], said: str
) -> None:
    version = acme("effects", "inspect", in_doubt, "--json").json["version"]
    words = {
        "--as": "failed", "--version": str(version), "--reason": "why", "--evidence": SEEN,
        **changed,
    }  # fmt: skip
    ended = acme("effects", "resolve", in_doubt, *(w for pair in words.items() for w in pair))
    assert said in ended.refused(ended.code)
    assert ended.code in (1, 2)
    assert acme("effects", "inspect", in_doubt, "--json").json["version"] == version


def test_an_effect_is_withdrawn_before_it_is_sent(acme: Cli, submit: Callable[[], str]) -> None:
    effect_id = submit()
    ended = acme("effects", "cancel", effect_id, "--json").json
    assert (ended["state"], ended["changed"]) == ("cancelled", True)
    assert not acme("effects", "cancel", effect_id, "--json").json["changed"]


def test_what_was_sent_is_not_withdrawn_and_not_sent_again_by_a_look(
    acme: Cli, in_doubt: str
) -> None:
    assert "only what was never sent" in acme("effects", "cancel", in_doubt).refused()
    looked = acme("effects", "reconcile", in_doubt, "--json").json
    assert (looked["state"], looked["changed"]) == ("outcome_unknown", False)
