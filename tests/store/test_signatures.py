"""Signatures of receipts: added in the transaction that settles or later, and never changed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import LiteralString
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import Connection
from psycopg.rows import TupleRow

from effect_broker.keyring import RingSigner, new_key_ring, parse_key_ring, ring_public_keys
from effect_broker.protocol.ports import AddReceipt, Change, Signer, Snapshot
from effect_broker.reading import ReceiptRecord
from effect_broker.receipts import receipt_document
from effect_broker.store.api import PostgresApiStore
from effect_broker.store.errors import GUARD_SQLSTATE
from effect_broker.store.pool import Pool
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.runs import PostgresWorkerStore
from effect_broker.store.signatures import LateSignatures
from effect_contracts.facts import EffectState
from effect_contracts.life import LifeEvent
from effect_contracts.receipts import receipt_content, receipt_digest
from effect_contracts.signed_receipts import read_signed_receipt, verify_signed_receipt
from postgres import Database, RunningServer, clone, drop_database
from store.conformance import Both, World
from store.samples import advance, receipt

RING = parse_key_ring(new_key_ring("k1", development=True), source="test", production=False)
NEWER = parse_key_ring(new_key_ring("k2", development=True), source="test", production=False)


def signer(of: str = "k1") -> RingSigner:
    keys = (RING if of == "k1" else NEWER).signing
    assert keys is not None
    return RingSigner(keys)


@pytest.fixture
async def shared_database(
    running_server: RunningServer, template_name: str
) -> AsyncIterator[Database]:
    """A database of each test's own: signing later goes through all receipts that there are."""
    cloned = clone(running_server, template_name)
    yield cloned
    drop_database(running_server, cloned.name)


async def cancelled(
    pool: Pool, api: PostgresApiStore, tenant_id: UUID, key: str, by: Signer | None
) -> UUID:
    """An effect that was settled by a process with this signer."""
    world = World(Both(api, PostgresWorkerStore(pool, signer=by)), tenant_id, lambda _: [])
    effect_id = await world.submit(key)

    def plan(_: Snapshot) -> Change[None]:
        move = advance(LifeEvent.CANCEL_GRANTED, EffectState.CANCELLED, None)
        content = receipt_content({"key": key})
        return Change(None, (AddReceipt(uuid4(), content, receipt_digest(content), None), move))

    await world.store.change(tenant_id, effect_id, plan)
    return effect_id


async def stored(api: PostgresApiStore, tenant_id: UUID, effect_id: UUID) -> ReceiptRecord:
    record = await api.receipt(tenant_id, effect_id)
    assert record is not None
    return record


def is_good(record: ReceiptRecord) -> bool:
    document = read_signed_receipt(json.dumps(receipt_document(record)).encode())
    keys = ring_public_keys(RING) | ring_public_keys(NEWER)
    return verify_signed_receipt(document, keys).good


async def test_a_receipt_is_signed_in_the_transaction_that_settles(
    worker_pool: Pool, api_store: PostgresApiStore, tenant_id: UUID
) -> None:
    effect_id = await cancelled(worker_pool, api_store, tenant_id, "order-1", signer())
    record = await stored(api_store, tenant_id, effect_id)
    assert [one.key_id for one in record.signatures] == ["k1"]
    assert is_good(record)


async def test_the_api_signs_what_it_settles(
    api_pool: Pool, worker_pool: Pool, tenant_id: UUID
) -> None:
    store = PostgresApiStore(api_pool, signer=signer())
    world = World(store, tenant_id, lambda _: [])
    effect_id = await world.submit()
    move = advance(LifeEvent.CANCEL_GRANTED, EffectState.CANCELLED, None)
    await world.write(effect_id, receipt(), move)
    assert len((await stored(store, tenant_id, effect_id)).signatures) == 1


async def test_a_settlement_that_is_undone_leaves_no_signature(
    worker_pool: Pool,
    api_store: PostgresApiStore,
    tenant_id: UUID,
    superuser: Connection[TupleRow],
) -> None:
    store = PostgresWorkerStore(worker_pool, signer=signer())
    world = World(Both(api_store, store), tenant_id, lambda _: [])
    effect_id = await world.submit()
    # Prepared cannot have succeeded without an attempt's receipt: the row's CHECK refuses it.
    move = advance(LifeEvent.CANCEL_GRANTED, EffectState.CANCELLED, None, parked=True)
    with pytest.raises(Exception, match="final_is_at_most_counted"):
        await world.write(effect_id, receipt(), move)
    rows = superuser.execute("SELECT 1 FROM effect_broker.effect_receipt_signatures").fetchall()
    assert rows == []


async def test_without_a_signing_key_receipts_are_unsigned_and_signed_later_in_batches(
    worker_pool: Pool, api_store: PostgresApiStore, tenant_id: UUID
) -> None:
    made = [
        await cancelled(worker_pool, api_store, tenant_id, f"order-{n}", None) for n in range(5)
    ]
    signed = await cancelled(worker_pool, api_store, tenant_id, "order-9", signer())
    late = LateSignatures(worker_pool, signer("k2"))
    assert await late.sign_batch(by_key=None, signed_max=2) == (2, False)
    counts, done = [], False
    while not done:
        count, done = await late.sign_batch(by_key=None, page=2)
        assert count <= 2
        counts.append(count)
    assert sum(counts) == 3
    assert await LateSignatures(worker_pool, signer("k2")).sign_batch(by_key=None) == (0, True)
    for effect_id in made:
        record = await stored(api_store, tenant_id, effect_id)
        assert [one.key_id for one in record.signatures] == ["k2"]
        assert is_good(record)
    assert len((await stored(api_store, tenant_id, signed)).signatures) == 1


async def test_after_a_rotation_the_new_key_signs_beside_the_old_one(
    worker_pool: Pool, api_store: PostgresApiStore, tenant_id: UUID
) -> None:
    effect_id = await cancelled(worker_pool, api_store, tenant_id, "order-1", signer())
    late = LateSignatures(worker_pool, signer("k2"))
    assert await late.sign_batch(by_key="k2") == (1, True)
    record = await stored(api_store, tenant_id, effect_id)
    assert [one.key_id for one in record.signatures] == ["k1", "k2"]
    assert is_good(record)


async def test_only_the_receipts_of_the_tenant_that_was_named_are_signed(
    worker_pool: Pool, api_store: PostgresApiStore, tenant_id: UUID
) -> None:
    effect_id = await cancelled(worker_pool, api_store, tenant_id, "order-1", None)
    late = LateSignatures(worker_pool, signer())
    assert await late.sign_batch(by_key=None, tenant_id=UUID(int=1)) == (0, True)
    assert (await stored(api_store, tenant_id, effect_id)).signatures == ()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE effect_broker.effect_receipt_signatures SET signature = signature",
        "UPDATE effect_broker.effect_receipt_signatures SET key_id = 'k9'",
        "DELETE FROM effect_broker.effect_receipt_signatures",
        "TRUNCATE effect_broker.effect_receipt_signatures",
        "INSERT INTO effect_broker.effect_receipt_signatures SELECT tenant_id, effect_id,"
        " sha256('another'), 'k9', algorithm, signature, signed_at"
        " FROM effect_broker.effect_receipt_signatures",
        "INSERT INTO effect_broker.effect_receipt_signatures SELECT gen_random_uuid(), effect_id,"
        " receipt_digest, 'k9', algorithm, signature, signed_at"
        " FROM effect_broker.effect_receipt_signatures",
    ],
)
async def test_a_signature_stays_and_is_one_of_its_receipt(
    worker_pool: Pool,
    api_store: PostgresApiStore,
    tenant_id: UUID,
    superuser: Connection[TupleRow],
    statement: LiteralString,
) -> None:
    await cancelled(worker_pool, api_store, tenant_id, "order-1", signer())
    with pytest.raises(psycopg.Error) as caught:
        superuser.execute(statement)
    assert caught.value.sqlstate == GUARD_SQLSTATE


@pytest.mark.parametrize(
    ("column", "value", "refusal"),
    [
        ("algorithm", "'rsa'", "algorithm_check"),
        ("signature", "'short'", "signature_check"),
        ("key_id", "'with space'", "key_id_check"),
        ("key_id", "'k1'", "one_signature_per_key"),
    ],
)
async def test_a_signature_has_its_form_and_each_key_one(
    worker_pool: Pool,
    api_store: PostgresApiStore,
    tenant_id: UUID,
    superuser: Connection[TupleRow],
    column: str,
    value: str,
    refusal: str,
) -> None:
    await cancelled(worker_pool, api_store, tenant_id, "order-1", signer())
    values = {"key_id": "'k9'", "algorithm": "algorithm", "signature": "signature"}
    chosen = ", ".join((values | {column: value}).values())
    with pytest.raises(psycopg.Error, match=refusal):
        superuser.execute(
            "INSERT INTO effect_broker.effect_receipt_signatures (tenant_id, effect_id,"
            f" receipt_digest, key_id, algorithm, signature, signed_at) SELECT tenant_id,"
            f" effect_id, receipt_digest, {chosen}, signed_at"
            " FROM effect_broker.effect_receipt_signatures".encode()
        )


async def test_pruning_removes_no_signature(
    worker_pool: Pool,
    api_store: PostgresApiStore,
    tenant_id: UUID,
    superuser: Connection[TupleRow],
) -> None:
    await cancelled(worker_pool, api_store, tenant_id, "order-1", signer())
    superuser.execute("SET ROLE effect_broker_prune")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        superuser.execute("DELETE FROM effect_broker.effect_receipt_signatures")


async def test_no_tenant_sees_or_signs_the_receipts_of_another(
    worker_pool: Pool,
    api_store: PostgresApiStore,
    tenant_id: UUID,
    shared_database: Database,
) -> None:
    await cancelled(worker_pool, api_store, tenant_id, "order-1", signer())
    count = "SELECT count(*) FROM effect_broker.effect_receipt_signatures"
    with psycopg.connect(shared_database.url_for(DatabaseRole.API)) as api:
        assert api.execute(count).fetchone() == (0,)
        api.execute(
            "SELECT set_config('effect_broker.tenant_id', %s::text, true)", [str(tenant_id)]
        )
        assert api.execute(count).fetchone() == (1,)
        row = api.execute(
            "SELECT effect_id, receipt_digest, signature"
            " FROM effect_broker.effect_receipt_signatures"
        ).fetchone()
        assert row is not None
        other = "00000000-0000-0000-0000-000000000001"
        api.execute("SELECT set_config('effect_broker.tenant_id', %s::text, true)", [other])
        # The receipt is not there for this tenant; with its guard gone the policy says no.
        with pytest.raises(psycopg.Error, match="a signature of no receipt"):
            api.execute(
                "INSERT INTO effect_broker.effect_receipt_signatures"
                " VALUES (%s, %s, %s, 'k9', 'ed25519', %s, now())",
                [tenant_id, *row],
            )
    refused = pytest.raises(psycopg.errors.InsufficientPrivilege)
    with psycopg.connect(shared_database.url_for(DatabaseRole.ADMIN)) as admin, refused:
        admin.execute(count)
