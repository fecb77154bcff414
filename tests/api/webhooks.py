"""A provider that signs what it delivers, and a contract that says how it is believed."""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx

from api.deployment import Deployment
from effect_broker.config import load_settings
from effect_broker.evidence_matching import Matching, match_due
from effect_broker.keyring import AesVault, key_ring, ring_signer
from effect_broker.store.catalogue import Catalogue
from effect_broker.store.inbox import PostgresInbox
from effect_broker.store.pool import Pool, make_pool
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.runs import PostgresWorkerStore
from effect_contracts.catalog import catalog_documents
from effect_contracts.document import ContractDocument

SECRET_VARIABLE = "EFFECT_BROKER_WEBHOOK_KEY_TEST"
SECRET = "whsec_of_the_test"
NAME = "hooked-charge"

SECTION: dict[str, Any] = {
    "scheme": {"kind": "stripe"},
    "secrets": [f"env:{SECRET_VARIABLE}"],
    "delivery_id": "id",
    "committed": "type == 'charge.succeeded'",
    "failed": "type == 'charge.failed'",
    "key_match": {"kind": "field", "path": "data.object.metadata.key"},
    "agree": {
        "/amount": "data.object.amount",
        "/currency": "data.object.currency",
        "/order": "data.object.metadata.order",
    },
    "extraction": {
        "external_id": "data.object.id",
        "result": "data.object",
        "receipt_fields": {"amount": "data.object.amount"},
    },
}


def hooked(version: str = "1", name: str = NAME, **members: Any) -> ContractDocument:
    """An unsafe contract of the tool `demo.charge` with a webhook; None removes a member."""
    content = json.loads(catalog_documents()["demo-charge-unsafe"].canonical())
    content |= {"name": name, "version": version, "tool": "demo.charge", "webhook": SECTION}
    content |= members
    return ContractDocument.parse_yaml(
        json.dumps({name: member for name, member in content.items() if member is not None})
    )


async def apply(deployment: Deployment, *documents: ContractDocument) -> None:
    """Make contracts the active ones of their tools."""
    url = deployment.database.url_for(DatabaseRole.ADMIN)
    async with make_pool(url, None, application_name="test-admin", size_max=1) as pool:
        for document in documents:
            await Catalogue(pool).apply(document)


def event(key: str, *, kind: str = "charge.succeeded", **changes: Any) -> dict[str, Any]:
    """An event of the provider about a charge under `key`; `changes` are of the charge."""
    charge = {"id": "ch_1", "amount": 1200, "currency": "eur",
              "metadata": {"key": key, "order": "42"}}  # fmt: skip
    return {"id": f"evt_{uuid4().hex}", "type": kind, "data": {"object": charge | changes}}


@dataclass(frozen=True, slots=True)
class Provider:
    """Delivers to the endpoint of one contract of one tenant."""

    http: httpx.AsyncClient
    deployment: Deployment
    tenant: str = "acme"
    contract: str = NAME
    secret: str = SECRET

    def signed(self, body: bytes, *, age_seconds: float = 0.0) -> dict[str, str]:
        """The header of a delivery that was signed that long ago, by the database's clock."""
        (row,) = self.deployment.execute("SELECT extract(epoch FROM clock_timestamp())")
        time = int(float(row[0]) - age_seconds)
        made = hmac.new(self.secret.encode(), b"%d." % time + body, hashlib.sha256).hexdigest()
        return {"Stripe-Signature": f"t={time},v1={made}", "Content-Type": "application/json"}

    async def deliver(
        self, what: dict[str, Any] | bytes, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        """Deliver an event, or bytes; signed now unless headers are given."""
        body = what if isinstance(what, bytes) else json.dumps(what, ensure_ascii=False).encode()
        return await self.http.post(
            f"/v1/evidence/{self.tenant}/{self.contract}",
            content=body,
            headers=self.signed(body) if headers is None else headers,
        )

    async def told(self, what: dict[str, Any] | bytes) -> str:
        """Deliver and return what has become of it."""
        answer = await self.deliver(what)
        assert answer.status_code == 200, answer.text
        assert answer.json()["duplicate"] is False
        return str(answer.json()["status"])

    def key_of(self, effect_id: str) -> str:
        """The downstream key of an effect, as the provider has got it."""
        ((key,),) = self.deployment.execute(
            f"SELECT downstream_key FROM effect_broker.effect_intents"
            f" WHERE effect_id = '{effect_id}'"
        )
        return str(key)


async def match_now(deployment: Deployment) -> int:
    """Do what a worker's tick does with deliveries that are due, with the real store."""
    url = deployment.database.url_for(DatabaseRole.WORKER)
    ring = key_ring(load_settings())
    pool: Pool
    async with make_pool(url, None, application_name="test-worker", size_max=2) as pool:
        inbox = PostgresInbox(pool)
        effects = PostgresWorkerStore(pool, signer=ring_signer(ring))
        matching = Matching(inbox, effects, AesVault(ring), uuid4)
        return await match_due(inbox, matching)


def make_due(deployment: Deployment, age: str = "0 s") -> None:
    """Let every waiting delivery be due, as if it had come `age` ago."""
    deployment.execute(
        "UPDATE effect_broker.evidence_inbox SET next_match_at = clock_timestamp(),"
        f" received_at = received_at - interval '{age}' WHERE next_match_at IS NOT NULL"
    )


async def shown(api: httpx.AsyncClient, effect_id: str) -> dict[str, Any]:
    """The effect as a caller sees it."""
    effect: dict[str, Any] = (await api.get(f"/v1/effects/{effect_id}")).json()
    return effect


def only_row(deployment: Deployment) -> dict[str, Any]:
    """The only delivery as stored."""
    ((row,),) = deployment.execute("SELECT to_jsonb(d) FROM effect_broker.evidence_inbox AS d")
    found: dict[str, Any] = row
    return found
