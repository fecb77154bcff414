"""Performing: effects whose callers make the call themselves, for every surface.

This file owns the order of the checks, as `effect_broker.intake` does for a submit. What may be
granted, extended and recorded is decided in `effect_broker.protocol.election`. Everything here may
be repeated: an election by its token, what was told by what it says.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final
from uuid import UUID

from effect_adapters.base import Adapter, Answer, TransactionalAdapter
from effect_broker.intake import EffectRequest, Intake, Tenant
from effect_broker.protocol import election as rules
from effect_broker.protocol.election import Election, Extension, Telling, Told
from effect_broker.protocol.ports import Change, Intent, Snapshot, Vault
from effect_broker.protocol.results import result_bytes
from effect_broker.protocol.submission import Elected, ElectionStore, FirstElection, Submission
from effect_contracts.canonical import JsonValue
from effect_contracts.decide import Action
from effect_contracts.document import CallerSettings, ContractDocument
from effect_contracts.election import election_decision
from effect_contracts.errors import ElectionLost, NotForCallers, TransitionRefused
from effect_contracts.facts import Facts, Outcome

# What a caller may say of its own call. `partial` and `in_progress` are for targets that a worker
# reads, and `presumed_ambiguous` is a successor's word.
OUTCOMES: Final = frozenset(
    {
        Outcome.COMMITTED,
        Outcome.REJECTED,
        Outcome.NOT_SENT,
        Outcome.RETRYABLE,
        Outcome.KEY_CONFLICT,
        Outcome.AMBIGUOUS,
    }
)

# Elections that are remembered; each is some kilobytes.
_FRESH_MAX: Final = 2_000

# A new effect has no facts, so that no moment makes a difference to what is decided of it.
_ANY_MOMENT: Final = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Statement:
    """What a caller tells of the call that it made.

    Attributes:
        code: a stable word for it.
        result, fields: what is kept for whoever asks again; for a commit.
    """

    outcome: Outcome
    code: str
    external_id: str | None = None
    result: JsonValue = field(default=None, repr=False)
    fields: Mapping[str, JsonValue] = field(default_factory=dict, repr=False)
    retry_after_seconds: float | None = None

    def answer(self) -> Answer:
        """Return it as an attempt's answer."""
        return Answer(
            outcome=self.outcome,
            code=self.code,
            external_id=self.external_id,
            result=self.result,
            receipt_fields=self.fields,
            retry_after_seconds=self.retry_after_seconds,
            bytes_may_have_left=self.outcome is not Outcome.NOT_SENT,
        )


@dataclass(frozen=True, slots=True)
class Elector:
    """The answer to whoever asks to be elected.

    Attributes:
        intent: as it was before the answer, or new.
        lease_extends: the lease may be extended.
    """

    election: Election
    intent: Intent
    lease_extends: bool = False


@dataclass(frozen=True, slots=True)
class _Fresh:
    """An election of this process, as it was left, and when (on the boot clock) that was known."""

    snapshot: Snapshot
    known_at_seconds: float


class Performing:
    """Elections of one process.

    Args:
        boot_seconds: the boot clock.
    """

    def __init__(
        self,
        intake: Intake,
        store: ElectionStore,
        adapters: Mapping[str, Adapter | TransactionalAdapter],
        vault: Vault,
        new_id: Callable[[], UUID],
        boot_seconds: Callable[[], float],
    ) -> None:
        self.intake = intake
        self.store = store
        self.adapters = adapters
        self.vault = vault
        self.new_id = new_id
        self._boot_seconds = boot_seconds
        # What is confirmed by the process that was elected need not be read first. The oldest go
        # first: they only cost a read.
        self._fresh: OrderedDict[UUID, _Fresh] = OrderedDict()

    async def elect(self, tenant: Tenant, request: EffectRequest, token: str) -> Elector:
        """Make the intent durable and elect its caller in one commit, or say where it stands.

        Raises:
            As `Intake.submit`.
            NotForCallers: the contract leaves the sending to workers.
        """
        caller = rules.caller_of(tenant.credential)
        pinned: list[ContractDocument] = []

        async def first(submission: Submission, document: ContractDocument) -> Elected:
            pinned[:] = [document]
            policy = document.policy()
            decision = election_decision(Facts(), policy, _ANY_MOMENT)
            if decision.action is not Action.DISPATCH:
                submitted = await self.store.submit(submission)
                return Elected(submitted.created, submitted.intent)
            attempt_id = rules.attempt_id_of(tenant.tenant_id, submission.effect_id, token)
            return await self.store.elect_first(
                submission,
                FirstElection(
                    attempt_id=attempt_id,
                    caller=caller,
                    target_identity=self.adapters["caller"].identity(document),
                    lease_seconds=policy.attempt_deadline_seconds,
                    clock_margin_seconds=policy.clock_margin_seconds,
                    key_retention_seconds=policy.key_retention_seconds,
                    reason=decision.reason,
                    lease_extends=policy.lease_seconds_max is not None,
                ),
            )

        elected = await self.intake.elect(tenant, request, first)
        intent = elected.intent
        if elected.first is not None:
            made = elected.first
            self._remember(rules.first_snapshot(elected, pinned[0]), made.attempt_id)
            election = Election(
                True, rules.first_view(intent, made.lease_seconds), 1, made.lease_seconds
            )
            return Elector(election, intent, made.lease_extends)
        return await self._next(tenant, intent, token, caller)

    async def _next(self, tenant: Tenant, intent: Intent, token: str, caller: str) -> Elector:
        attempt_id = rules.attempt_id_of(tenant.tenant_id, intent.effect_id, token)
        receipt_id = self.new_id()

        def planned(snapshot: Snapshot) -> Change[Elector]:
            document = snapshot.document
            if not isinstance(document.adapter, CallerSettings):
                raise NotForCallers  # the effect was submitted under a contract that sends it
            change = rules.elect(
                snapshot,
                identity=self.adapters["caller"].identity(document),
                attempt_id=attempt_id,
                caller=caller,
                receipt_id=receipt_id,
            )
            extends = document.policy().lease_seconds_max is not None
            return Change(Elector(change.result, snapshot.intent, extends), change.writes)

        return await self.store.change(tenant.tenant_id, intent.effect_id, planned)

    async def extend(self, tenant: Tenant, effect_id: UUID, ordinal: int, token: str) -> Extension:
        """Let a lease last longer, as far as the contract permits.

        Raises:
            EffectMissing, StoreError.
        """
        attempt_id = rules.attempt_id_of(tenant.tenant_id, effect_id, token)
        plan = partial(rules.extend, attempt_id=attempt_id, ordinal=ordinal)
        return await self.store.change(tenant.tenant_id, effect_id, plan)

    async def tell(
        self, tenant: Tenant, effect_id: UUID, ordinal: int, token: str, said: Statement
    ) -> Told:
        """Record what the caller's call showed.

        Raises:
            ElectionLost: the caller holds the election no more. What it told is recorded.
            TransitionRefused: no such attempt is this caller's, or another outcome stands.
            EffectMissing, StoreError.
        """
        assert said.outcome in OUTCOMES, "the body was checked"
        attempt_id = rules.attempt_id_of(tenant.tenant_id, effect_id, token)
        answer, sealed, digest = said.answer(), None, None
        if said.outcome is Outcome.COMMITTED:
            plain = result_bytes(answer)
            sealed = self.vault.seal(tenant.tenant_id, effect_id, "result", plain)
            digest = hashlib.sha256(plain).digest()
        receipt_id = self.new_id()
        fresh = self._fresh.pop(attempt_id, None)

        def planned(snapshot: Snapshot) -> Change[Told]:
            return rules.tell(
                snapshot,
                attempt_id=attempt_id,
                ordinal=ordinal,
                answer=answer,
                result=sealed,
                result_digest=digest,
                receipt_id=receipt_id,
            )

        if fresh is not None and said.outcome is Outcome.COMMITTED:
            # The database's clock as it can be known here: no later than it is.
            passed = timedelta(seconds=self._boot_seconds() - fresh.known_at_seconds)
            snapshot = replace(fresh.snapshot, now=fresh.snapshot.now + passed)
            change = planned(snapshot)
            if await self.store.settle_first(snapshot, change):
                return change.result
        told = await self.store.change(tenant.tenant_id, effect_id, planned)
        match told.telling:
            case Telling.RECORDED | Telling.REPEATED:
                return told
            case Telling.LATE:
                raise ElectionLost(effect_id=effect_id, state=told.view.state)
            case Telling.ANOTHER | Telling.NOBODY:
                raise TransitionRefused(state=told.view.state)

    def _remember(self, snapshot: Snapshot, attempt_id: UUID) -> None:
        self._fresh[attempt_id] = _Fresh(snapshot, self._boot_seconds())
        while len(self._fresh) > _FRESH_MAX:
            self._fresh.popitem(last=False)
