"""What a key may do: every route asks for a right, and a key without it gets 403."""

from __future__ import annotations

import asyncio
from importlib.resources import files
from uuid import UUID

import psycopg
import pytest
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute

from api.deployment import Deployment, charge
from effect_broker.api.rights import OPEN, RIGHTS, RightMissing, check_routes
from effect_broker.authentication import CACHE_SECONDS
from effect_broker.intake import Scope, Tenant
from effect_broker.store.pool import Pool
from effect_broker.store.tenants import Tenants
from security.routes import routes_of

IDS = {
    "effect_id": str(UUID(int=7)),
    "hold_id": str(UUID(int=7)),
    "drill_id": str(UUID(int=7)),
    "decision_id": "no-such-decision",
    "subscription_id": str(UUID(int=7)),
    "ordinal": "1",
    "tenant": "nobody",
    "tool": "no.such_tool",
    "contract": "no-such-contract",
}
# All that a key of one right may not do.
OTHERS = {
    Scope.SUBMIT: {"read", "operate", "admin"},
    Scope.READ: {"submit", "operate", "admin"},
    Scope.OPERATE: {"effects", "admin"},
    Scope.ADMIN: {"effects", "operate"},
}


async def bearer(pool: Pool, *scopes: str) -> dict[str, str]:
    made = await Tenants(pool).create_key("acme", scopes)
    return {"Authorization": f"Bearer {made.api_key}"}


def test_the_tables_name_the_routes_that_there_are_and_no_others(application: FastAPI) -> None:
    assert {route.name for route in routes_of(application)} == RIGHTS.keys() | OPEN.keys()
    assert not RIGHTS.keys() & OPEN.keys()
    assert set(RIGHTS.values()) == set(Scope) - {Scope.EFFECTS}


async def test_every_route_refuses_a_key_without_its_right_and_takes_one_with_it(
    application: FastAPI, deployment: Deployment, admin_pool: Pool
) -> None:
    held = {right: await bearer(admin_pool, right.value) for right in OTHERS}
    lacking = {right: await bearer(admin_pool, *others) for right, others in OTHERS.items()}
    tried = set()
    async with deployment.client(application, None) as client:
        for route in routes_of(application):
            right = RIGHTS.get(route.name)
            if right is None:
                continue
            refused = await route.ask(client, IDS, lacking[right])
            assert (refused.status_code, refused.json()["code"]) == (403, "forbidden"), route
            assert refused.json()["scope"] == right.value, route
            let_in = await route.ask(client, IDS, held[right])
            assert let_in.status_code not in {401, 403, 405, 500, 503}, (route, let_in.text)
            tried.add(route.name)
    assert tried == set(RIGHTS)
    # Of all that, what was let in made what it makes, once.
    assert deployment.count("effect_intents") == 1
    assert deployment.count("holds") == 1
    assert deployment.count("drills") == 1


async def test_a_refused_key_has_no_say_before_its_body_is_read(
    application: FastAPI, deployment: Deployment, admin_pool: Pool
) -> None:
    headers = await bearer(admin_pool, "read") | {"Content-Type": "text/plain"}
    async with deployment.client(application, None) as client:
        answer = await client.post("/v1/effects", content=b"no json", headers=headers)
        assert answer.status_code == 403
        nobody = await client.post("/v1/effects", content=b"no json")
        assert nobody.status_code == 401


async def test_the_short_scope_is_to_submit_and_to_read_and_nothing_else(
    application: FastAPI, deployment: Deployment
) -> None:
    async with deployment.client(application) as client:
        assert (await client.post("/v1/effects", json=charge())).status_code == 202
        assert (await client.get("/v1/effects")).status_code == 200
        for route in routes_of(application):
            if RIGHTS.get(route.name) in {Scope.OPERATE, Scope.ADMIN}:
                assert (await route.ask(client, IDS, {})).status_code == 403, route


@pytest.mark.parametrize("named", [True, False])
def test_a_route_that_names_no_right_keeps_the_application_from_starting(named: bool) -> None:
    router = APIRouter()

    @router.get("/v1/effects" if named else "/v1/new")
    async def route() -> None: ...

    made = [route for route in router.routes if isinstance(route, APIRoute)]
    if named:
        check_routes(made)
        return
    with pytest.raises(RightMissing, match="GET /v1/new"):
        check_routes(made)


async def test_a_key_ends_with_its_time(
    application: FastAPI, deployment: Deployment, admin_pool: Pool
) -> None:
    """Within the time for which an answer about a key is remembered, as for a revoked one."""
    made = await Tenants(admin_pool).create_key("acme", ("effects",), expires_seconds=1.0)
    headers = {"Authorization": f"Bearer {made.api_key}"}
    async with deployment.client(application, None) as client:
        assert (await client.get("/v1/effects", headers=headers)).status_code == 200
        assert made.expires_at is not None
        await asyncio.sleep(1.0 + CACHE_SECONDS)
        ended = await client.get("/v1/effects", headers=headers)
        unknown = await client.get(
            "/v1/effects", headers={"Authorization": "Bearer eb_" + "A" * 43}
        )
    assert ended.status_code == 401
    assert ended.content == unknown.content
    (listed,) = [k for k in await Tenants(admin_pool).keys("acme") if k.key_id == made.key_id]
    assert listed.expires_in_seconds is not None
    assert listed.expires_in_seconds < 0
    assert listed.revoked_at is None


async def test_a_key_that_has_ended_opens_no_console_and_keeps_none_open(
    application: FastAPI, deployment: Deployment, admin_pool: Pool
) -> None:
    made = await Tenants(admin_pool).create_key("acme", ("effects", "operate"), 3600.0)
    tenant = Tenant(made.tenant_id, "ring-1", str(made.key_id))
    sessions = application.state.services.console.sessions
    assert await sessions.begin("first", tenant)
    found = await sessions.find("first")
    assert found is not None
    assert found.expires_at == made.expires_at, "a session outlives no key"
    deployment.execute(
        "UPDATE effect_broker.api_keys SET created_at = created_at - interval '2 hours',"
        f" expires_at = clock_timestamp() WHERE key_id = '{made.key_id}'"
    )
    assert await sessions.find("first") is None
    assert not await sessions.begin("second", tenant)


def test_keys_from_before_the_rights_were_separate_may_what_they_could(
    deployment: Deployment,
) -> None:
    """The migration itself, as the owner, who is bound by row-level security."""
    before_and_after = {
        ("effects",): {"effects"},
        ("effects", "operate"): {"effects", "operate", "admin"},
        ("operate",): {"operate", "effects", "admin"},
        ("orders:read",): {"orders:read", "effects"},
        (): {"effects"},
    }
    text = (files("effect_broker.store.migrations") / "sql" / "0017_key_expiry.sql").read_text()
    with psycopg.connect(deployment.database.superuser_url) as connection:
        connection.execute("ALTER TABLE effect_broker.api_keys DROP COLUMN expires_at")
        tenants = connection.execute("SELECT tenant_id FROM effect_broker.tenants").fetchall()
        for scopes in before_and_after:
            connection.execute(
                "INSERT INTO effect_broker.api_keys (key_id, tenant_id, key_hash, scopes)"
                " VALUES (gen_random_uuid(), %s, sha256(%s), %s)",
                [tenants[0][0], repr(scopes).encode(), list(scopes)],
            )
        connection.execute("SET LOCAL ROLE effect_broker_owner")
        connection.execute(text.encode())
        connection.execute("RESET ROLE")
        for scopes, expected in before_and_after.items():
            row = connection.execute(
                "SELECT scopes FROM effect_broker.api_keys WHERE key_hash = sha256(%s)",
                [repr(scopes).encode()],
            ).fetchone()
            assert row is not None
            assert (set(row[0]), len(row[0])) == (expected, len(expected))
        forced = connection.execute(
            "SELECT relforcerowsecurity FROM pg_class"
            " WHERE oid = 'effect_broker.api_keys'::regclass"
        ).fetchone()
        assert forced == (True,)
        connection.rollback()
