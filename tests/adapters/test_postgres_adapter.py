"""The transactional adapter: the mutation is there exactly if its transaction commits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row

from adapter_calls import ARGUMENTS, KEY, budget, contract, dispatch_call
from effect_adapters.base import Answer, Budget
from effect_adapters.postgres import PostgresFunctionAdapter
from effect_contracts.facts import Outcome
from postgres import Database

SCHEMA = """
CREATE SCHEMA shop;
CREATE TABLE shop.customers (id text PRIMARY KEY);
CREATE TABLE shop.entries (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key text NOT NULL UNIQUE,
    amount bigint NOT NULL CHECK (amount > 0),
    customer text REFERENCES shop.customers DEFERRABLE INITIALLY DEFERRED
);
CREATE FUNCTION shop.post(arguments jsonb, downstream_key text) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE entry bigint;
BEGIN
    INSERT INTO shop.entries (key, amount, customer)
    VALUES (downstream_key, (arguments->>'amount')::bigint, arguments->>'customer')
    RETURNING id INTO entry;
    IF arguments ? 'raise' THEN
        RAISE EXCEPTION 'sk_live_never_print_me' USING ERRCODE = arguments->>'raise';
    END IF;
    IF arguments ? 'sleep' THEN PERFORM pg_sleep((arguments->>'sleep')::float); END IF;
    IF arguments ? 'die' THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;
    IF arguments ? 'anonymous' THEN RETURN '{}'::jsonb; END IF;
    RETURN jsonb_build_object('entry_id', entry, 'amount', arguments->'amount');
END $$;
"""

SETTINGS: dict[str, Any] = {
    "kind": "postgres",
    "function": "shop.post",
    "rejected": [
        {"sqlstates": ["23"], "code": "constraint_refused"},
        {"sqlstates": ["P0001"], "code": "refused"},
    ],
    "retryable": [
        {"sqlstates": ["40001", "40P01"], "code": "serialization_conflict"},
        {"sqlstates": ["23505"], "code": "busy_key"},
    ],
    "extraction": {"external_id": "entry_id", "receipt_fields": {"amount": "amount"}},
}

ADAPTER = PostgresFunctionAdapter()
DOCUMENT = contract(SETTINGS, "transactional")


@pytest.fixture
async def connection(
    shop_database: Database,
) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    opened = await psycopg.AsyncConnection.connect(
        # What the store's connections return by default is no concern of the adapter.
        shop_database.superuser_url, row_factory=dict_row, autocommit=True
    )  # fmt: skip
    await opened.execute(SCHEMA)
    yield opened
    await opened.close()


async def mutated(
    connection: psycopg.AsyncConnection[Any], within: Budget | None = None, **more: Any
) -> Answer:
    wire = ADAPTER.render(DOCUMENT, {**ARGUMENTS, **more}, KEY)
    return await ADAPTER.mutate(connection, dispatch_call(DOCUMENT, wire, within=within))


async def held(connection: psycopg.AsyncConnection[Any]) -> int:
    cursor = await connection.execute("SELECT count(*) AS n FROM shop.entries")
    row = await cursor.fetchone()
    assert row is not None
    return int(row["n"])


async def test_the_mutation_commits_with_its_transaction(
    connection: psycopg.AsyncConnection[Any],
) -> None:
    async with connection.transaction():
        answer = await mutated(connection)
        assert (answer.outcome, answer.external_id) == (Outcome.COMMITTED, "1")
        assert answer.receipt_fields == {"amount": 700}
    assert await held(connection) == 1


async def test_the_mutation_goes_with_its_transaction(
    connection: psycopg.AsyncConnection[Any],
) -> None:
    async with connection.transaction(force_rollback=True):
        assert (await mutated(connection)).outcome is Outcome.COMMITTED
    assert await held(connection) == 0


@pytest.mark.parametrize(
    ("more", "outcome", "code"),
    [
        ({"amount": -1}, Outcome.REJECTED, "constraint_refused"),
        ({"customer": "nobody"}, Outcome.REJECTED, "constraint_refused"),
        ({"raise": "P0001"}, Outcome.REJECTED, "refused"),
        ({"raise": "40001"}, Outcome.RETRYABLE, "serialization_conflict"),
        ({"raise": "40P01"}, Outcome.RETRYABLE, "serialization_conflict"),
        ({"raise": "55P03"}, Outcome.RETRYABLE, "sqlstate_55p03"),
        ({"raise": "57014"}, Outcome.RETRYABLE, "sqlstate_57014"),
        ({"raise": "53200"}, Outcome.RETRYABLE, "sqlstate_53200"),
        ({"raise": "23505"}, Outcome.RETRYABLE, "busy_key"),
        ({"raise": "58030"}, Outcome.RETRYABLE, "sqlstate_58030"),
        ({"raise": "25006"}, Outcome.RETRYABLE, "sqlstate_25006"),
        ({"raise": "22012"}, Outcome.REJECTED, "sqlstate_22012"),
        ({"anonymous": True}, Outcome.REJECTED, "external_id_missing"),
    ],
)
async def test_an_error_undoes_the_mutation_and_leaves_the_transaction_usable(
    connection: psycopg.AsyncConnection[Any], more: dict[str, Any], outcome: Outcome, code: str
) -> None:
    async with connection.transaction():
        await connection.execute("INSERT INTO shop.customers VALUES ('before')")
        answer = await mutated(connection, **more)
        assert (answer.outcome, answer.code) == (outcome, code)
        assert "sk_live" not in repr(answer)
        await connection.execute("INSERT INTO shop.customers VALUES ('after')")
    assert await held(connection) == 0
    cursor = await connection.execute("SELECT count(*) AS n FROM shop.customers")
    assert (await cursor.fetchone() or {})["n"] == 2


_UNPREPARED = {
    "DROP FUNCTION shop.post": "function_missing",
    "ALTER SCHEMA shop RENAME TO shop_of_tomorrow": "schema_missing",
    "REVOKE USAGE ON SCHEMA shop FROM clerk": "right_missing",
    "REVOKE EXECUTE ON FUNCTION shop.post FROM public": "right_missing",
    "REVOKE INSERT ON shop.entries FROM clerk": "right_missing",
    "DROP TABLE shop.entries": "table_missing",
    "ALTER TABLE shop.entries RENAME COLUMN key TO name": "column_missing",
}


@pytest.mark.parametrize("statement", sorted(_UNPREPARED))
async def test_a_database_that_is_not_ready_does_not_end_the_effect(
    connection: psycopg.AsyncConnection[Any], statement: str
) -> None:
    """A grant or a migration that somebody forgot says nothing about the effect."""
    await connection.execute("CREATE ROLE clerk")
    try:
        await connection.execute(
            "GRANT USAGE ON SCHEMA shop TO clerk;"
            "GRANT INSERT, SELECT ON ALL TABLES IN SCHEMA shop TO clerk"
        )
        async with connection.transaction(force_rollback=True):
            await connection.execute("SET LOCAL ROLE clerk")
            assert (await mutated(connection)).outcome is Outcome.COMMITTED
        await connection.execute(statement.encode())
        async with connection.transaction():
            await connection.execute("SET LOCAL ROLE clerk")
            answer = await mutated(connection)
    finally:
        await connection.execute("DROP OWNED BY clerk; DROP ROLE clerk")
    assert (answer.outcome, answer.code) == (Outcome.RETRYABLE, _UNPREPARED[statement])


async def test_a_contract_may_call_a_missing_right_a_refusal(
    connection: psycopg.AsyncConnection[Any],
) -> None:
    settings = SETTINGS | {"rejected": [{"sqlstates": ["42501"], "code": "not_allowed"}]}
    document = contract(settings, "transactional")
    wire = ADAPTER.render(document, {**ARGUMENTS, "raise": "42501"}, KEY)
    async with connection.transaction():
        answer = await ADAPTER.mutate(connection, dispatch_call(document, wire))
    assert (answer.outcome, answer.code) == (Outcome.REJECTED, "not_allowed")


async def test_a_function_that_runs_too_long_is_cut_at_the_budget(
    connection: psycopg.AsyncConnection[Any],
) -> None:
    async with connection.transaction():
        answer = await mutated(connection, within=budget(0.2), sleep=5)
        assert (answer.outcome, answer.code) == (Outcome.RETRYABLE, "sqlstate_57014")
    assert await held(connection) == 0


async def test_the_limit_on_the_function_does_not_outlive_it(
    connection: psycopg.AsyncConnection[Any],
) -> None:
    async with connection.transaction():
        await connection.execute("SET LOCAL statement_timeout = '7s'")
        assert (await mutated(connection)).outcome is Outcome.COMMITTED
        cursor = await connection.execute("SHOW statement_timeout")
        assert (await cursor.fetchone() or {})["statement_timeout"] == "7s"


async def test_a_lost_connection_is_the_stores_to_judge(
    connection: psycopg.AsyncConnection[Any],
) -> None:
    with pytest.raises(psycopg.OperationalError):
        async with connection.transaction():
            await mutated(connection, die=True)
    assert connection.closed


async def test_a_call_for_another_function_is_not_made(
    connection: psycopg.AsyncConnection[Any],
) -> None:
    wire = ADAPTER.render(DOCUMENT, ARGUMENTS, KEY).replace(b"shop.post", b"shop.evil")
    async with connection.transaction():
        answer = await ADAPTER.mutate(connection, dispatch_call(DOCUMENT, wire))
        assert (answer.outcome, answer.code) == (Outcome.NOT_SENT, "wire_invalid")
        assert connection.info.transaction_status is TransactionStatus.INTRANS


async def test_names_and_values_are_never_spelt_into_the_statement(
    connection: psycopg.AsyncConnection[Any],
) -> None:
    hostile = "'); DROP SCHEMA shop CASCADE; --"
    async with connection.transaction():
        wire = ADAPTER.render(DOCUMENT, {**ARGUMENTS, "note": hostile}, hostile)
        answer = await ADAPTER.mutate(connection, dispatch_call(DOCUMENT, wire))
        assert answer.outcome is Outcome.COMMITTED
    assert await held(connection) == 1


async def test_without_an_open_transaction_nothing_runs(
    connection: psycopg.AsyncConnection[Any],
) -> None:
    with pytest.raises(AssertionError):
        await mutated(connection)
    assert await held(connection) == 0
