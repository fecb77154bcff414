"""Effects in every standing that the listing tells apart, as workers would have left them.

Each is made by the protocol's own plans on a real database. Deadlines are short, so that an attempt
whose sender says nothing is past its deadline at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final
from uuid import UUID, uuid4

from effect_adapters.base import Answer, Finding
from effect_broker.protocol import changes
from effect_broker.protocol.ports import Change, FreezeContract
from effect_broker.store.api import PostgresApiStore
from effect_broker.store.catalogue import Catalogue
from effect_broker.store.pool import make_pool
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.runs import PostgresWorkerStore
from effect_contracts.document import ContractDocument
from effect_contracts.facts import EvidenceSource, Outcome, Verdict
from postgres import Database
from store.samples import TARGET, contract, submission

DEADLINE_SECONDS: Final = 0.05
KEY_RETENTION_SECONDS: Final = 86_400


def quick(safety: str, name: str | None = None, **more: Any) -> ContractDocument:
    """A contract whose attempts are over at once."""
    name = name or f"quick-{safety}"
    given = {"attempt_deadline_seconds": DEADLINE_SECONDS, "clock_margin_seconds": 0.01, **more}
    return contract(safety, name=name, tool=f"{name}.tool", **given)


@dataclass
class Scenes:
    """Makes effects of one tenant, by operation key.

    Attributes:
        keys: of every effect made, by its id.
    """

    tenant_id: UUID
    api: PostgresApiStore
    worker: PostgresWorkerStore
    catalogue: Catalogue
    keys: dict[UUID, str] = field(default_factory=dict)

    async def submit(self, key: str, document: ContractDocument, **more: Any) -> UUID:
        """Submit under a contract, which is applied first."""
        await self.catalogue.apply(document)
        wanted = submission(
            self.tenant_id,
            key,
            document.safety.value,
            tool=document.tool,
            contract_name=document.name,
            contract_version=document.version,
            contract_digest=document.digest(),
            **more,
        )
        self.api.forget_contract(document.tool)
        await self.api.submit(wanted)
        self.keys[wanted.effect_id] = key
        return wanted.effect_id

    async def start(self, effect_id: UUID) -> UUID:
        """Grant the next attempt."""
        attempt_id = uuid4()
        snapshot = await self.worker.load(self.tenant_id, effect_id)
        plan = partial(
            changes.grant_attempt,
            identity=TARGET,
            expected_version=snapshot.intent.version,
            ordinal=len(snapshot.attempts) + 1,
            attempt_id=attempt_id,
            executor_id="executor-1",
        )
        granted = await self.worker.change(self.tenant_id, effect_id, plan)
        assert granted.kind is changes.GrantKind.GRANTED
        return attempt_id

    async def answer(self, effect_id: UUID, attempt_id: UUID, outcome: Outcome) -> None:
        """Record what an attempt showed."""
        plan = partial(
            changes.record_outcome,
            attempt_id=attempt_id,
            answer=Answer(
                outcome,
                outcome.value,
                external_id="ob_1" if outcome is Outcome.COMMITTED else None,
                bytes_may_have_left=outcome is not Outcome.NOT_SENT,
            ),
            result=None,
            result_digest=None,
            operation=None,
            receipt_id=uuid4(),
            executor_id="executor-1",
        )
        await self.worker.change(self.tenant_id, effect_id, plan)

    async def sent(self, key: str, document: ContractDocument, outcome: Outcome) -> UUID:
        """Submit, send once, and record the outcome."""
        effect_id = await self.submit(key, document)
        await self.answer(effect_id, await self.start(effect_id), outcome)
        return effect_id

    async def conclude(self, effect_id: UUID) -> None:
        """Do what a run does that finds nothing to send."""
        snapshot = await self.worker.load(self.tenant_id, effect_id)
        plan = partial(
            changes.conclude,
            identity=TARGET,
            expected_version=snapshot.intent.version,
            receipt_id=uuid4(),
            actor="worker:executor-2",
        )
        await self.worker.change(self.tenant_id, effect_id, plan)

    async def lost(self, key: str, document: ContractDocument) -> UUID:
        """Submit and send; the sender is lost, and a successor finds that."""
        effect_id = await self.submit(key, document)
        await self.start(effect_id)
        await asyncio.sleep(2 * DEADLINE_SECONDS)
        await self.conclude(effect_id)
        return effect_id

    async def frozen(self, key: str, document: ContractDocument, **more: Any) -> UUID:
        """Submit under a contract that is frozen."""
        effect_id = await self.submit(key, document, **more)
        freeze = FreezeContract("contract_violation")
        await self.worker.change(self.tenant_id, effect_id, lambda _: Change(None, (freeze,)))
        await self.conclude(effect_id)
        return effect_id

    async def see(self, effect_id: UUID, verdict: Verdict, code: str = "seen") -> None:
        """Record what a look-up of now shows."""
        snapshot = await self.worker.load(self.tenant_id, effect_id)
        plan = partial(
            changes.add_evidence,
            evidence_id=uuid4(),
            source=EvidenceSource.PROBE,
            finding=Finding(verdict, code, external_ids=("ob_9",)),
            began_at=snapshot.now,
            covers_through=len(snapshot.attempts),
            target_identity=TARGET,
            result=None,
            result_digest=None,
            receipt_id=uuid4(),
            actor="worker:executor-2",
        )
        await self.worker.change(self.tenant_id, effect_id, plan)

    async def everything(self) -> None:
        """Make one effect of each standing; `REASONS_OF` says why each is listed."""
        idempotent, unsafe = quick("idempotent"), quick("unsafe")
        slow = contract("idempotent", name="slow", tool="slow.tool")
        await self.sent("unsafe-ambiguous", unsafe, Outcome.AMBIGUOUS)
        await self.lost("unsafe-lost", unsafe)
        await self.lost("idempotent-lost", idempotent)
        await self.sent("key-conflict", idempotent, Outcome.KEY_CONFLICT)
        await self.sent("looked-up", quick("reconcilable"), Outcome.AMBIGUOUS)
        await self.frozen("frozen", quick("idempotent", "iced"))
        later = datetime.now(UTC) + timedelta(hours=1)
        await self.frozen("frozen-until", quick("idempotent", "iced"), send_before=later)
        refused = await self.sent("contradicted", quick("reconcilable"), Outcome.REJECTED)
        await self.see(refused, Verdict.COMMITTED)
        await self.start(await self.submit("stale", unsafe))
        await asyncio.sleep(2 * DEADLINE_SECONDS)
        # What is simply on its way, and what is over.
        await self.submit("prepared", slow)
        await self.start(await self.submit("dispatching", slow))
        await self.sent("retryable", slow, Outcome.NOT_SENT)
        await self.sent("succeeded", idempotent, Outcome.COMMITTED)


REASONS_OF: Final = {
    "unsafe-ambiguous": ("outcome_unknown",),
    "unsafe-lost": ("outcome_unknown", "crash_window"),
    "idempotent-lost": ("crash_window", "backoff"),
    "key-conflict": ("target_key_conflict",),
    "looked-up": ("look_up",),
    "frozen": ("frozen",),
    "frozen-until": ("frozen",),
    "contradicted": ("late_contradiction",),
    "stale": ("stale_in_flight", "first_attempt"),
}


@asynccontextmanager
async def scenes_of(database: Database, tenant_id: UUID) -> AsyncIterator[Scenes]:
    """Scenes over pools of the three roles."""
    urls = [database.url_for(r) for r in (DatabaseRole.API, DatabaseRole.WORKER)]
    async with (
        make_pool(urls[0], None, application_name="test-api", size_max=2) as api,
        make_pool(urls[1], None, application_name="test-worker", size_max=2) as worker,
        make_pool(
            database.url_for(DatabaseRole.ADMIN), None, application_name="test-admin", size_max=1
        ) as admin,
    ):
        yield Scenes(
            tenant_id, PostgresApiStore(api), PostgresWorkerStore(worker), Catalogue(admin)
        )
