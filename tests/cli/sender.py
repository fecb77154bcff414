"""A worker's hand for tests: it grants an attempt and records an answer, and sends nothing.

The writes are the protocol's own, so that the command line reads rows as a worker leaves them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar
from uuid import UUID, uuid4

from effect_adapters.base import Answer
from effect_broker.protocol import changes
from effect_broker.store.pool import make_pool
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.runs import PostgresWorkerStore
from effect_contracts.facts import Outcome
from postgres import Database

T = TypeVar("T")

EXECUTOR_ID = "host-1-0123456789ab"
IDENTITY = "http://127.0.0.1:8090#demo"


class Sender:
    """Acts on the effects of one tenant."""

    def __init__(self, database: Database, tenant_id: str) -> None:
        self._url = database.url_for(DatabaseRole.WORKER)
        self._tenant_id = UUID(tenant_id)

    def start(self, effect_id: str) -> UUID:
        """Grant the next attempt; returns its id."""
        attempt_id = uuid4()

        async def grant(store: PostgresWorkerStore) -> None:
            snapshot = await store.load(self._tenant_id, UUID(effect_id))
            plan = partial(
                changes.grant_attempt,
                identity=IDENTITY,
                expected_version=snapshot.intent.version,
                ordinal=len(snapshot.attempts) + 1,
                attempt_id=attempt_id,
                executor_id=EXECUTOR_ID,
            )
            granted = await store.change(self._tenant_id, UUID(effect_id), plan)
            assert granted.kind is changes.GrantKind.GRANTED

        self._with_store(grant)
        return attempt_id

    def answer(
        self,
        effect_id: str,
        attempt_id: UUID,
        outcome: Outcome,
        external_id: str | None = None,
        code: str | None = None,
    ) -> None:
        """Record what the attempt showed."""
        plan = partial(
            changes.record_outcome,
            attempt_id=attempt_id,
            answer=Answer(
                outcome,
                code or outcome.value,
                external_id=external_id,
                bytes_may_have_left=outcome is not Outcome.NOT_SENT,
            ),
            result=None,
            result_digest=None,
            operation=None,
            receipt_id=uuid4(),
            executor_id=EXECUTOR_ID,
        )

        async def record(store: PostgresWorkerStore) -> None:
            await store.change(self._tenant_id, UUID(effect_id), plan)

        self._with_store(record)

    def show(
        self,
        effect_id: str,
        outcome: Outcome,
        external_id: str | None = None,
        code: str | None = None,
    ) -> None:
        """An attempt from its grant to its answer."""
        self.answer(effect_id, self.start(effect_id), outcome, external_id, code)

    def beat(self, executor_id: str = EXECUTOR_ID, ttl_seconds: float = 60.0) -> None:
        """A worker's heartbeat."""

        async def beat(store: PostgresWorkerStore) -> None:
            await store.beat(executor_id, ttl_seconds)

        self._with_store(beat)

    def _with_store(self, work: Callable[[PostgresWorkerStore], Awaitable[T]]) -> T:
        async def run() -> T:
            async with make_pool(
                self._url, None, application_name="test-sender", size_max=1
            ) as pool:
                return await work(PostgresWorkerStore(pool))

        return asyncio.run(run())
