"""A long history, made by SQL: settled effects by the hundred thousand, and some that wait."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from psycopg import Connection
from psycopg.rows import TupleRow

from effect_broker.store.unresolved import IN_ORDER

# Where an effect stands, as columns: state, reason, parked, next action, ordinal, receipt, expiry.
_STANDINGS: Final = {
    "settled": "'succeeded', 'committed', false, NULL, 1, sha256(''), NULL",
    "unknown": "'outcome_unknown', 'outcome_unknown', true, NULL, 1, NULL, NULL",
    "expiring": (
        "'outcome_unknown', 'backoff', false, now() + interval '1 h', 1, NULL,"
        " now() + n * interval '1 min'"
    ),
    "on_its_way": "'prepared', 'submitted', false, now() + interval '1 h', 0, NULL, NULL",
    "in_back_off": (
        "'retryable', 'backoff', false, now() + interval '1 h', 1, NULL,"
        " now() + n * interval '1 ms'"
    ),
    "overdue": "'prepared', 'submitted', false, now() - interval '1 h', 0, NULL, NULL",
}  # fmt: skip

_EFFECTS: Final = """
INSERT INTO effect_broker.effect_intents (
    tenant_id, effect_id, operation_key, tool, request_hash, contract_name, contract_version,
    contract_digest, safety, downstream_key, hmac_key_id, requested_by, created_at, updated_at,
    event_digest, version, generation, progress_generation,
    state, reason, parked, next_action_at, latest_ordinal, receipt_digest, key_expires_at)
SELECT %(tenant)s, md5(%(standing)s || n)::uuid, %(standing)s || '/' || n, 'tool', sha256(''), 'c',
       '1', %(digest)s, 'unsafe', 'd', 'h', 'r', now() - n * interval '1 s', now(), sha256(''),
       3, 1, 1, {standing}
FROM generate_series(%(first)s::int, %(last)s::int) AS n
"""


def add(
    superuser: Connection[TupleRow],
    tenant_id: UUID,
    standing: str,
    last: int,
    first: int = 1,
    digest: bytes = bytes(32),
) -> None:
    """Make effects `first` to `last` of a standing; number n was submitted n seconds ago."""
    superuser.execute("SET session_replication_role = replica")  # no triggers: bulk load
    superuser.execute(
        _EFFECTS.format(standing=_STANDINGS[standing]).encode(),
        {
            "tenant": tenant_id, "standing": standing, "first": first, "last": last,
            "digest": digest,
        },
    )  # fmt: skip
    superuser.execute("SET session_replication_role = origin")


def plan_of(
    connection: Connection[TupleRow], tenant_id: UUID, query: str, parameters: dict[str, Any]
) -> dict[str, Any]:
    """Run a query as an API process does, and return its plan with what it has touched."""
    given = {**parameters, "tenant_id": tenant_id}
    with connection.transaction(force_rollback=True):
        connection.execute("SET LOCAL ROLE effect_broker_api")
        connection.execute(
            "SELECT set_config('effect_broker.tenant_id', %s, true)", [str(tenant_id)]
        )
        connection.execute(IN_ORDER)
        explain = b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "
        row = connection.execute(explain + query.encode(), given).fetchone()
    assert row is not None
    plan: dict[str, Any] = row[0][0]
    return plan


def buffers_of(plan: dict[str, Any]) -> int:
    """Pages of tables and indexes that a plan has touched."""
    node = plan["Plan"]
    return int(node["Shared Hit Blocks"]) + int(node["Shared Read Blocks"])


def indexes_of(plan: dict[str, Any]) -> set[str]:
    """The indexes that a plan reads, and the tables that it reads from end to end."""
    found: set[str] = set()

    def walk(node: dict[str, Any]) -> None:
        if node["Node Type"] == "Seq Scan" and node["Relation Name"] != "tenants":
            found.add(f"all of {node['Relation Name']}")
        if "Index Name" in node:
            found.add(node["Index Name"])
        for child in node.get("Plans", ()):
            walk(child)

    walk(plan["Plan"])
    return found
