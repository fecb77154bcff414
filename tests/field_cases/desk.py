"""The operator's desk in the field cases: over HTTP, with an API key that may resolve."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import httpx

from effect_broker.store.pool import make_pool
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.tenants import Tenants
from field_cases.cases import Case

TENANT = "proof"


def new_api_key(case: Case, scopes: Sequence[str] = ("effects",)) -> str:
    """Make a further API key of the tenant, and return it."""

    async def work() -> str:
        url = case.broker.url(DatabaseRole.ADMIN)
        async with make_pool(url, None, application_name="field-case", size_max=1) as pool:
            return (await Tenants(pool).create_key(TENANT, tuple(scopes))).api_key

    return asyncio.run(work())


class Desk:
    """One operator, who looks at an effect and says what is known of it."""

    def __init__(self, case: Case) -> None:
        self._case = case
        base_url = str(case.broker.http.base_url)
        self._http = case.broker.client(base_url, new_api_key(case, ("effects", "operate")))
        self._decisions = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def resolve(
        self, effect_id: str, conclusion: str, *, external_id: str | None = None
    ) -> httpx.Response:
        """Say `committed`, `not_committed` or `failed`, on an observation that begins now."""
        self._decisions += 1
        seen_at = self._case.scene.value("SELECT clock_timestamp()")
        statement: dict[str, Any] = {
            "decision_id": f"{self._case.name}:{self._decisions}",
            "expected_version": self._case.scene.intent(effect_id)["version"],
            "conclusion": conclusion,
            "reason": "seen in the target's books",
            "evidence": [
                {"kind": "dashboard", "observed_at": seen_at.isoformat(), "reference": "books"}
            ],
        }
        if external_id is not None:
            statement["external_id"] = external_id
        return self._http.post(f"/v1/effects/{effect_id}/resolve", json=statement)

    def reconcile(self, effect_id: str) -> bool:
        """Ask the broker to look now; whether that changed anything."""
        answer = self._http.post(f"/v1/effects/{effect_id}/reconcile")
        answer.raise_for_status()
        changed: bool = answer.json()["changed"]
        return changed
