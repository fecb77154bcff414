"""Reading the unresolved effects of a tenant: a page from an index, however long the history is.

A page is the merge of three scans in the order of urgency, each of which ends at the page's size:
what is unresolved by its state (an index of those alone), attempts under way past their deadline
(as many as are in flight), and runs that are overdue (what is not is passed over in the index).
Settled effects are in none of these indexes. What filters leave out is read and thrown away, so
that a filter costs as much as there are unresolved effects at most.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from effect_broker.protocol.ports import Snapshot
from effect_broker.protocol.resolution import permitted
from effect_broker.reading import CursorInvalid
from effect_broker.store import statements as sql
from effect_broker.store.pool import Connection
from effect_broker.store.postgres import PostgresStore
from effect_broker.store.rows import (
    Row,
    StoredEffect,
    attempt_of,
    evidence_of,
    intent_of,
    urgency_of,
)
from effect_broker.unresolved import (
    CRASH_WINDOW,
    OVERDUE_SECONDS,
    STALE_IN_FLIGHT,
    LastEvidence,
    UnresolvedEffect,
    UnresolvedFilter,
    UnresolvedPage,
    last_evidence_of,
    next_step_of,
    reasons_of,
)
from effect_contracts.facts import Alert

# The predicates of the indexes `unresolved_effects` and `effects_on_their_way`: the planner takes
# an index only for the words that it was made with.
_HELD: Final = """(
           'paused', 'frozen', 'tenant_disabled', 'awaiting_certificate', 'awaiting_approval',
           'database_restored')"""
UNRESOLVED: Final = f"""(alert IS NOT NULL OR parked
       OR state IN ('outcome_unknown', 'reconciling', 'manual_review')
       OR (state = 'dispatching' AND sender_lost)
       OR (state IN ('prepared', 'retryable') AND reason IN {_HELD}))"""
ON_THEIR_WAY: Final = f"""state IN ('prepared', 'retryable') AND NOT parked
       AND reason NOT IN {_HELD}"""

# Not clock_timestamp(), which no index condition can hold: it may be another at each row. The
# transaction that reads a page begins right before.
_NOW: Final = "statement_timestamp()"
_DUE_LONG: Final = f"next_action_at < {_NOW} - interval '{OVERDUE_SECONDS:g} s'"
_CLOSE_MISSED: Final = f"attempt_open_until < {_NOW}"
_OPEN: Final = "state NOT IN ('succeeded', 'failed_final', 'cancelled', 'compensated')"

_SOURCES: Final = (
    UNRESOLVED,
    f"state = 'dispatching' AND NOT sender_lost AND ({_CLOSE_MISSED} OR {_DUE_LONG})",
    f"{ON_THEIR_WAY} AND {_DUE_LONG}",
)

_EXPIRY: Final = "CASE WHEN key_expires_at IS NULL THEN 'infinity' ELSE key_expires_at END"
_ORDER: Final = f"{_EXPIRY}, created_at, effect_id"
# The order of urgency is read from the indexes whatever the planner expects: its estimates take the
# conditions for independent of each other, and it would then read and sort all that waits.
IN_ORDER: Final = "SET LOCAL enable_sort = off"
IN_ANY_ORDER: Final = "SET LOCAL enable_sort TO DEFAULT"
_PAGE: Final = """
SELECT effect_id, statement_timestamp() AS now,
       (SELECT t.name FROM effect_broker.tenants AS t WHERE t.tenant_id = %(tenant_id)s) AS tenant
FROM ("""
_SCAN: Final = """
(SELECT effect_id, created_at, key_expires_at FROM effect_broker.effect_intents
WHERE tenant_id = %(tenant_id)s AND """
_FIRST: Final = f" ORDER BY {_ORDER} LIMIT %(limit)s"
_AFTER: Final = (
    f" AND ({_ORDER}) > (%(after_expiry)s::timestamptz, %(after_at)s::timestamptz,"
    " %(after_id)s::uuid)"
)

# One condition for each member of a filter, and for the reasons that are not stored.
_STATES: Final = " AND state = ANY (%(states)s)"
_TOOL: Final = " AND tool = %(tool)s"
_TRACE: Final = " AND trace_id = %(trace_id)s"
_PREFIX: Final = " AND operation_key >= %(prefix)s AND operation_key < %(prefix_end)s"
_OLDER: Final = f" AND created_at <= {_NOW} - make_interval(secs => %(older_than)s)"
_REASONS: Final = {
    CRASH_WINDOW: f" AND sender_lost AND {_OPEN}",
    STALE_IN_FLIGHT: f" AND ({_CLOSE_MISSED} OR {_DUE_LONG}) AND {_OPEN}",
    **dict.fromkeys(map(str, Alert), " AND alert = %(reason)s"),
}
_STORED_REASON: Final = f" AND reason = %(reason)s AND {_OPEN}"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
# First in a cursor, so that no other listing's is taken for one of these.
_CURSOR_KIND: Final = "unresolved"
_NEVER: Final = "never"


def _of_page(one: str) -> str:
    """Return a read of one effect's rows as a read of those of a whole page.

    What an effect is read with is written once (`statements`), and this follows it. Payloads are
    left out: nothing of them is shown.
    """
    changes = (
        ("effect_id = %(effect_id)s", "effect_id = ANY (%(effect_ids)s)"),
        ("DISTINCT ON (", "DISTINCT ON (effect_id, "),
        ("ORDER BY covers_through", "ORDER BY effect_id, covers_through"),
        ("SELECT attempt_id", "SELECT effect_id, attempt_id"),
        ("evidence_id, source", "effect_id, evidence_id, source"),
        ("SELECT clock_timestamp()", "SELECT i.effect_id, clock_timestamp()"),
        *((f"{of}.ciphertext AS", "NULL::bytea AS") for of in "wo"),
    )
    for old, new in changes:
        one = one.replace(old, new)
    return one


_READS: Final = tuple(
    _of_page(read)
    for read in (sql.READ_INTENT, sql.READ_ATTEMPTS, sql.READ_EVIDENCE, sql.READ_CONTEXT)
)
# Of every kind, also of look-ups that proved nothing.
_LATEST: Final = """
SELECT e.* FROM unnest(%(effect_ids)s::uuid[]) AS w (effect_id)
CROSS JOIN LATERAL (
    SELECT e.effect_id, e.source, e.verdict, e.code, e.began_at
    FROM effect_broker.effect_evidence AS e
    WHERE e.tenant_id = %(tenant_id)s AND e.effect_id = w.effect_id
    ORDER BY e.began_at DESC LIMIT 1) AS e
"""


@dataclass(frozen=True, slots=True)
class _Position:
    """A place in the order of urgency; `expires_at` is None for what never expires."""

    expires_at: datetime | None
    created_at: datetime
    effect_id: UUID

    def cursor(self) -> str:
        expires = _NEVER if self.expires_at is None else str(_microseconds(self.expires_at))
        text = f"{_CURSOR_KIND}.{expires}.{_microseconds(self.created_at)}.{self.effect_id.hex}"
        return urlsafe_b64encode(text.encode()).decode().rstrip("=")

    @classmethod
    def of_cursor(cls, cursor: str) -> _Position:
        """Read a cursor.

        Raises:
            CursorInvalid: this listing has not made it.
        """
        try:
            text = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii")
            kind, expires, created, effect_id = text.split(".")
            if kind != _CURSOR_KIND:
                raise ValueError
            expires_at = None if expires == _NEVER else _EPOCH + int(expires) * _MICROSECOND
            return cls(expires_at, _EPOCH + int(created) * _MICROSECOND, UUID(hex=effect_id))
        except (ValueError, OverflowError):
            raise CursorInvalid("the cursor was not made by this listing") from None


_Rows = defaultdict[UUID, list[Row]]


@dataclass(frozen=True, slots=True)
class _Page:
    """The rows of a page's effects, by effect."""

    intents: _Rows
    attempts: _Rows
    evidence: _Rows
    contexts: _Rows
    latest: _Rows

    def effect(self, effect_id: UUID) -> StoredEffect:
        (intent,), (context,) = self.intents[effect_id], self.contexts[effect_id]
        return StoredEffect(intent, self.attempts[effect_id], self.evidence[effect_id], context)


class UnresolvedStore(PostgresStore):
    """The effect store with the listing of what is unresolved (`UnresolvedReads`)."""

    async def unresolved(
        self, tenant_id: UUID, filters: UnresolvedFilter, cursor: str | None, limit: int
    ) -> UnresolvedPage:
        """Return one page, the most urgent first.

        Raises:
            CursorInvalid, StoreUnavailable, StoreBusy.
        """
        query, parameters = page_query(filters, cursor)
        # One row more than asked for tells whether there is another page.
        asked = {"tenant_id": tenant_id, "limit": limit + 1, **parameters}
        async with self.connection() as (connection, _):
            async with connection.pipeline():
                await connection.execute(sql.BEGIN_READ)
                await connection.execute(sql.SET_TENANT, asked)
                await connection.execute(IN_ORDER)
                found = await connection.execute(query, asked)
            rows = await found.fetchall()
            page = [row["effect_id"] for row in rows[:limit]]
            target = {"tenant_id": tenant_id, "effect_ids": page}
            async with connection.pipeline():
                await connection.execute(IN_ANY_ORDER)
                reads = [await connection.execute(read, target) for read in (*_READS, _LATEST)]
                await connection.execute(sql.COMMIT)
            known = _Page(*[_by_effect(await read.fetchall()) for read in reads])
            effects = tuple([await self._shown(connection, known, row) for row in rows[:limit]])
        following = len(rows) > limit
        return UnresolvedPage(effects, _position(effects[-1]).cursor() if following else None)

    async def _shown(self, connection: Connection, page: _Page, found: Row) -> UnresolvedEffect:
        effect_id, now = found["effect_id"], found["now"]
        stored, latest = page.effect(effect_id), page.latest[effect_id]
        row = stored.intent
        intent, urgency, parked = intent_of(row), urgency_of(row), row["parked"]
        alert = Alert(row["alert"]) if row["alert"] else None
        document = await self._document(connection, intent.contract_digest)
        snapshot = Snapshot(
            intent=intent,
            facts=await self._facts(connection, stored, document),
            attempts=tuple(attempt_of(attempt) for attempt in stored.attempts),
            evidence=tuple(evidence_of(one) for one in stored.evidence),
            document=document,
            now=now,
            wire=None,
            operation=None,
            mutation_ordinal=None,
            parked=parked,
            urgency=urgency,
        )
        return UnresolvedEffect(
            intent=intent,
            tenant=found["tenant"],
            parked=parked,
            alert=alert,
            key_expires_at=urgency.key_expires_at,
            reasons=reasons_of(intent, urgency, parked, alert, now),
            last_evidence=last_evidence_of(
                snapshot.attempts, _evidence(latest[0]) if latest else None
            ),
            next_step=next_step_of(snapshot),
            permitted=permitted(snapshot),
            now=now,
        )


def page_query(filters: UnresolvedFilter, cursor: str | None) -> tuple[str, dict[str, object]]:
    """Return the query of a page and its parameters; the query is made of constants only.

    Raises:
        CursorInvalid.
    """
    conditions: list[str] = []
    parameters: dict[str, object] = {}
    if filters.states:
        conditions.append(_STATES)
        parameters["states"] = sorted(state.value for state in filters.states)
    if filters.reason is not None:
        conditions.append(_REASONS.get(filters.reason, _STORED_REASON))
        parameters["reason"] = filters.reason
    if filters.tool is not None:
        conditions.append(_TOOL)
        parameters["tool"] = filters.tool
    if filters.trace_id is not None:
        conditions.append(_TRACE)
        parameters["trace_id"] = filters.trace_id
    if filters.operation_prefix:
        conditions.append(_PREFIX)
        parameters["prefix"] = filters.operation_prefix
        # Operation keys are printable ASCII in byte order: this is above all that begin so.
        parameters["prefix_end"] = filters.operation_prefix + "\x7f"
    if filters.older_than_seconds is not None:
        conditions.append(_OLDER)
        parameters["older_than"] = filters.older_than_seconds
    if cursor is not None:
        position = _Position.of_cursor(cursor)
        conditions.append(_AFTER)
        parameters["after_expiry"] = position.expires_at or "infinity"
        parameters["after_at"], parameters["after_id"] = position.created_at, position.effect_id
    scans = ("".join((_SCAN, source, *conditions, _FIRST, ")")) for source in _SOURCES)
    return "".join((_PAGE, " UNION ALL ".join(scans), ") AS found", _FIRST)), parameters


def _by_effect(rows: Sequence[Row]) -> _Rows:
    found: _Rows = defaultdict(list)
    for row in rows:
        found[row["effect_id"]].append(row)
    return found


def _evidence(row: Row) -> LastEvidence:
    return LastEvidence(row["source"], row["verdict"], row["code"], row["began_at"])


def _position(effect: UnresolvedEffect) -> _Position:
    return _Position(effect.key_expires_at, effect.intent.created_at, effect.intent.effect_id)


def _microseconds(at: datetime) -> int:
    return (at - _EPOCH) // _MICROSECOND
