"""Effects that a caller carries out itself: its own statements and the receipt, or neither."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from psycopg import Connection
from psycopg.rows import TupleRow
from sqlalchemy import Connection as SqlConnection
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from effect_broker import (
    AsyncBroker,
    Broker,
    Conflict,
    Effect,
    NotJoined,
    RequestRefused,
    RunAgain,
    Succeeded,
    Transacted,
)
from effect_broker.holding import HoldScope
from effect_broker.proof.broker import wait_until
from effect_broker.store.export import TraceSelection, export_to
from effect_broker.store.holds import Holds
from effect_broker.store.pool import make_pool
from effect_broker.store.roles import DatabaseRole
from effect_contracts.facts import EffectState, Outcome
from effect_contracts.trace import verify_lines
from hosting.scenes import Scene
from sdk.callers import Business, administer, business, posting_contract
from sdk.conftest import TENANT, Access
from sdk.posting import INSERT, TOOL, entry


@pytest.fixture(scope="module")
def shop(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Business]:
    """A caller of the tenant, and the contract of what it does by itself."""
    scene.broker.apply(posting_contract())
    with business(scene, TENANT, tmp_path_factory.mktemp("shop")) as made:
        yield made


@pytest.fixture(scope="module")
def direct(shop: Business, access: Access) -> Iterator[Broker]:
    """A client on Postgres."""
    url = shop.scene.broker.url(DatabaseRole.API)
    with Broker.on_postgres(url, api_key=access.api_key, key_ring=shop.ring) as made:
        yield made


def post(
    broker: Broker,
    connection: Connection[TupleRow],
    name: str,
    amount: int = 5,
    *,
    key: str | None = None,
    fails: bool = False,
) -> Transacted[int]:
    """Post an entry once: the row is the effect."""

    def body() -> int:
        made = connection.execute(INSERT, [name, amount])
        if fails:
            raise LookupError(name)
        return made.rowcount

    return broker.transact(
        connection,
        body,
        tool=TOOL,
        arguments=entry(name, amount),
        operation_key=key or f"shop:{name}",
        external_id=name,
    )


def verified(scene: Scene, effects: list[Effect], path: Path) -> None:
    """The log of these effects keeps every rule."""

    async def export() -> None:
        url = scene.broker.url(DatabaseRole.WORKER)
        async with make_pool(url, None, application_name="test-export", size_max=1) as pool:
            for effect in effects:
                selection = TraceSelection(effect_id=effect.effect_id)
                await export_to(pool, path / str(effect.effect_id), selection)

    asyncio.run(export())
    for effect in effects:
        lines = (path / str(effect.effect_id)).read_bytes().splitlines(keepends=True)
        report = verify_lines(lines, whole=False)
        assert report.violations == ()
        assert (report.effects, report.events) == (1, 4)


def place_hold(scene: Scene, hold: UUID) -> None:
    scope = HoldScope(tool=TOOL)
    administer(scene.broker, lambda pool: Holds(pool, None).place(hold, scope, "test", "op:t"))


def lift_hold(scene: Scene, hold: UUID) -> None:
    administer(scene.broker, lambda pool: Holds(pool, None).lift(hold, "done", "op:t"))


def test_a_function_that_does_something_else_than_its_arguments_say_is_believed(
    scene: Scene, shop: Business, direct: Broker
) -> None:
    """It cannot be seen: the receipt says that the transaction has committed, and no more."""
    with shop.connect() as connection:
        done = direct.transact(
            connection,
            lambda: connection.execute(INSERT, ["odd", 500]).rowcount,
            tool=TOOL,
            arguments=entry("odd", 5),
            operation_key="shop:odd",
        )
    outcome = direct.result(done.effect)
    assert isinstance(outcome, Succeeded)
    assert outcome.receipt.source == "transaction"
    assert outcome.effect.alert is None
    assert scene.value("SELECT amount FROM public.orders WHERE name = 'odd'") == 500


def test_the_effect_and_its_receipt_commit_together(
    scene: Scene, shop: Business, direct: Broker, tmp_path: Path
) -> None:
    # A key may hold whatever JSON has to escape.
    with shop.connect() as connection:
        done = post(direct, connection, "t1", key='shop:"t1"\\')
        assert (done.first, done.value) == (True, 1)
        assert (done.effect.state, done.effect.durable) == (EffectState.SUCCEEDED, False)
        assert shop.intents('shop:"t1"\\') == 0
    outcome = direct.result(done.effect)
    assert isinstance(outcome, Succeeded)
    assert (outcome.receipt.source, outcome.external_id) == ("transaction", "t1")
    assert outcome.effect.attempts is not None
    assert [a.outcome for a in outcome.effect.attempts] == [Outcome.COMMITTED]
    with shop.connect() as connection:
        bare = direct.transact(
            connection, lambda: None, tool=TOOL, arguments=entry("t2"), operation_key="shop:t2"
        )
    assert bare.first
    verified(scene, [done.effect, bare.effect], tmp_path)
    history = scene.broker.http.get(f"/v1/effects/{done.effect.effect_id}/history").json()
    assert [event["actor"] for event in history["events"]] == [f"caller:role:{shop.role}"] * 4
    assert shop.orders("t1") == 1


def test_a_second_call_sees_the_receipt_and_its_body_does_not_run(
    shop: Business, direct: Broker
) -> None:
    with shop.connect() as connection:
        first = post(direct, connection, "again")
        in_the_same = post(direct, connection, "again")
    with shop.connect() as connection:
        later = post(direct, connection, "again")
        with pytest.raises(Conflict) as conflict:
            post(direct, connection, "again", amount=6)
    assert [call.first for call in (first, in_the_same, later)] == [True, False, False]
    assert later.value is None
    assert (later.effect.effect_id, later.effect.final) == (first.effect.effect_id, True)
    assert conflict.value.field == "/arguments/amount"
    assert shop.orders("again") == 1


def test_a_body_that_fails_takes_back_its_work_and_the_receipt(
    shop: Business, direct: Broker
) -> None:
    with shop.connect() as connection:
        connection.execute(INSERT, ["beside", 1])
        with pytest.raises(LookupError, match="failed"):
            post(direct, connection, "failed", fails=True)
    assert (shop.orders("beside"), shop.orders("failed"), shop.intents("shop:failed")) == (1, 0, 0)
    with shop.connect() as connection:
        assert post(direct, connection, "failed").first
    with shop.connect() as connection:
        post(direct, connection, "rolled_back")
        connection.rollback()
    assert (shop.orders("rolled_back"), shop.intents("shop:rolled_back")) == (0, 0)


async def _promised() -> int:
    return 1


def test_a_body_that_only_promises_its_work_leaves_no_receipt(
    shop: Business, direct: Broker
) -> None:
    """A function of coroutines does nothing when it is called; its receipt would be false."""
    with shop.connect() as connection:
        connection.execute(INSERT, ["beside_a_promise", 1])
        with pytest.raises(TypeError, match="AsyncBroker"):
            direct.transact(
                connection,
                _promised,
                tool=TOOL,
                arguments=entry("promised"),
                operation_key="shop:promised",
            )
    assert (shop.orders("beside_a_promise"), shop.intents("shop:promised")) == (1, 0)


def test_a_body_cannot_commit_a_half(shop: Business, direct: Broker) -> None:
    with shop.connect() as connection, pytest.raises(psycopg.ProgrammingError):
        direct.transact(
            connection,
            connection.commit,
            tool=TOOL,
            arguments=entry("half"),
            operation_key="shop:half",
        )
    assert shop.intents("shop:half") == 0


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_no_body_ends_a_transaction_of_sqlalchemy(
    shop: Business, direct: Broker, ends: str
) -> None:
    # SQLAlchemy itself permits it inside a savepoint, and tells nobody.
    insert = text("INSERT INTO orders VALUES (:name, 5)")
    engine = create_engine(shop.alchemy_url, poolclass=NullPool)
    for kind, source in (("session", Session(engine)), ("connection", engine.connect())):
        name = f"{ends}_{kind}"

        def body(source: Session | SqlConnection = source, name: str = name) -> None:
            source.execute(insert, {"name": name})
            getattr(source, ends)()

        with source:
            with pytest.raises(DBAPIError, match=f"Explicit {ends}"):
                direct.transact(
                    source, body, tool=TOOL, arguments=entry(name), operation_key=f"shop:{name}"
                )
            source.rollback()
            source.execute(text("SELECT 1"))
            source.commit()
        assert (shop.orders(name), shop.intents(f"shop:{name}")) == (0, 0)


def test_an_error_that_a_body_swallows_ends_no_transaction(shop: Business, direct: Broker) -> None:
    """The server has aborted it, so that nothing of it can be committed; psycopg says so."""

    def body() -> None:
        with suppress(psycopg.Error):
            connection.execute("SELECT 1/0")

    with shop.connect() as connection:
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            direct.transact(
                connection, body, tool=TOOL, arguments=entry("bad"), operation_key="shop:bad"
            )
        connection.rollback()
    assert shop.intents("shop:bad") == 0


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_of_two_at_once_the_second_waits_and_sees_what_became_of_the_first(
    shop: Business, direct: Broker, ends: str
) -> None:
    name = f"two_{ends}"
    with shop.connect() as one, shop.connect() as two, ThreadPoolExecutor(1) as thread:
        assert post(direct, one, name).first
        second = thread.submit(post, direct, two, name)
        wait_until(
            lambda: shop.scene.value(
                "SELECT count(*) FROM pg_stat_activity WHERE usename = %s"
                " AND wait_event_type = 'Lock'", shop.role) or None,
            "the second waits",
        )  # fmt: skip
        assert not second.done()
        one.commit() if ends == "commit" else one.rollback()
        assert second.result().first is (ends == "rollback")
        two.commit()
    assert shop.orders(name) == 1


def test_the_second_does_not_wait_without_an_end(shop: Business, direct: Broker) -> None:
    with shop.connect() as one, shop.connect() as two:
        post(direct, one, "patience")
        two.execute("SET lock_timeout = '50ms'")
        with pytest.raises(RunAgain) as again:
            post(direct, two, "patience")
        assert again.value.code == "lock_not_available"


def test_another_class_and_another_contract_are_refused(
    scene: Scene, shop: Business, direct: Broker
) -> None:
    charged = scene.offer("not_transactional")
    ran: list[str] = []
    with shop.connect() as connection:
        with pytest.raises(NotJoined, match="idempotent") as refusal:
            direct.transact(
                connection,
                lambda: ran.append("body"),
                tool=charged,
                arguments={"order": "1", "amount": 1, "currency": "eur"},
                operation_key="shop:charged",
            )
        assert refusal.value.code == "not_transactional"
        with pytest.raises(RequestRefused, match="external_id"):
            direct.transact(
                connection,
                lambda: ran.append("body"),
                tool=TOOL,
                arguments=entry("named"),
                operation_key="shop:named",
                external_id="two words",
            )
        with pytest.raises(RequestRefused, match="invalid_arguments"):
            direct.transact(
                connection,
                lambda: ran.append("body"),
                tool=TOOL,
                arguments={"debit": "x"},
                operation_key="shop:named",
            )
    assert ran == []
    assert shop.intents("shop:charged") == shop.intents("shop:named") == 0


def test_a_hold_stops_new_effects_and_no_replay(
    scene: Scene, shop: Business, direct: Broker
) -> None:
    with shop.connect() as connection:
        post(direct, connection, "before_hold")
    hold = UUID(int=7)
    place_hold(scene, hold)
    try:
        with shop.connect() as connection:
            assert not post(direct, connection, "before_hold").first
            with pytest.raises(NotJoined, match="paused") as refusal:
                post(direct, connection, "held")
            assert refusal.value.code == "held"
    finally:
        lift_hold(scene, hold)
    assert (shop.orders("held"), shop.intents("shop:held")) == (0, 0)


def test_an_open_transaction_of_a_caller_holds_up_no_hold(
    scene: Scene, shop: Business, direct: Broker
) -> None:
    hold = UUID(int=8)
    with shop.connect() as connection:
        post(direct, connection, "long")
        place_hold(scene, hold)
        lift_hold(scene, hold)


def test_every_kind_of_connection_carries_an_effect_out_once(
    shop: Business, direct: Broker, access: Access
) -> None:
    insert = text("INSERT INTO orders VALUES (:name, 5)")
    with Session(create_engine(shop.alchemy_url, poolclass=NullPool)) as session:
        for _ in range(2):
            direct.transact(
                session,
                lambda: session.execute(insert, {"name": "alchemy"}),
                tool=TOOL,
                arguments=entry("alchemy"),
                operation_key="shop:alchemy",
            )
        session.commit()

    async def work() -> list[bool]:
        url = shop.scene.broker.url(DatabaseRole.API)
        engine = create_async_engine(shop.alchemy_url, poolclass=NullPool)
        first = []
        async with (
            AsyncBroker.on_postgres(url, api_key=access.api_key, key_ring=shop.ring) as broker,
            AsyncSession(engine) as session,
            await psycopg.AsyncConnection.connect(shop.url) as connection,
        ):
            for _ in range(2):
                one = await broker.transact(
                    session,
                    lambda: session.execute(insert, {"name": "async_alchemy"}),
                    tool=TOOL,
                    arguments=entry("async_alchemy"),
                    operation_key="shop:async_alchemy",
                )
                other = await broker.transact(
                    connection,
                    lambda: connection.execute(INSERT, ["async_psycopg", 5]),
                    tool=TOOL,
                    arguments=entry("async_psycopg"),
                    operation_key="shop:async_psycopg",
                )
                first += [one.first, other.first]
            await session.commit()
        await engine.dispose()
        return first

    assert asyncio.run(work()) == [True, True, False, False]
    for name in ("alchemy", "async_alchemy", "async_psycopg"):
        assert (shop.orders(name), shop.intents(f"shop:{name}")) == (1, 1)


KILLED = """
import os, signal, sys
import psycopg
import effect_broker.direct
from effect_broker import Broker

def work(url, api_key, database, stage):
    def reach(point):
        if point == stage:
            os.kill(os.getpid(), signal.SIGKILL)

    connection = psycopg.connect(database)

    def body():
        reach("receipt_written")
        connection.execute("INSERT INTO orders VALUES (%s, 5)", [stage])
        reach("row_written")

    reach("nothing_written")
    Broker(url, api_key).transact(
        connection,
        body,
        tool="shop.post",
        arguments={"debit": stage, "credit": "sales", "amount": 5, "currency": "eur"},
        operation_key="shop:" + stage,
    )
    reach("before_commit")
    connection.commit()
    reach("committed")

# Forked after the imports and before any connection: real processes, in little time.
for stage in sys.argv[4:]:
    child = os.fork()
    if not child:
        work(*sys.argv[1:4], stage)
        os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
"""


def test_a_process_killed_at_any_point_leaves_one_row_and_its_receipt_or_nothing(
    scene: Scene, shop: Business, direct: Broker, access: Access, tmp_path: Path
) -> None:
    stages = ("nothing_written", "receipt_written", "row_written", "before_commit", "committed")
    done = subprocess.run(
        [sys.executable, "-c", KILLED, access.url, access.api_key, shop.url, *stages],
        env={**os.environ, "EFFECT_BROKER_KEY_RING_FILE": shop.ring},
        timeout=100,
        check=False,
    )
    assert done.returncode == 0
    gone = "SELECT NOT EXISTS (SELECT 1 FROM pg_stat_activity WHERE usename = %s)"
    scene.wait_for("the end of their sessions", gone, shop.role)
    left = {stage: (shop.orders(stage), shop.intents(f"shop:{stage}")) for stage in stages}
    assert left == dict.fromkeys(stages[:-1], (0, 0)) | {"committed": (1, 1)}
    # Run again as the caller would: what stands is met, what does not is carried out.
    effects = []
    for stage in stages:
        with shop.connect() as connection:
            again = post(direct, connection, stage, key=f"shop:{stage}")
        assert again.first is (stage != "committed")
        assert shop.orders(stage) == 1
        effects.append(again.effect)
    verified(scene, effects, tmp_path)
