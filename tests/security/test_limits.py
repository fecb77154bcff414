"""How many requests a caller may make: one tenant's burst, and keys that are refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import httpx
import pytest
from fastapi import FastAPI

from api.deployment import Deployment, charge
from effect_broker.api.limits import (
    REFUSED_BURST,
    Bucket,
    Buckets,
    RequestLimits,
    address_of,
)
from effect_broker.config import ConfigurationProblem, load_settings
from effect_broker.store.pool import Pool
from effect_broker.store.tenants import Tenants
from effect_contracts.errors import RateLimited

PATH = "/v1/effects"
BURST = 5


@pytest.fixture
async def limited(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[FastAPI]:
    """The real application, started, with a limit by the settings that an operator would use."""
    monkeypatch.setenv("EFFECT_BROKER_TENANT_REQUESTS_PER_SECOND", "0.5")
    monkeypatch.setenv("EFFECT_BROKER_TENANT_REQUESTS_BURST", str(BURST))
    async with deployment.application(load_settings()) as app:
        yield app


def from_address(app: FastAPI, host: str) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, client=(host, 50000))
    return httpx.AsyncClient(transport=transport, base_url="http://broker")


def bearer(api_key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"}


def invented(number: int) -> dict[str, str]:
    return bearer(f"eb_{number:043d}")


async def test_a_burst_of_one_tenant_is_cut_and_leaves_another_untouched(
    limited: FastAPI, deployment: Deployment
) -> None:
    async with deployment.client(limited) as acme, deployment.client(limited, "globex") as globex:
        burst = await asyncio.gather(*(acme.get(PATH) for _ in range(4 * BURST)))
        codes = [answer.status_code for answer in burst]
        assert codes.count(200) == BURST
        assert codes.count(429) == 3 * BURST
        refused = next(answer for answer in burst if answer.status_code == 429)
        assert refused.json()["code"] == "rate_limited"
        assert refused.headers["retry-after"] in {"1", "2"}
        others = [(await globex.post(PATH, json=charge(f"k-{n}"))) for n in range(BURST)]
        assert [answer.status_code for answer in others] == [202] * BURST


async def test_time_gives_back_what_retry_after_says(
    limited: FastAPI, deployment: Deployment
) -> None:
    async with deployment.client(limited) as acme:
        while (answer := await acme.get(PATH)).status_code == 200:
            pass
        await asyncio.sleep(int(answer.headers["retry-after"]))
        assert (await acme.get(PATH)).status_code == 200


async def test_a_request_over_the_limit_is_refused_before_its_body_is_read(
    limited: FastAPI, deployment: Deployment
) -> None:
    read = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal read
        for _ in range(10):
            read += 1
            yield b" " * 1024

    async with deployment.client(limited) as acme:
        while (await acme.get(PATH)).status_code == 200:
            pass
        headers = {"Content-Type": "application/json"}
        answer = await acme.post(PATH, content=body(), headers=headers)
    assert answer.status_code == 429
    assert read == 0
    assert deployment.count("effect_intents") == 0


async def test_all_keys_of_a_tenant_share_its_limit(
    limited: FastAPI, deployment: Deployment, admin_pool: Pool
) -> None:
    second = (await Tenants(admin_pool).create_key("acme")).api_key
    async with deployment.client(limited) as acme:
        for _ in range(BURST):
            assert (await acme.get(PATH)).status_code == 200
        assert (await acme.get(PATH, headers=bearer(second))).status_code == 429


async def test_without_a_setting_no_tenant_is_limited(
    application: FastAPI, deployment: Deployment
) -> None:
    async with deployment.client(application) as acme:
        answers = await asyncio.gather(*(acme.get(PATH) for _ in range(100)))
    assert {answer.status_code for answer in answers} == {200}


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "many"])
def test_a_limit_that_is_none_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("EFFECT_BROKER_TENANT_REQUESTS_PER_SECOND", value)
    with pytest.raises(ConfigurationProblem, match="TENANT_REQUESTS_PER_SECOND"):
        load_settings()


async def test_who_tries_many_keys_is_stopped_and_nobody_elsewhere_is(
    application: FastAPI, deployment: Deployment
) -> None:
    good = deployment.headers("globex")
    async with from_address(application, "192.0.2.1") as guesser:
        known = deployment.headers("acme")
        assert (await guesser.get(PATH, headers=known)).status_code == 200
        codes = [
            (await guesser.get(PATH, headers=invented(n))).status_code
            for n in range(REFUSED_BURST + 10)
        ]
        assert codes[:REFUSED_BURST] == [401] * REFUSED_BURST
        stopped = await guesser.get(PATH, headers=invented(10_000))
        assert stopped.status_code == 429
        assert int(stopped.headers["retry-after"]) >= 1
        # Behind the same proxy: a key that this process knows is not held up, a new one waits.
        assert (await guesser.get(PATH, headers=known)).status_code == 200
        assert (await guesser.get(PATH, headers=good)).status_code == 429
    async with from_address(application, "192.0.2.2") as elsewhere:
        assert (await elsewhere.get(PATH, headers=good)).status_code == 200
        assert (await elsewhere.get(PATH, headers=invented(0))).status_code == 401


async def test_one_caller_with_an_old_key_stops_nobody_but_itself(
    application: FastAPI, deployment: Deployment
) -> None:
    async with from_address(application, "192.0.2.1") as client:
        codes = [
            (await client.get(PATH, headers=invented(1))).status_code
            for _ in range(REFUSED_BURST + 10)
        ]
        assert codes[0] == 401
        assert codes[-1] == 429
        # Keys that this process has not seen before, good and bad.
        assert (await client.get(PATH, headers=deployment.headers())).status_code == 200
        assert (await client.get(PATH, headers=invented(2))).status_code == 401


async def test_a_stopped_guess_does_not_reach_the_database(
    application: FastAPI, deployment: Deployment
) -> None:
    asked = 0
    source = application.state.services.authenticator._source
    really = source.tenant

    async def counted(api_key: str) -> object:
        nonlocal asked
        asked += 1
        return await really(api_key)

    source.tenant = counted
    async with from_address(application, "192.0.2.1") as guesser:
        for n in range(3 * REFUSED_BURST):
            await guesser.get(PATH, headers=invented(n))
    assert REFUSED_BURST <= asked < 2 * REFUSED_BURST


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    bucket = Bucket(3.0, 0.0)
    assert [bucket.take(0.0, 3, 2.0) for _ in range(4)] == [0, 0, 0, 0.5]
    assert bucket.take(0.5, 3, 2.0) == 0
    assert bucket.take(0.5, 3, 2.0) == pytest.approx(0.5)
    assert [bucket.take(1e6, 3, 2.0) for _ in range(4)] == [0, 0, 0, 0.5]


def test_buckets_are_bounded_and_the_ones_in_use_stay() -> None:
    buckets = Buckets(1.0, 0.001, buckets_max=100)
    assert buckets.take("busy", 0.0) == 0
    for number in range(1000):
        buckets.take(number, 0.0)
        assert buckets.take("busy", 0.0) > 0, "a flood of others gives nobody a new burst"
    assert len(buckets) == 100


def test_floods_of_addresses_and_keys_take_bounded_memory() -> None:
    limits = RequestLimits(boot_seconds=Clock())
    for number in range(25_000):
        limits.count_refused(f"10.0.{number // 250}.{number % 250}", f"eb_{number}")
    assert len(limits._addresses) <= 10_000
    assert len(limits._keys) <= 10_000


def test_a_network_of_ipv6_is_one_client() -> None:
    assert address_of("2001:db8::1") == address_of("2001:db8::ffff:1")
    assert address_of("2001:db8::1") != address_of("2001:db8:0:1::1")
    assert address_of("::ffff:192.0.2.1") == address_of("192.0.2.1") == "192.0.2.1"
    assert address_of("fe80::1%eth0") == address_of("fe80::2")
    assert address_of(None) == address_of("") == ""


def test_a_refused_request_does_not_make_the_wait_longer() -> None:
    clock = Clock()
    limits = RequestLimits(1.0, 1, boot_seconds=clock)
    limits.admit(UUID(int=1))
    for _ in range(10):
        with pytest.raises(RateLimited):
            limits.admit(UUID(int=1))
    clock.now += 1.0
    limits.admit(UUID(int=1))
