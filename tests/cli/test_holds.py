"""`effect-broker holds`: who may be stopped, what is refused, and what a person reads."""

from __future__ import annotations

import pytest

from cli.commands import Cli
from effect_contracts.catalog import catalog_documents

CHARGE = catalog_documents()["demo-charge-idempotent"]


@pytest.fixture
def held(broker: Cli) -> Cli:
    """A broker with a tenant and a contract."""
    broker("tenants", "create", "acme")
    assert broker("contracts", "apply", "-", stdin=CHARGE.canonical()).code == 0
    return broker


def test_a_pause_is_placed_listed_and_lifted(held: Cli) -> None:
    assert "nothing is held" in held("holds", "list").out
    placed = held("holds", "pause", "--tenant", "acme", "--tool", CHARGE.tool,
                  "--reason", "double postings", "--json").json  # fmt: skip
    assert (placed["kind"], placed["tenant"], placed["tool"]) == ("paused", "acme", CHARGE.tool)
    assert (placed["effective"], placed["replayed"]) == (True, False)
    again = held("holds", "pause", "--tenant", "acme", "--tool", CHARGE.tool, "--reason", "x")
    assert "stood already" in again.out
    listed = held("holds", "list").out
    assert "double postings" in listed
    assert CHARGE.tool in listed
    lifted = held("holds", "lift", placed["hold_id"], "--reason", "mended", "--json").json
    assert (lifted["changed"], lifted["lift_reason"]) == (True, "mended")
    assert "already" in held("holds", "lift", placed["hold_id"], "--reason", "mended").out
    assert "nothing is held" in held("holds", "list").out
    assert "mended" in held("holds", "list", "--lifted").out


def test_every_tenant_and_one_contract_version_can_be_stopped(held: Cli) -> None:
    every = held("holds", "pause", "--every-tenant", "--reason", "r", "--json").json
    assert (every["every_tenant"], every["tenant"], every["tool"]) == (True, None, None)
    name = f"{CHARGE.name}@{CHARGE.version}"
    one = held("holds", "pause", "--tenant", "acme", "--contract", name, "--reason", "r").out
    assert f"contract {name} of acme" in one
    assert "paused everything of every tenant" in held("doctor").out + held("doctor").err


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (("--reason", "r"), "--every-tenant", 2),
        (("--every-tenant", "--tenant", "acme", "--reason", "r"), "--every-tenant", 2),
        (("--tenant", "nobody", "--reason", "r"), "tenants list", 1),
        (("--tenant", "acme", "--tool", "no.such", "--reason", "r"), "contracts list", 1),
        (("--tenant", "acme", "--contract", "no@1", "--reason", "r"), "contracts list", 1),
        (("--tenant", "acme", "--contract", "no", "--reason", "r"), "NAME@VERSION", 2),
        (("--tenant", "acme", "--tool", "t", "--contract", "n@1", "--reason", "r"), "one of", 2),
        (("--tenant", "acme", "--reason", " "), "--reason", 2),
        (("--tenant", "acme", "--reason", "a\x1bb"), "--reason", 2),
    ],
)
def test_what_would_stop_nothing_is_refused(
    held: Cli, arguments: tuple[str, ...], said: str, code: int
) -> None:
    assert said in held("holds", "pause", *arguments).refused(code)
    assert "nothing is held" in held("holds", "list").out


def test_only_a_hold_that_exists_is_lifted(held: Cli) -> None:
    assert "no hold id" in held("holds", "lift", "x", "--reason", "r").refused(2)
    missing = "00000000-0000-4000-8000-000000000000"
    assert "holds list" in held("holds", "lift", missing, "--reason", "r").refused()
