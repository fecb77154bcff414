"""Certificates in memory, for the simulator only: what is stored, and what has ended it.

Their signatures are taken for good; everything else is as `effect_broker.store.certified` has it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from effect_broker.protocol.ports import Snapshot
from effect_contracts.certified import of_target, standing_certificate
from effect_contracts.facts import Certified, Hold


@dataclass(frozen=True, slots=True)
class MemoryCertificate:
    """A stored certificate of a contract.

    Attributes:
        begun_at: a lie that is found at this moment or later revokes it.
    """

    contract_digest: bytes
    said: Certified
    begun_at: datetime


class MemoryCertificates:
    """The certificates of all contracts.

    Args:
        now: the database clock of the simulated world.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._stored: list[MemoryCertificate] = []
        self._lies: dict[bytes, datetime] = {}

    def store(self, certificate: MemoryCertificate) -> None:
        """Keep a certificate."""
        self._stored.append(certificate)

    def revoke(self) -> None:
        """End every certificate that is stored, as a person may end each."""
        self._stored.clear()

    def found_lying(self, contract_digest: bytes) -> None:
        """End every certificate of a contract whose trials have begun by now."""
        self._lies[contract_digest] = self._now()

    def in_force(self, contract_digest: bytes) -> tuple[Certified, ...]:
        """Return those of a contract that neither have expired nor were revoked."""
        lie_at, now = self._lies.get(contract_digest), self._now()
        return tuple(
            one.said
            for one in self._stored
            if one.contract_digest == contract_digest
            and now < one.said.expires_at
            and (lie_at is None or lie_at < one.begun_at)
        )


def has_come(snapshot: Snapshot, identity: str) -> bool:
    """Whether the effect waits for a certificate, and one that fits is in force now."""
    demand, at = snapshot.document.policy().certificate, snapshot.intent.next_action_at
    awaits = snapshot.intent.reason == Hold.AWAITING_CERTIFICATE.value
    still = snapshot.parked or (at is not None and at > snapshot.now)
    if not awaits or not still or demand is None:
        return False
    own = of_target(snapshot.facts.certificates, demand, identity)
    return standing_certificate(own, demand, snapshot.now) is not None
