"""`/metrics` of an API: what it has counted, what the ledger knows, and nothing of anybody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import httpx
import pytest

from api.deployment import Deployment, charge, in_doubt
from effect_broker.config import Settings
from effect_broker.metrics import OTHER, TOOLS_MAX, Metrics
from effect_broker.metrics_ledger import (
    COUNT_MAX,
    FRESH_SECONDS,
    FreshLedger,
    LedgerNumber,
    LedgerNumbers,
)
from effect_broker.protocol.ports import StoreUnavailable
from effect_broker.store.metrics import PostgresLedgerNumbers
from effect_broker.store.pool import Pool, make_pool
from effect_broker.store.roles import DatabaseRole
from observability.pages import Page
from postgres import Database

TOOL = "demo.charge"


async def page_of(client: httpx.AsyncClient) -> Page:
    answer = await client.get("/metrics", headers={"Authorization": ""})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return Page(answer.text)


async def test_submits_are_counted_by_what_became_of_them(api: httpx.AsyncClient) -> None:
    before = await page_of(api)
    assert before.value("payload_conflicts_total") == 0
    assert before.values("payload_conflicts_total"), "it is there before it happens"
    await api.post("/v1/effects", json=charge("order-1"))
    for _ in range(2):
        await api.post("/v1/effects", json=charge("order-1"))
    drifted = charge("order-1")
    drifted["arguments"]["amount"] = 4711
    assert (await api.post("/v1/effects", json=drifted)).status_code == 409
    stranger = charge("order-2") | {"tool": "no.such.tool"}
    assert (await api.post("/v1/effects", json=stranger)).status_code == 422
    after = await page_of(api)
    counted = {
        event: after.value("effects_total", tool=TOOL, event=event)
        for event in ("submitted", "deduplicated", "conflicted", "succeeded", "unknown")
    }
    assert counted == {
        "submitted": 1,
        "deduplicated": 2,
        "conflicted": 1,
        "succeeded": 0,
        "unknown": 0,
    }
    assert after.value("payload_conflicts_total") == 1
    assert after.value("submits_refused_total", code="unknown_tool") == 1
    assert after.value("submit_seconds_count", tool=TOOL) == 3


async def test_a_tool_that_a_caller_makes_up_is_no_label(api: httpx.AsyncClient) -> None:
    await api.post("/v1/effects", json=charge("order-1"))
    drifted = charge("order-1") | {"tool": "made.up"}
    assert (await api.post("/v1/effects", json=drifted)).status_code == 409
    page = await page_of(api)
    assert page.labels("tool") == {TOOL, OTHER}
    assert page.value("effects_total", tool=OTHER, event="conflicted") == 1


async def test_an_operators_conclusion_is_counted_like_a_workers(
    api: httpx.AsyncClient, deployment: Deployment
) -> None:
    effect_id = (await api.post("/v1/effects", json=charge("order-1"))).json()["effect_id"]
    assert (await api.post(f"/v1/effects/{effect_id}/cancel", json={})).status_code < 300
    page = await page_of(api)
    assert page.value("effects_total", tool=TOOL, event="cancelled") == 1
    assert page.value("settlement_seconds_count", tool=TOOL) == 1


async def test_the_ledger_is_told_over_all_tenants_and_by_tool(
    application: object, deployment: Deployment, api: httpx.AsyncClient
) -> None:
    await in_doubt(api, deployment, "order-1")
    async with deployment.client(application, "globex") as other:  # type: ignore[arg-type]
        await in_doubt(other, deployment, "order-1")
        await other.post("/v1/effects", json=charge("order-2"))
    deployment.execute(
        "SET session_replication_role = replica;"  # the moment of a submit never changes
        "UPDATE effect_broker.effect_intents SET created_at = now() - interval '1 hour'"
        " WHERE state = 'outcome_unknown' AND tenant_id ="
        f" '{deployment.tenant_ids['globex']}'"
    )
    page = await page_of(api)
    doubt = {"tool": TOOL, "safety": "idempotent", "state": "outcome_unknown"}
    assert page.value("ledger_up") == 1
    assert page.values("ledger_in_doubt_effects", **doubt) == [2]
    (oldest,) = page.values("ledger_in_doubt_oldest_seconds", **doubt)
    assert 3600 <= oldest < 3660
    assert page.value("ledger_due_effects") == 1
    assert page.values("ledger_workers") == [0]
    assert page.values("ledger_workers", state="live") == [0]
    assert page.value("ledger_queue_depth") == 3
    assert page.values("ledger_dispatch_halted") == [0]
    assert page.values("ledger_alerted_effects", alert="duplicate_detected") == [0]


async def test_workers_holds_and_alerts_are_told(
    api: httpx.AsyncClient, deployment: Deployment
) -> None:
    effect_id = (await api.post("/v1/effects", json=charge("order-1"))).json()["effect_id"]
    await api.post(f"/v1/effects/{effect_id}/cancel", json={})
    deployment.execute(f"""
        INSERT INTO effect_broker.workers (executor_id, ttl_seconds, beat_at, draining_at)
        VALUES ('a', 3600, now() - interval '20 s', NULL),
               ('b', 1, now() - interval '30 s', NULL), ('c', 3600, now() - interval '40 s', now());
        INSERT INTO effect_broker.holds (hold_id, kind, tenant_id, reason, placed_by)
        VALUES (gen_random_uuid(), 'paused', '{deployment.tenant_ids["globex"]}', 'r', 'p');
        SET session_replication_role = replica;
        UPDATE effect_broker.effect_intents SET alert = 'duplicate_detected'
        WHERE effect_id = '{effect_id}';
        UPDATE effect_broker.database_identity SET halted_at = now();
    """)
    page = await page_of(api)
    states = {s: page.value("ledger_workers", state=s) for s in ("live", "dead", "draining")}
    assert states == {"live": 1, "dead": 1, "draining": 1}
    assert 20 <= page.value("ledger_heartbeat_age_seconds") < 30
    assert page.values("ledger_holds", kind="paused") == [1]
    assert page.values("ledger_holds", kind="frozen") == [0]
    assert page.values("ledger_alerted_effects", alert="duplicate_detected") == [1]
    assert page.values("ledger_dispatch_halted") == [1]


async def test_without_the_engines_schema_the_rest_is_told(
    api: httpx.AsyncClient, deployment: Deployment
) -> None:
    deployment.execute("DROP SCHEMA dbos CASCADE")
    page = await page_of(api)
    assert page.value("ledger_up") == 1
    assert page.values("ledger_queue_depth") == []
    assert page.values("ledger_workers", state="live") == [0]


async def test_it_can_be_switched_off(deployment: Deployment) -> None:
    async with (
        deployment.application(Settings(metrics=False)) as app,
        deployment.client(app) as client,
    ):
        answer = await client.get("/metrics")
    assert answer.status_code == 404
    assert answer.json()["code"] == "not_found"


async def test_a_port_of_its_own_takes_it_off_the_public_one(deployment: Deployment) -> None:
    async with (
        deployment.application(Settings(metrics_port=0)) as app,
        deployment.client(app) as client,
    ):
        assert (await client.get("/metrics")).status_code == 404


async def test_openmetrics_is_spoken_to_who_asks_for_it(api: httpx.AsyncClient) -> None:
    answer = await api.get("/metrics", headers={"Accept": "application/openmetrics-text"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


# The ledger's numbers by themselves --------------------------------------------------------------


@pytest.fixture
async def api_pool(deployment: Deployment, database: Database) -> AsyncIterator[Pool]:
    """A pool of the API's role."""
    url = database.url_for(DatabaseRole.API)
    async with make_pool(url, None, application_name="test-api", size_max=2) as pool:
        yield pool


@pytest.mark.parametrize("role", [DatabaseRole.API, DatabaseRole.WORKER])
async def test_both_roles_may_read_the_numbers(
    deployment: Deployment, database: Database, role: DatabaseRole
) -> None:
    async with make_pool(database.url_for(role), None, application_name="test", size_max=1) as pool:
        assert await PostgresLedgerNumbers(pool).ledger_numbers(10)


async def test_reading_the_numbers_opens_no_row_of_another_tenant(
    api: httpx.AsyncClient, api_pool: Pool
) -> None:
    await api.post("/v1/effects", json=charge("order-1"))
    async with api_pool.connection() as connection, connection.transaction():
        await connection.execute("SELECT * FROM effect_broker.ledger_numbers(10)")
        seen = await connection.execute("SELECT count(*) AS n FROM effect_broker.effect_intents")
        assert await seen.fetchone() == {"n": 0}
        # The setting is the owner's to use: as any other role it opens nothing.
        await connection.execute("SELECT set_config('effect_broker.counting', 'on', true)")
        seen = await connection.execute("SELECT count(*) AS n FROM effect_broker.effect_intents")
        assert await seen.fetchone() == {"n": 0}


async def test_counting_ends_at_the_limit(
    api: httpx.AsyncClient, deployment: Deployment, api_pool: Pool
) -> None:
    for n in range(4):
        await in_doubt(api, deployment, f"order-{n}")
    numbers = await PostgresLedgerNumbers(api_pool).ledger_numbers(3)
    assert [n.value for n in numbers if n.measure == "in_doubt"] == [3]
    assert {n.value for n in numbers if n.measure == "queue_depth"} == {3}


class Reads:
    """A ledger that counts how often it is asked."""

    def __init__(self, *, away: bool = False) -> None:
        self.asked = 0
        self.away = away
        self.go_on = asyncio.Event()

    async def ledger_numbers(self, count_max: int) -> list[LedgerNumber]:
        self.asked += 1
        await self.go_on.wait()
        if self.away:
            raise StoreUnavailable("away")
        return [LedgerNumber("due", None, None, None, float(self.asked))]


async def test_scrapes_at_once_share_one_read_and_a_later_one_is_fresh() -> None:
    now = [100.0]
    reads = Reads()
    ledger = FreshLedger(reads, lambda: now[0])
    scrapes = [asyncio.create_task(ledger.numbers()) for _ in range(20)]
    await asyncio.sleep(0)
    reads.go_on.set()
    assert len({id(numbers) for numbers in await asyncio.gather(*scrapes)}) == 1
    assert reads.asked == 1
    now[0] += FRESH_SECONDS - 0.1
    await ledger.numbers()
    assert reads.asked == 1
    now[0] += 0.2
    await ledger.numbers()
    assert reads.asked == 2


async def test_a_database_that_is_away_leaves_out_its_numbers_and_no_others() -> None:
    reads = Reads(away=True)
    reads.go_on.set()
    numbers = await FreshLedger(reads, lambda: 0.0).numbers()
    text, _ = Metrics("api").render("", numbers)
    page = Page(text.decode())
    assert page.values("ledger_up") == [0]
    assert [name for name in page.names if "_ledger_" in name] == ["effect_broker_ledger_up"]
    assert page.values("fenced_total", kind="guard") == [0]


def test_tools_beyond_the_limit_are_one() -> None:
    metrics = Metrics("api")
    for n in range(TOOLS_MAX + 20):
        metrics.submitted(f"tool-{n}", created=True, seconds=0.01)
    page = Page(metrics.render("")[0].decode())
    assert len(page.labels("tool")) == TOOLS_MAX + 1
    assert page.value("effects_total", tool=OTHER, event="submitted") == 20


def test_tools_of_the_ledger_beyond_the_limit_are_one_and_the_oldest_keep_their_names() -> None:
    numbers = [
        LedgerNumber(measure, f"tool-{n}", "unsafe", "outcome_unknown", value)
        for n in range(TOOLS_MAX + 20)
        for measure, value in (("in_doubt", 1.0), ("in_doubt_oldest_seconds", float(n)))
    ]
    text, _ = Metrics("api").render("", LedgerNumbers(tuple(numbers)))
    page = Page(text.decode())
    assert page.values("ledger_in_doubt_effects", tool=OTHER) == [20]
    assert page.values("ledger_in_doubt_oldest_seconds", tool=OTHER) == [19]
    assert page.values("ledger_in_doubt_oldest_seconds", tool=f"tool-{TOOLS_MAX + 19}")
    assert page.values("ledger_count_max") == [COUNT_MAX]


async def test_no_label_names_a_tenant_a_key_or_an_id(
    api: httpx.AsyncClient, deployment: Deployment
) -> None:
    key = f"order-{uuid4()}"
    effect_id = await in_doubt(api, deployment, key)
    text = (await page_of(api)).text
    for secret in (key, effect_id, *map(str, deployment.tenant_ids.values()), "acme", "globex"):
        assert secret not in text
