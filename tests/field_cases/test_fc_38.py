"""FC-38: one key, two tenants: the second must neither see nor block the first."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest

from effect_broker.intake import Scope
from effect_broker.proof.broker import KEY_ID, wait_until
from effect_broker.proof.contracts import charge
from effect_broker.store.pool import make_pool
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.tenants import Tenants
from field_cases.cases import SETTLE_SECONDS, Case
from field_cases.raw import refused

# Every way to name an effect by its id, and what a caller would send there.
BY_ID: tuple[tuple[str, str, dict[str, Any] | None], ...] = (
    ("GET", "", None),
    ("GET", "/receipt", None),
    ("POST", "/reconcile", None),
    ("POST", "/cancel", None),
    (
        "POST",
        "/resolve",
        {
            "decision_id": "decision-1",
            "expected_version": 1,
            "conclusion": "failed",
            "reason": "a guess at somebody else's effect",
            "evidence": [
                {
                    "kind": "dashboard",
                    "observed_at": "2026-01-01T00:00:00Z",
                    "reference": "https://dashboard.example.com/1",
                }
            ],
        },
    ),
)
TIMED = 40


@pytest.fixture
def other(case: Case) -> Iterator[httpx.Client]:
    """A caller of another tenant."""
    with tenant(case, f"other-{case.name}") as client:
        yield client


def tenant(case: Case, name: str) -> httpx.Client:
    """Make a tenant; return a caller of it who may do all that there is."""
    broker = case.broker

    async def work() -> str:
        url = broker.url(DatabaseRole.ADMIN)
        async with make_pool(url, None, application_name="field-case", size_max=1) as pool:
            tenants = Tenants(pool)
            await tenants.create(name, KEY_ID)
            return (await tenants.create_key(name, tuple(Scope))).api_key

    return broker.client(str(broker.http.base_url), asyncio.run(work()))


def post(client: httpx.Client, tool: str, key: str, **changes: Any) -> httpx.Response:
    body = {"operation_key": key, "tool": tool, "arguments": charge("1"), **changes}
    return client.post("/v1/effects", json=body)


def settled(client: httpx.Client, effect_id: str) -> dict[str, Any]:
    def seen() -> dict[str, Any] | None:
        body: dict[str, Any] = client.get(f"/v1/effects/{effect_id}").raise_for_status().json()
        return body if body["final"] or body["waits_for_person"] else None

    return wait_until(seen, "settled", SETTLE_SECONDS)


@pytest.mark.parametrize("amount", [1200, 7], ids=["same payload", "other payload"])
def test_fc_38_the_same_key_of_two_tenants_is_two_effects(
    case: Case, other: httpx.Client, amount: int
) -> None:
    offer = case.offer("idempotent")
    mine = offer.submit()
    answer = post(other, offer.tool, offer.key(), arguments=charge("1", amount))
    assert answer.status_code == 202, answer.text
    theirs = answer.json()["effect_id"]
    assert theirs != mine
    assert answer.json()["replayed"] is False
    offer.judge(mine, state="succeeded", requests=1, effects=1)
    assert settled(other, theirs)["state"] == "succeeded"
    ledger = offer.ledger()
    assert (ledger.arrivals, ledger.effects, len(ledger.keys)) == (2, 2, 2)
    (result,) = {
        other.get(f"/v1/effects/{theirs}/receipt").json()["result"]["id"],
    }
    assert result != offer.receipt(mine)["external_id"]


def test_fc_38_an_id_of_another_tenant_is_a_missing_id(case: Case, other: httpx.Client) -> None:
    offer = case.offer("idempotent")
    mine = offer.submit()
    before = offer.judge(mine, state="succeeded", requests=1, effects=1)
    for method, path, body in BY_ID:
        answers = [
            other.request(method, f"/v1/effects/{effect_id}{path}", json=body)
            for effect_id in (mine, str(uuid4()))
        ]
        foreign, missing = (problem_of(answer) for answer in answers)
        assert foreign == missing, path
        refused(answers[0], "not_found", 404)
    listed = other.get("/v1/effects", params={"operation_prefix": offer.key()}).json()
    assert listed["effects"] == []
    after = offer.judge(mine, state="succeeded", requests=1, effects=1)
    assert after["version"] == before["version"]


def problem_of(answer: httpx.Response) -> tuple[int, dict[str, Any]]:
    """Status and body without the one member that repeats the path."""
    body: dict[str, Any] = answer.json()
    return answer.status_code, {k: v for k, v in body.items() if k != "instance"}


def test_fc_38_time_does_not_tell_a_foreign_id_from_a_missing_one(
    case: Case, other: httpx.Client
) -> None:
    offer = case.offer("idempotent")
    mine = offer.submit()
    offer.settled(mine)
    taken: dict[str, list[float]] = {"foreign": [], "missing": []}
    for _ in range(TIMED):
        for name, effect_id in (("foreign", mine), ("missing", str(uuid4()))):
            began = time.perf_counter()
            other.get(f"/v1/effects/{effect_id}")
            taken[name].append(time.perf_counter() - began)
    foreign, missing = (statistics.median(times) for times in taken.values())
    # One query that finds nothing, or a few more: a class, not a stopwatch.
    assert foreign < 3 * missing + 0.01
    assert missing < 3 * foreign + 0.01


def test_fc_38_the_tenant_comes_from_the_credential_alone(case: Case, other: httpx.Client) -> None:
    offer = case.offer("idempotent")
    for name in ("tenant", "tenant_id"):
        answer = post(other, offer.tool, offer.key(), **{name: case.broker.tenant_id})
        assert refused(answer, "invalid_request")["field"] == f"/{name}"
    header = {"X-Tenant-Id": case.broker.tenant_id}
    body = {"operation_key": offer.key(), "tool": offer.tool, "arguments": charge("1")}
    answer = other.post("/v1/effects", json=body, headers=header)
    assert answer.status_code == 202
    theirs = answer.json()["effect_id"]
    refused(case.broker.http.get(f"/v1/effects/{theirs}"), "not_found", 404)
    assert settled(other, theirs)["state"] == "succeeded"


def test_fc_38_no_delimiter_lets_two_pairs_meet(case: Case) -> None:
    offer = case.offer("idempotent")
    # A tenant's name holds no colon, so that the shapes to fear are these.
    name = case.name
    pairs = [(f"{name}.a", "b:c"), (f"{name}.a-b", "c"), (f"{name}.a-", "b:c"), (name, ".a-b:c")]
    ids = set()
    for tenant_name, key in pairs:
        with tenant(case, tenant_name) as client:
            answer = post(client, offer.tool, key)
            assert answer.status_code == 202, answer.text
            ids.add(answer.json()["effect_id"])
            assert settled(client, answer.json()["effect_id"])["state"] == "succeeded"
    assert len(ids) == len(pairs)
    assert len(offer.ledger().keys) == len(pairs)


def test_fc_38_the_same_key_for_another_tool_of_one_tenant_conflicts(case: Case) -> None:
    offer, second = case.offer("idempotent"), case.offer("idempotent")
    mine = offer.submit()
    answer = post(case.broker.http, second.tool, offer.key())
    problem = refused(answer, "payload_conflict", 409)
    assert (problem["field"], problem["effect_id"]) == ("/tool", mine)
    offer.judge(mine, state="succeeded", requests=1, effects=1)
    assert second.ledger().arrivals == 0
