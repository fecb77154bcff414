"""The receipt of a settled effect, as the API shows it: signed, and good without this broker."""

from __future__ import annotations

import json
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import httpx

from api.deployment import Deployment, charge, entry, in_doubt, just_now
from effect_broker import assembly
from effect_broker.config import load_settings
from effect_broker.keyring import key_ring, ring_public_keys
from effect_broker.protocol import wishes
from effect_contracts.signed_receipts import Verdict, read_signed_receipt, verify_signed_receipt

PATH = "/v1/effects"


def verified(answer: dict[str, Any]) -> Verdict:
    keys = ring_public_keys(key_ring(load_settings()))
    document = read_signed_receipt(json.dumps(answer["document"]).encode())
    return verify_signed_receipt(document, keys)


async def receipt_of(api: httpx.AsyncClient, effect_id: str) -> dict[str, Any]:
    answer = await api.get(f"{PATH}/{effect_id}/receipt")
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    assert json.loads(body["document"]["content"]) == body["receipt"]
    assert body["document"]["digest"] == body["digest"]
    return body


async def test_a_success_is_signed(api: httpx.AsyncClient, deployment: Deployment) -> None:
    deployment.make_ledger()
    made = (await api.post(PATH, json=entry())).json()
    await deployment.settle(made["effect_id"])
    body = await receipt_of(api, made["effect_id"])
    assert [one["key_id"] for one in body["signatures"]] == ["ring-1"]
    assert body["signatures"][0]["signed_at"] >= body["receipt"]["settled_at"][:19]
    assert verified(body).verified_by == ("ring-1",)
    assert body["receipt"]["state"] == "succeeded"


async def test_a_failure_is_signed(api: httpx.AsyncClient, deployment: Deployment) -> None:
    made = (await api.post(PATH, json=charge(send_before="2020-01-01T00:00:00Z"))).json()
    await deployment.settle(made["effect_id"])
    body = await receipt_of(api, made["effect_id"])
    assert body["receipt"]["state"] == "failed_final"
    assert verified(body).good


async def test_a_cancellation_is_signed(operator: httpx.AsyncClient) -> None:
    made = (await operator.post(PATH, json=charge())).json()
    assert (await operator.post(f"{PATH}/{made['effect_id']}/cancel")).status_code == 200
    body = await receipt_of(operator, made["effect_id"])
    assert body["receipt"]["state"] == "cancelled"
    assert verified(body).good


async def test_the_verdict_of_a_person_is_signed(
    api: httpx.AsyncClient, operator: httpx.AsyncClient, deployment: Deployment
) -> None:
    for conclusion, state in (("committed", "succeeded"), ("failed", "failed_final")):
        effect_id = await in_doubt(api, deployment, f"order-{conclusion}")
        statement = {
            "decision_id": f"d-{conclusion}",
            "expected_version": 2,
            "conclusion": conclusion,
            "reason": "seen at the target",
            "evidence": [{"kind": "dashboard", "observed_at": just_now(), "reference": "r"}],
        }
        resolved = await operator.post(f"{PATH}/{effect_id}/resolve", json=statement)
        assert resolved.status_code == 200, resolved.text
        body = await receipt_of(api, effect_id)
        assert body["receipt"]["state"] == state
        assert verified(body).good


async def test_a_ring_without_a_signing_key_settles_all_the_same(
    deployment: Deployment, api: httpx.AsyncClient
) -> None:
    ring = json.loads(deployment.ring.read_text())
    del ring["signing"]
    deployment.ring.write_text(json.dumps(ring))
    deployment.make_ledger()
    made = (await api.post(PATH, json=entry())).json()
    await deployment.settle(made["effect_id"])
    body = await receipt_of(api, made["effect_id"])
    assert body["signatures"] == []
    assert body["document"]["signatures"] == []


async def test_a_worker_as_it_is_put_together_signs(
    api: httpx.AsyncClient, deployment: Deployment
) -> None:
    made = (await api.post(PATH, json=charge())).json()
    login = assembly.DatabaseLogin(deployment.environment["EFFECT_BROKER_WORKER_DATABASE_URL"], "t")
    plan = partial(wishes.cancel, receipt_id=uuid4(), actor="operator:test")
    async with assembly.worker(load_settings(), login) as (worker, _):
        store = worker._ports.store
        await store.change(deployment.tenant_ids["acme"], UUID(made["effect_id"]), plan)
    assert verified(await receipt_of(api, made["effect_id"])).verified_by == ("ring-1",)
