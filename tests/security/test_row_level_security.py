"""What the API's login sees of another tenant, in every table that the catalogue knows.

Tables and rights are read from the catalogue, so that a new table cannot be forgotten. So that each
has rows of two tenants whatever it asks of a row, the constraints of this test's own database are
dropped first; row-level security and rights are what is left, and what is tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import Connection, sql
from psycopg.rows import TupleRow

from effect_broker.store.roles import DatabaseRole
from postgres import Database

# Tables of tenants on which the API's role has no right at all: only functions of the owner reach
# them, or another role does.
NO_RIGHT = {
    "api_keys", "callers", "console_sessions", "limited_attempts", "limited_tenants",
}  # fmt: skip
# What the API may read that is not of a tenant, and why that tells nothing of one.
SHARED = {
    "active_contracts": "which contract serves a tool",
    "alembic_version": "the schema's version",
    "certificate_revocations": "when a contract's certificates ended, and not by which effect",
    "certificates": "what trials have shown of a contract's target",
    "contracts": "contract documents; secrets are references in them",
    "database_identity": "which server this is, and whether dispatch is halted",
    "event_epochs": "how often the database was restored elsewhere; the seal of its cursors",
    "this_database": "the same, as the server says it",
    "workers": "heartbeats; workers serve every tenant",
}

_TABLES = """
SELECT c.relname FROM pg_class AS c
WHERE c.relnamespace = 'effect_broker'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
"""
_OF_TENANTS = (
    _TABLES
    + """AND EXISTS (
    SELECT 1 FROM pg_attribute AS a
    WHERE a.attrelid = c.oid AND a.attname = 'tenant_id' AND NOT a.attisdropped)"""
)


@dataclass(frozen=True, slots=True)
class Ground:
    """A database with one row of each of two tenants in every table of tenants."""

    database: Database
    tables: tuple[str, ...]
    mine: UUID
    other: UUID

    @contextmanager
    def as_api(self, tenant_id: UUID | None = None) -> Iterator[Connection[TupleRow]]:
        """A transaction of the API's login, in the name of a tenant; nothing of it stays."""
        url = self.database.url_for(DatabaseRole.API)
        with psycopg.connect(url) as connection:
            if tenant_id is not None:
                name = "SELECT set_config('effect_broker.tenant_id', %s::text, true)"
                connection.execute(name, [tenant_id])
            yield connection
            connection.rollback()


def named(table: str) -> sql.Identifier:
    return sql.Identifier("effect_broker", table)


@pytest.fixture
def ground(database: Database) -> Ground:
    """Every table of tenants, bare of constraints and triggers, with two rows."""
    mine, other = uuid4(), uuid4()
    with psycopg.connect(database.superuser_url, autocommit=True) as superuser:
        tables = tuple(str(row[0]) for row in superuser.execute(_OF_TENANTS).fetchall())
        for table in tables:
            _loosen(superuser, table)
        for table in tables:
            for tenant_id in (mine, other):
                statement = sql.SQL("INSERT INTO {} (tenant_id) VALUES (%s)").format(named(table))
                superuser.execute(statement, [tenant_id])
    return Ground(database, tables, mine, other)


def _loosen(superuser: Connection[TupleRow], table: str) -> None:
    regclass = f"effect_broker.{table}"
    alter = sql.SQL("ALTER TABLE {} ").format(named(table))
    superuser.execute(alter + sql.SQL("DISABLE TRIGGER ALL"))
    constraints = superuser.execute(
        "SELECT conname FROM pg_constraint WHERE conrelid = %s::regclass AND contype <> 'n'",
        [regclass],
    ).fetchall()
    for (name,) in constraints:
        drop = sql.SQL("DROP CONSTRAINT IF EXISTS {} CASCADE").format(sql.Identifier(name))
        superuser.execute(alter + drop)
    indexes = superuser.execute(
        "SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = %s::regclass"
        " AND indisunique",
        [regclass],
    ).fetchall()
    for (name,) in indexes:
        superuser.execute(f"DROP INDEX {name}".encode())
    columns = superuser.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
        " AND attnotnull AND NOT attisdropped",
        [regclass],
    ).fetchall()
    for (name,) in columns:
        superuser.execute(
            alter + sql.SQL("ALTER COLUMN {} DROP NOT NULL").format(sql.Identifier(name))
        )


def _may(connection: Connection[TupleRow], table: str, right: str) -> bool:
    row = connection.execute(
        "SELECT has_any_column_privilege(%s, %s)", [f"effect_broker.{table}", right]
    ).fetchone()
    return row is not None and bool(row[0])


def _seen(connection: Connection[TupleRow], table: str) -> list[UUID]:
    query = sql.SQL("SELECT tenant_id FROM {}").format(named(table))
    return [row[0] for row in connection.execute(query).fetchall()]


def test_every_table_of_tenants_is_guarded_and_binds_its_owner_too(ground: Ground) -> None:
    assert len(ground.tables) > 15
    with psycopg.connect(ground.database.superuser_url) as superuser:
        unguarded = superuser.execute(
            _OF_TENANTS + " AND NOT (c.relrowsecurity AND c.relforcerowsecurity)"
        ).fetchall()
    assert unguarded == []


def test_the_api_sees_one_tenant_in_every_table_and_none_without_a_name(ground: Ground) -> None:
    readable = set()
    with ground.as_api() as nobody, ground.as_api(ground.mine) as mine:
        for table in ground.tables:
            if not _may(mine, table, "SELECT"):
                continue
            readable.add(table)
            assert _seen(nobody, table) == [], table
            assert _seen(mine, table) == [ground.mine], table
    assert set(ground.tables) - readable == NO_RIGHT


def test_the_api_writes_for_one_tenant_in_every_table(ground: Ground) -> None:
    """Whatever it may insert, change or delete, it may for its own tenant's rows alone."""
    written = set()
    with ground.as_api(ground.mine) as api:
        for table in ground.tables:
            if _may(api, table, "INSERT"):
                insert = sql.SQL("INSERT INTO {} (tenant_id) VALUES (%s)").format(named(table))
                if table == "effect_attempts":
                    # Of attempts it begins those of callers, whoever asks.
                    insert = sql.SQL(
                        "INSERT INTO {} (tenant_id, executor_id) VALUES (%s, 'caller:key')"
                    ).format(named(table))
                with pytest.raises(psycopg.errors.InsufficientPrivilege), api.transaction():
                    api.execute(insert, [ground.other])
                with api.transaction(force_rollback=True):
                    api.execute(insert, [ground.mine])
                written.add(table)
            for column in _changeable(api, table):
                change = sql.SQL("UPDATE {} SET {} = DEFAULT").format(
                    named(table), sql.Identifier(column)
                )
                with api.transaction(force_rollback=True):
                    assert api.execute(change).rowcount == 1, (table, column)
                written.add(table)
            if _may_delete(api, table):
                remove = sql.SQL("DELETE FROM {}").format(named(table))
                with api.transaction(force_rollback=True):
                    assert api.execute(remove).rowcount == 1, table
                written.add(table)
    assert {"effect_intents", "effect_evidence", "holds"} <= written


def _changeable(connection: Connection[TupleRow], table: str) -> list[str]:
    rows = connection.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
        " AND NOT attisdropped AND attgenerated = ''"
        " AND has_column_privilege(attrelid, attnum, 'UPDATE')",
        [f"effect_broker.{table}"],
    ).fetchall()
    return [str(row[0]) for row in rows]


def _may_delete(connection: Connection[TupleRow], table: str) -> bool:
    row = connection.execute(
        "SELECT has_table_privilege(%s, 'DELETE')", [f"effect_broker.{table}"]
    ).fetchone()
    return row is not None and bool(row[0])


def test_what_the_api_reads_without_a_tenant_is_on_a_list(ground: Ground) -> None:
    with ground.as_api() as api:
        every = {str(row[0]) for row in api.execute(_TABLES).fetchall()}
        shared = {table for table in every - set(ground.tables) if _may(api, table, "SELECT")}
    assert shared == SHARED.keys()


def test_functions_with_the_owners_rights_tell_the_api_nothing_of_another_tenant(
    database: Database,
) -> None:
    """Each is called with another tenant's ids, in the name of one's own tenant."""
    with psycopg.connect(database.superuser_url) as superuser:
        ids = [
            superuser.execute(
                "INSERT INTO effect_broker.tenants (tenant_id, name, hmac_key_id)"
                " VALUES (gen_random_uuid(), %s, 'k') RETURNING tenant_id",
                [name],
            ).fetchone()
            for name in ("mine", "other")
        ]
    assert ids[0] is not None
    assert ids[1] is not None
    ground = Ground(database, (), ids[0][0], ids[1][0])
    with ground.as_api(ground.mine) as api:
        session = "SELECT effect_broker.begin_console_session(sha256('x'), %s, %s)"
        assert api.execute(session, [ground.other, uuid4()]).fetchone() == (False,)
        for query in (
            "SELECT * FROM effect_broker.authenticate(sha256('x'))",
            "SELECT * FROM effect_broker.console_session(sha256('x'))",
        ):
            assert api.execute(query).fetchall() == []
        with pytest.raises(psycopg.Error, match="no such run"), api.transaction():
            api.execute(
                "SELECT effect_broker.enqueue_run(%s, %s, 1, now())", [ground.other, uuid4()]
            )
        numbers = api.execute("SELECT * FROM effect_broker.ledger_numbers(10)").fetchall()
        assert str(ground.other) not in repr(numbers)
        # The counting's right to see all tenants has ended with it.
        assert api.execute("SELECT current_setting('effect_broker.counting', true)").fetchone() in (
            ("",), (None,),
        )  # fmt: skip
        for name, linked in (("submit_effect", ""), ("submit_linked_effect", ", NULL, NULL")):
            call = (
                f"SELECT effect_broker.{name}(%s, %s, 'k', 't', '', 'n', '1', '', 'unsafe',"
                f" 'd', 'h', NULL, 'r', NULL, NULL, NULL, NULL, 'k', '', NULL, NULL{linked})"
            )
            with pytest.raises(psycopg.Error, match="another tenant"), api.transaction():
                api.execute(call.encode(), [ground.other, uuid4()])
