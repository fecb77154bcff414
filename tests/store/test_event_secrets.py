"""The secrets of subscriptions: sealed where they lie, sealed anew, and replaced."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast
from uuid import uuid4

import pytest
from psycopg import Connection
from psycopg.rows import TupleRow

from effect_broker.keyring import AesVault, parse_key_ring
from effect_broker.protocol.ports import Sealed
from effect_broker.store.event_delivery import PostgresDeliveries
from effect_broker.store.pool import make_pool
from effect_broker.store.retention import Retention
from effect_broker.store.roles import DatabaseRole
from effect_broker.subscriptions import RETIRING_MAX, SEALED_COLUMN, SubscriptionOrder
from effect_contracts.errors import LimitReached, NotFound
from effect_contracts.event_stream import EventFilter
from postgres import Database
from store.event_receiver import Receiver
from store.test_event_delivery import RING_TEXT, Ground, delivering, until
from store.test_event_delivery import ground as ground
from store.test_event_delivery import process as process
from store.test_event_delivery import receiver as receiver
from store.test_event_delivery import shared_database as shared_database
from store.test_event_stream import caught_up


async def test_a_secret_is_stored_sealed(ground: Ground, superuser: Connection[TupleRow]) -> None:
    order = SubscriptionOrder("https://hooks.acme.example/", EventFilter())
    _, secret = await ground.subscribing.create(ground.tenant_id, order, "test")
    ((text, sealed),) = superuser.execute(
        "SELECT s::text, ciphertext FROM effect_broker.event_subscriptions AS s"
    ).fetchall()
    assert secret not in text
    assert secret.encode() not in sealed


async def test_a_replaced_secret_signs_beside_the_new_one_until_its_end(
    ground: Ground, receiver: Receiver
) -> None:
    record = await ground.subscribe(receiver)
    replace_secret = ground.subscribing.replace_secret
    names = (ground.tenant_id, record.subscription_id)
    replaced, second = await replace_secret(*names, 3600.0)
    assert replaced.old_secret_until is not None
    async with delivering(await ground.worker()):
        await ground.effects(1)
        await until(lambda: len(receiver.came("ok")) == 1, "one that the old secret verifies")
        receiver.trust(second)
        await ground.effects(1)
        await until(lambda: len(receiver.came("ok")) == 2, "one that the new secret verifies")
        # The old ones are known to somebody else: at once, and none of them any more.
        replaced, third = await replace_secret(*names, 0.0)
        assert replaced.old_secret_until is None
        await ground.effects(1)
        await until(lambda: bool(receiver.came("forged")), "one that no old secret verifies")
        receiver.trust(third)
        await until(lambda: len(receiver.came("ok")) == 3, "the same, by the newest secret")


async def test_who_replaces_a_secret_takes_the_lease_and_old_ones_have_an_end(
    ground: Ground, receiver: Receiver
) -> None:
    record = await ground.subscribe(receiver)
    names = (ground.tenant_id, record.subscription_id)
    await ground.effects(1)
    await caught_up(ground.superuser)
    store = PostgresDeliveries(ground.worker_pool)
    await ground.worker()
    (leased,) = await store.lease("executor-rotation", 1)
    assert await store.holds(leased)
    await ground.subscribing.replace_secret(*names, 0.3)
    assert not await store.holds(leased)
    await asyncio.sleep(0.35)
    assert (await ground.record(record.subscription_id)).old_secret_until is None
    for _ in range(RETIRING_MAX):
        await ground.subscribing.replace_secret(*names, 3600.0)
    with pytest.raises(LimitReached):
        await ground.subscribing.replace_secret(*names, 3600.0)
    with pytest.raises(NotFound):
        await ground.subscribing.replace_secret(ground.tenant_id, uuid4(), 3600.0)
    with pytest.raises(NotFound):
        await ground.subscribing.replace_secret(uuid4(), record.subscription_id, 3600.0)


async def test_a_secret_is_sealed_anew_when_the_key_is_rotated(
    ground: Ground, receiver: Receiver, shared_database: Database
) -> None:
    record = await ground.subscribe(receiver)
    names = (ground.tenant_id, record.subscription_id)
    _, secret = await ground.subscribing.replace_secret(*names, 3600.0)
    keys = {"ring-1": RING_TEXT["encryption"]["keys"]["ring-1"], "ring-2": "A" * 43 + "="}
    text = json.dumps(RING_TEXT | {"encryption": {"active": "ring-2", "keys": keys}})
    rotated = AesVault(parse_key_ring(text, source="the test", production=False))
    url = shared_database.url_for(DatabaseRole.PRUNE)
    async with make_pool(url, None, application_name="test-prune", size_max=1) as pool:
        assert await Retention(pool).reseal_secrets(rotated, "ring-2") == 2
        assert await Retention(pool).reseal_secrets(rotated, "ring-2") == 0
    told = {"event_subscriptions": secret}
    told["event_retiring_secrets"] = (receiver.directory / "secret").read_text()
    for table, expected in told.items():
        query = f"SELECT key_id, ciphertext FROM effect_broker.{table}"
        row = ground.superuser.execute(cast("Any", query)).fetchone()
        assert row is not None
        plain = rotated.unseal(*names, SEALED_COLUMN, Sealed(row[0], row[1]))
        assert plain.decode() == expected
