"""The account of effects on the command line: exported, checked, forged, cut."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from psycopg import Connection
from psycopg.rows import TupleRow

from cli.commands import Cli, run_for_real
from cli.sender import Sender
from effect_contracts.catalog import catalog_texts
from effect_contracts.facts import Outcome
from effect_contracts.trace import TraceWriter
from postgres import Database

SECRET = "nobody-may-see-this@example.com"
ARGUMENTS = json.dumps(
    {"order": "o-777", "amount": 987654, "currency": "eur", "customer_email": SECRET}
)

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

    def submitted(key: str, tool: str = "demo.charge", tenant: str = "acme") -> str:
        arguments = ("--tool", tool, "--key", key, "--arguments", ARGUMENTS, "--tenant", tenant)
        return str(acme("effects", "submit", *arguments, "--json").json["effect_id"])

    return submitted


@pytest.fixture
def sender(acme: Cli, database: Database) -> Sender:
    """A worker's hand."""
    (tenant,) = acme("tenants", "list", "--json").json
    return Sender(database, tenant["tenant_id"])


@pytest.fixture
def settled(submit: Submit, sender: Sender) -> list[str]:
    """Three effects: one succeeded, one lost, one that nobody has sent yet."""
    ids = [submit("a"), submit("b", "demo.charge_once"), submit("c")]
    sender.show(ids[0], Outcome.COMMITTED, "ch_1")
    sender.show(ids[1], Outcome.AMBIGUOUS)
    return ids


def exported(cli: Cli, path: Path, *options: str) -> list[dict[str, Any]]:
    """Export to a file; return its lines."""
    ended = cli("events", "export", "--out", path, *options)
    assert ended.code == 0, ended.err
    return [json.loads(line) for line in path.read_text().splitlines()]


def effect_ids(lines: list[dict[str, Any]]) -> list[str]:
    """The effects of an export."""
    return [line["intent"]["effect_id"] for line in lines if line["type"] == "effect"]


def test_an_export_is_whole_and_clean(acme: Cli, settled: list[str], tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    lines = exported(acme, path)
    assert effect_ids(lines) == sorted(settled)
    assert [line["type"] for line in lines].count("contract") == 2
    ended = acme("events", "verify", path, "--whole")
    assert (ended.code, ended.err) == (0, "")
    assert "clean: 3 effects, 7 events" in ended.out
    assert acme("events", "verify", path, "--json").json["clean"]
    assert sorted(tmp_path.glob(".*")) == []


def test_standard_output_and_input_do_as_well(
    acme: Cli, settled: list[str], database: Database, tmp_path: Path
) -> None:
    del settled
    environment = {
        "EFFECT_BROKER_WORKER_DATABASE_URL": database.url_for("effect_broker_worker"),
        "EFFECT_BROKER_HOME": str(tmp_path / "none"),
        "PATH": "/usr/bin:/bin",
    }
    ended = run_for_real(environment, "events", "export")
    assert ended.code == 0
    assert "3 effects" in ended.err
    assert acme("events", "verify", "-", stdin=ended.out.encode()).code == 0


def test_an_account_holds_no_argument_no_key_and_no_secret(
    acme: Cli, settled: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "trace.jsonl"
    exported(acme, path)
    text = path.read_text()
    effects = [acme("effects", "inspect", effect_id, "--json").json for effect_id in settled]
    for word in (SECRET, "o-777", "987654", *(e["downstream_key"] for e in effects)):
        assert word not in text


def test_what_is_asked_for_is_exported_and_nothing_else(
    acme: Cli, settled: list[str], submit: Submit, sender: Sender, tmp_path: Path
) -> None:
    acme("tenants", "create", "other")
    foreign = submit("a", tenant="other")
    path = tmp_path / "trace.jsonl"
    assert effect_ids(exported(acme, path, "--tenant", "other")) == [foreign]
    assert effect_ids(exported(acme, path, "--tenant", "acme")) == sorted(settled)
    assert effect_ids(exported(acme, path, "--effect", settled[1])) == [settled[1]]
    assert effect_ids(exported(acme, path, "--effect", str(uuid4()))) == []
    assert acme("events", "verify", path).code == 0
    assert len(effect_ids(exported(acme, path))) == 4
    assert len(effect_ids(exported(acme, path, "--since", "1h"))) == 4
    now = max(
        line["intent"]["updated_at"] for line in exported(acme, path) if line["type"] == "effect"
    )
    sender.show(settled[2], Outcome.COMMITTED, "ch_2")
    later = datetime.fromisoformat(now) + timedelta(microseconds=1)
    # Its whole account, also from before that moment.
    (effect,) = [
        line
        for line in exported(acme, path, "--since", later.isoformat())
        if line["type"] == "effect"
    ]
    assert effect["intent"]["effect_id"] == settled[2]
    assert len(effect["events"]) == 3


def test_what_persons_and_callers_asked_for_is_part_of_the_account(
    acme: Cli, settled: list[str], tmp_path: Path
) -> None:
    lost, unsent = settled[1], settled[2]
    version = acme("effects", "inspect", lost, "--json").json["version"]
    seen = f"kind=log,ref=box-7,observed={datetime.now(UTC).isoformat()}"
    note = "a note that stays here"
    ended = acme(
        "effects", "resolve", lost, "--as", "committed", "--external-id", "ch_9",
        "--reason", note, "--evidence", seen, "--version", version,
    )  # fmt: skip
    assert ended.code == 0, ended.err
    assert acme("effects", "cancel", unsent).code == 0
    path = tmp_path / "trace.jsonl"
    lines = exported(acme, path)
    kinds = {
        line["intent"]["effect_id"]: line["events"][-1]["kind"]
        for line in lines
        if line["type"] == "effect"
    }
    assert (kinds[lost], kinds[unsent]) == ("resolved", "cancelled")
    assert note not in path.read_text()
    ended = acme("events", "verify", path, "--whole")
    assert ended.code == 0, ended.out


def test_a_forged_account_is_refused_with_the_place(
    acme: Cli, settled: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "trace.jsonl"
    exported(acme, path)
    path.write_text(path.read_text().replace('"committed"', '"rejected"'))
    ended = acme("events", "verify", path)
    assert ended.code == 1
    for word in (settled[0], "line", "facts", "violations"):
        assert word in ended.out
    body = acme("events", "verify", path, "--json")
    assert body.code == 1
    violations = body.json["violations"]
    assert {v["effect_id"] for v in violations} == {settled[0]}
    assert {"line", "facts"} <= {v["rule"] for v in violations}
    assert 3 in {v["sequence"] for v in violations}


def test_pruned_events_are_said_to_be(
    acme: Cli, settled: list[str], superuser: Connection[TupleRow], tmp_path: Path
) -> None:
    superuser.execute("SET ROLE effect_broker_prune")
    superuser.execute(
        "UPDATE effect_broker.effect_intents SET retention_stage = 1 WHERE effect_id = %s",
        [settled[0]],
    )
    superuser.execute(
        "DELETE FROM effect_broker.effect_events WHERE effect_id = %s AND sequence < 3",
        [settled[0]],
    )
    path = tmp_path / "trace.jsonl"
    exported(acme, path)
    ended = acme("events", "verify", path)
    assert ended.code == 0
    assert "of 1 effect the first events were pruned" in ended.out
    whole = acme("events", "verify", path, "--whole", "--json")
    assert whole.code == 1
    assert [v["rule"] for v in whole.json["violations"]] == ["pruned"]


def test_a_receipt_that_is_gone_is_missed_although_retention_took_the_rows(
    acme: Cli, settled: list[str], superuser: Connection[TupleRow], tmp_path: Path
) -> None:
    def broken() -> set[str]:
        exported(acme, path)
        body = acme("events", "verify", path, "--json")
        return {violation["rule"] for violation in body.json["violations"]}

    path = tmp_path / "trace.jsonl"
    # No role may do it: the triggers are away.
    superuser.execute("SET session_replication_role = replica")
    superuser.execute(
        "DELETE FROM effect_broker.effect_receipts WHERE effect_id = %s", [settled[0]]
    )
    assert broken() == {"receipt"}
    superuser.execute(
        "UPDATE effect_broker.effect_intents SET retention_stage = 3 WHERE effect_id = %s",
        [settled[0]],
    )
    for table in ("effect_events", "effect_attempts", "effect_evidence"):
        superuser.execute(
            f"DELETE FROM effect_broker.{table} WHERE effect_id = %s".encode(), [settled[0]]
        )
    assert broken() == {"receipt"}


@pytest.mark.parametrize(
    ("content", "meaning"),
    [
        (b"", "empty"),
        (b"hello\n", "line 1"),
        (b'{"type":"header"}\n', "line 1"),
        (b"\x00\xff" * 100, "line 1"),
    ],
)
def test_what_is_no_trace_is_a_sentence(
    cli: Cli, tmp_path: Path, content: bytes, meaning: str
) -> None:
    path = tmp_path / "odd"
    path.write_bytes(content)
    assert meaning in cli("events", "verify", path).refused(2)


def test_a_cut_export_is_unreadable(acme: Cli, settled: list[str], tmp_path: Path) -> None:
    del settled
    path = tmp_path / "trace.jsonl"
    exported(acme, path)
    raw = path.read_bytes()
    path.write_bytes(b"".join(raw.splitlines(keepends=True)[:-1]))
    assert "no end" in acme("events", "verify", path).refused(2)
    path.write_bytes(raw[:-40])
    assert acme("events", "verify", path).refused(2)


@pytest.mark.parametrize(
    ("arguments", "code", "meaning"),
    [
        (("verify", "/no/such/file"), 2, "No such file"),
        (("verify", "/"), 2, "cannot be read"),
        (("verify", "a\x00b"), 2, "name"),
        (("export", "--json"), 2, "--out"),
        (("export", "--effect", "not-\x1b[31ma-uuid"), 2, "UUID"),
        (("export", "--since", "lately"), 2, "--since"),
        (("export", "--since", "2026-01-01T00:00:00"), 2, "offset"),
        (("export", "--since", "9" * 30 + "d"), 2, "--since"),
        (("export", "--since", "999999999d"), 2, "--since"),
        (("export", "--tenant", "nobody\x07"), 1, "no tenant nobody?"),
        (("export", "--out", "/no/such/directory/trace"), 1, "cannot be written"),
        (("export", "--out", "/proc/nothing"), 1, "cannot be written"),
    ],
)
def test_poisonous_options_are_sentences(
    acme: Cli, arguments: tuple[str, ...], code: int, meaning: str
) -> None:
    assert meaning in acme("events", *arguments).refused(code)


def test_a_check_needs_no_database(cli: Cli, tmp_path: Path) -> None:
    """Whoever is handed a file can judge it."""
    writer = TraceWriter()
    path = tmp_path / "trace.jsonl"
    path.write_bytes(writer.header(exported_at=datetime.now(UTC)) + writer.end())
    assert "clean: 0 effects" in cli("events", "verify", path).out
