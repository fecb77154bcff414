"""A history of settled effects, made by set-based SQL after the pattern of real ones.

Some effects are carried out by the broker; every row that they leave, in whichever table, is then
copied with ids and operation keys of its own and earlier times. So the rows have the shape, the
sizes and the spread of ids of real ones, whatever a later release writes besides. What copies are
not: their events' digests are those of the pattern and chain to nothing, and no row of theirs has
dead versions before it, as a real one has until the next vacuum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg import Connection, sql

# Rows of so many effects are written by one statement for each table.
_CHUNK = 50_000
_SECONDS_APART = 0.5

# Ids of rows, which have to be new, and alike wherever they are named.
_ROW_IDS = frozenset({"attempt_id", "receipt_id", "evidence_id", "decision_id"})
# Texts that may hold the effect's id, or a row's.
_TEXTS = frozenset({"text", "character varying"})
# Filled by the server: the writing transaction's place in the event stream.
_BY_DEFAULT = frozenset({"place"})

_COPIES = """
CREATE TEMPORARY TABLE copies AS
SELECT p.effect_id AS old_id, md5('copy' || n)::uuid AS new_id, 'history:' || n AS new_key, n,
       (%(last)s - n) * %(apart)s * interval '1 s' + interval '1 h' AS age
FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n
JOIN (SELECT effect_id, row_number() OVER () - 1 AS place, count(*) OVER () AS total
      FROM pattern) AS p ON p.place = n %% p.total
ORDER BY new_id
"""


@dataclass(frozen=True, slots=True)
class GrowingTable:
    """A table that gets rows from every effect.

    Attributes:
        schema: `effect_broker` or the engine's.
        name: of the table.
        columns: name and type of those that are copied.
        by_run: its rows are named by the engine's id of a run, not by the effect's.
    """

    schema: str
    name: str
    columns: Sequence[tuple[str, str]]
    by_run: bool


def growing_tables(connection: Connection[Any], effect_ids: Sequence[Any]) -> list[GrowingTable]:
    """Return every table that holds a row of one of these effects."""
    connection.execute("CREATE TEMPORARY TABLE pattern AS SELECT unnest(%s::uuid[]) AS effect_id",
                       [list(effect_ids)])  # fmt: skip
    named = connection.execute(
        "SELECT c.table_schema, c.table_name, c.column_name FROM information_schema.columns AS c"
        " JOIN information_schema.tables AS t USING (table_schema, table_name)"
        " WHERE t.table_type = 'BASE TABLE' AND ((c.table_schema = 'effect_broker'"
        " AND c.column_name = 'effect_id') OR (c.table_schema = 'dbos'"
        " AND c.column_name = 'workflow_uuid')) ORDER BY 1, 2"
    ).fetchall()
    found = []
    for schema, name, column in named:
        by_run = column == "workflow_uuid"
        table = GrowingTable(schema, name, _columns(connection, schema, name), by_run)
        row = connection.execute(
            sql.SQL("SELECT EXISTS (SELECT 1 FROM {} AS t JOIN pattern AS p ON {})").format(
                _name(table), _joined(table, "p.effect_id")
            )
        ).fetchone()
        if row is not None and row[0]:
            found.append(table)
    return found


def _columns(connection: Connection[Any], schema: str, name: str) -> list[tuple[str, str]]:
    rows = connection.execute(
        "SELECT column_name, data_type FROM information_schema.columns"
        " WHERE table_schema = %s AND table_name = %s AND is_generated = 'NEVER'"
        " AND is_identity = 'NO' ORDER BY ordinal_position",
        [schema, name],
    ).fetchall()
    return [(column, kind) for column, kind in rows if column not in _BY_DEFAULT]


def _name(table: GrowingTable) -> sql.Identifier:
    return sql.Identifier(table.schema, table.name)


def _joined(table: GrowingTable, effect_id: LiteralString) -> sql.Composable:
    if table.by_run:
        return sql.SQL("split_part(t.workflow_uuid, '.', 1) = " + effect_id + "::text")
    return sql.SQL("t.effect_id = " + effect_id)


def _value(table: GrowingTable, column: str, kind: str) -> sql.Composable:
    """Return what a copy has in a column."""
    own = sql.Identifier("t", column)
    if column == "effect_id":
        return sql.SQL("c.new_id")
    if column == "operation_key":
        return sql.SQL("c.new_key")
    if column in _ROW_IDS:
        return sql.SQL("md5({}::text || c.n)::uuid").format(own)
    if column == "digest" and table.name == "effect_receipts":
        return sql.SQL(
            "sha256(convert_to(replace(t.content, c.old_id::text, c.new_id::text), 'UTF8'))"
        )
    if column in ("ref", "result_ref"):
        # The id of a row, or empty.
        return sql.SQL("CASE WHEN {0} ~ '^[0-9a-f-]{{36}}$' THEN md5({0} || c.n)::uuid::text"
                       " ELSE {0} END").format(own)  # fmt: skip
    if kind.startswith("timestamp"):
        return sql.SQL("{} - c.age").format(own)
    if kind == "bigint" and (column.endswith("_at") or column.endswith("_ms")):
        return sql.SQL("{} - (extract(epoch FROM c.age) * 1000)::bigint").format(own)
    if kind in _TEXTS:
        return sql.SQL("replace({}, c.old_id::text, c.new_id::text)").format(own)
    return own


def _copied(table: GrowingTable) -> sql.Composed:
    columns = sql.SQL(", ").join(sql.Identifier(name) for name, _ in table.columns)
    values = sql.SQL(", ").join(_value(table, name, kind) for name, kind in table.columns)
    return sql.SQL(
        "INSERT INTO {table} ({columns}) SELECT {values} FROM pattern_of_{name} AS t"
        " JOIN copies AS c ON {joined} ORDER BY c.new_id"
    ).format(
        table=_name(table),
        columns=columns,
        values=values,
        name=sql.SQL(table.name),
        joined=_joined(table, "c.old_id"),
    )


def fill(
    connection: Connection[Any], tables: Sequence[GrowingTable], first: int, last: int
) -> None:
    """Make effects `first` to `last` of the history; the indexes are made anew after it."""
    connection.execute("SET session_replication_role = replica")  # no triggers: a bulk load
    connection.execute("SET synchronous_commit = off")
    connection.execute("SET maintenance_work_mem = '512MB'")
    connection.execute("SET work_mem = '128MB'")
    # Without it the load would be a checkpoint every few seconds, each with its page images.
    _set_wal_room(connection, "8GB")
    for table in tables:
        pattern = sql.SQL("CREATE TEMPORARY TABLE IF NOT EXISTS pattern_of_{} AS SELECT t.*"
                          " FROM {} AS t JOIN pattern AS p ON {}").format(
            sql.SQL(table.name), _name(table), _joined(table, "p.effect_id")
        )  # fmt: skip
        connection.execute(pattern)
    indexes = _plain_indexes(connection, tables)
    for name, _ in indexes:
        connection.execute(sql.SQL("DROP INDEX {}").format(name))
    for begin in range(first, last + 1, _CHUNK):
        end = min(begin + _CHUNK - 1, last)
        connection.execute(_COPIES, {"first": begin, "last": end, "apart": _SECONDS_APART})
        connection.execute("ANALYZE copies")
        for table in tables:
            connection.execute(_copied(table))
        connection.execute("DROP TABLE copies")
    for _, definition in indexes:
        connection.execute(definition.encode())
    connection.execute("SET session_replication_role = origin")
    for table in tables:
        connection.execute(sql.SQL("VACUUM ANALYZE {}").format(_name(table)))
    # What is measured next begins with everything on the disk, and with the server's own settings.
    connection.execute("CHECKPOINT")
    _set_wal_room(connection, None)


def _set_wal_room(connection: Connection[Any], size: str | None) -> None:
    change = "RESET max_wal_size" if size is None else f"SET max_wal_size = '{size}'"
    connection.execute(f"ALTER SYSTEM {change}".encode())
    connection.execute("SELECT pg_reload_conf()")


def _plain_indexes(
    connection: Connection[Any], tables: Sequence[GrowingTable]
) -> list[tuple[sql.Identifier, str]]:
    """Return the indexes that no constraint needs, with their definitions."""
    found = []
    for table in tables:
        rows = connection.execute(
            "SELECT n.nspname, c.relname, pg_get_indexdef(i.indexrelid) FROM pg_index AS i"
            " JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_namespace AS n"
            " ON n.oid = c.relnamespace WHERE i.indrelid = %s::regclass AND NOT EXISTS ("
            " SELECT 1 FROM pg_constraint AS k WHERE k.conindid = i.indexrelid)",
            [f"{table.schema}.{table.name}"],
        ).fetchall()
        found += [(sql.Identifier(schema, name), text) for schema, name, text in rows]
    return found


def sizes(connection: Connection[Any], tables: Sequence[GrowingTable]) -> dict[str, int]:
    """Return bytes by table and by index; a table's are with its TOAST."""
    found: dict[str, int] = {}
    for table in tables:
        regclass = f"{table.schema}.{table.name}"
        rows = connection.execute(
            "SELECT %(t)s::text, pg_table_size(%(t)s::text::regclass) UNION ALL"
            " SELECT %(t)s::text || ': ' || c.relname, pg_relation_size(c.oid) FROM pg_index AS i"
            " JOIN pg_class AS c ON c.oid = i.indexrelid WHERE i.indrelid = %(t)s::text::regclass"
            " ORDER BY 1",
            {"t": regclass},
        ).fetchall()
        found |= {name: int(size) for name, size in rows}
    return found


def connected(url: str) -> Connection[Any]:
    """Connect as the superuser for filling: one session, since it keeps temporary tables."""
    return psycopg.connect(url, autocommit=True)
