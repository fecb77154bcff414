"""Effects on the command line: submit, list, inspect, wait, receipt."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from cli.commands import Cli, run_for_real
from cli.sender import IDENTITY, Sender
from effect_broker.cli.reasons import WORDS
from effect_contracts.catalog import catalog_texts
from effect_contracts.decide import Reason
from effect_contracts.facts import Outcome
from postgres import Database

ARGUMENTS = '{"order": "42", "amount": 1200, "currency": "eur", "customer_email": "a@example.com"}'
DOCS = Path(__file__).resolve().parents[2] / "docs" / "state-machine.md"

Submit = Callable[..., str]


@pytest.fixture
def acme(broker: Cli, tmp_path: Path) -> Cli:
    """A tenant, with the demo's contracts."""
    assert broker("tenants", "create", "acme").code == 0
    for name in ("idempotent", "reconcilable", "unsafe"):
        path = tmp_path / f"{name}.yaml"
        path.write_text(catalog_texts()[f"demo-charge-{name}"])
        assert broker("contracts", "apply", path).code == 0
    return broker


@pytest.fixture
def submit(acme: Cli) -> Submit:
    """Submit and return the effect's id."""

    def submitted(key: str = "order:42:charge", tool: str = "demo.charge") -> str:
        arguments = ("--tool", tool, "--key", key, "--arguments", ARGUMENTS)
        return str(acme("effects", "submit", *arguments, "--json").json["effect_id"])

    return submitted


@pytest.fixture
def sender(acme: Cli, database: Database) -> Sender:
    """A worker's hand."""
    (tenant,) = acme("tenants", "list", "--json").json
    return Sender(database, tenant["tenant_id"])


# Submit -----------------------------------------------------------------------------------------


def test_a_submit_is_stored_and_the_same_again_is_a_replay(acme: Cli, tmp_path: Path) -> None:
    arguments = ("effects", "submit", "--tool", "demo.charge", "--key", "order:42:charge")
    first = acme(*arguments, "--arguments", ARGUMENTS, "--json").json
    assert not first["replayed"]
    assert first["state"] == "prepared"
    file = tmp_path / "arguments.json"
    file.write_text(ARGUMENTS)
    second = acme(*arguments, "--arguments", f"@{file}", "--json").json
    assert second["replayed"]
    assert second["effect_id"] == first["effect_id"]
    third = acme(*arguments, "--arguments", "@-", "--json", stdin=ARGUMENTS.encode()).json
    assert third["replayed"]


def test_another_request_under_the_key_is_refused_with_the_place(acme: Cli, submit: Submit) -> None:
    effect_id = submit()
    other = ARGUMENTS.replace("1200", "1201")
    arguments = ("--tool", "demo.charge", "--key", "order:42:charge", "--arguments", other)
    said = acme("effects", "submit", *arguments).refused()
    assert "/arguments/amount" in said
    assert effect_id in said
    assert "1201" not in said.replace(effect_id, "")  # whose digits are any


@pytest.mark.parametrize(
    ("change", "meaning"),
    [
        ({"--tool": "no.such\x1b[31m"}, "--tool"),
        ({"--tool": "no.such"}, "contracts list"),
        ({"--key": "with space"}, "operation key"),
        ({"--key": ""}, "operation key"),
        ({"--key": "k" * 256}, "operation key"),
        ({"--key": "schlüssel"}, "operation key"),
        ({"--arguments": '{"order"'}, "JSON (RFC 8259). (at byte 8)"),
        ({"--arguments": "[1]"}, "object"),
        ({"--arguments": '{"order": 1, "order": 2}'}, "same name"),
        ({"--arguments": '{"order": "\\ud800"}'}, "surrogate"),
        ({"--arguments": "\udcff"}, "UTF-8"),
        ({"--arguments": "@/no/such/file"}, "No such file"),
        ({"--arguments": "@a\nb"}, "cannot be read"),
        ({"--arguments": '{"order": "1", "amount": "x", "currency": "eur"}'}, "/amount"),
        ({"--arguments": "[" * 100 + "]" * 100}, "deep"),
        ({"--arguments": '{"order": "' + "x" * 300_000 + '"}'}, "The limit is 262144."),
    ],
)
def test_a_poisonous_submit_is_a_sentence_and_stores_nothing(
    acme: Cli, change: dict[str, str], meaning: str
) -> None:
    given = {"--tool": "demo.charge", "--key": "order:42", "--arguments": ARGUMENTS} | change
    ended = acme("effects", "submit", *(text for pair in given.items() for text in pair))
    assert ended.code in {1, 2}
    assert meaning in ended.refused(ended.code)
    assert acme("effects", "list", "--json").json["effects"] == []


def test_a_submit_without_a_key_ring_stores_nothing(
    acme: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EFFECT_BROKER_KEY_RING")
    arguments = ("--tool", "demo.charge", "--key", "k", "--arguments", ARGUMENTS)
    assert "key ring" in acme("effects", "submit", *arguments).refused()


def test_a_disabled_tenant_submits_nothing(acme: Cli) -> None:
    acme("tenants", "disable", "acme")
    arguments = ("--tool", "demo.charge", "--key", "k", "--arguments", ARGUMENTS)
    assert "disabled" in acme("effects", "submit", *arguments).refused()


# Which tenant -----------------------------------------------------------------------------------


def test_with_several_tenants_one_has_to_be_named(acme: Cli, submit: Submit) -> None:
    effect_id = submit()
    acme("tenants", "create", "other")
    assert "--tenant" in acme("effects", "list").refused()
    assert "acme" in acme("effects", "list", "--tenant", "nobody").refused()
    listed = acme("effects", "list", "--tenant", "acme", "--json").json["effects"]
    assert [e["effect_id"] for e in listed] == [effect_id]
    # Another tenant's effect is missing, as one that never was.
    assert "no such effect" in acme("effects", "inspect", effect_id, "--tenant", "other").refused()


def test_without_a_tenant_the_way_to_one_is_named(broker: Cli) -> None:
    assert "tenants create" in broker("effects", "list").refused()


# List -------------------------------------------------------------------------------------------


def test_filters_select_and_pages_follow(acme: Cli, submit: Submit, sender: Sender) -> None:
    ids = [submit(f"order:{n}:charge") for n in range(3)]
    unsafe = submit("mail:1", "demo.charge_once")
    sender.show(ids[0], Outcome.COMMITTED, "ch_1")
    sender.show(unsafe, Outcome.AMBIGUOUS)

    def listed(*options: str) -> set[str]:
        body = acme("effects", "list", *options, "--json").json
        return {effect["effect_id"] for effect in body["effects"]}

    assert listed() == {*ids, unsafe}
    assert listed("--status", "succeeded") == {ids[0]}
    assert listed("--status", "succeeded", "--status", "outcome_unknown") == {ids[0], unsafe}
    assert listed("--unresolved") == {ids[1], ids[2], unsafe}
    assert listed("--reason", "outcome_unknown") == {unsafe}
    assert listed("--tool", "demo.charge_once") == {unsafe}
    assert listed("--prefix", "order:1") == {ids[1]}
    assert listed("--older-than", "1h") == set()
    assert listed("--older-than", "0s") == {*ids, unsafe}

    first = acme("effects", "list", "--limit", "2", "--json").json
    second = acme("effects", "list", "--limit", "2", "--cursor", first["cursor"], "--json").json
    pages = [e["effect_id"] for page in (first, second) for e in page["effects"]]
    assert sorted(pages) == sorted([*ids, unsafe])
    assert second["cursor"] is None
    table = acme("effects", "list", "--limit", "2")
    assert "--cursor" in table.err


@pytest.mark.parametrize(
    ("options", "meaning"),
    [
        (("--status", "no_such_state"), "no_such_state"),
        (("--older-than", "soon"), "duration"),
        (("--older-than", "-1s"), "duration"),
        (("--older-than", "9" * 40), "duration"),
        (("--limit", "0"), "greater"),
        (("--limit", "100000"), "less"),
        (("--reason", "a\x00b"), "printable"),
        (("--prefix", "\x1b[2J"), "printable"),
        (("--tool", "\udcff"), "printable"),
        (("--cursor", "nonsense"), "--cursor"),
        (("--tenant", "\x07"), "printable"),
    ],
)
def test_poisonous_filters_are_refused(acme: Cli, options: tuple[str, ...], meaning: str) -> None:
    ended = acme("effects", "list", *options)
    assert ended.code in {1, 2}
    assert meaning in ended.err
    assert "Traceback" not in ended.err
    assert "unexpected" not in ended.err


# Inspect ----------------------------------------------------------------------------------------


def test_a_page_says_what_happened_what_is_next_and_what_to_do(
    acme: Cli, submit: Submit, sender: Sender
) -> None:
    effect_id = submit("mail:1", "demo.charge_once")
    sender.show(effect_id, Outcome.AMBIGUOUS)
    body = acme("effects", "inspect", effect_id, "--json").json
    assert body["state"] == "outcome_unknown"
    assert body["waits_for_person"]
    assert body["meaning"] == WORDS["outcome_unknown"].meaning
    assert any("record what you find" in line for line in body["what_you_can_do"])
    assert any("never sent again" in line for line in body["what_you_can_do"])
    assert body["target_identity"] == IDENTITY
    assert [e["kind"] for e in body["events"]] == [
        "submitted",
        "attempt_started",
        "outcome_recorded",
    ]
    page = acme("effects", "inspect", effect_id).out
    for text in (effect_id, "OUTCOME_UNKNOWN", "a person or new evidence ends it", IDENTITY):
        assert text in page
    # What the contract calls sensitive is nowhere.
    assert "a@example.com" not in page + json.dumps(body)


def test_a_waiting_effect_tells_when_and_asks_nothing_of_anybody(
    acme: Cli, submit: Submit, sender: Sender
) -> None:
    effect_id = submit()
    sender.start(effect_id)
    body = acme("effects", "inspect", effect_id, "--json").json
    assert body["next_step"].startswith("next action in ")
    assert body["what_you_can_do"] == ["Nothing to do: the broker goes on by itself."]


def test_absence_counts_only_from_the_moment_that_is_told(
    acme: Cli, submit: Submit, sender: Sender
) -> None:
    effect_id = submit("order:7", "demo.charge_with_lookup")
    sender.show(effect_id, Outcome.KEY_CONFLICT)
    body = acme("effects", "inspect", effect_id, "--json").json
    assert body["reason"] == "target_key_conflict"
    assert body["absence_counts_from"] is not None
    assert any("has NOT happened counts only" in line for line in body["what_you_can_do"])


def test_an_effect_is_found_by_its_operation_key_too(acme: Cli, submit: Submit) -> None:
    effect_id = submit()
    found = acme("effects", "inspect", "--key", "order:42:charge", "--json").json
    assert found["effect_id"] == effect_id
    assert "no such effect" in acme("effects", "inspect", "--key", "order:43").refused()


@pytest.mark.parametrize("command", ["inspect", "wait", "receipt"])
def test_what_is_no_effect_is_a_sentence(acme: Cli, command: str) -> None:
    assert "UUID" in acme("effects", command, "not-\x1b[31ma-uuid").refused()
    assert "no such effect" in acme("effects", command, uuid4()).refused()
    assert "name one effect" in acme("effects", command).refused(2)
    assert "operation key" in acme("effects", command, "--key", "a b").refused()


def test_every_reason_has_words(acme: Cli) -> None:
    assert {reason.value for reason in Reason} <= set(WORDS)
    text = DOCS.read_text()
    assert all(f"`{reason}`" in text for reason in WORDS if reason != "submitted")


# Receipt ----------------------------------------------------------------------------------------


def test_a_receipt_is_printed_once_there_is_one(acme: Cli, submit: Submit, sender: Sender) -> None:
    effect_id = submit()
    assert "not settled" in acme("effects", "receipt", effect_id).refused(3)
    sender.show(effect_id, Outcome.COMMITTED, "ch_77")
    body = acme("effects", "receipt", effect_id, "--json").json
    assert body["receipt"]["external_id"] == "ch_77"
    assert len(body["digest"]) == 64
    assert "ch_77" in acme("effects", "receipt", effect_id).out


# Wait -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "tool", "code", "state"),
    [
        (Outcome.COMMITTED, "demo.charge", 0, "succeeded"),
        (Outcome.REJECTED, "demo.charge", 1, "failed_final"),
        (Outcome.KEY_CONFLICT, "demo.charge", 3, "manual_review"),
        (Outcome.AMBIGUOUS, "demo.charge_once", 3, "outcome_unknown"),
    ],
)
def test_a_wait_ends_as_the_effect_does(
    acme: Cli, submit: Submit, sender: Sender, outcome: Outcome, tool: str, code: int, state: str
) -> None:
    effect_id = submit(tool=tool)
    sender.show(effect_id, outcome, "ch_1" if outcome is Outcome.COMMITTED else None)
    ended = acme("effects", "wait", effect_id, "--json")
    assert ended.code == code
    assert ended.json["state"] == state
    assert ended.json["exit_code"] == code
    assert ended.json["explanation"]


def test_a_wait_goes_on_through_an_open_attempt_until_its_answer(
    acme: Cli, submit: Submit, sender: Sender
) -> None:
    effect_id = submit()
    attempt_id = sender.start(effect_id)
    answering = threading.Timer(
        1.0, sender.answer, (effect_id, attempt_id, Outcome.COMMITTED, "ch_1")
    )
    answering.start()
    ended = acme("effects", "wait", effect_id)
    answering.join()
    assert ended.code == 0
    assert "succeeded" in ended.out
    assert "dispatching" in ended.err


def test_a_wait_with_a_limit_says_what_is_still_to_come(acme: Cli, submit: Submit) -> None:
    effect_id = submit()
    ended = acme("effects", "wait", effect_id, "--timeout", "0.2s")
    assert ended.code == 3
    assert "not ended in time" in ended.out
    assert "duration" in acme("effects", "wait", effect_id, "--timeout", "later").refused(2)


def test_a_wait_without_a_database_is_a_sentence_in_a_real_process(tmp_path: Path) -> None:
    environment = {"EFFECT_BROKER_HOME": str(tmp_path / "none"), "PATH": "/usr/bin:/bin"}
    assert (
        "effect-broker up" in run_for_real(environment, "effects", "wait", str(uuid4())).refused()
    )
