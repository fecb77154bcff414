"""One request under its key, asked of the stores directly: what ends a claim, and who may."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from effect_broker.receiving import (
    KeptResult,
    KeyedRequest,
    Landed,
    SqliteKeys,
    current_claim,
    request_digest,
    run_once,
)
from effect_broker.receiving.running import Failed, Ran
from receiving.shop import Shop

ShopOf = Callable[..., Shop]
DONE = KeptResult(200, (("content-type", "text/plain"),), b"done")


def asked(order: str) -> KeyedRequest:
    return KeyedRequest("ada", order, request_digest({"order": order}))


async def made(shop: Shop) -> Shop:
    await shop.store.create_table()
    return shop


@pytest.mark.parametrize("way", ["commit", "rollback", "with"])
async def test_work_cannot_end_the_transaction_of_its_claim(
    shop_of: ShopOf, order: str, way: str
) -> None:
    shop = await made(shop_of())

    async def work() -> KeptResult:
        await shop.write(order, 1)
        connection = current_claim().connection
        if way == "with" and isinstance(shop.store, SqliteKeys):
            with connection:
                pass
        ended = getattr(connection, "commit" if way == "with" else way)()
        await ended
        return DONE

    ended = await run_once(shop.store, asked(order), work)
    assert isinstance(ended, Failed)
    assert ended.not_done
    assert (await shop.store.look_up("ada", order)).state is Landed.NOT_LANDED
    assert shop.orders(order) == 0


async def test_work_that_commits_by_sql_of_its_own_and_fails_is_not_called_undone(
    shop_of: ShopOf, order: str
) -> None:
    shop = await made(shop_of(lease_seconds=0.0))
    runs = []

    async def work() -> KeptResult:
        runs.append(1)
        await shop.write(order, 1)
        committed = current_claim().connection.execute("COMMIT")
        if asyncio.iscoroutine(committed):
            await committed
        raise LookupError

    for _ in range(2):
        ended = await run_once(shop.store, asked(order), work)
        assert not (isinstance(ended, Failed) and ended.not_done)
    assert (await shop.store.look_up("ada", order)).state is Landed.UNKNOWN
    assert (len(runs), shop.orders(order)) == (1, 1)


@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "separate"])
async def test_cancelled_work_is_rolled_back_or_unknown(
    shop_of: ShopOf, order: str, atomic: bool
) -> None:
    shop = await made(shop_of(shares_transaction=atomic))

    async def work() -> KeptResult:
        await shop.write(order, 1)
        shop.entered.set()
        await shop.go_on.wait()
        return DONE

    running = asyncio.create_task(run_once(shop.store, asked(order), work))
    await shop.entered.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    standing = await shop.store.look_up("ada", order)
    assert standing.state is (Landed.NOT_LANDED if atomic else Landed.UNKNOWN)
    assert shop.orders(order) == (0 if atomic else 1)


async def test_a_claim_that_was_concluded_by_a_person_keeps_the_persons_word(
    shop_of: ShopOf, order: str
) -> None:
    shop = await made(shop_of(shares_transaction=False, lease_seconds=0.0))
    found = KeptResult(201, (), b"found by a person")

    async def work() -> KeptResult:
        assert await shop.store.resolve("ada", order, found)
        return DONE

    ended = await run_once(shop.store, asked(order), work)
    assert isinstance(ended, Failed)
    assert not ended.not_done
    standing = await shop.store.look_up("ada", order)
    assert standing.row is not None
    assert standing.row.result == found


async def test_a_result_is_kept_byte_for_byte_and_there_is_no_claim_outside_its_work(
    shop_of: ShopOf, order: str
) -> None:
    shop = await made(shop_of(shares_transaction=False))
    odd = KeptResult(200, (("location", "/ü"),), bytes(range(256)))

    async def work() -> KeptResult:
        with pytest.raises(RuntimeError, match="shares"):
            _ = current_claim().connection
        return odd

    assert await run_once(shop.store, asked(order), work) == Ran(odd)
    standing = await shop.store.look_up("ada", order)
    assert standing.row is not None
    assert standing.row.result == odd
    assert (standing.row.expires_at - standing.row.created_at).total_seconds() >= 86_400
    with pytest.raises(LookupError):
        current_claim()


@pytest.mark.parametrize("shop_of", ["postgres"], indirect=True)
@pytest.mark.parametrize("way", ["refused_at_commit", "connection_lost"])
async def test_a_success_that_was_not_committed_is_told_to_nobody(
    shop_of: ShopOf, shop_url: str, order: str, way: str
) -> None:
    shop = await made(shop_of())

    async def work() -> KeptResult:
        await shop.write(order, 1)
        connection = current_claim().connection
        if way == "refused_at_commit":
            await connection.execute(
                "CREATE TEMPORARY TABLE parts (id int PRIMARY KEY,"
                " whole int REFERENCES parts DEFERRABLE INITIALLY DEFERRED)"
            )
            await connection.execute("INSERT INTO parts VALUES (1, 2)")
        else:
            with psycopg.connect(shop_url, autocommit=True) as other:
                pid = connection.info.backend_pid
                other.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
        return DONE

    ended = await run_once(shop.store, asked(order), work)
    assert isinstance(ended, Failed)
    assert ended.not_done
    assert (await shop.store.look_up("ada", order)).state is Landed.NOT_LANDED
    assert shop.orders(order) == 0


@pytest.mark.parametrize("key", ["", "a b", "ä", "k" * 256, "a\n"])
def test_a_bad_key_makes_no_request(key: str) -> None:
    with pytest.raises(ValueError, match="key"):
        KeyedRequest("ada", key, bytes(32))


def test_json_is_compared_by_value_and_all_else_by_its_bytes() -> None:
    def digest(body: bytes, **of: Any) -> bytes:
        return request_digest({"path": "/", **of}, body)

    assert digest(b'{"a": 1, "b": 2}') == digest(b'{"b":2.0,"a":1}')
    different = [b"", b"{}", b'{"a": 1}', b'{"a": "1"}', b'{"a":1,"a":1}', b"a=1", b"a=2", b"\xff"]
    assert len({digest(body) for body in different}) == len(different)
    assert digest(b"", path="/x") != digest(b"")
