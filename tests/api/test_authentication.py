"""API keys: who may ask, how soon a revoked key is refused, and what a hot key costs."""

from __future__ import annotations

import asyncio
from uuid import UUID

import httpx
import pytest
from fastapi import FastAPI

from api.deployment import Deployment, charge
from effect_broker.authentication import CACHE_SECONDS, CachedAuthentication
from effect_broker.intake import Tenant
from effect_broker.protocol.ports import StoreUnavailable
from effect_broker.store.pool import Pool
from effect_broker.store.tenants import Tenants
from effect_contracts.errors import TenantDisabled, Unauthenticated

PATH = "/v1/effects"
ACME = Tenant(UUID(int=1), "ring-1", "key-1")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer no-such-key"},
        {"Authorization": "Bearer eb_" + "A" * 43},
        {"Authorization": "Bearer eb_" + "A" * 4000},
        {"Authorization": b"Bearer eb_\xff\xfe"},
        {"Authorization": "Basic dXNlcjpwYXNz"},
        {"X-Api-Key": "eb_" + "A" * 43},
    ],
)
async def test_without_a_good_key_nothing_is_answered(
    application: FastAPI, deployment: Deployment, headers: dict[str, str]
) -> None:
    async with deployment.client(application, None) as client:
        answers = [
            await client.post(PATH, content=b"not even json", headers=headers),
            await client.get(PATH, headers=headers),
            await client.get(f"{PATH}/{UUID(int=0)}?wait=60", headers=headers),
        ]
    for answer in answers:
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert "eb_" not in answer.text


async def test_a_revoked_key_is_refused_within_the_time_it_is_remembered(
    api: httpx.AsyncClient, deployment: Deployment, admin_pool: Pool
) -> None:
    assert (await api.get(PATH)).status_code == 200
    await Tenants(admin_pool).revoke_key(deployment.key_ids["acme"])
    await asyncio.sleep(CACHE_SECONDS)
    assert (await api.get(PATH)).status_code == 401


async def test_a_disabled_tenant_is_refused(
    api: httpx.AsyncClient, deployment: Deployment, admin_pool: Pool
) -> None:
    await Tenants(admin_pool).switch("acme", disabled=True)
    answer = await api.post(PATH, json=charge())
    assert (answer.status_code, answer.json()["code"]) == (403, "tenant_disabled")
    assert deployment.count("effect_intents") == 0


async def test_the_database_holds_no_key(api: httpx.AsyncClient, deployment: Deployment) -> None:
    rows = deployment.execute("SELECT k::text FROM effect_broker.api_keys k")
    assert len(rows) == 2
    assert not any(key in row[0] for row in rows for key in deployment.api_keys.values())


class _Source:
    """Counts how often it is asked; answers what it is told to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answer: Tenant | Exception = ACME
        self.gate = asyncio.Event()
        self.gate.set()

    async def tenant(self, api_key: str) -> Tenant:
        self.asked.append(api_key)
        await self.gate.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class _Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def _cached(source: _Source, clock: _Clock, entries_max: int = 10) -> CachedAuthentication:
    return CachedAuthentication(
        source, boot_seconds=clock, cache_seconds=2.0, entries_max=entries_max
    )


async def test_a_hot_key_is_looked_up_once_in_its_time() -> None:
    source, clock = _Source(), _Clock()
    cached = _cached(source, clock)
    for _ in range(5):
        assert await cached.tenant("eb_a") == ACME
    assert source.asked == ["eb_a"]
    clock.now += 2.0
    await cached.tenant("eb_a")
    assert len(source.asked) == 2


async def test_the_time_counts_from_before_the_question() -> None:
    """Else a key that is revoked while a slow answer is under way would live longer."""
    source, clock = _Source(), _Clock()
    cached = _cached(source, clock)
    source.gate.clear()
    waiting = asyncio.create_task(cached.tenant("eb_a"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    clock.now += 1.5
    source.gate.set()
    await waiting
    clock.now += 0.5
    await cached.tenant("eb_a")
    assert len(source.asked) == 2


async def test_requests_that_come_together_ask_once_and_one_that_leaves_takes_nothing() -> None:
    source, clock = _Source(), _Clock()
    cached = _cached(source, clock)
    source.gate.clear()
    waiting = [asyncio.create_task(cached.tenant("eb_a")) for _ in range(50)]
    await asyncio.sleep(0.01)
    waiting[0].cancel()
    await asyncio.sleep(0.01)
    source.gate.set()
    assert await asyncio.gather(*waiting[1:]) == [ACME] * 49
    assert source.asked == ["eb_a"]


@pytest.mark.parametrize("refusal", [Unauthenticated, TenantDisabled])
async def test_a_refusal_is_remembered_as_long(refusal: type[Exception]) -> None:
    source, clock = _Source(), _Clock()
    cached = _cached(source, clock)
    source.answer = refusal()
    for _ in range(3):
        with pytest.raises(refusal):
            await cached.tenant("eb_a")
    assert len(source.asked) == 1
    source.answer = ACME
    clock.now += 2.0
    assert await cached.tenant("eb_a") == ACME


async def test_an_outage_is_remembered_by_nobody() -> None:
    source, clock = _Source(), _Clock()
    cached = _cached(source, clock)
    source.answer = StoreUnavailable("away")
    with pytest.raises(StoreUnavailable):
        await cached.tenant("eb_a")
    source.answer = ACME
    assert await cached.tenant("eb_a") == ACME


async def test_a_flood_of_invented_keys_pushes_out_no_real_one() -> None:
    source, clock = _Source(), _Clock()
    cached = _cached(source, clock, entries_max=10)
    await cached.tenant("eb_real")
    source.answer = Unauthenticated()
    for number in range(1000):
        with pytest.raises(Unauthenticated):
            await cached.tenant(f"eb_{number}")
    source.asked.clear()
    assert await cached.tenant("eb_real") == ACME
    assert source.asked == []
    with pytest.raises(Unauthenticated):
        await cached.tenant("eb_0")
    assert source.asked == ["eb_0"]
