"""The middleware over each store: one order for one key, whatever becomes of request and answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from effect_broker.receiving import KeptResult, PostgresKeys, connecting
from receiving.shop import Shop, covered

ShopOf = Callable[..., Shop]


@asynccontextmanager
async def client(app: Any, tenant: str = "ada") -> AsyncIterator[httpx.AsyncClient]:
    """A client of an application in this process; its exceptions stay in the server."""
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    headers = {"Authorization": f"Bearer {tenant}"}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://shop", headers=headers
    ) as made:
        yield made


async def place(
    to: httpx.AsyncClient, order: str, *, key: str | None = None, **changes: Any
) -> httpx.Response:
    body = {"order": order, "amount": 3, **changes}
    return await to.post("/orders", json=body, headers={"Idempotency-Key": key or order})


async def state_of(at: httpx.AsyncClient, key: str) -> str:
    answer = await at.get(f"/idempotency-keys/{key}")
    told = answer.json()
    assert answer.status_code == (404 if told["state"] == "not_landed" else 200)
    assert told["landed"] == (told["state"] == "landed")
    return str(told["state"])


@pytest.fixture(params=[True, False], ids=["atomic", "separate"])
async def shop(shop_of: ShopOf, request: pytest.FixtureRequest) -> Shop:
    made = shop_of(shares_transaction=request.param)
    await made.store.create_table()
    return made


async def test_the_first_answer_is_given_again_and_the_work_is_done_once(
    shop: Shop, order: str
) -> None:
    async with client(covered(shop)) as ada:
        assert await state_of(ada, order) == "not_landed"
        first = await place(ada, order)
        again = await ada.post(
            "/orders",
            # The same JSON, written otherwise.
            content=b'{ "amount": 3.0, "order": "' + order.encode() + b'" }',
            headers={"Idempotency-Key": order},
        )
        looked = (await ada.get(f"/idempotency-keys/{order}")).json()
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.content == first.content
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert again.headers["content-type"] == "application/json"
    assert "set-cookie" in first.headers
    assert "set-cookie" not in again.headers
    assert (looked["state"], looked["status"]) == ("landed", 201)
    assert looked["result"] == first.json()
    assert shop.orders(order) == 1


async def test_another_request_under_a_known_key_is_refused(shop: Shop, order: str) -> None:
    async with client(covered(shop)) as ada:
        await place(ada, order)
        drifted = await place(ada, order, amount=4)
        elsewhere = await ada.post(
            "/orders/x", json={"order": order, "amount": 3}, headers={"Idempotency-Key": order}
        )
    for answer in (drifted, elsewhere):
        assert (answer.status_code, answer.json()["code"]) == (422, "key_conflict")
        assert answer.headers["content-type"] == "application/problem+json"
    assert shop.orders(order) == 1


async def test_tenants_never_meet_each_others_keys(shop: Shop, order: str) -> None:
    app = covered(shop)
    async with client(app) as ada, client(app, "bob") as bob, client(app, "eve") as eve:
        await place(ada, order)
        assert await state_of(bob, order) == "not_landed"
        own = await place(bob, order, amount=9)
        refused = await place(eve, order), await eve.get(f"/idempotency-keys/{order}")
    assert (own.status_code, own.json()["amount"]) == (201, 9)
    for answer in refused:
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    assert shop.orders(order) == 2


async def test_while_the_first_request_works_the_second_is_told_so(shop: Shop, order: str) -> None:
    async with client(covered(shop)) as ada:
        first = asyncio.create_task(place(ada, order, note="wait"))
        await shop.entered.wait()
        second = await place(ada, order, note="wait")
        seen = await state_of(ada, order)
        shop.go_on.set()
        assert (await first).status_code == 201
        third = await place(ada, order, note="wait")
    assert (second.status_code, second.json()["code"]) == (409, "in_progress")
    assert int(second.headers["retry-after"]) >= 1
    assert seen == "in_progress"
    assert third.headers["idempotency-replayed"] == "true"
    assert shop.orders(order) == 1


async def test_a_second_request_that_waits_gets_the_first_answer(
    shop_of: ShopOf, order: str
) -> None:
    shop = shop_of(wait_seconds=20)
    await shop.store.create_table()
    async with client(covered(shop)) as ada:
        first = asyncio.create_task(place(ada, order, note="wait"))
        await shop.entered.wait()
        second = asyncio.create_task(place(ada, order, note="wait"))
        shop.go_on.set()
        answers = [await first, await second]
    assert answers[0].content == answers[1].content
    assert answers[1].headers["idempotency-replayed"] == "true"
    assert shop.orders(order) == 1


async def test_a_refusal_is_kept_and_in_a_shared_transaction_leaves_nothing(
    shop: Shop, order: str
) -> None:
    async with client(covered(shop)) as ada:
        first = await place(ada, order, note="refuse")
        again = await place(ada, order, note="refuse")
        seen = await state_of(ada, order)
    assert (first.status_code, again.status_code) == (422, 422)
    assert again.headers["idempotency-replayed"] == "true"
    assert seen == "refused"
    assert shop.orders(order) == (0 if shop.store.atomic else 1)


@pytest.mark.parametrize("note", ["fail", "raise", "large"])
async def test_a_failure_after_the_work_opens_the_key_only_if_the_work_was_rolled_back(
    shop: Shop, order: str, note: str
) -> None:
    async with client(covered(shop)) as ada:
        failed = await place(ada, order, note=note)
        seen = await state_of(ada, order)
        again = await place(ada, order, note=note)
    assert failed.status_code == (503 if note == "fail" else 500)
    if shop.store.atomic:
        assert failed.headers["idempotency-outcome"] == "not_done"
        assert seen == "not_landed"
        assert again.headers["idempotency-outcome"] == "not_done"
        assert shop.orders(order) == 0
    else:
        assert failed.headers["idempotency-outcome"] == "unknown"
        assert seen == "unknown"
        assert (again.status_code, again.json()["code"]) == (409, "outcome_unknown")
        assert shop.orders(order) == 1
    if note == "large":
        assert failed.json()["code"] == "response_too_large"


@pytest.mark.parametrize(
    ("note", "said"),
    [
        ("raise", "LookupError at "),
        ("large", "larger than what is kept"),
        ("nothing", "said that nothing was done"),
    ],
)
async def test_what_came_to_no_result_is_logged_by_kind_and_place_and_raised(
    shop: Shop, order: str, note: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    transport = httpx.ASGITransport(app=covered(shop))
    headers = {"Authorization": "Bearer ada"}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://shop", headers=headers
    ) as ada:
        if note == "raise":
            with pytest.raises(LookupError, match="a mistake of the shop"):
                await place(ada, order, note=note)
        else:
            assert (await place(ada, order, note=note)).status_code == 500
        (record,) = caplog.records
        assert record.name == "effect_broker.receiving"
        assert said in record.getMessage()
        assert "mistake of the shop" not in caplog.text
        assert order not in caplog.text
        # An answer that the application has given as it is says enough.
        await place(ada, f"{order}-busy", note="busy")
        await place(ada, f"{order}-fail", note="fail")
    assert caplog.records == [record]


@pytest.mark.parametrize(("note", "status"), [("busy", 429), ("nothing", 500)])
async def test_work_that_says_that_nothing_was_done_may_come_again(
    shop: Shop, order: str, note: str, status: int
) -> None:
    async with client(covered(shop)) as ada:
        for _ in range(2):
            answer = await place(ada, order, note=note)
            assert answer.status_code == status
            assert answer.headers["idempotency-outcome"] == "not_done"
        assert await state_of(ada, order) == "not_landed"
        assert (await place(ada, order)).status_code == 201


async def test_an_unknown_outcome_is_concluded_by_a_person(shop_of: ShopOf, order: str) -> None:
    shop = shop_of(shares_transaction=False)
    await shop.store.create_table()
    app = covered(shop)
    async with client(app) as ada:
        await place(ada, order, note="raise")
        found = KeptResult(201, (("content-type", "application/json"),), b'{"id": "7"}')
        assert await shop.store.resolve("ada", order, found)
        assert not await shop.store.resolve("ada", order, None), "it is concluded already"
        told = await place(ada, order, note="raise")
        assert (told.status_code, told.json()) == (201, {"id": "7"})
        await place(ada, f"{order}b", note="raise")
        assert await shop.store.resolve("ada", f"{order}b", None)
        assert await state_of(ada, f"{order}b") == "not_landed"


async def test_repeatable_work_may_be_done_again(shop_of: ShopOf, order: str) -> None:
    shop = shop_of(shares_transaction=False, repeatable=True)
    await shop.store.create_table()
    async with client(covered(shop)) as ada:
        failed = await place(ada, order, note="raise")
        # Open again, and yet nobody may say that nothing was done.
        assert failed.headers["idempotency-outcome"] == "unknown"
        assert (await place(ada, order)).status_code == 201
    with pytest.raises(ValueError, match="repeat"):
        shop_of(shares_transaction=True, repeatable=True)


async def test_a_claim_whose_lease_is_over_is_unknown_and_its_late_result_counts(
    shop_of: ShopOf, order: str
) -> None:
    shop = shop_of(shares_transaction=False, lease_seconds=0.1)
    await shop.store.create_table()
    async with client(covered(shop)) as ada:
        first = asyncio.create_task(place(ada, order, note="wait"))
        await shop.entered.wait()
        await asyncio.sleep(0.15)
        assert (await place(ada, order, note="wait")).json()["code"] == "outcome_unknown"
        assert await state_of(ada, order) == "unknown"
        shop.go_on.set()
        assert (await first).status_code == 201
        assert await state_of(ada, order) == "landed"
    assert shop.orders(order) == 1


async def test_results_are_purged_after_their_retention_and_unknown_ones_never(
    shop_of: ShopOf, order: str
) -> None:
    shop = shop_of(shares_transaction=False, retention_seconds=0.0)
    keeping = shop_of(shares_transaction=False)
    await shop.store.create_table()
    async with client(covered(shop)) as ada, client(covered(keeping)) as same:
        await place(ada, order)
        await place(ada, f"{order}u", note="raise")
        await place(same, f"{order}k")
        assert await shop.store.purge() >= 1
        states = [await state_of(ada, f"{order}{end}") for end in ("", "u", "k")]
    assert states == ["not_landed", "unknown", "landed"]


async def test_bad_requests_get_a_stable_code_and_reach_nothing(
    shop_of: ShopOf, order: str
) -> None:
    shop = shop_of()
    await shop.store.create_table()
    body = {"order": order, "amount": 3}
    async with client(covered(shop, request_bytes_max=100)) as ada:
        cases = [
            (await ada.post("/orders", json=body), 400, "key_missing"),
            (await place(ada, order, key="two words"), 400, "key_invalid"),
            (await place(ada, order, key="k" * 256), 400, "key_invalid"),
            (await ada.post("/orders", json=body, headers=[("Idempotency-Key", "a")] * 2), 400,
             "key_invalid"),
            (await place(ada, order, note="x" * 100), 413, "request_too_large"),
            (await ada.get("/idempotency-keys/"), 400, "key_invalid"),
        ]  # fmt: skip
        # A path that no canonical form has is one of the application's own to answer.
        odd = {"Idempotency-Key": f"{order}n"}
        for _ in range(2):
            assert (
                await ada.post("/orders/%00", json={**body, "order": "n"}, headers=odd)
            ).is_success
    for answer, status, code in cases:
        assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert "header Idempotency-Key" in cases[0][0].json()["detail"]
    assert shop.orders(order) == 0


async def test_what_is_not_covered_passes_through(shop_of: ShopOf, order: str) -> None:
    shop = shop_of(shares_transaction=False)
    await shop.store.create_table()
    body = {"order": order, "amount": 3}
    async with client(covered(shop, required=False)) as ada:
        assert (await ada.post("/orders", json=body)).status_code == 201
        assert (await ada.post("/ordersheets", json=body)).status_code == 201
        assert (await ada.put("/orders", json=body)).status_code == 201
    assert shop.orders(order) == 3


async def test_without_its_table_a_store_refuses_before_any_work(
    shop_of: ShopOf, order: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop = shop_of()
    broken = shop_of()
    broken.store = type(shop.store)(_nowhere(shop.store))
    async with client(covered(broken)) as ada:
        refused = await place(ada, order), await ada.get(f"/idempotency-keys/{order}")
    for answer in refused:
        assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
    assert shop.orders(order) == 0
    assert [record.name for record in caplog.records] == ["effect_broker.receiving"] * 2
    assert all("OperationalError" in record.getMessage() for record in caplog.records)


def _nowhere(store: Any) -> Any:
    if isinstance(store, PostgresKeys):
        return connecting("postgresql://nobody@127.0.0.1:9/none?connect_timeout=2")
    return "/nowhere/keys.sqlite"


async def test_work_that_does_not_use_the_shared_connection_is_pointed_out(
    shop_of: ShopOf, order: str
) -> None:
    shop = shop_of()
    await shop.store.create_table()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done elsewhere"})

    elsewhere = covered(shop)
    elsewhere._app = app
    with pytest.warns(RuntimeWarning, match="shares_transaction|separate store"):
        async with client(elsewhere) as ada:
            assert (await place(ada, order)).status_code == 200
