"""Doctor on a real database, and through a real pooler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from psycopg import Connection, sql
from psycopg.rows import TupleRow

from cli.commands import Cli, Ended, run_for_real
from cli.sender import Sender
from effect_broker.config import WORKER_SESSIONS
from effect_broker.store.diagnosis import shares_sessions
from effect_broker.store.roles import DatabaseRole
from effect_contracts.catalog import catalog_texts
from effect_contracts.facts import Outcome
from pooler import SWALLOWS_OPTIONS, pooler
from postgres import Database

Findings = dict[str, str]


def _levels(ended: Ended) -> Findings:
    """The worst level of each check."""
    order = ["ok", "warn", "fail"]
    worst: Findings = {}
    for finding in ended.json["findings"]:
        before = worst.get(finding["check"], "ok")
        worst[finding["check"]] = max(before, finding["level"], key=order.index)
        assert (finding["remedy"] is None) == (finding["level"] == "ok")
    return worst


@pytest.fixture
def doctor(broker: Cli) -> Any:
    """Runs doctor and returns the worst level of each check."""

    def examined() -> Findings:
        return _levels(broker("doctor", "--json"))

    return examined


def test_a_migrated_database_is_fit_but_for_what_tests_turn_off(broker: Cli, doctor: Any) -> None:
    levels = doctor()
    bad = {check: level for check, level in levels.items() if level != "ok"}
    # Tests run without fsync, there is no worker, and nothing was applied.
    assert set(bad) <= {"fsync", "full_page_writes", "workers", "contracts", "queue"}
    for check in ("database_api", "database_worker", "role_api", "role_worker", "row_security",
                  "api_and_engine", "pooler_api", "session_worker", "schema", "engine",
                  "synchronous_commit", "key_ring", "executor_ids"):  # fmt: skip
        assert levels[check] == "ok", check
    ended = broker("doctor")
    assert ended.code == (1 if "fail" in bad.values() else 0)
    assert "to do" in ended.out


def test_a_table_with_a_tenant_that_nobody_has_guarded_is_found(
    broker: Cli, doctor: Any, superuser: Connection[TupleRow]
) -> None:
    """Also one that no release knows: tables are found by the catalogue."""
    assert doctor()["row_security"] == "ok"
    superuser.execute("CREATE TABLE effect_broker.forgotten (tenant_id uuid)")
    assert doctor()["row_security"] == "fail"
    assert "forgotten" in broker("doctor").out


def test_what_a_hand_in_the_database_has_broken_is_found(
    doctor: Any, superuser: Connection[TupleRow]
) -> None:
    superuser.execute("ALTER TABLE effect_broker.effect_events NO FORCE ROW LEVEL SECURITY")
    superuser.execute("GRANT USAGE ON SCHEMA dbos TO effect_broker_api")
    superuser.execute("UPDATE effect_broker.database_identity SET halted_at = now()")
    superuser.execute("INSERT INTO effect_broker.workers (executor_id, ttl_seconds)"
                      " VALUES ('local', 60)")  # fmt: skip
    levels = doctor()
    for check in ("row_security", "api_and_engine", "restored", "executor_ids"):
        assert levels[check] == "fail", check
    assert levels["workers"] == "ok"


def test_more_workers_than_the_server_has_connections_for_are_a_warning(
    doctor: Any, superuser: Connection[TupleRow]
) -> None:
    assert doctor()["connections"] == "ok"
    row = superuser.execute("SHOW max_connections").fetchone()
    assert row is not None
    superuser.execute(
        "INSERT INTO effect_broker.workers (executor_id, ttl_seconds)"
        " SELECT 'vm-' || n || '-0123456789ab', 60 FROM generate_series(1, %s) AS n",
        [int(row[0]) // WORKER_SESSIONS + 1],
    )
    assert doctor()["connections"] == "warn"


def test_a_default_that_does_not_wait_for_the_disk_is_found(
    doctor: Any, database: Database, superuser: Connection[TupleRow]
) -> None:
    superuser.execute(
        sql.SQL("ALTER DATABASE {} SET synchronous_commit = off").format(
            sql.Identifier(database.name)
        )
    )
    levels = doctor()
    assert levels["synchronous_commit"] == "fail"
    # Our own sessions set it themselves.
    assert levels["session_api"] == "ok"


def test_a_missing_engine_is_found(doctor: Any, superuser: Connection[TupleRow]) -> None:
    superuser.execute("DROP SCHEMA dbos CASCADE")
    assert doctor()["engine"] == "fail"


def test_effects_that_wait_for_a_person_or_for_nobody_are_counted(
    broker: Cli, doctor: Any, database: Database, superuser: Connection[TupleRow], tmp_path: Path
) -> None:
    made = broker("tenants", "create", "acme", "--json").json
    for name in ("idempotent", "unsafe"):
        path = tmp_path / f"{name}.yaml"
        path.write_text(catalog_texts()[f"demo-charge-{name}"])
        broker("contracts", "apply", path)
    arguments = ("--arguments", '{"order": "1", "amount": 1, "currency": "eur"}', "--json")
    broker("effects", "submit", "--tool", "demo.charge", "--key", "step-3", *arguments)
    parked = broker("effects", "submit", "--tool", "demo.charge_once", "--key", "o1", *arguments)
    Sender(database, made["tenant_id"]).show(parked.json["effect_id"], Outcome.AMBIGUOUS)
    ended = broker("doctor", "--json")
    levels = _levels(ended)
    assert levels["overdue"] == "ok"
    assert levels["parked"] == "warn"
    assert levels["workers"] == "fail"
    assert levels["contracts"] == "ok"
    (said,) = [f["text"] for f in ended.json["findings"] if f["check"] == "key_scope"]
    told = "1 of 1 recent operation key of acme for demo.charge: such keys name a place"
    assert said.startswith(told)
    assert said.endswith("Shape: step-<n>")
    assert levels["key_scope"] == "warn"
    superuser.execute(
        "UPDATE effect_broker.effect_intents SET next_action_at = now() - interval '5 minutes'"
        " WHERE next_action_at IS NOT NULL"
    )
    assert doctor()["overdue"] == "fail"
    superuser.execute("UPDATE effect_broker.tenants SET hmac_key_id = 'gone'")
    assert doctor()["key_ring"] == "fail"


def test_doctor_without_anything_still_says_what_to_do(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = cli("doctor", "--json")
    assert ended.code == 1
    assert _levels(ended) == {"settings": "ok", "database": "fail", "key_ring": "fail"}
    monkeypatch.setenv("EFFECT_BROKER_DATABASE_URL", "postgresql://u:secret-word@127.0.0.1:1/x")
    ended = cli("doctor", "--json")
    assert _levels(ended)["database_worker"] == "fail"
    assert "secret-word" not in ended.out + ended.err
    monkeypatch.setenv("EFFECT_BROKER_DATABASE_URL", "nonsense-secret-word")
    ended = cli("doctor", "--json")
    assert _levels(ended) == {"settings": "fail"}
    assert "secret-word" not in ended.out + ended.err


def test_one_superuser_for_everything_fails_in_production_only(
    cli: Cli, ring: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EFFECT_BROKER_DATABASE_URL", database.superuser_url)
    assert _levels(cli("doctor", "--json"))["role_api"] == "warn"
    monkeypatch.setenv("EFFECT_BROKER_ENV", "production")
    levels = _levels(cli("doctor", "--json"))
    assert levels["role_api"] == "fail"
    assert levels["key_ring"] == "fail"  # a development ring


def test_a_real_process_ends_with_1_where_something_fails(tmp_path: Path) -> None:
    ended = run_for_real(
        {"EFFECT_BROKER_HOME": str(tmp_path / "none"), "PATH": "/usr/bin:/bin"}, "doctor", "--json"
    )
    assert ended.code == 1
    assert not ended.json["healthy"]
    assert ended.err == ""


# A real pooler ----------------------------------------------------------------------------------


@pytest.fixture
def pooler_directory(server_home: Path) -> Path:
    """A directory that other accounts can enter."""
    return server_home


async def test_a_pooler_in_transaction_mode_is_recognised(
    database: Database, pooler_directory: Path
) -> None:
    with pooler(pooler_directory, database.superuser_url, "transaction") as url:
        assert await shares_sessions(url)


async def test_a_pooler_in_session_mode_is_no_harm(
    database: Database, pooler_directory: Path
) -> None:
    with pooler(pooler_directory, database.superuser_url, "session") as url:
        assert not await shares_sessions(url)


async def test_the_server_itself_shares_no_session(database: Database) -> None:
    assert not await shares_sessions(database.url_for(DatabaseRole.API))


def test_a_command_through_a_pooler_that_drops_session_options_says_so(
    cli: Cli,
    ring: str,
    database: Database,
    pooler_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pooler(pooler_directory, database.superuser_url, "transaction") as url:
        monkeypatch.setenv("EFFECT_BROKER_DATABASE_URL", url)
        said = cli("tenants", "list").refused()
        assert "transaction mode" in said
        assert _levels(cli("doctor", "--json"))["database_api"] == "fail"


def test_a_pooler_that_swallows_session_options_is_found_by_doctor(
    cli: Cli,
    ring: str,
    database: Database,
    pooler_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pooler(pooler_directory, database.superuser_url, "transaction", SWALLOWS_OPTIONS) as url:
        monkeypatch.setenv("EFFECT_BROKER_DATABASE_URL", url)
        levels = _levels(cli("doctor", "--json"))
        assert levels["pooler_api"] == "fail"
        assert levels["session_worker"] == "fail"


def test_a_key_that_ends_soon_is_a_warning_and_no_failure(broker: Cli, doctor: Any) -> None:
    broker("tenants", "create", "acme")
    broker("keys", "create", "--tenant", "acme", "--expires", "15d")
    assert doctor()["api_keys"] == "ok"
    broker("keys", "create", "--tenant", "acme", "--expires", "13d")
    assert doctor()["api_keys"] == "warn"
