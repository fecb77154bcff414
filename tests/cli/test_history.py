"""An effect as it stood then, and its forks, on the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from psycopg import Connection
from psycopg.rows import TupleRow

from cli.commands import Cli
from cli.sender import Sender
from effect_contracts.catalog import catalog_texts
from effect_contracts.facts import Outcome
from postgres import Database

ARGUMENTS = '{"order": "42", "amount": 1200, "currency": "eur", "customer_email": "a@example.com"}'

Submit = Callable[..., str]


@pytest.fixture
def acme(broker: Cli, tmp_path: Path) -> Cli:
    """A tenant, with the demo's contracts."""
    assert broker("tenants", "create", "acme").code == 0
    for name in ("idempotent", "unsafe"):
        path = tmp_path / f"{name}.yaml"
        path.write_text(catalog_texts()[f"demo-charge-{name}"])
        assert broker("contracts", "apply", path).code == 0
    return broker


@pytest.fixture
def submit(acme: Cli) -> Submit:
    """Submit and return the effect's id."""

    def submitted(key: str = "order-1") -> str:
        command = ("effects", "submit", "--tool", "demo.charge", "--key", key)
        return str(acme(*command, "--arguments", ARGUMENTS, "--json").json["effect_id"])

    return submitted


@pytest.fixture
def sender(acme: Cli, database: Database) -> Sender:
    """A worker's hand."""
    (tenant,) = acme("tenants", "list", "--json").json
    return Sender(database, tenant["tenant_id"])


def ledger(superuser: Connection[TupleRow]) -> list[tuple[object, ...]]:
    """All that a fork could have changed."""
    rows: list[tuple[object, ...]] = []
    for table in ("effect_intents", "effect_events", "effect_attempts", "effect_payloads"):
        query = f"SELECT t.*, t.xmin FROM effect_broker.{table} t ORDER BY 1, 2, 3"
        rows += superuser.execute(query.encode()).fetchall()
    rows += superuser.execute("SELECT count(*) FROM dbos.workflow_status").fetchall()
    return rows


# As it stood then ---------------------------------------------------------------------------------


def test_an_effect_is_shown_as_it_stood_after_an_event(
    acme: Cli, submit: Submit, sender: Sender
) -> None:
    effect_id = submit()
    sender.show(effect_id, Outcome.COMMITTED, "ch_1")
    for number, state in ((1, "prepared"), (2, "dispatching"), (3, "succeeded")):
        then = acme("effects", "inspect", effect_id, "--at-sequence", number, "--json").json
        assert then["then"]["state"] == state
        assert then["chain"]["intact"]
    page = acme("effects", "inspect", effect_id, "--at-sequence", 2).out
    assert "DISPATCHING  after event 2 of 3" in page
    assert "chain      intact" in page
    assert "none told" in page


def test_two_moments_are_compared(acme: Cli, submit: Submit, sender: Sender) -> None:
    effect_id = submit()
    sender.show(effect_id, Outcome.COMMITTED, "ch_1")
    command = ("effects", "inspect", effect_id, "--at-sequence", 3, "--compare-to", 1)
    changes = {one["place"]: one["after"] for one in acme(*command, "--json").json["changes"]}
    assert changes["state"] == "succeeded"
    assert changes["attempts.1.outcome"] == "committed"
    assert re.search(r"state .*prepared .*succeeded", acme(*command).out)


def test_a_broken_chain_is_said_loudly(
    acme: Cli, submit: Submit, sender: Sender, superuser: Connection[TupleRow]
) -> None:
    effect_id = submit()
    sender.show(effect_id, Outcome.COMMITTED)
    superuser.execute("SET session_replication_role = replica")
    superuser.execute("UPDATE effect_broker.effect_events SET reason = 'x' WHERE sequence = 2")
    assert "BROKEN at event 2" in acme("effects", "inspect", effect_id, "--at-sequence", 3).out


def test_a_moment_that_is_not_there_is_refused_in_words(acme: Cli, submit: Submit) -> None:
    effect_id = submit()
    inspect = ("effects", "inspect", effect_id)
    assert "no event of this number" in acme(*inspect, "--at-sequence", 9).refused()
    assert "--at-sequence" in acme(*inspect, "--compare-to", 1).refused(2)
    assert acme(*inspect, "--at-sequence", 0).code == 2
    other = "00000000-0000-0000-0000-000000000001"
    assert "no such effect" in acme("effects", "inspect", other, "--at-sequence", 1).refused()


# Forks, simulated ---------------------------------------------------------------------------------


def test_a_fork_shows_what_another_contract_would_have_decided_and_writes_nothing(
    acme: Cli, submit: Submit, sender: Sender, superuser: Connection[TupleRow], tmp_path: Path
) -> None:
    effect_id = submit()
    sender.show(effect_id, Outcome.AMBIGUOUS)
    other = tmp_path / "other.yaml"
    text = catalog_texts()["demo-charge-idempotent"]
    other.write_text(re.sub(r"attempts_max: \d+", "attempts_max: 1", text))
    assert other.read_text() != text
    before = ledger(superuser)
    plain = acme("effects", "fork", effect_id, "--json").json
    forked = acme("effects", "fork", effect_id, "--contract", other, "--json").json
    assert ledger(superuser) == before
    assert plain["first_difference"] is None
    assert plain["live"] is forked["live"] is False
    assert forked["broken"] is None
    first = forked["first_difference"]
    assert (first["sequence"], first["pinned"]["reason"]) == (3, "backoff")
    assert first["other"]["reason"] == "retries_exhausted"
    page = acme("effects", "fork", effect_id, "--contract", other).out
    assert "first difference after event 3" in page
    assert "DIFFERS" in page


def test_an_unsafe_contract_on_the_same_facts_waits_for_a_person(
    acme: Cli, submit: Submit, sender: Sender, tmp_path: Path
) -> None:
    effect_id = submit()
    sender.show(effect_id, Outcome.AMBIGUOUS)
    other = tmp_path / "unsafe.yaml"
    text = catalog_texts()["demo-charge-unsafe"]
    other.write_text(re.sub(r"^tool: .*$", "tool: demo.charge", text, flags=re.MULTILINE))
    forked = acme("effects", "fork", effect_id, "--contract", other, "--json").json
    assert forked["first_difference"]["other"]["action"] == "park"
    assert all(step["other"]["action"] != "dispatch" for step in forked["steps"][2:])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\xff", "UTF-8"),
        (b"name: x", "contract"),
        (b"x" * 1_100_000, "larger"),
        (catalog_texts()["demo-charge-unsafe"].encode(), "contract of"),
    ],
)
def test_a_contract_that_cannot_be_used_is_refused_in_words(
    acme: Cli, submit: Submit, tmp_path: Path, content: bytes, says: str
) -> None:
    path = tmp_path / "poison.yaml"
    path.write_bytes(content)
    assert says in acme("effects", "fork", submit(), "--contract", path).refused()
    assert "cannot be read" in acme("effects", "fork", submit(), "--contract", "/no").refused()


def test_nothing_is_decided_on_facts_that_were_removed(acme: Cli, submit: Submit) -> None:
    effect_id = submit()
    assert acme("effects", "cancel", effect_id).code == 0
    now = [f"--{stage}-after=0s" for stage in ("engine", "payloads", "rows")]
    assert acme("prune", *now, "--json").json["rows"]["effects"] == 1
    assert "removed" in acme("effects", "fork", effect_id).refused()


# Forks, live --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("reason", "certain"), [("rejected", True), ("failed_by_operator", False)])
def test_a_live_fork_says_where_it_is_not_certain_that_the_original_is_absent(
    acme: Cli, submit: Submit, superuser: Connection[TupleRow], reason: str, certain: bool
) -> None:
    effect_id = submit()
    superuser.execute("SET session_replication_role = replica")
    superuser.execute(
        "UPDATE effect_broker.effect_intents SET state = 'failed_final', reason = %s,"
        " next_action_at = NULL, receipt_digest = sha256('x')",
        [reason],
    )
    ended = acme("effects", "fork", effect_id, "--live", "--operation-key", "order-1-again")
    assert ended.code == 0, ended.err
    assert ("there will be two" in ended.err) is not certain


def test_a_live_fork_is_a_new_effect_of_the_same_request(
    acme: Cli, submit: Submit, superuser: Connection[TupleRow]
) -> None:
    effect_id = submit()
    command = ("effects", "fork", effect_id, "--live", "--operation-key", "order-1-again")
    ended = acme(*command, "--json")
    made = ended.json
    assert "there will be two" in ended.err
    assert (made["live"], made["replayed"], made["forked_from"]) == (True, False, effect_id)
    assert made["effect_id"] != effect_id
    new = acme("effects", "inspect", made["effect_id"], "--json").json
    old = acme("effects", "inspect", effect_id, "--json").json
    assert new["trace_id"] == f"fork:{effect_id}"
    assert new["operation_key"] == "order-1-again"
    assert (new["tool"], new["preview"]) == (old["tool"], old["preview"])
    assert new["downstream_key"] != old["downstream_key"]
    again = acme(*command, "--json").json
    assert (again["replayed"], again["effect_id"]) == (True, made["effect_id"])
    count = superuser.execute("SELECT count(*) FROM effect_broker.effect_intents").fetchone()
    assert count == (2,)


def test_a_live_fork_is_refused_under_the_old_key_and_without_one(
    acme: Cli, submit: Submit, superuser: Connection[TupleRow], tmp_path: Path
) -> None:
    effect_id = submit()
    before = ledger(superuser)
    fork = ("effects", "fork", effect_id)
    same = acme(*fork, "--live", "--operation-key", "order-1")
    assert "new key" in same.refused()
    assert "go together" in acme(*fork, "--live").refused(2)
    assert "go together" in acme(*fork, "--operation-key", "k").refused(2)
    contract = tmp_path / "idempotent.yaml"
    both = acme(*fork, "--live", "--operation-key", "k", "--contract", contract)
    assert "simulation" in both.refused(2)
    assert "operation" in acme(*fork, "--live", "--operation-key", "a b").refused()
    assert ledger(superuser) == before


def test_a_key_that_names_another_request_is_refused(acme: Cli, submit: Submit) -> None:
    effect_id = submit()
    other = json.dumps(json.loads(ARGUMENTS) | {"amount": 7})
    taken = ("effects", "submit", "--tool", "demo.charge", "--key", "taken", "--arguments", other)
    assert acme(*taken).code == 0
    said = acme("effects", "fork", effect_id, "--live", "--operation-key", "taken").refused()
    assert "another request" in said


def test_what_was_erased_cannot_be_forked(
    acme: Cli, submit: Submit, superuser: Connection[TupleRow]
) -> None:
    effect_id = submit()
    superuser.execute(
        "UPDATE effect_broker.effect_payloads SET ciphertext = NULL, erased_at = now()"
    )
    said = acme("effects", "fork", effect_id, "--live", "--operation-key", "k").refused()
    assert "erased" in said
