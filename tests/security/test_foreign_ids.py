"""An id of another tenant is a missing id, on every route: in its answer and in what it costs."""

from __future__ import annotations

import copy
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx
import pytest
from fastapi import FastAPI

from api.deployment import Deployment, charge, in_doubt, just_now
from api.webhooks import NAME, apply, hooked
from effect_broker.api.rights import RIGHTS
from effect_broker.intake import Scope
from effect_broker.store.pool import Pool
from effect_broker.store.tenants import Tenants
from security.recording import plans, recorded
from security.routes import Route, routes_of

EVERY_RIGHT = [right.value for right in Scope]
# What stands for an id in texts that are compared.
MARK = "the-id"
_NOW = re.compile(rb'"(?:decided|observed)_at":"[^"]*"')


@dataclass(frozen=True, slots=True)
class Theirs:
    """What belongs to `globex`: an effect in doubt with all that a person can do to it."""

    effect_id: str
    request_hash: str
    hold_id: str
    drill_id: str
    decision_id: str
    subscription_id: str

    @property
    def ids(self) -> dict[str, str]:
        return {
            "effect_id": self.effect_id,
            "hold_id": self.hold_id,
            "drill_id": self.drill_id,
            "decision_id": self.decision_id,
            "subscription_id": self.subscription_id,
        }


MISSING = {
    "effect_id": str(uuid4()),
    "hold_id": str(uuid4()),
    "drill_id": str(uuid4()),
    "decision_id": "incident-8",
    "subscription_id": str(uuid4()),
}


@pytest.fixture
async def acme(
    application: FastAPI, deployment: Deployment, admin_pool: Pool
) -> AsyncIterator[httpx.AsyncClient]:
    """A caller of `acme` who may do everything there."""
    async with of_tenant(application, admin_pool, "acme") as client:
        yield client


@pytest.fixture
async def globex(
    application: FastAPI, deployment: Deployment, admin_pool: Pool
) -> AsyncIterator[httpx.AsyncClient]:
    """A caller of `globex` who may do everything there."""
    async with of_tenant(application, admin_pool, "globex") as client:
        yield client


@asynccontextmanager
async def of_tenant(
    application: FastAPI, pool: Pool, tenant: str
) -> AsyncIterator[httpx.AsyncClient]:
    made = await Tenants(pool).create_key(tenant, EVERY_RIGHT)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(application),
        base_url="http://broker",
        headers={"Authorization": f"Bearer {made.api_key}"},
    ) as client:
        yield client


@pytest.fixture
async def theirs(globex: httpx.AsyncClient, deployment: Deployment) -> Theirs:
    """One of everything that has an id."""

    async def made(path: str, body: dict[str, Any]) -> Any:
        answer = await globex.post(path, json=body)
        assert answer.is_success, answer.text
        return answer.json()

    drill = await made("/v1/drills", {"tool": "demo.post_entry", "reason": "a drill"})
    hold = await made("/v1/holds", {"tool": "demo.post_entry", "reason": "a hold"})
    subscribed = await made("/v1/subscriptions", {"url": "https://hooks.globex.example/"})
    effect_id = await in_doubt(globex, deployment, "theirs")
    example = (await globex.get(f"/v1/effects/{effect_id}")).json()
    decided = decision()
    decided["decision_id"] = "incident-9"
    decided["effects"][0]["effect_id"] = await in_doubt(globex, deployment, "decided")
    await made("/v1/decisions", decided)
    # Somebody has proposed a conclusion, so that there is one to confirm.
    deployment.execute(f"""
        INSERT INTO effect_broker.effect_proposals (
            tenant_id, effect_id, decision_id, expected_version, content, digest, actor)
        SELECT tenant_id, effect_id, 'incident-4711', version, content, digest, 'somebody'
        FROM effect_broker.effect_intents
        CROSS JOIN (SELECT content, digest FROM effect_broker.effect_resolutions LIMIT 1) AS r
        WHERE effect_id = '{effect_id}'
    """)
    return Theirs(
        effect_id,
        example["request_hash"],
        hold["hold_id"],
        drill["drill_id"],
        "incident-9",
        subscribed["subscription_id"],
    )


def decision() -> dict[str, Any]:
    """One decision on one effect, by a person who has just looked."""
    return {
        "decision_id": "incident-7",
        "group": {"tool": "demo.charge"},
        "conclusion": "committed",
        "reason": "All stand in the export.",
        "causes": ["The gateway answered 504 and charged."],
        "evidence": [{"kind": "export", "observed_at": just_now(), "reference": "s3://export/1"}],
        "effects": [{"effect_id": MARK, "expected_version": 2}],
    }


def good(route: Route, theirs: Theirs) -> Any:
    """The example of a route's body, as it would be good for the effect."""
    body = copy.deepcopy(route.body)
    if isinstance(body, dict):
        body |= {"expected_version": 2} if "expected_version" in body else {}
        body |= {"request_hash": theirs.request_hash} if "request_hash" in body else {}
        for item in body.get("evidence", ()):
            item["observed_at"] = just_now()
    return body


@dataclass(frozen=True, slots=True)
class Place:
    """A place of a request where an id can stand."""

    route: Route
    where: str
    kind: str

    def request(self, found: str, theirs: Theirs) -> dict[str, Any]:
        path = self.route.template
        body, query = good(self.route, theirs), {}
        if self.where == "path":
            path = path.format(**{**ORDINALS, self.kind: found})
        elif self.where.startswith("?"):
            query = {self.where[1:]: found}
        elif self.where == "/effects/0/effect_id":
            body = decision()
            body["effects"][0]["effect_id"] = found
            body["decision_id"] = f"incident-{found}"
        else:
            body = charge(f"mine-{found}") | {self.where[1:]: found}
        return {"method": self.route.method, "url": path, "json": body, "params": query}


# Numbers within an effect are no ids, and tools are the same for every tenant.
ORDINALS = {"ordinal": "1", "tool": "demo.charge"}

# Where a route takes an id of an effect elsewhere than in its path, by route.
ELSEWHERE = {
    ("POST", "/v1/decisions"): {"/effects/0/effect_id"},
    ("POST", "/v1/effects"): {"/parent_effect_id", "/compensates"},
    ("GET", "/v1/evidence"): {"?effect_id"},
    ("GET", "/v1/effects"): {"?parent"},
}
# An effect is missing here too; a list that is filtered by it is empty, and 200.
LISTS = {"?effect_id", "?parent"}


def places(application: FastAPI) -> Iterator[Place]:
    """Return every place of every route."""
    for route in routes_of(application):
        if route.name not in RIGHTS:
            continue
        for kind in (one for one in route.parameters if one not in ORDINALS):
            yield Place(route, "path", kind)
        for where in sorted(ELSEWHERE.get(route.name, ())):
            yield Place(route, where, "effect_id")


def _uuids(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        if value.get("format") == "uuid":
            yield path
        for name, member in value.items():
            yield from _uuids(member, f"{path}/{name}")
    elif isinstance(value, list):
        for member in value:
            yield from _uuids(member, path)


def test_the_walk_knows_every_place_where_a_request_names_an_id(application: FastAPI) -> None:
    named: dict[tuple[str, str], int] = {}
    for template, item in application.openapi()["paths"].items():
        for method, operation in item.items():
            asked = {k: v for k, v in operation.items() if k in {"parameters", "requestBody"}}
            count = len(set(_uuids(asked.get("requestBody", {}).get("content", {})))) + sum(
                1 for p in asked.get("parameters", []) if list(_uuids(p)) and p["in"] == "query"
            )
            if count:
                named[method.upper(), template] = count
    assert named == {name: len(where) for name, where in ELSEWHERE.items()}


async def test_an_id_of_another_tenant_is_answered_as_a_missing_one_on_every_route(
    application: FastAPI,
    acme: httpx.AsyncClient,
    globex: httpx.AsyncClient,
    theirs: Theirs,
    deployment: Deployment,
) -> None:
    before = _everything(deployment)
    tried = 0
    for place in places(application):
        foreign, missing = theirs.ids[place.kind], MISSING[place.kind]
        of_missing = await acme.request(**place.request(missing, theirs))
        of_foreign = await acme.request(**place.request(foreign, theirs))
        assert _as_told(of_foreign, foreign) == _as_told(of_missing, missing), place
        expected = 200 if place.where in {*LISTS, "/effects/0/effect_id"} else 404
        if place.where in {"/parent_effect_id", "/compensates"}:
            expected = of_missing.status_code
            assert expected in {404, 409, 422}, of_missing.text
        assert of_foreign.status_code == expected, (place, of_foreign.text)
        tried += 1
    assert tried >= 18
    assert _everything(deployment) == before
    # The same requests of their owner find what they name, so that all of this could have failed.
    # There is a receipt once the effect is resolved, and nothing once it is deleted.
    for place in sorted(
        places(application),
        key=lambda p: (p.route.method == "DELETE", p.route.template.endswith("receipt")),
    ):
        answer = await globex.request(**place.request(theirs.ids[place.kind], theirs))
        assert answer.status_code not in {404, 405, 500, 503}, (place, answer.text)


async def test_an_id_of_another_tenant_costs_what_a_missing_one_costs_on_every_route(
    application: FastAPI, acme: httpx.AsyncClient, theirs: Theirs, deployment: Deployment
) -> None:
    """The same statements in the same order, and the same plan of each."""
    mine = deployment.tenant_ids["acme"]
    planned = 0
    for place in places(application):
        foreign, missing = theirs.ids[place.kind], MISSING[place.kind]
        told = []
        for found in (missing, foreign):
            with recorded() as statements:
                await acme.request(**place.request(found, theirs))
            texts = [text for text, _ in statements]
            assert texts, place
            made = plans(deployment.database, mine, statements)
            planned += len(made)
            told.append((texts, [plan.replace(found, MARK) for plan in made]))
        of_missing, of_foreign = told
        assert of_foreign[0] == of_missing[0], place
        assert of_foreign[1] == of_missing[1], place
    assert planned > 50


async def test_the_address_of_a_webhook_does_not_tell_which_tenants_there_are(
    application: FastAPI, deployment: Deployment, acme: httpx.AsyncClient
) -> None:
    await apply(deployment, hooked())
    paths = [
        f"/v1/evidence/{tenant}/{contract}"
        for tenant in ("globex", "nobody")
        for contract in (NAME, "no-contract")
    ]
    told = set()
    for path in paths:
        answer = await acme.post(path, json={"id": "evt_1"})
        assert answer.status_code == 404
        told.add(answer.content.replace(path.encode(), b"path"))
    assert len(told) == 1


def _as_told(answer: httpx.Response, found: str) -> tuple[int, bytes, list[tuple[str, str]]]:
    """All that a caller sees, but for the id that was asked for, and when it was."""
    body = answer.content.replace(found.encode(), MARK.encode())
    if answer.is_success:
        body = _NOW.sub(b"", body)
    headers = [(k, v) for k, v in answer.headers.items() if k != "content-length"]
    return (answer.status_code, body, headers)


def _everything(deployment: Deployment) -> list[Any]:
    """All rows of `globex` that a request could have changed."""
    tenant_id = deployment.tenant_ids["globex"]
    return [
        deployment.execute(
            f"SELECT t::text FROM effect_broker.{table} AS t"
            f" WHERE tenant_id = '{tenant_id}' ORDER BY 1"
        )
        for table in ("effect_intents", "effect_events", "effect_resolutions", "holds", "drills")
    ]
