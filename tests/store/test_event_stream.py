"""The stream of events over real transactions: nothing is passed over, nothing is seen twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import Connection
from psycopg.rows import TupleRow

from effect_broker.event_stream import stream_page
from effect_broker.store import event_stream as store
from effect_broker.store.api import PostgresApiStore
from effect_broker.store.event_stream import PostgresStream
from effect_broker.store.pool import Pool, make_pool
from effect_broker.store.retention import Retention, Stage
from effect_broker.store.roles import DatabaseRole
from effect_contracts.errors import CursorSuperseded, RequestMalformed
from effect_contracts.event_stream import EventFilter, StreamEvent
from postgres import Database, RunningServer, clone, drop_database
from store.samples import submission

WRITERS, EVENTS_EACH = 6, 25
ALL = EventFilter()


@pytest.fixture(scope="module")
def shared_database(running_server: RunningServer, template_name: str) -> Iterator[Database]:
    """A database of this module's own: an epoch is of the whole database."""
    cloned = clone(running_server, template_name)
    yield cloned
    drop_database(running_server, cloned.name)


@pytest.fixture
def stream(api_pool: Pool) -> PostgresStream:
    return PostgresStream(api_pool)


@pytest.fixture
async def prune_pool(shared_database: Database) -> AsyncIterator[Pool]:
    url = shared_database.url_for(DatabaseRole.PRUNE)
    async with make_pool(url, None, application_name="test-prune", size_max=1) as pool:
        yield pool


def append(connection: Connection[TupleRow], tenant_id: UUID, effect_id: UUID, n: int) -> None:
    """Write an event as a change does, locks of its effect included."""
    connection.execute(
        "SELECT 1 FROM effect_broker.effect_intents WHERE effect_id = %s FOR NO KEY UPDATE",
        [effect_id],
    )
    connection.execute(
        "INSERT INTO effect_broker.effect_events (tenant_id, effect_id, sequence, kind, event,"
        " from_state, to_state, reason, actor, at, metadata)"
        " SELECT %(t)s, %(e)s, max(sequence) + 1, %(k)s, 'x', 'prepared', 'prepared', 'r', 'a',"
        " clock_timestamp(), '{}' FROM effect_broker.effect_events WHERE effect_id = %(e)s",
        {"t": tenant_id, "e": effect_id, "k": f"kind_{n % 3}"},
    )


async def caught_up(superuser: Connection[TupleRow]) -> None:
    """Wait until all that is committed can be read: other tests write on this server too."""
    now = b"FROM (SELECT pg_current_snapshot() AS s) AS now"
    reached = superuser.execute(b"SELECT pg_snapshot_xmax(s)::text " + now).fetchone()
    for _ in range(3000):
        query = b"SELECT pg_snapshot_xmin(s) >= %s::text::xid8 " + now
        if superuser.execute(query, reached).fetchone() == (True,):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("a transaction on this server lasts")


async def effects(api_store: PostgresApiStore, tenant_id: UUID, count: int) -> list[UUID]:
    return [
        (await api_store.submit(submission(tenant_id, f"order-{n}"))).intent.effect_id
        for n in range(count)
    ]


async def read_all(
    stream: PostgresStream, tenant_id: UUID, cursor: str | None = None, limit: int = 100
) -> tuple[list[StreamEvent], str]:
    found: list[StreamEvent] = []
    while True:
        page = await stream_page(stream, tenant_id, cursor, ALL, limit)
        found += page.events
        cursor = page.cursor
        if not page.more:
            return found, cursor


def in_order(events: list[StreamEvent]) -> None:
    """Of each effect without a gap and in order; nothing twice."""
    assert len({event.id for event in events}) == len(events)
    latest: dict[UUID, int] = {}
    for event in events:
        place = event.place
        assert place.sequence == latest.get(place.effect_id, 0) + 1
        latest[place.effect_id] = place.sequence


def write_some(url: str, tenant_id: UUID, effect_ids: list[UUID], seed: int) -> None:
    """Transactions that overlap with others and end in another order than they began."""
    choose = random.Random(seed)
    with psycopg.connect(url, autocommit=True) as connection:
        for n in range(EVENTS_EACH):
            chosen = sorted(choose.sample(effect_ids, 2))
            with connection.transaction(), suppress(psycopg.Rollback):
                connection.execute("SELECT pg_current_xact_id()")
                connection.execute("SELECT pg_sleep(%s)", [choose.random() * 0.02])
                for effect_id in chosen:
                    append(connection, tenant_id, effect_id, n)
                if n % 7 == 0:
                    raise psycopg.Rollback
                connection.execute("SELECT pg_sleep(%s)", [choose.random() * 0.02])


async def test_a_reader_who_pages_all_the_while_misses_nothing_and_sees_nothing_twice(
    stream: PostgresStream,
    api_store: PostgresApiStore,
    shared_database: Database,
    tenant_id: UUID,
    superuser: Connection[TupleRow],
) -> None:
    ids = await effects(api_store, tenant_id, 8)
    url = shared_database.superuser_url
    found: list[StreamEvent] = []
    cursor: str | None = None
    rounds = iter(range(10))
    while len(found) < 50:  # else a transaction of another test has held all of it back
        seeds = range(next(rounds) * WRITERS, WRITERS * 10)[:WRITERS]
        writers = [
            asyncio.create_task(asyncio.to_thread(write_some, url, tenant_id, ids, seed))
            for seed in seeds
        ]
        while not all(writer.done() for writer in writers):
            some, cursor = await read_all(stream, tenant_id, cursor, limit=7)
            found += some
        await asyncio.gather(*writers)
    await caught_up(superuser)
    rest, _ = await read_all(stream, tenant_id, cursor)
    found += rest
    in_order(found)
    stored = superuser.execute(
        "SELECT effect_id, sequence FROM effect_broker.effect_events WHERE tenant_id = %s",
        [tenant_id],
    ).fetchall()
    assert {(e.place.effect_id, e.place.sequence) for e in found} == set(stored)


async def test_what_commits_late_is_not_passed_over(
    stream: PostgresStream,
    api_store: PostgresApiStore,
    shared_database: Database,
    superuser: Connection[TupleRow],
    tenant_id: UUID,
) -> None:
    slow, quick = await effects(api_store, tenant_id, 2)
    await caught_up(superuser)
    _, cursor = await read_all(stream, tenant_id)
    url = shared_database.superuser_url
    with psycopg.connect(url) as late, psycopg.connect(url) as early:
        append(late, tenant_id, slow, 0)
        append(early, tenant_id, quick, 0)
        early.commit()
        waiting, between = await read_all(stream, tenant_id, cursor)
        late.commit()
    assert waiting == []
    await caught_up(superuser)
    found, _ = await read_all(stream, tenant_id, between)
    assert [event.place.effect_id for event in found] == [slow, quick]


async def test_an_event_is_never_before_its_predecessor_whoever_got_his_id_first(
    stream: PostgresStream,
    api_store: PostgresApiStore,
    shared_database: Database,
    superuser: Connection[TupleRow],
    tenant_id: UUID,
) -> None:
    (effect_id,) = await effects(api_store, tenant_id, 1)
    url = shared_database.superuser_url
    with psycopg.connect(url) as older, psycopg.connect(url) as younger:
        older.execute("SELECT pg_current_xact_id()")
        append(younger, tenant_id, effect_id, 0)
        younger.commit()
        append(older, tenant_id, effect_id, 1)
        older.commit()
    await caught_up(superuser)
    found, _ = await read_all(stream, tenant_id)
    in_order(found)
    assert len(found) == 3


async def test_a_filter_passes_over_and_goes_on(
    stream: PostgresStream,
    api_store: PostgresApiStore,
    superuser: Connection[TupleRow],
    tenant_id: UUID,
) -> None:
    (effect_id,) = await effects(api_store, tenant_id, 1)
    for n in range(9):
        append(superuser, tenant_id, effect_id, n)
    await caught_up(superuser)
    wanted = EventFilter(types=frozenset({"kind_1"}))
    first = await stream_page(stream, tenant_id, None, wanted, 2)
    assert [event.place.sequence for event in first.events] == [3, 6]
    assert first.more
    second = await stream_page(stream, tenant_id, first.cursor, wanted, 2)
    assert [event.place.sequence for event in second.events] == [9]
    third = await stream_page(stream, tenant_id, second.cursor, wanted, 2)
    assert (third.events, third.more) == ((), False)


async def test_cursors_that_were_not_given_to_this_tenant_are_refused(
    stream: PostgresStream,
    api_store: PostgresApiStore,
    superuser: Connection[TupleRow],
    tenant_id: UUID,
) -> None:
    await effects(api_store, tenant_id, 1)
    await caught_up(superuser)
    page = await stream_page(stream, tenant_id, None, ALL, 1)
    flipped = page.cursor[:30] + ("A" if page.cursor[30] != "A" else "B") + page.cursor[31:]
    for tenant, cursor in (
        (uuid4(), page.cursor),
        (tenant_id, flipped),
        (tenant_id, page.cursor[:-3]),
        (tenant_id, ""),
        (tenant_id, "ü" * 9),
    ):
        with pytest.raises(RequestMalformed):
            await stream_page(stream, tenant, cursor, ALL, 1)


async def test_a_gap_of_pruned_events_is_gone_over_and_said(
    stream: PostgresStream,
    api_store: PostgresApiStore,
    prune_pool: Pool,
    superuser: Connection[TupleRow],
    tenant_id: UUID,
) -> None:
    pruned, kept = await effects(api_store, tenant_id, 2)
    await caught_up(superuser)
    first = await stream_page(stream, tenant_id, None, ALL, 1)
    assert not first.pruned
    superuser.execute("SET session_replication_role = replica")
    superuser.execute(
        "UPDATE effect_broker.effect_intents SET state = 'cancelled', next_action_at = NULL,"
        " receipt_digest = sha256('x'), retention_stage = 2, updated_at = 'epoch'"
        " WHERE effect_id = %s",
        [pruned],
    )
    superuser.execute("SET session_replication_role = origin")
    await Retention(prune_pool).prune(Stage.ROWS, 1.0, 100)
    page = await stream_page(stream, tenant_id, None, ALL, 10)
    assert [event.place.effect_id for event in page.events] == [kept]
    assert page.pruned
    after = await stream_page(stream, tenant_id, page.cursor, ALL, 10)
    assert not after.pruned


def moved(superuser: Connection[TupleRow], column: str, value: str) -> Any:
    """Make the database look as if it had come here in another way."""
    superuser.execute(
        f"UPDATE effect_broker.event_epochs SET {column} = {value}"
        " WHERE epoch = (SELECT max(epoch) FROM effect_broker.event_epochs)".encode()
    )


@pytest.mark.parametrize(
    ("column", "value"),
    [("relation_oid", "1"), ("timeline", "99")],
    ids=["a dump in another cluster", "an upgraded cluster"],
)
async def test_after_a_restore_elsewhere_the_stream_goes_on_behind_all_that_was(
    stream: PostgresStream,
    api_store: PostgresApiStore,
    superuser: Connection[TupleRow],
    tenant_id: UUID,
    column: str,
    value: str,
) -> None:
    before, after = await effects(api_store, tenant_id, 2)
    # Of the old cluster, whose transaction ids were far ahead of ours.
    superuser.execute("SET session_replication_role = replica")
    superuser.execute(
        "UPDATE effect_broker.effect_events SET place = '999999999999' WHERE effect_id = %s",
        [before],
    )
    superuser.execute("SET session_replication_role = origin")
    moved(superuser, column, value)
    append(superuser, tenant_id, after, 0)  # before anybody has noticed
    await caught_up(superuser)
    found, cursor = await read_all(stream, tenant_id)
    in_order(found)
    assert [e.place.effect_id for e in found if e.place.sequence == 1] == [after, before]
    assert (found[-1].place.effect_id, found[-1].place.sequence) == (after, 2)
    append(superuser, tenant_id, before, 0)  # since it was noticed
    await caught_up(superuser)
    (event,), _ = await read_all(stream, tenant_id, cursor)
    assert (event.place.effect_id, event.place.sequence) == (before, 2)


async def test_a_cursor_of_another_copy_is_refused_with_a_way_to_go_on(
    stream: PostgresStream,
    api_store: PostgresApiStore,
    superuser: Connection[TupleRow],
    tenant_id: UUID,
) -> None:
    (effect_id,) = await effects(api_store, tenant_id, 1)
    moved(superuser, "relation_oid", "1")
    append(superuser, tenant_id, effect_id, 0)
    await caught_up(superuser)
    _, cursor = await read_all(stream, tenant_id)
    # The other copy has noticed its own restore, and has drawn another id for it.
    moved(superuser, "epoch_id", "gen_random_uuid()")
    with pytest.raises(CursorSuperseded) as refused:
        await stream_page(stream, tenant_id, cursor, ALL, 10)
    resume = str(refused.value.extras["resume"])
    found, _ = await read_all(stream, tenant_id, resume)
    assert [event.place.sequence for event in found] == [2]


async def test_a_page_costs_the_same_however_long_the_history_and_whatever_lasts(
    stream: PostgresStream,
    api_store: PostgresApiStore,
    shared_database: Database,
    superuser: Connection[TupleRow],
    tenant_id: UUID,
) -> None:
    (effect_id,) = await effects(api_store, tenant_id, 1)
    await caught_up(superuser)
    _, cursor = await read_all(stream, tenant_id)
    with psycopg.connect(shared_database.superuser_url) as lasting:
        lasting.execute("SELECT pg_current_xact_id()")
        superuser.execute("SET session_replication_role = replica")
        superuser.execute(
            "INSERT INTO effect_broker.effect_events (tenant_id, effect_id, sequence, kind, event,"
            " from_state, to_state, reason, actor, at, metadata, previous_digest, digest, era)"
            " SELECT %s, %s, 1 + n, 'k', 'e', 'prepared', 'prepared', 'r', 'a', now(), '{}', '',"
            " '',"
            " (SELECT era FROM effect_broker.effect_events WHERE effect_id = %s LIMIT 1)"
            " FROM generate_series(1, 20000) n",
            [tenant_id, effect_id, effect_id],
        )
        superuser.execute("SET session_replication_role = origin")
        superuser.execute("ANALYZE effect_broker.effect_events")
        place = (await stream_page(stream, tenant_id, cursor, ALL, 1)).place
        assert _blocks(superuser, tenant_id, {**store.at(place), "limit": 101}) < 20
        lasting.rollback()
    await caught_up(superuser)
    assert _blocks(superuser, tenant_id, {**store.at(place), "limit": 101}) < 1500
    found, _ = await read_all(stream, tenant_id, cursor, limit=500)
    assert len(found) == 20000


def _blocks(superuser: Connection[TupleRow], tenant_id: UUID, parameters: dict[str, Any]) -> int:
    """How many pages of the database one page of the stream reads, as the API's role."""
    with superuser.transaction(force_rollback=True):
        superuser.execute("SET LOCAL ROLE effect_broker_api")
        superuser.execute(
            "SELECT set_config('effect_broker.tenant_id', %s::text, true)", [str(tenant_id)]
        )
        query = b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + store.EVENTS_AFTER.encode()
        told = {"tenant_id": tenant_id, **parameters}
        superuser.execute(query, told)  # the first one of a session also reads the catalogue
        row = superuser.execute(query, told).fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])
