"""Tenants, API keys and key rings on the command line."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from cli.commands import Cli, run_for_real
from effect_broker.keyring import parse_key_ring
from effect_broker.store.pool import make_pool
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.tenants import Authentication
from effect_contracts.errors import Unauthenticated
from postgres import Database

POISON = ["", " ", "A", "-x", "a" * 64, "a b", "a\nb", "a\x1b[31m", "tén", "a\udcff", "../x"]


async def _tenant_of(database: Database, api_key: str) -> UUID:
    url = database.url_for(DatabaseRole.API)
    async with make_pool(url, None, application_name="test-api", size_max=1) as pool:
        return (await Authentication(pool).tenant(api_key)).tenant_id


def test_a_tenant_is_made_once_and_listed(broker: Cli) -> None:
    made = broker("tenants", "create", "acme", "--json").json
    assert made["name"] == "acme"
    assert made["hmac_key_id"] == "k1"
    assert "acme" in broker("tenants", "create", "acme").refused()
    listed = broker("tenants", "list", "--json").json
    assert [t["tenant_id"] for t in listed] == [made["tenant_id"]]
    assert "acme" in broker("tenants", "list").out


@pytest.mark.parametrize("name", POISON)
def test_a_poisonous_tenant_name_is_refused_before_the_database_is_asked(
    cli: Cli, name: str
) -> None:
    # There is no database here: its absence would be another sentence.
    assert "tenant name" in cli("tenants", "create", "--", name).refused()
    assert "tenant name" in cli("keys", "create", "--tenant", name).refused()


def test_a_tenant_is_disabled_and_enabled_again(broker: Cli) -> None:
    broker("tenants", "create", "acme")
    disabled = broker("tenants", "disable", "acme", "--json").json
    assert disabled["disabled_at"] is not None
    assert broker("tenants", "enable", "acme", "--json").json["disabled_at"] is None
    assert "tenants list" in broker("tenants", "disable", "nobody").refused()


async def test_an_api_key_stands_alone_on_its_line_and_opens_its_tenant(
    broker: Cli, database: Database
) -> None:
    # In a thread of its own, since a command runs an event loop.
    import asyncio

    made = await asyncio.to_thread(broker, "tenants", "create", "acme", "--json")
    printed = await asyncio.to_thread(broker, "keys", "create", "--tenant", "acme")
    api_key = printed.out.strip()
    assert printed.out == api_key + "\n"
    assert str(await _tenant_of(database, api_key)) == made.json["tenant_id"]

    listed = await asyncio.to_thread(broker, "keys", "list", "--json")
    assert api_key not in listed.out
    (key,) = listed.json
    assert key["scopes"] == ["effects"]

    refused = await asyncio.to_thread(broker, "keys", "revoke", api_key)
    assert api_key not in refused.refused()
    revoked = await asyncio.to_thread(broker, "keys", "revoke", key["key_id"])
    assert revoked.code == 0
    with pytest.raises(Unauthenticated):
        await _tenant_of(database, api_key)


def test_a_key_of_nobody_and_a_key_that_is_none_are_refused(broker: Cli) -> None:
    assert "nobody" in broker("keys", "create", "--tenant", "nobody").refused()
    assert "nobody" in broker("keys", "list", "--tenant", "nobody").refused()
    assert "UUID" in broker("keys", "revoke", "not\x07a-uuid").refused()
    assert "no API key" in broker("keys", "revoke", uuid4()).refused()
    broker("tenants", "create", "acme")
    refused = broker("keys", "create", "--tenant", "acme", "--scope", "Bad Scope")
    assert "scope" in refused.refused()


def test_scopes_are_kept(broker: Cli) -> None:
    broker("tenants", "create", "acme")
    broker("keys", "create", "--tenant", "acme", "--scope", "read", "--scope", "operate")
    (key,) = broker("keys", "list", "--tenant", "acme", "--json").json
    assert key["scopes"] == ["read", "operate"]


def test_a_key_may_have_an_end(broker: Cli) -> None:
    broker("tenants", "create", "acme")
    create = ("keys", "create", "--tenant", "acme", "--json")
    made = broker(*create, "--expires", "90d").json
    endless = broker(*create).json
    listed = {key["key_id"]: key for key in broker("keys", "list", "--json").json}
    begins, ends = (
        datetime.fromisoformat(listed[made["key_id"]][name])
        for name in ("created_at", "expires_at")
    )
    assert abs(ends - begins - timedelta(days=90)) < timedelta(seconds=1)
    assert listed[made["key_id"]]["expires_at"] == made["expires_at"]
    assert listed[endless["key_id"]]["expires_at"] is endless["expires_at"] is None
    assert "expires" in broker("keys", "create", "--tenant", "acme", "--expires", "12h").err
    for wrong in ("tomorrow", "-1d", "5s", "0"):
        assert broker(*create, "--expires", wrong).code != 0
    assert len(broker("keys", "list", "--json").json) == 3


@pytest.mark.parametrize("scope", ["everything", "effects:read", "sumbit", ""])
def test_a_right_that_nobody_asks_for_is_given_to_no_key(broker: Cli, scope: str) -> None:
    broker("tenants", "create", "acme")
    refused = broker("keys", "create", "--tenant", "acme", "--scope", scope).refused()
    assert "submit, read, operate, admin, effects" in refused
    assert broker("keys", "list", "--json").json == []


def test_a_printed_ring_is_a_ring_and_never_the_same(cli: Cli) -> None:
    first, second = cli("keys", "ring").out, cli("keys", "ring").out
    assert json.loads(first)["hmac"]["keys"] != json.loads(second)["hmac"]["keys"]
    ring = parse_key_ring(first, source="test", production=True)
    assert not ring.development
    named = cli("keys", "ring", "--development", "--id", "2026-11").out
    ring = parse_key_ring(named, source="test", production=False)
    assert ring.development
    assert ring.hmac.active == "2026-11"
    assert "key id" in cli("keys", "ring", "--id", "a b").refused()


def test_without_a_key_ring_a_tenant_cannot_be_made_and_the_remedy_is_named(
    broker: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EFFECT_BROKER_KEY_RING")
    assert "keys ring" in broker("tenants", "create", "acme").refused()
    # An administrator's machine need not hold the ring.
    assert broker("tenants", "create", "acme", "--hmac-key-id", "k1").code == 0


def test_a_development_ring_is_refused_in_production(
    broker: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EFFECT_BROKER_ENV", "production")
    assert "development ring" in broker("tenants", "create", "acme").refused()


def test_a_wrong_url_is_a_sentence_that_holds_no_password(
    cli: Cli, ring: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {
        "postgresql://u:secret-word@127.0.0.1:1/x": "nothing listens",
        "postgresql://u:secret-word@no-such-host.invalid/x": "host name",
        "postgresql://u:secret-word/with-slash@127.0.0.1/x": "EFFECT_BROKER_DATABASE_URL",
        "postgresql://u:secret-word@127.0.0.1:notaport/x": "EFFECT_BROKER_DATABASE_URL",
        "postgresql://u:secret-word@127.0.0.1/x?nonsense=secret-word": "URL",
        "mysql://u:secret-word@127.0.0.1/x": "postgresql://",
        database.superuser_url.replace(database.name, "no_such_database"): "no database",
    }
    for url, meaning in wrong.items():
        monkeypatch.setenv("EFFECT_BROKER_DATABASE_URL", url)
        said = cli("tenants", "list").refused()
        assert meaning in said, said
        assert "secret-word" not in said


def test_a_database_that_is_not_migrated_says_so(
    cli: Cli, ring: str, empty_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EFFECT_BROKER_DATABASE_URL", empty_database.superuser_url)
    assert "effect-broker migrate" in cli("tenants", "list").refused()
    assert "effect-broker migrate" in cli("effects", "list").refused()


def test_without_any_database_the_ways_to_one_are_named(cli: Cli, bare_environment: Path) -> None:
    said = cli("tenants", "list").refused()
    assert "EFFECT_BROKER_DATABASE_URL" in said
    assert "effect-broker up" in said
    assert "EFFECT_BROKER_HOME" in said
    # Asking did not make one.
    assert not bare_environment.exists()
    # Nor where the directory is there, and is no state directory.
    bare_environment.mkdir()
    assert "effect-broker up" in cli("tenants", "list").refused()
    assert not list(bare_environment.iterdir())


def test_a_project_that_is_taken_for_a_state_directory_is_told_its_own(
    cli: Cli, bare_environment: Path
) -> None:
    own = bare_environment / ".effect-broker"
    (own / "postgres").mkdir(parents=True)
    assert f"set EFFECT_BROKER_HOME to {own}" in cli("effects", "list").refused()
    assert [one.name for one in bare_environment.iterdir()] == [own.name]


def test_production_never_falls_back_to_a_server_of_its_own(
    cli: Cli, bare_environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare_environment.mkdir()
    monkeypatch.setenv("EFFECT_BROKER_ENV", "production")
    assert "production" in cli("tenants", "list").refused()
    assert not list(bare_environment.iterdir())


def test_a_real_process_ends_with_the_same_code_and_sentence(tmp_path: Path) -> None:
    environment = {
        "EFFECT_BROKER_DATABASE_URL": "postgresql://u:secret-word@127.0.0.1:1/x",
        "EFFECT_BROKER_HOME": str(tmp_path),
        "PATH": "/usr/bin:/bin",
    }
    ended = run_for_real(environment, "tenants", "list")
    said = ended.refused()
    assert ended.out == ""
    assert said.count("\n") == 1
    assert "secret-word" not in said
    assert run_for_real(environment, "tenants", "nonsense").code == 2
