"""The store of a simulated world: the one in memory, with what a scheduler needs beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any
from uuid import UUID

from effect_adapters.simulated import SimulatedAdapter
from effect_broker.intake import EffectRequest, Intake, Tenant
from effect_broker.keyring import KeyRing
from effect_broker.proof.memory_store import MemoryStore
from effect_broker.proof.simulation.processes import PlainVault
from effect_broker.protocol.ports import AddResolution, Intent, Sealed, Snapshot
from effect_broker.protocol.submission import Submission, Submitted
from effect_contracts.document import ContractDocument
from effect_contracts.facts import Certified, Hold

TENANT = Tenant(UUID(int=7), "hmac", "caller:simulation")
ARGUMENTS = MappingProxyType({"amount": 5})
# Nothing in a simulated world is secret, and every run of it is the same.
_RING = KeyRing.model_validate(
    {
        "encryption": {
            "active": "k",
            "keys": {"k": "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="},
        },
        "hmac": {
            "active": "hmac",
            "keys": {"hmac": "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="},
        },
        "development": True,
    }
)


class SimulationStore(MemoryStore):
    """A `MemoryStore` that makes a snapshot once per change and knows fingerprints of its rows."""

    def __init__(
        self, now: Callable[[], datetime], enqueue: Callable[[UUID, UUID, int], None]
    ) -> None:
        super().__init__(now, enqueue)
        self._shown: dict[UUID, tuple[object, ...]] = {}
        self._tokens: dict[UUID, tuple[object, int]] = {}

    def _snapshot(self, row: Any) -> Snapshot:
        """Every change replaces the row's intent, so an old intent means an old snapshot."""
        intent = row.intent
        now = self._now()
        holds = (frozenset(self.holds), len(self.frozen), self._in_force(intent))
        wire = row.payloads.get(("wire", ""))
        known = self._shown.get(intent.effect_id)
        if known is not None and known[0] is intent and known[1] == holds and known[2] is wire:
            shown = known[3]
            assert isinstance(shown, Snapshot)
            if shown.now == now:
                return shown
            shown = replace(shown, now=now)
        else:
            shown = super()._snapshot(row)
        self._shown[intent.effect_id] = (intent, holds, wire, shown)
        return shown

    def token(self, effect_id: UUID) -> int:
        """Return a number that stands for all that a reader of the effect can see but the time.

        Ids are left out, since they mean nothing but themselves: an attempt is known by its
        ordinal, and two rows that differ in the names of their ids only lead to the same.
        """
        row = self._rows[effect_id]
        known = self._tokens.get(effect_id)
        holds = (frozenset(self.holds), self._in_force(row.intent), self.paces.fingerprint())
        if known is not None and known[0] is row.intent:
            return hash((known[1], holds, len(self.frozen)))
        intent = row.intent
        number = hash(
            (
                intent.state,
                intent.version,
                intent.reason,
                intent.generation,
                intent.progress_generation,
                intent.next_action_at,
                intent.target_identity,
                intent.wire_digest,
                tuple((a.fact, a.executor_id) for a in row.attempts),
                tuple(
                    (
                        e.fact.source,
                        e.fact.verdict,
                        e.fact.began_at,
                        e.fact.covers_through,
                        e.fact.external_ids,
                    )
                    for e in row.evidence
                ),
                tuple(row.mutations.items()),
                row.parked,
                row.alert,
            )
        )
        self._tokens[effect_id] = (row.intent, number)
        return hash((number, holds, len(self.frozen)))

    def _in_force(self, intent: Intent) -> tuple[Certified, ...]:
        """The certificates that a reader of the effect sees now; they end by time too."""
        if self._documents[intent.contract_digest].policy().certificate is None:
            return ()
        return self.certificates.in_force(intent.contract_digest)

    def spoil(self, effect_id: UUID, wire: bytes, vault: PlainVault) -> None:
        """Put another request, well sealed, in the place of the stored one."""
        self.payloads_of(effect_id)["wire", ""] = vault.seal(
            TENANT.tenant_id, effect_id, "wire", wire
        )

    def resolutions(self, effect_id: UUID) -> tuple[AddResolution, ...]:
        """Return what persons have concluded."""
        return tuple(self._rows[effect_id].resolutions)

    def hold(self, hold: Hold | None) -> None:
        """Hold every effect, or none."""
        self.holds = set() if hold is None else {hold}


@lru_cache(maxsize=64)
def submissions(document: ContractDocument, count: int) -> tuple[Submission, ...]:
    """Return what the shipped intake makes of `count` requests under the contract."""
    taken: list[Submission] = []

    class Taking(MemoryStore):
        async def submit(self, submission: Submission) -> Submitted:
            taken.append(submission)
            return await super().submit(submission)

    store = Taking(lambda: datetime.min, lambda *_: None)
    store.apply_contract(document)
    adapters = {"simulated": SimulatedAdapter({})}
    intake = Intake(store, adapters, _RING, PlainVault(), lambda _name: None)
    for number in range(1, count + 1):
        asking = intake.submit(
            TENANT, EffectRequest(f"order-{number}", document.tool, dict(ARGUMENTS))
        )
        try:
            asking.send(None)
        except StopIteration:
            continue
        raise AssertionError("a submit to the store in memory waits for nothing")
    return tuple(taken)


def unrendered(submission: Submission) -> Submission:
    """Return the submission as a caller's own transaction makes it: without a wire request."""
    return replace(submission, wire=None, wire_digest=None)


__all__ = ["ARGUMENTS", "TENANT", "Sealed", "SimulationStore", "submissions", "unrendered"]
