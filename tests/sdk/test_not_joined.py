"""What a caller's transaction must not carry, and what a caller's role can reach: nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import LiteralString
from uuid import UUID

import psycopg
import pytest
from psycopg import Connection
from psycopg.rows import TupleRow
from sqlalchemy.exc import DBAPIError

from effect_broker import (
    AccessRefused,
    AsyncBroker,
    Broker,
    NotConfigured,
    NotJoined,
    RunAgain,
    Unavailable,
)
from effect_broker.keyring import AesVault, parse_key_ring
from effect_broker.proof.contracts import charge
from effect_broker.store.caller_connections import JoinBroken, JoinRefused, Overtaken
from effect_broker.store.caller_connections import _errors as errors_of_a_caller
from effect_broker.store.callers import Admission, Callers
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.tenants import Tenants
from effect_contracts.canonical import canonical_bytes
from effect_contracts.keys import effect_id
from hosting.scenes import Scene
from postgres import RunningServer, clone, drop_database
from sdk.callers import Business, administer, business, url_as
from sdk.conftest import TENANT, Access

PATIENT = timedelta(seconds=60)


@pytest.fixture(scope="module")
def shop(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Business]:
    """A caller of the tenant."""
    with business(scene, TENANT, tmp_path_factory.mktemp("shop")) as made:
        yield made


@pytest.fixture(scope="module")
def tool(scene: Scene) -> str:
    """Any tool."""
    return scene.offer("not_joined")


@pytest.fixture(scope="module")
def direct(shop: Business, access: Access) -> Iterator[Broker]:
    """A client on Postgres."""
    url = shop.scene.broker.url(DatabaseRole.API)
    with Broker.on_postgres(url, api_key=access.api_key, key_ring=shop.ring) as made:
        yield made


def refused(broker: Broker, tool: str, connection: object) -> str:
    with pytest.raises(NotJoined) as refusal:
        broker.submit(tool, charge("1"), operation_key="never", connection=connection)
    assert refusal.value.detail
    return refusal.value.code or ""


def ask(connection: Connection[TupleRow], what: str, **told: object) -> dict[str, object]:
    """Call the function as a hand would."""
    row = connection.execute(
        "SELECT effect_broker.join_effect(%s, %s::jsonb)", [what, json.dumps(told)]
    ).fetchone()
    assert row is not None
    answer: dict[str, object] = row[0]
    return answer


def deep(levels: int) -> object:
    """Lists in lists."""
    return [deep(levels - 1)] if levels else []


# Transactions -------------------------------------------------------------------------------------


def test_what_commits_each_statement_by_itself_is_refused(
    shop: Business, direct: Broker, tool: str
) -> None:
    with shop.connect(autocommit=True) as connection:
        assert refused(direct, tool, connection) == "autocommit"
    assert shop.intents("never") == 0


def test_an_aborted_transaction_is_refused(shop: Business, direct: Broker, tool: str) -> None:
    with shop.connect() as connection:
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT * FROM nowhere")
        assert refused(direct, tool, connection) == "transaction_aborted"


def test_a_read_only_transaction_is_refused_and_goes_on(
    shop: Business, direct: Broker, tool: str
) -> None:
    with shop.connect() as connection:
        connection.read_only = True
        assert refused(direct, tool, connection) == "read_only"
        assert connection.execute("SELECT count(*) FROM orders").fetchone() is not None


def test_a_connection_of_another_kind_is_refused(
    shop: Business, direct: Broker, access: Access, tool: str
) -> None:
    assert refused(direct, tool, object()) == "unknown_connection"

    async def work() -> None:
        async with await psycopg.AsyncConnection.connect(shop.url) as connection:
            assert refused(direct, tool, connection) == "needs_a_loop"
        url = shop.scene.broker.url(DatabaseRole.API)
        async with AsyncBroker.on_postgres(
            url, api_key=access.api_key, key_ring=shop.ring
        ) as broker:
            with psycopg.connect(shop.url) as plain, pytest.raises(NotJoined) as refusal:
                await broker.submit(tool, charge("1"), operation_key="never", connection=plain)
            assert refusal.value.code == "blocks_the_loop"

    asyncio.run(work())


def test_a_connection_that_is_gone_asks_to_run_again(
    shop: Business, direct: Broker, tool: str
) -> None:
    connection = shop.connect()
    connection.close()
    with pytest.raises(RunAgain) as again:
        direct.submit(tool, charge("1"), operation_key="never", connection=connection)
    assert again.value.code == "connection_lost"


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (psycopg.errors.DeadlockDetected, Overtaken),
        (psycopg.errors.QueryCanceled, Overtaken),
        (psycopg.errors.AdminShutdown, Overtaken),
        (psycopg.errors.TooManyConnections, Overtaken),
        (psycopg.errors.IdleInTransactionSessionTimeout, Overtaken),
        (psycopg.OperationalError, Overtaken),
        (psycopg.errors.InFailedSqlTransaction, JoinRefused),
        (psycopg.errors.InsufficientPrivilege, JoinBroken),
        (psycopg.errors.CheckViolation, JoinBroken),
    ],
)
def test_only_what_may_pass_asks_to_run_again(
    error: type[psycopg.Error], raised: type[Exception]
) -> None:
    for wrapped in (error("a value"), DBAPIError("statement", {}, error("a value"))):
        with pytest.raises(raised) as told, errors_of_a_caller():
            raise wrapped
        assert "a value" not in str(told.value)


# Databases, tenants and roles ---------------------------------------------------------------------


def test_a_database_without_a_broker_is_refused_and_its_transaction_goes_on(
    scene: Scene, shop: Business, direct: Broker, tool: str
) -> None:
    elsewhere = psycopg.conninfo.make_conninfo(shop.url, dbname="postgres")
    with psycopg.connect(elsewhere) as connection:
        assert refused(direct, tool, connection) == "no_broker_here"
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_another_brokers_database_is_refused(
    scene: Scene,
    shop: Business,
    direct: Broker,
    tool: str,
    running_server: RunningServer,
    template_name: str,
) -> None:
    other = clone(running_server, template_name)
    try:
        with psycopg.connect(other.superuser_url, autocommit=True) as superuser:
            # A copy knows the same tenants by the same ids.
            superuser.execute(
                "INSERT INTO effect_broker.tenants (tenant_id, name, hmac_key_id)"
                " VALUES (%s, %s, 'proof')",
                [scene.broker.tenant_id, TENANT],
            )
            superuser.execute(
                "SELECT effect_broker.add_caller(%s, %s)", [shop.role, scene.broker.tenant_id]
            )
            url = psycopg.conninfo.make_conninfo(shop.url, dbname=other.name)
            with psycopg.connect(url) as connection:
                assert refused(direct, tool, connection) == "another_database"
    finally:
        drop_database(running_server, other.name)


def test_a_role_without_a_mapping_is_refused(
    scene: Scene, direct: Broker, tool: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with business(scene, None, tmp_path_factory.mktemp("stranger")) as stranger:
        with stranger.connect() as connection:
            assert refused(direct, tool, connection) == "not_a_caller"
            assert connection.execute("SELECT 1").fetchone() == (1,)
        # The mapping alone decides: a grant that was left behind opens nothing.
        with psycopg.connect(scene.broker.superuser_url, autocommit=True) as superuser:
            superuser.execute(f'GRANT USAGE ON SCHEMA effect_broker TO "{stranger.role}"'.encode())
            superuser.execute(
                f'GRANT EXECUTE ON FUNCTION effect_broker.join_effect TO "{stranger.role}"'.encode()
            )
        with stranger.connect() as connection:
            assert refused(direct, tool, connection) == "not_a_caller"


def test_a_role_of_another_tenant_is_refused_where_the_clients_key_is_not_its_own(
    scene: Scene, direct: Broker, tool: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    administer(scene.broker, lambda pool: Tenants(pool).create("other-shop", "proof"))
    with business(scene, "other-shop", tmp_path_factory.mktemp("other")) as other:
        with other.connect() as connection:
            assert refused(direct, tool, connection) == "another_tenant"
        administer(scene.broker, lambda pool: Tenants(pool).switch("other-shop", disabled=True))
        with other.connect() as connection:
            assert ask(connection, "look", tool=tool, operation_key="k") == {
                "refused": "tenant_disabled"
            }


def test_what_a_person_has_to_approve_is_submitted_over_the_api(
    scene: Scene, shop: Business, direct: Broker
) -> None:
    overseen = scene.offer("overseen", oversight={"approval_valid_seconds": 3600.0})
    with shop.connect() as connection:
        assert refused(direct, overseen, connection) == "approval_needed"
    assert shop.intents("never") == 0


def test_a_removed_caller_submits_no_more(
    scene: Scene, direct: Broker, tool: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with business(scene, TENANT, tmp_path_factory.mktemp("former")) as former:
        role, broker = former.role, scene.broker
        assert administer(broker, lambda p: Callers(p).add(role, TENANT)) is Admission.THERE
        listed = administer(broker, lambda pool: Callers(pool).callers(TENANT))
        assert [(c.tenant, c.exists) for c in listed if c.role == role] == [(TENANT, True)]
        assert administer(broker, lambda pool: Callers(pool).remove(role))
        assert not administer(broker, lambda pool: Callers(pool).remove(role))
        with former.connect() as connection:
            assert refused(direct, tool, connection) == "not_a_caller"
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                ask(connection, "look", tool=tool, operation_key="k")


@pytest.mark.parametrize(
    ("role", "found"),
    [
        ("nobody-at-all", Admission.NO_ROLE),
        ("effect_broker_api", Admission.TOO_MIGHTY),
        ("effect_broker_owner", Admission.TOO_MIGHTY),
        ("pg_monitor", Admission.NO_LOGIN),
    ],
)
def test_a_role_that_must_not_be_a_caller_is_none(
    scene: Scene, role: str, found: Admission
) -> None:
    assert administer(scene.broker, lambda pool: Callers(pool).add(role, TENANT)) is found


def test_a_caller_role_reaches_one_function_and_nothing_else(shop: Business) -> None:
    """From the catalogue, so that a table or a function that comes later is seen as well."""
    reached: LiteralString = """
        SELECT c.oid::regclass::text FROM pg_class AS c
        WHERE c.relnamespace IN ('effect_broker'::regnamespace, 'dbos'::regnamespace)
          AND c.relkind IN ('r', 'v', 'm', 'p', 'f', 'S')
          AND CASE WHEN c.relkind = 'S' THEN has_sequence_privilege(%(r)s, c.oid, 'USAGE,SELECT')
              ELSE has_table_privilege(%(r)s, c.oid,
                       'SELECT,INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER')
                   OR has_any_column_privilege(%(r)s, c.oid, 'SELECT,INSERT,UPDATE,REFERENCES') END
        UNION ALL
        SELECT p.oid::regprocedure::text FROM pg_proc AS p
        WHERE p.pronamespace IN ('effect_broker'::regnamespace, 'dbos'::regnamespace)
          AND p.prorettype <> 'trigger'::regtype AND has_function_privilege(%(r)s, p.oid, 'EXECUTE')
        UNION ALL
        SELECT n.nspname FROM pg_namespace AS n
        WHERE has_schema_privilege(%(r)s, n.oid, 'CREATE')
    """
    with psycopg.connect(shop.scene.broker.superuser_url) as superuser:
        rows = superuser.execute(reached, {"r": shop.role}).fetchall()
    assert rows == [("effect_broker.join_effect(text,jsonb)",)]


def test_a_caller_cannot_act_for_another_tenant_or_name_itself(
    scene: Scene, shop: Business, tool: str
) -> None:
    stranger = UUID(int=1)
    with shop.connect() as connection:
        for setting in (str(stranger), "nonsense"):
            connection.execute("SELECT set_config('effect_broker.tenant_id', %s, false)", [setting])
            look = ask(connection, "look", tool=tool, operation_key="k", tenant_id=str(stranger))
            assert look["tenant_id"] == scene.broker.tenant_id
        # As somebody else by SET ROLE: who has logged in counts.
        assert look["role"] == shop.role
        told = by_hand(shop, look, tool, "forged", charge("forged"))
        told |= {
            "tenant_id": str(stranger),
            "effect_id": str(stranger),
            "requested_by": "operator:x",
        }
        made = ask(connection, "submit", **told)
    intent = made["intent"]
    assert isinstance(intent, dict)
    assert intent["effect_id"] == str(effect_id(UUID(scene.broker.tenant_id), "forged"))
    row = scene.intent(intent["effect_id"])
    assert row["requested_by"] == f"caller:role:{shop.role}"
    assert row["tenant_id"] == UUID(scene.broker.tenant_id)


@pytest.mark.parametrize(
    "change",
    [
        {"hmac_key_id": "another"},
        {"downstream_key": ""},
        {"downstream_key": "a\r\nX-Injected: b"},
        {"preview": "no object"},
        {"preview": {"large": "x" * 1_100_000}},
        {"preview": {"digits": 10**400}},
        {"preview": {"digits": [{"below": -(10**400)}]}},
        {"preview": {"deep": deep(70)}},
        {"send_before": "infinity"},
        {"send_before": "-infinity"},
        {"send_before": "10000-01-01 00:00:00+00"},
        {"arguments": "00" * 1_100_000},
        {"arguments": None},
        {"trace_id": "x" * 256},
        {"operation_key": "two words"},
        {"request_hash": "00"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_submission_that_no_client_makes_is_an_error(
    shop: Business, tool: str, change: dict[str, object]
) -> None:
    with shop.connect() as connection:
        look = ask(connection, "look", tool=tool, operation_key="k")
        told = by_hand(shop, look, tool, "by-hand", charge("x")) | change
        with pytest.raises(psycopg.Error, match=r"no client makes|violates check constraint"):
            ask(connection, "submit", **told)
        connection.rollback()
        with pytest.raises(psycopg.Error, match="nobody asks"):
            ask(connection, "drop", **told)
    assert shop.intents("by-hand") == 0


def test_arguments_that_break_the_contract_are_never_sent_whoever_has_sealed_them(
    scene: Scene, shop: Business
) -> None:
    scene.ensure_workers(1)
    strict = scene.offer("strict")
    with shop.connect() as connection:
        look = ask(connection, "look", tool=strict, operation_key="k")
        told = by_hand(shop, look, strict, "strict:1", {"order": "1", "amount": -5})
        made = ask(connection, "submit", **told)
    intent = made["intent"]
    assert isinstance(intent, dict)
    scene.wait_for(
        "a second run, after one that came to nothing",
        "SELECT generation >= 2 FROM effect_broker.effect_intents WHERE effect_id = %s",
        intent["effect_id"],
    )
    assert scene.ledger("strict").arrivals == 0
    assert scene.intent(intent["effect_id"])["latest_ordinal"] == 0


def by_hand(
    shop: Business, look: dict[str, object], tool: str, key: str, arguments: dict[str, object]
) -> dict[str, object]:
    """A submission as the SDK makes it, but for the checks."""
    text = Path(shop.ring).read_text("utf-8")
    ring = parse_key_ring(text, source="test", production=False)
    tenant = UUID(str(look["tenant_id"]))
    sealed = AesVault(ring).seal(
        tenant,
        effect_id(tenant, key),
        "arguments",
        canonical_bytes(arguments),
    )
    contract = look["contract"]
    assert isinstance(contract, dict)
    return {
        "operation_key": key,
        "tool": tool,
        "request_hash": "ab" * 32,
        "contract_digest": contract["digest"],
        "downstream_key": "by-hand",
        "hmac_key_id": look["hmac_key_id"],
        "arguments_key_id": sealed.key_id,
        "arguments": sealed.ciphertext.hex(),
    }


# The client ---------------------------------------------------------------------------------------


def test_a_client_on_postgres_says_what_is_missing(
    shop: Business, access: Access, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    url = shop.scene.broker.url(DatabaseRole.API)
    monkeypatch.delenv("EFFECT_BROKER_API_KEY", raising=False)
    monkeypatch.setenv("EFFECT_BROKER_HOME", str(tmp_path))
    with pytest.raises(NotConfigured, match="EFFECT_BROKER_API_KEY"):
        Broker.on_postgres(url, key_ring=shop.ring)
    with pytest.raises(NotConfigured, match="postgresql://"):
        Broker.on_postgres("http://x", api_key=access.api_key, key_ring=shop.ring)
    with pytest.raises(NotConfigured, match="cannot be read"):
        Broker.on_postgres(url, api_key=access.api_key, key_ring="/no/such/file")
    with pytest.raises(NotConfigured, match="no key ring"):
        Broker.on_postgres(url, api_key=access.api_key)
    with pytest.raises(NotConfigured, match="cannot be used"):
        Broker.on_postgres(url, api_key=access.api_key, key_ring="{}")
    with Broker.on_postgres(url, api_key="eb_wrong", key_ring=shop.ring) as broker:
        with pytest.raises(AccessRefused) as refusal:
            broker.get(UUID(int=1))
        assert refusal.value.code == "unauthenticated"
        assert "eb_wrong" not in repr(broker)
    nowhere = url_as(shop.scene.broker, "nobody-at-all")
    quick = timedelta(seconds=0.2)
    with (
        Broker.on_postgres(nowhere, api_key="k", key_ring=shop.ring, patience=quick) as broker,
        pytest.raises(Unavailable, match="no user of this name"),
    ):
        broker.get(UUID(int=1))
