"""Readiness tells whether submits can be accepted, and an outage is an answer, not a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx
import psycopg
import pytest
from fastapi import FastAPI

from api.deployment import Deployment, charge
from effect_broker.store.pool import make_pool
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.runs import PostgresWorkerStore

PATH = "/v1/effects"


@contextmanager
def _outage(deployment: Deployment) -> Iterator[None]:
    """The database lets nobody in and has thrown out who was there."""
    name = deployment.database.name
    base = deployment.database.superuser_url.replace(f"/{name}", "/postgres")
    with psycopg.connect(base, autocommit=True) as connection:

        def switch(allowed: str) -> None:
            connection.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS {allowed}".encode())

        switch("false")
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
        )
        try:
            yield
        finally:
            switch("true")


async def test_the_process_answers_whatever_the_database_does(
    api: httpx.AsyncClient, deployment: Deployment
) -> None:
    with _outage(deployment):
        answer = await api.get("/healthz")
    assert answer.json()["status"] == "ok"


async def test_without_a_live_worker_it_is_degraded_and_ready(api: httpx.AsyncClient) -> None:
    answer = await api.get("/readyz")
    assert answer.status_code == 200
    assert answer.json() == {
        "status": "degraded",
        "checks": {
            "database": "ok",
            "key_ring": "ok",
            "schema": "ok",
            "engine": "ok",
            "workers": "none",
        },
    }


async def test_with_a_live_worker_it_is_ready(
    api: httpx.AsyncClient, deployment: Deployment
) -> None:
    url = deployment.database.url_for(DatabaseRole.WORKER)
    async with make_pool(url, None, application_name="test-worker", size_max=1) as pool:
        await PostgresWorkerStore(pool).beat("executor-1", 60.0)
    answer = await api.get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (200, "ok")


async def test_without_the_engines_schema_submits_are_still_accepted(
    api: httpx.AsyncClient, deployment: Deployment
) -> None:
    deployment.execute("DROP SCHEMA dbos CASCADE")
    answer = await api.get("/readyz")
    assert (answer.status_code, answer.json()["checks"]["engine"]) == (200, "missing")
    assert (await api.post(PATH, json=charge())).status_code == 202
    assert deployment.count("effect_intents") == 1


async def test_an_older_schema_is_not_ready(api: httpx.AsyncClient, deployment: Deployment) -> None:
    deployment.execute("UPDATE effect_broker.alembic_version SET version_num = '0000'")
    answer = await api.get("/readyz")
    assert (answer.status_code, answer.json()["checks"]["schema"]) == (503, "older")


async def test_a_database_that_takes_no_writes_is_not_ready(deployment: Deployment) -> None:
    name = deployment.database.name
    deployment.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    async with deployment.application() as app, deployment.client(app) as client:
        answer = await client.get("/readyz")
        assert (answer.status_code, answer.json()["checks"]["database"]) == (503, "read_only")
        refused = await client.post(PATH, json=charge())
    assert (refused.status_code, refused.json()["code"]) == (503, "storage_unavailable")
    assert refused.headers["retry-after"] == "1"


async def test_an_outage_is_503_with_retry_after_and_ends_with_the_outage(
    api: httpx.AsyncClient, deployment: Deployment
) -> None:
    await api.post(PATH, json=charge())
    with _outage(deployment):
        ready, submit, read = await asyncio.gather(
            api.get("/readyz"), api.post(PATH, json=charge("key-2")), api.get(PATH)
        )
        assert (ready.status_code, ready.json()["status"]) == (503, "unavailable")
        for answer in (submit, read):
            assert (answer.status_code, answer.json()["code"]) == (503, "storage_unavailable")
            assert answer.headers["retry-after"] == "1"
            assert answer.headers["content-type"] == "application/problem+json"
    async with asyncio.timeout(20):
        # Each refusal takes as long as the pool waits for a connection, so this does not spin.
        while (again := await api.post(PATH, json=charge("key-2"))).status_code == 503:
            pass
    assert again.status_code == 202


CARD_NUMBER = "4242" * 4


class _Broken:
    """A part that fails in a way nobody expected, with an argument in the text."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(CARD_NUMBER)


async def test_an_unexpected_error_tells_nothing_of_itself(
    api: httpx.AsyncClient, application: FastAPI, caplog: pytest.LogCaptureFixture
) -> None:
    broken = _Broken()
    application.state.services = replace(application.state.services, reads=broken, intake=broken)
    for answer in (await api.get(PATH), await api.post(PATH, json=charge())):
        assert (answer.status_code, answer.json()["code"]) == (500, "internal")
        assert answer.headers["content-type"] == "application/problem+json"
        assert CARD_NUMBER not in answer.text
    assert CARD_NUMBER not in caplog.text
    assert "unexpected RuntimeError" in caplog.text


async def test_a_key_ring_that_lacks_a_tenants_key_is_degraded_and_one_that_lacks_all_is_not_ready(
    api: httpx.AsyncClient, deployment: Deployment
) -> None:
    deployment.execute(
        "UPDATE effect_broker.tenants SET hmac_key_id = 'ring-2' WHERE name = 'acme'"
    )
    some = await api.get("/readyz")
    assert (some.status_code, some.json()["status"]) == (200, "degraded")
    assert some.json()["checks"]["key_ring"] == "lacks_keys"
    deployment.execute("UPDATE effect_broker.tenants SET hmac_key_id = 'ring-2'")
    none = await api.get("/readyz")
    assert (none.status_code, none.json()["status"]) == (503, "unavailable")
    assert none.json()["checks"]["key_ring"] == "lacks_keys"
    # It is as readiness says.
    refused = await api.post(PATH, json=charge())
    assert (refused.status_code, refused.json()["code"]) == (500, "key_ring_missing")
    # The key of a tenant that is not served is not missed.
    deployment.execute(
        "UPDATE effect_broker.tenants SET disabled_at = now() WHERE name = 'acme';"
        "UPDATE effect_broker.tenants SET hmac_key_id = 'ring-1' WHERE name = 'globex'"
    )
    assert (await api.get("/readyz")).json()["checks"]["key_ring"] == "ok"
