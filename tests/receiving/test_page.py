"""The examples of docs/idempotent-servers.md run as they stand there."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from mcp import Client

from receiving.shop import ORDERS
from repository.checkout import CHECKOUT

PAGE = CHECKOUT / "docs" / "idempotent-servers.md"


def example(holding: str) -> dict[str, Any]:
    """Run the one example with this text; return what it has defined."""
    blocks = [part.partition("\n```")[0] for part in PAGE.read_text("utf-8").split("```python\n")]
    [block] = [block for block in blocks[1:] if holding in block]
    found: dict[str, Any] = {"__name__": "example"}
    exec(compile(block, str(PAGE), "exec"), found)
    return found


async def test_the_http_example(shop_url: str, monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    monkeypatch.setenv("SHOP_DATABASE_URL", shop_url)
    found = example("IdempotentASGI(")
    headers = {"Authorization": "Bearer token-of-ada", "Idempotency-Key": order}
    async with (
        found["shop"].router.lifespan_context(found["shop"]),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app=found["app"]), base_url="http://shop"
        ) as client,
    ):
        body = {"order": order, "amount": 3}
        answers = [await client.post("/orders", json=body, headers=headers) for _ in range(2)]
        refused = await client.post("/orders", json={"order": 1}, headers=headers)
        landed = await client.get(f"/idempotency-keys/{order}", headers=headers)
    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].content == answers[1].content
    assert refused.json()["code"] == "key_conflict"
    assert landed.json()["result"] == answers[0].json()
    assert _orders(shop_url, order) == 1


async def test_the_mcp_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "shop.sqlite"
    file = sqlite3.connect(path)
    file.execute(ORDERS.format(id="INTEGER PRIMARY KEY"))
    monkeypatch.setenv("SHOP_FILE", str(path))
    found = example("register_look_up(server")
    await found["keys"].create_table()
    meta: Any = {"dev.effect-broker/idempotency-key": "k1"}
    async with Client(found["server"]) as client:
        for _ in range(2):
            result = await client.call_tool("place_order", {"order": "a", "amount": 3}, meta=meta)
            assert result.structured_content == {"id": "1", "order": "a", "amount": 3}
        landed = await client.call_tool("did_key_land", {"key": "k1"})
    assert (landed.structured_content or {})["landed"] is True
    assert file.execute("SELECT count(*) FROM orders").fetchone() == (1,)
    file.close()


async def test_the_example_of_an_own_transaction(shop_url: str, order: str) -> None:
    found = example("async def take(")
    await found["PostgresKeys"](found["connecting"](shop_url)).create_table()
    for _ in range(2):
        assert await found["take"](shop_url, order, {"amount": 3}) == b"taken"
    with pytest.raises(RuntimeError, match="key_conflict"):
        await found["take"](shop_url, order, {"amount": 4})
    assert _orders(shop_url, order) == 1


def _orders(url: str, order: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute('SELECT count(*) FROM orders WHERE "order" = %s', [order])
        return int((row.fetchone() or (0,))[0])
