"""Bugs of the API. Each function plants one, in this process, and names it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

from effect_broker.authentication import CachedAuthentication
from effect_broker.intake import Intake, Tenant
from effect_broker.reading import EffectDetail, ReceiptRecord
from effect_broker.store.api import PostgresApiStore
from effect_chaos.planted.patching import replaced
from effect_contracts.receipts import receipt_content, receipt_digest


def accept_drift() -> None:
    def make(_: object) -> Callable[..., Any]:
        async def alike(*_: object) -> None:
            return None

        return alike

    replaced(Intake, "_compare", make)


def other_receipt() -> None:
    def make(honest: Callable[..., Any]) -> Callable[..., Any]:
        first: list[ReceiptRecord] = []

        async def remembered(store: object, *asked: object) -> ReceiptRecord | None:
            record: ReceiptRecord | None = await honest(store, *asked)
            if record is not None:
                first.append(replace(record, result=None))  # sealed for the first effect alone
            return first[0] if first else None

        return remembered

    replaced(PostgresApiStore, "receipt", make)


def rewritten_receipt() -> None:
    def make(honest: Callable[..., Any]) -> Callable[..., Any]:
        reads = 0

        async def rewritten(store: object, *asked: object) -> ReceiptRecord | None:
            nonlocal reads
            record: ReceiptRecord | None = await honest(store, *asked)
            if record is None:
                return None
            reads += 1
            content = receipt_content({**json.loads(record.content), "attempts": reads})
            return replace(record, content=content, digest=receipt_digest(content))

        return rewritten

    replaced(PostgresApiStore, "receipt", make)


def stale_reads() -> None:
    def make(honest: Callable[..., Any]) -> Callable[..., Any]:
        first: dict[UUID, EffectDetail] = {}
        shown_final: set[UUID] = set()

        async def cached(store: object, tenant_id: UUID, effect_id: UUID) -> EffectDetail:
            detail: EffectDetail = await honest(store, tenant_id, effect_id)
            old = first.setdefault(effect_id, detail)
            if detail.receipt_digest is None or effect_id not in shown_final:
                if detail.receipt_digest is not None:
                    shown_final.add(effect_id)
                return detail
            shown_final.discard(effect_id)
            return old

        return cached

    replaced(PostgresApiStore, "effect", make)


def tenants_mixed() -> None:
    def make(honest: Callable[..., Any]) -> Callable[..., Any]:
        first: list[Tenant] = []

        async def cached(authentication: object, api_key: str) -> Tenant:
            if not first:
                first.append(await honest(authentication, api_key))
            return first[0]

        return cached

    replaced(CachedAuthentication, "tenant", make)
