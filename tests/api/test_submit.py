"""Submitting over HTTP: one key is one intent, a replay is a replay, and drift is refused."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import httpx
import pytest
from fastapi import FastAPI

from api.deployment import CHARGE, Deployment, charge, versioned
from effect_broker.api.documentation import (
    CONFLICT_EXAMPLE,
    NEW_EXAMPLE,
    REPLAY_EXAMPLE,
    SUBMIT_EXAMPLE,
)
from effect_broker.store.catalogue import Catalogue
from effect_broker.store.pool import Pool
from effect_contracts.keys import effect_id

PATH = "/v1/effects"


def _shape(value: Any) -> Any:
    """The member names of a body, at every level; what the caller chose counts as content."""
    if isinstance(value, dict):
        return {name: _shape(member) for name, member in value.items() if name != "preview"}
    return None


async def test_a_new_intent_is_accepted_and_durable(
    api: httpx.AsyncClient, deployment: Deployment
) -> None:
    answer = await api.post(PATH, json=charge())
    body = answer.json()
    assert answer.status_code == 202
    assert body["state"] == "prepared"
    assert body["effect_id"] == str(effect_id(deployment.tenant_ids["acme"], "order:42:charge:v1"))
    assert answer.headers["location"] == f"{PATH}/{body['effect_id']}"
    assert deployment.count("effect_intents") == 1
    assert deployment.execute("SELECT count(*) FROM dbos.workflow_status") == [(1,)]


async def test_the_same_request_again_is_the_same_effect(
    api: httpx.AsyncClient, deployment: Deployment
) -> None:
    first = (await api.post(PATH, json=charge())).json()
    again = await api.post(
        PATH, content=b'{"arguments":{"currency":"eur","amount":1.2e3,"order":"42"},'
        b'"tool":"demo.charge","operation_key":"order:42:charge:v1"}',
        headers={"Content-Type": "application/json"},
    )  # fmt: skip
    assert again.status_code == 200
    assert again.json()["replayed"] is True
    assert again.json()["effect_id"] == first["effect_id"]
    assert deployment.count("effect_intents") == 1


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"arguments": {"order": "42", "amount": 1201, "currency": "eur"}}, "/arguments/amount"),
        ({"arguments": {"order": "42", "currency": "eur"}}, "/arguments/amount"),
        ({"arguments": {"order": "42", "amount": "1200", "currency": 1}}, "/arguments/amount"),
        ({"tool": "demo.post_entry"}, "/tool"),
        ({"tool": "no.such.tool"}, "/tool"),
    ],
)
async def test_another_request_under_the_key_is_refused_naming_the_field(
    api: httpx.AsyncClient, deployment: Deployment, changes: dict[str, Any], field: str
) -> None:
    """Also where the other request could not become an intent: the key is compared first."""
    first = (await api.post(PATH, json=charge())).json()
    answer = await api.post(PATH, json=charge() | changes)
    body = answer.json()
    assert answer.status_code == 409
    assert answer.headers["content-type"] == "application/problem+json"
    assert (body["code"], body["field"]) == ("payload_conflict", field)
    assert body["effect_id"] == first["effect_id"]
    assert deployment.count("effect_intents") == 1
    assert deployment.execute("SELECT count(*) FROM dbos.workflow_status") == [(1,)]


async def test_a_hundred_submits_of_one_key_at_once_make_one_intent(
    api: httpx.AsyncClient, deployment: Deployment
) -> None:
    answers = await asyncio.gather(*(api.post(PATH, json=charge()) for _ in range(100)))
    assert sorted(a.status_code for a in answers) == [200] * 99 + [202]
    assert len({a.json()["effect_id"] for a in answers}) == 1
    assert deployment.count("effect_intents") == 1
    assert deployment.execute("SELECT count(*) FROM dbos.workflow_status") == [(1,)]


async def test_the_same_key_of_two_tenants_is_two_effects(
    api: httpx.AsyncClient, deployment: Deployment, application: FastAPI
) -> None:
    ours = (await api.post(PATH, json=charge())).json()
    async with deployment.client(application, "globex") as other:
        answer = await other.post(PATH, json=charge(amount=7))
    assert answer.status_code == 202
    assert answer.json()["effect_id"] != ours["effect_id"]


async def test_a_contract_applied_before_a_submit_is_the_one_it_is_bound_to(
    api: httpx.AsyncClient, admin_pool: Pool
) -> None:
    # Within the second for which the API remembers the active contract.
    first = (await api.post(PATH, json=charge("order:1"))).json()
    await Catalogue(admin_pool).apply(versioned(CHARGE, "2"))
    second = (await api.post(PATH, json=charge("order:2"))).json()
    assert (first["contract"]["version"], second["contract"]["version"]) == ("1", "2")


async def test_a_new_contract_version_leaves_replays_replays(
    api: httpx.AsyncClient, deployment: Deployment, admin_pool: Pool
) -> None:
    first = (await api.post(PATH, json=charge())).json()
    # Version 2 demands what version 1 did not know, so that the old request could not be new.
    arguments = CHARGE.arguments | {"required": ["order", "amount", "currency", "reason"]}
    await Catalogue(admin_pool).apply(versioned(CHARGE, "2", arguments=arguments))
    await asyncio.sleep(1.1)  # what a process may still believe of the active contract
    again = await api.post(PATH, json=charge())
    assert again.status_code == 200
    assert again.json()["contract"]["version"] == first["contract"]["version"] == "1"
    drift = await api.post(PATH, json=charge(amount=1))
    assert drift.status_code == 409
    fresh = await api.post(PATH, json=charge("another-key"))
    assert (fresh.status_code, fresh.json()["code"]) == (422, "invalid_arguments")


async def test_the_documented_examples_are_what_the_api_answers(
    api: httpx.AsyncClient, deployment: Deployment
) -> None:
    schema = (await api.get("/openapi.json")).json()
    operation = schema["paths"][PATH]["post"]
    documented = operation["requestBody"]["content"]["application/json"]["example"]
    assert documented == SUBMIT_EXAMPLE
    new = await api.post(PATH, json=documented)
    assert (new.status_code, _shape(new.json())) == (202, _shape(NEW_EXAMPLE))
    assert new.json()["preview"] == NEW_EXAMPLE["preview"]
    replay = await api.post(PATH, json=documented)
    assert (replay.status_code, _shape(replay.json())) == (200, _shape(REPLAY_EXAMPLE))
    other = documented | {"arguments": documented["arguments"] | {"amount": 1}}
    conflict = await api.post(PATH, json=other)
    told = conflict.json()
    assert (conflict.status_code, _shape(told)) == (409, _shape(CONFLICT_EXAMPLE))
    alike = ("type", "title", "status", "detail", "code", "field", "instance")
    assert {name: told[name] for name in alike} == {name: CONFLICT_EXAMPLE[name] for name in alike}
    for status, example in (("200", REPLAY_EXAMPLE), ("202", NEW_EXAMPLE)):
        shown = operation["responses"][status]["content"]["application/json"]["example"]
        assert shown == example
    shown = operation["responses"]["409"]["content"]["application/problem+json"]["example"]
    assert shown == CONFLICT_EXAMPLE
    assert operation["security"]


async def test_what_is_stored_of_a_submit_holds_no_argument_in_the_clear(
    api: httpx.AsyncClient, deployment: Deployment
) -> None:
    body = charge()
    body["arguments"]["customer_email"] = "someone@example.com"
    answer = await api.post(PATH, json=body)
    assert answer.status_code == 202
    assert "someone" not in answer.text
    for table in ("effect_intents", "effect_events", "effect_payloads"):
        rows = deployment.execute(f"SELECT t::text FROM effect_broker.{table} t")
        assert rows
        assert not any("someone" in row[0] for row in rows)


async def test_who_asked_and_the_trace_are_kept(
    api: httpx.AsyncClient, deployment: Deployment
) -> None:
    moment = "2030-01-02T03:04:05+02:00"
    body = charge(trace_id="trace-7", send_before=moment)
    answer = (await api.post(PATH, json=body)).json()
    assert answer["trace_id"] == "trace-7"
    assert str(deployment.key_ids["acme"]) in answer["requested_by"]
    UUID(answer["effect_id"])
    stored = deployment.execute("SELECT send_before FROM effect_broker.effect_intents")
    assert stored[0][0].isoformat() == "2030-01-02T01:04:05+00:00"
