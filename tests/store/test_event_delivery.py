"""Deliveries to real receivers: at least once, of each effect in order, whatever fails."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg import Connection
from psycopg.rows import TupleRow

from effect_broker.clock import SystemClock, new_id
from effect_broker.event_delivery import Deliveries
from effect_broker.event_stream import stream_page
from effect_broker.keyring import AesVault, new_key_ring, parse_key_ring
from effect_broker.store.api import PostgresApiStore
from effect_broker.store.event_delivery import PostgresDeliveries
from effect_broker.store.event_stream import PostgresStream
from effect_broker.store.metrics import PostgresLedgerNumbers
from effect_broker.store.pool import Pool
from effect_broker.store.runs import PostgresWorkerStore
from effect_broker.store.subscriptions import PostgresSubscriptions
from effect_broker.store.tenants import Tenants
from effect_broker.subscriptions import (
    Subscribing,
    SubscriptionOrder,
    SubscriptionRecord,
)
from effect_contracts.errors import LimitReached, NotFound
from effect_contracts.event_stream import EventFilter
from effect_contracts.webhook_sending import SendingPolicy
from postgres import Database, RunningServer, clone, drop_database
from store.event_receiver import Receiver, ReceiverProcess, documented_receiver
from store.samples import submission
from store.test_event_stream import append, caught_up

LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)
POLICY = SendingPolicy(
    try_seconds=1.0, wait_seconds=0.1, wait_seconds_max=0.2, tries_max=50, look_seconds=0.05,
    look_seconds_max=0.1, batch_seconds=5.0,
)  # fmt: skip
RING_TEXT = json.loads(new_key_ring("ring-1", development=True))
RING = parse_key_ring(json.dumps(RING_TEXT), source="the test", production=False)
PATIENCE_SECONDS = 20.0


@pytest.fixture(scope="module")
def shared_database(running_server: RunningServer, template_name: str) -> Iterator[Database]:
    """A database of this module's own: workers serve every tenant of it."""
    cloned = clone(running_server, template_name)
    yield cloned
    drop_database(running_server, cloned.name)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReceiverProcess]:
    made = ReceiverProcess(tmp_path_factory.mktemp("receivers"))
    yield made
    made.stop()


@pytest.fixture
def receiver(process: ReceiverProcess) -> Receiver:
    process.start()
    return Receiver(process, uuid4().hex)


class Ground:
    """A tenant with subscriptions, and workers that deliver for it."""

    def __init__(
        self,
        subscribing: Subscribing,
        worker_pool: Pool,
        api_store: PostgresApiStore,
        superuser: Connection[TupleRow],
        tenant_id: UUID,
    ) -> None:
        self.subscribing = subscribing
        self.worker_pool = worker_pool
        self.workers = PostgresWorkerStore(worker_pool)
        self.api_store = api_store
        self.superuser = superuser
        self.tenant_id = tenant_id

    async def subscribe(self, receiver: Receiver, **wanted: frozenset[str]) -> SubscriptionRecord:
        """Subscribe a receiver, and tell it the secret."""
        order = SubscriptionOrder(receiver.url, EventFilter(**wanted))
        record, secret = await self.subscribing.create(self.tenant_id, order, "test")
        receiver.trust(secret)
        return record

    async def effects(self, count: int, events: int = 1) -> list[str]:
        """New effects of so many events each."""
        made = []
        for n in range(count):
            submitted = await self.api_store.submit(submission(self.tenant_id, f"order-{uuid4()}"))
            made.append(submitted.intent.effect_id)
            for _ in range(events - 1):
                self.append(made[-1], n)
        return [str(effect_id) for effect_id in made]

    def append(self, effect_id: UUID | str, n: int = 0) -> None:
        append(self.superuser, self.tenant_id, UUID(str(effect_id)), n)

    async def worker(
        self, policy: SendingPolicy = POLICY, networks: Any = LOOPBACK, ttl: float = 60.0
    ) -> Deliveries:
        executor_id = f"executor-{uuid4()}"
        await self.workers.beat(executor_id, ttl)
        return Deliveries(
            PostgresDeliveries(self.worker_pool, policy),
            AesVault(RING),
            executor_id,
            SystemClock().boot_seconds,
            networks,
            plain_http=True,
            may_go_on=lambda: True,
            policy=policy,
        )

    async def record(self, subscription_id: UUID) -> SubscriptionRecord:
        return await self.subscribing.one(self.tenant_id, subscription_id)


@pytest.fixture
async def ground(
    api_pool: Pool,
    worker_pool: Pool,
    api_store: PostgresApiStore,
    superuser: Connection[TupleRow],
    tenant_id: UUID,
) -> AsyncIterator[Ground]:
    subscribing = Subscribing(
        PostgresSubscriptions(api_pool), PostgresStream(api_pool), AesVault(RING), new_id,
        LOOPBACK, plain_http=True,
    )  # fmt: skip
    yield Ground(subscribing, worker_pool, api_store, superuser, tenant_id)
    superuser.execute("DELETE FROM effect_broker.event_subscriptions")


@asynccontextmanager
async def delivering(*workers: Deliveries) -> AsyncIterator[None]:
    """Let workers take their turns while the block runs."""

    async def turns(worker: Deliveries) -> None:
        while True:
            await worker.turn()
            await asyncio.sleep(0.02)

    tasks = [asyncio.create_task(turns(worker)) for worker in workers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for worker in workers:
            await worker.ended()


async def until(holds: Callable[[], bool], what: str) -> None:
    ends_at = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < ends_at, f"not in time: {what}"
        await asyncio.sleep(0.02)


async def begun(worker: Deliveries) -> None:
    """Let a worker begin to deliver, once there is something to be read."""
    ends_at = time.monotonic() + PATIENCE_SECONDS
    while not await worker.turn():
        assert time.monotonic() < ends_at, "there is nothing to deliver"
        await asyncio.sleep(0.01)


def sequences(lines: list[dict[str, Any]], effect_id: str) -> list[int]:
    return [e["event"]["sequence"] for e in lines if e["event"]["effect_id"] == effect_id]


async def test_events_come_signed_once_and_of_each_effect_in_order(
    ground: Ground, receiver: Receiver
) -> None:
    (earlier,) = await ground.effects(1)  # before there was a subscription
    await ground.subscribe(receiver)
    ids = await ground.effects(6, events=20)
    patient = replace(POLICY, try_seconds=15.0)  # nothing ends before its answer
    async with delivering(await ground.worker(patient), await ground.worker(patient)):
        await until(
            lambda: sum(len(sequences(receiver.came(), one)) for one in ids) >= 120, "all events"
        )
        await asyncio.sleep(0.3)
    came = receiver.came()
    assert {line["answered"] for line in came} == {"ok"}  # none forged
    for effect_id in ids:  # each once
        assert sequences(came, effect_id) == list(range(1, 21))
    # A subscription begins where the oldest transaction of the server does: while one runs in
    # another test's database, the event from just before is behind it.
    assert {line["event"]["effect_id"] for line in came} - {*ids} <= {earlier}
    assert sequences(came, earlier) in ([], [1])
    await caught_up(ground.superuser)
    page = await stream_page(ground.subscribing.stream, ground.tenant_id, None, EventFilter(), 500)
    told = {event.id: event.to_json() for event in page.events}
    assert all(line["event"] == told[line["event"]["id"]] for line in came)


async def test_a_refused_event_holds_up_its_effect_and_nothing_else(
    ground: Ground, receiver: Receiver
) -> None:
    record = await ground.subscribe(receiver)
    first, second = await ground.effects(2, events=3)
    receiver.answer("ok", **{first: "fail"})
    async with delivering(await ground.worker()):
        await until(lambda: sequences(receiver.came("ok"), second) == [1, 2, 3], "the other one")
        ground.append(first)
        ground.append(second)
        await until(lambda: len(sequences(receiver.came("ok"), second)) == 4, "the next of it")
        await until(lambda: len(sequences(receiver.came("fail"), first)) >= 3, "some tries")
        assert set(sequences(receiver.came("fail"), first)) == {1}
        receiver.answer()
        await until(lambda: len(sequences(receiver.came("ok"), first)) == 4, "those behind it")
    assert sequences(receiver.came("ok"), first) == [1, 2, 3, 4]
    assert (await ground.record(record.subscription_id)).waiting == 0


async def test_what_is_refused_for_good_is_a_dead_letter_and_can_be_delivered_again(
    ground: Ground, receiver: Receiver
) -> None:
    record = await ground.subscribe(receiver)
    (effect_id,) = await ground.effects(1)
    (other,) = await ground.effects(1)
    receiver.answer("ok", **{effect_id: "fail"})
    async with delivering(await ground.worker(replace(POLICY, tries_max=3))):
        await until(lambda: len(receiver.came("fail")) == 3, "three tries")
        await until(lambda: sequences(receiver.came("ok"), other) == [1], "the other one")
        receiver.answer()
        ground.append(effect_id)
        await until(lambda: sequences(receiver.came("ok"), effect_id) == [2], "the next one")
        assert len(receiver.came("fail")) == 3
        store = ground.subscribing.store
        page = await store.dead_letters(ground.tenant_id, record.subscription_id, None, 10)
        (letter,) = page.letters
        assert (letter.sequence, letter.tries, letter.code) == (1, 3, "receiver_failed")
        assert letter.status == 500
        # Failing until the delivery that the receiver has seen already is written down.
        active = (
            "SELECT count(*) FROM effect_broker.event_subscriptions"
            " WHERE subscription_id = %s AND failing_since IS NULL"
        )
        await until(
            lambda: ground.superuser.execute(active, [record.subscription_id]).fetchone() == (1,),
            "the success is written",
        )
        numbers = await PostgresLedgerNumbers(ground.worker_pool).ledger_numbers(1000)
        told = {(n.measure, n.state): n.value for n in numbers}
        assert told["event_deliveries", "dead"] == 1
        assert told["subscriptions", "active"] == 1
        with pytest.raises(NotFound):
            await ground.subscribing.redeliver(
                ground.tenant_id, record.subscription_id, (UUID(effect_id), 2)
            )
        again = await ground.subscribing.redeliver(
            ground.tenant_id, record.subscription_id, (UUID(effect_id), 1)
        )
        assert again == 1
        await until(lambda: sequences(receiver.came("ok"), effect_id) == [2, 1], "the dead letter")
    first, *_, last = [line["event"]["id"] for line in receiver.came() if
                       line["event"]["effect_id"] == effect_id]  # fmt: skip
    assert first == last


async def test_a_receiver_that_hangs_holds_up_no_other_subscription(
    ground: Ground, receiver: Receiver
) -> None:
    receiver.answer("hang")
    record = await ground.subscribe(receiver)
    well = Receiver(receiver.process, "well")
    await ground.subscribe(well)
    await ground.effects(20)
    async with delivering(await ground.worker(replace(POLICY, try_seconds=6.0))):
        await until(lambda: len(well.came("ok")) == 20, "the other subscription's")
        assert len(receiver.came("hang")) == POLICY.lanes  # none of them has ended yet
        # The rest of that batch is not tried in vain, and after it one event at a time.
        ended = time.monotonic() + PATIENCE_SECONDS
        while (await ground.record(record.subscription_id)).failing_since is None:
            assert time.monotonic() < ended
            await asyncio.sleep(0.02)
        assert len(receiver.came("hang")) <= 2 * POLICY.lanes + 1


async def test_a_receiver_that_is_gone_pauses_its_subscription_until_a_person_resumes_it(
    ground: Ground, receiver: Receiver
) -> None:
    record = await ground.subscribe(receiver)
    await ground.effects(3)
    receiver.answer("gone")
    async with delivering(await ground.worker()):
        ended = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while (await ground.record(record.subscription_id)).status != "paused":
            assert asyncio.get_running_loop().time() < ended
            await asyncio.sleep(0.02)
        refused = len(receiver.came("gone"))
        receiver.answer()
        await asyncio.sleep(0.4)
        assert len(receiver.came()) == refused <= 2 * POLICY.lanes
        assert (await ground.record(record.subscription_id)).pause_code == "receiver_gone"
        await ground.subscribing.resume(ground.tenant_id, record.subscription_id)
        await until(lambda: len(receiver.came("ok")) == 3, "all, after the resume")


async def test_a_receiver_that_dies_gets_everything_once_it_is_back_and_is_asked_seldom(
    ground: Ground, receiver: Receiver
) -> None:
    record = await ground.subscribe(receiver)
    ids = await ground.effects(10, events=2)
    receiver.answer("die")
    async with delivering(await ground.worker()):
        await until(lambda: bool(receiver.came("die")), "a delivery")
        await asyncio.sleep(0.3)
        failing = await ground.record(record.subscription_id)
        assert failing.status == "failing"
        receiver.answer()
        receiver.process.start()
        await until(lambda: len(receiver.came("ok")) >= 20, "everything")
    for effect_id in ids:
        assert sequences(receiver.came("ok"), effect_id) == [1, 2]
    assert (await ground.record(record.subscription_id)).status == "active"


async def test_a_subscription_that_fails_for_long_is_paused(
    ground: Ground, receiver: Receiver
) -> None:
    record = await ground.subscribe(receiver)
    await ground.effects(2)
    receiver.answer("fail")
    async with delivering(await ground.worker(replace(POLICY, pause_after_seconds=0.5))):
        ended = time.monotonic() + PATIENCE_SECONDS
        while (await ground.record(record.subscription_id)).pause_code != "failing_for_long":
            assert time.monotonic() < ended
            await asyncio.sleep(0.05)
    paused = await ground.record(record.subscription_id)
    assert (paused.status, paused.waiting, paused.dead) == ("paused", 2, 0)


async def test_a_receiver_that_asks_for_a_pause_gets_it_and_none_without_end(
    ground: Ground, receiver: Receiver
) -> None:
    await ground.subscribe(receiver)
    await ground.effects(1)
    receiver.answer("busy")
    async with delivering(await ground.worker()):
        await until(lambda: len(receiver.came("busy")) == 2, "two tries")
    first, second = (line["at"] for line in receiver.came("busy"))
    assert 0.9 < second - first < 3
    assert SendingPolicy().wait_after(1, 1e9, 0) == 3600.0


async def test_a_worker_that_was_given_up_writes_nothing_and_its_events_come_again(
    ground: Ground, receiver: Receiver
) -> None:
    record = await ground.subscribe(receiver)
    (effect_id,) = await ground.effects(1, events=2)
    receiver.answer("slow")
    lost = await ground.worker(ttl=0.05)  # its heartbeat is over before its receiver has answered
    await begun(lost)
    await until(lambda: len(receiver.came()) == 1, "the first delivery")
    await asyncio.sleep(0.06)
    async with delivering(await ground.worker()):
        await until(lambda: len(receiver.came()) >= 3, "the others")
        await lost.ended()
        await asyncio.sleep(0.3)
    came = [line["event"] for line in receiver.came()]
    assert [event["sequence"] for event in came] == [1, 1, 2]
    assert came[0]["id"] == came[1]["id"]
    assert (await ground.record(record.subscription_id)).waiting == 0
    assert effect_id == came[0]["effect_id"]


async def test_what_a_worker_that_was_given_up_still_learns_changes_nothing(
    ground: Ground, receiver: Receiver
) -> None:
    record = await ground.subscribe(receiver)
    await ground.effects(1)
    receiver.answer("slow_fail")
    lost = await ground.worker(ttl=0.05)
    await begun(lost)
    await until(lambda: len(receiver.came()) == 1, "the delivery that will be refused")
    receiver.answer()
    await asyncio.sleep(0.06)
    async with delivering(await ground.worker()):
        await until(lambda: len(receiver.came("ok")) == 1, "the same event, accepted")
        await lost.ended()
        await asyncio.sleep(0.4)  # a note of the refusal would have been tried again
    assert [line["answered"] for line in receiver.came()] == ["slow_fail", "ok"]
    assert (await ground.record(record.subscription_id)).waiting == 0


async def test_a_deleted_subscription_stops_at_once(ground: Ground, receiver: Receiver) -> None:
    record = await ground.subscribe(receiver)
    await ground.effects(1, events=20)
    receiver.answer("slow")
    async with delivering(await ground.worker()):
        await until(lambda: len(receiver.came()) == 2, "some deliveries")
        await ground.subscribing.remove(ground.tenant_id, record.subscription_id)
        came = len(receiver.came())
        await asyncio.sleep(0.8)
    assert len(receiver.came()) <= came + 1  # the one that was on the wire
    with pytest.raises(NotFound):
        await ground.record(record.subscription_id)


async def test_a_subscription_gets_what_it_asked_for_and_nothing_of_another_tenant(
    ground: Ground, receiver: Receiver, admin_pool: Pool
) -> None:
    await ground.subscribe(receiver, types=frozenset({"kind_1"}))
    other = (await Tenants(admin_pool).create(f"t-{uuid4().hex[:12]}", "hmac-1")).tenant_id
    theirs = (await ground.api_store.submit(submission(other))).intent.effect_id
    append(ground.superuser, other, theirs, 1)
    (effect_id,) = await ground.effects(1)
    for n in range(5):
        ground.append(effect_id, n)
    async with delivering(await ground.worker()):
        await until(lambda: len(receiver.came()) == 2, "what was asked for")
        await asyncio.sleep(0.2)
    assert [line["event"]["sequence"] for line in receiver.came()] == [3, 6]
    with pytest.raises(NotFound):
        await ground.subscribing.one(other, (await listing(ground))[0].subscription_id)


async def listing(ground: Ground) -> tuple[SubscriptionRecord, ...]:
    return await ground.subscribing.store.listing(ground.tenant_id)


async def test_a_private_address_is_refused_where_it_is_connected_to(
    ground: Ground, receiver: Receiver
) -> None:
    """Behind a name, which nobody can judge before it was looked up."""
    with socket.create_server(("127.0.0.1", 0)) as inside:
        inside.settimeout(0.3)
        receiver.url = f"http://localhost:{inside.getsockname()[1]}/latest/meta-data"
        order = SubscriptionOrder(receiver.url, EventFilter())
        record, _ = await ground.subscribing.create(ground.tenant_id, order, "test")
        await ground.effects(1)
        async with delivering(await ground.worker(networks=())):
            ends_at = time.monotonic() + PATIENCE_SECONDS
            while (await ground.record(record.subscription_id)).status != "failing":
                assert time.monotonic() < ends_at, "nobody tried"
                await asyncio.sleep(0.05)
        with pytest.raises(TimeoutError):
            inside.accept()
    found = await ground.record(record.subscription_id)
    assert (found.status, found.last_code) == ("failing", "address_refused")


async def test_the_receiver_of_the_documentation_takes_events_in(
    ground: Ground, receiver: Receiver, tmp_path: Path
) -> None:
    order = SubscriptionOrder(receiver.url, EventFilter())
    _, secret = await ground.subscribing.create(ground.tenant_id, order, "test")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ground.superuser.execute(
        "UPDATE effect_broker.event_subscriptions SET url = %s", [f"http://127.0.0.1:{port}/"]
    )
    (effect_id,) = await ground.effects(1, events=2)
    program = tmp_path / "receiver.py"
    program.write_text(documented_receiver())
    with (tmp_path / "out").open("w") as out:
        running = await asyncio.create_subprocess_exec(
            sys.executable, program, str(port), env=os.environ | {"WEBHOOK_SECRET": secret},
            stdout=out,
        )  # fmt: skip
    try:
        async with delivering(await ground.worker()):
            await until(lambda: (tmp_path / "out").read_text().count("\n") == 2, "two events")
    finally:
        running.kill()
        await running.wait()
    told = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [(e["effect_id"], e["sequence"]) for e in told] == [(effect_id, 1), (effect_id, 2)]


async def test_a_redirect_is_a_refusal_and_is_not_followed(
    ground: Ground, receiver: Receiver
) -> None:
    record = await ground.subscribe(receiver)
    await ground.effects(1)
    receiver.answer("away")
    async with delivering(await ground.worker()):
        await until(lambda: len(receiver.came("away")) == 2, "two tries")
    assert (await ground.record(record.subscription_id)).last_code == "redirected"
    assert len(receiver.came()) == len(receiver.came("away"))


async def test_turns_with_nothing_to_deliver_write_nothing(
    ground: Ground, receiver: Receiver, superuser: Connection[TupleRow]
) -> None:
    worker = await ground.worker()
    for _ in range(20):
        assert await worker.turn() == 0
    await ground.subscribe(receiver)
    query = "SELECT xmin::text, ctid::text FROM effect_broker.event_subscriptions"
    before = superuser.execute(query).fetchall()
    for _ in range(20):
        assert await worker.turn() == 0
    assert superuser.execute(query).fetchall() == before  # not even a lease


async def test_a_tenant_has_so_many_subscriptions_and_no_more(ground: Ground) -> None:
    order = SubscriptionOrder("https://hooks.acme.example/", EventFilter())
    for _ in range(20):
        await ground.subscribing.create(ground.tenant_id, order, "test")
    with pytest.raises(LimitReached):
        await ground.subscribing.create(ground.tenant_id, order, "test")


async def test_a_lag_is_told_with_its_age(ground: Ground, receiver: Receiver) -> None:
    await ground.subscribe(receiver)
    await ground.effects(2, events=2)
    numbers = await PostgresLedgerNumbers(ground.worker_pool).ledger_numbers(1000)
    told = {n.measure: n.value for n in numbers}
    assert told["event_backlog"] == 4
    assert 0 < told["event_oldest_seconds"] < 60
