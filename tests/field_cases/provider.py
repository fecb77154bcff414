"""A provider that tells what it has done, by signed deliveries to an API process."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any, Final
from uuid import uuid4

import httpx

from field_cases.cases import Case, Document, Offer

SECRET_VARIABLE: Final = "EFFECT_BROKER_WEBHOOK_KEY_FIELD"
SECRET: Final = "of the field cases"


def listens(document: Document) -> None:
    """Let the contract believe the provider's webhook."""
    document["webhook"] = {
        "scheme": {"kind": "github"},
        "secrets": [f"env:{SECRET_VARIABLE}"],
        "delivery_id": "delivery",
        "committed": "event == 'charged'",
        "failed": "event == 'failed'",
        "key_match": {"kind": "field", "path": "key"},
        "agree": {"/amount": "amount", "/order": "order"},
        "extraction": {"external_id": "object"},
    }


class Provider:
    """Tells of the effects of an offer, by signed deliveries to an API process."""

    def __init__(self, case: Case, offer: Offer, http: httpx.Client) -> None:
        self._case, self._offer, self._http = case, offer, http

    def tells(self, effect_id: str, event: str = "charged", **changes: Any) -> str:
        """Deliver once; return the status of the delivery.

        It tells of the latest object of the effect, where `changes` do not say otherwise.
        """
        told = {
            "delivery": str(uuid4()),
            "event": event,
            "key": self._case.scene.intent(effect_id)["downstream_key"],
            "object": self._offer.effect_ids(effect_id)[-1],
            "order": "1",
            "amount": 1200,
            **changes,
        }
        return self.delivers(json.dumps(told).encode())

    def delivers(self, body: bytes, secret: str = SECRET) -> str:
        """Deliver bytes; return the status of the delivery, or that of the answer."""
        document = self._offer.document
        assert document is not None
        made = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
        answer = self._http.post(
            f"/v1/evidence/proof/{document.name}",
            content=body,
            headers={"X-Hub-Signature-256": f"sha256={made}"},
        )
        return str(answer.json()["status"])
