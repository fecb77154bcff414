"""What every store promises of certificates that a contract demands; a part of the suite."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Protocol
from uuid import UUID, uuid4

from effect_adapters.base import Answer
from effect_broker.protocol import changes, election
from effect_broker.protocol.changes import Grant, GrantKind
from effect_broker.protocol.conclusion import Next
from effect_broker.protocol.ports import FreezeContract, Snapshot
from effect_contracts.document import ContractDocument
from effect_contracts.facts import Certified, EffectState, Outcome
from effect_contracts.life import LifeEvent
from store.conformance import World
from store.samples import TARGET, advance, contract

TRIALS = frozenset({"accepts_the_request", "ten_at_once"})
HOUR = timedelta(hours=1)


class Certify(Protocol):
    """Stores a certificate."""

    def __call__(self, document: ContractDocument, said: Certified, /) -> Awaitable[None]: ...


@dataclass
class Certifying:
    """A store that knows a contract which demands a certificate, and who makes them.

    Attributes:
        release: lets go on what waits for a certificate of the target; returns how many.
        revoke: ends one certificate by a person's word.
    """

    world: World
    document: ContractDocument
    store_certificate: Certify
    release: Callable[[str], Awaitable[int]]
    revoke: Callable[[str], Awaitable[None]]

    async def submit(self, key: str) -> UUID:
        document = self.document
        return await self.world.submit(
            key,
            tool=document.tool,
            contract_name=document.name,
            contract_version=document.version,
            contract_digest=document.digest(),
        )

    async def certify(
        self, effect_id: UUID, *, document: ContractDocument | None = None, **members: Any
    ) -> Certified:
        """Store a certificate whose trials have just ended, good for an hour."""
        now = (await self.world.load(effect_id)).now
        told: dict[str, Any] = {
            "certificate_id": str(uuid4()),
            "target_identity": TARGET,
            "trials": TRIALS,
            "ended_at": now,
            "expires_at": now + HOUR,
            **members,
        }
        said = Certified(**told)
        await self.store_certificate(document or self.document, said)
        return said

    async def certificates(self, effect_id: UUID) -> set[Certified]:
        return set((await self.world.load(effect_id)).facts.certificates)

    async def granted(self, effect_id: UUID, ordinal: int = 1, target: str = TARGET) -> Grant:
        """Run transaction 1 as a worker that is set up for this target."""
        version = (await self.world.load(effect_id)).intent.version
        plan = partial(
            changes.grant_attempt,
            identity=target,
            expected_version=version,
            ordinal=ordinal,
            attempt_id=uuid4(),
            executor_id="executor-1",
        )
        return await self.world.store.change(
            self.world.tenant_id, effect_id, plan, lambda document: target, new=ordinal == 1
        )

    async def concluded(self, effect_id: UUID) -> Snapshot:
        """Write what is next, as a run does; return where the effect stands then."""
        version = (await self.world.load(effect_id)).intent.version
        plan = partial(
            changes.conclude,
            identity=TARGET,
            expected_version=version,
            receipt_id=uuid4(),
            actor="worker:executor-1",
        )
        await self.world.store.change(self.world.tenant_id, effect_id, plan)
        return await self.world.load(effect_id)


def demanding(*, limits: dict[str, Any] | None = None, **certificate: Any) -> ContractDocument:
    """A contract of a version of its own that demands a certificate."""
    more = {} if limits is None else {"limits": limits}
    return contract(
        "idempotent",
        f"c-{uuid4().hex[:12]}",
        name="certified",
        tool="tool.certified",
        oversight={"certificate": certificate},
        # The next attempt is due at once, so that only the certificate is in its way.
        retry={"backoff_initial_seconds": 0.000001},
        **more,
    )


class CertificateConformance:
    """The suite."""

    async def test_what_a_certificate_says_is_shown_where_the_contract_demands_one(
        self, certifying: Certifying
    ) -> None:
        effect_id = await certifying.submit("order-1")
        assert await certifying.certificates(effect_id) == set()
        said = await certifying.certify(effect_id)
        assert await certifying.certificates(effect_id) == {said}
        other = await certifying.certify(effect_id, target_identity="https://sandbox.example.com#a")
        assert await certifying.certificates(effect_id) == {said, other}

    async def test_a_contract_that_demands_none_is_shown_none(self, certifying: Certifying) -> None:
        effect_id = await certifying.world.submit("order-1")
        document = (await certifying.world.load(effect_id)).document
        await certifying.certify(effect_id, document=document)
        assert await certifying.certificates(effect_id) == set()

    async def test_what_has_expired_or_speaks_of_another_contract_is_not_shown(
        self, certifying: Certifying
    ) -> None:
        effect_id = await certifying.submit("order-1")
        now = (await certifying.world.load(effect_id)).now
        await certifying.certify(effect_id, document=demanding())
        await certifying.certify(effect_id, ended_at=now - HOUR, expires_at=now)
        assert await certifying.certificates(effect_id) == set()

    async def test_one_that_a_person_revokes_is_not_shown_any_more(
        self, certifying: Certifying
    ) -> None:
        effect_id = await certifying.submit("order-1")
        first = await certifying.certify(effect_id)
        await certifying.revoke(first.certificate_id)
        assert await certifying.certificates(effect_id) == set()
        second = await certifying.certify(effect_id)
        assert await certifying.certificates(effect_id) == {second}

    async def test_a_lie_that_was_found_ends_what_had_begun_by_then(
        self, certifying: Certifying
    ) -> None:
        effect_id = await certifying.submit("order-1")
        before = await certifying.certify(effect_id)
        await certifying.world.write(effect_id, FreezeContract("contract_violation"))
        assert await certifying.certificates(effect_id) == set()
        await certifying.certify(
            effect_id, ended_at=before.ended_at, expires_at=before.expires_at
        )  # its trials had begun before, and it is stored only now
        assert await certifying.certificates(effect_id) == set()
        later = await certifying.certify(effect_id)
        assert await certifying.certificates(effect_id) == {later}

    async def test_no_attempt_is_granted_without_one_of_its_target(
        self, certifying: Certifying
    ) -> None:
        effect_id = await certifying.submit("order-1")
        assert (await certifying.granted(effect_id)).kind is GrantKind.STALE
        held = await certifying.concluded(effect_id)
        standing = (held.intent.state, held.intent.reason, held.parked)
        assert standing == (EffectState.PREPARED, "awaiting_certificate", True)
        await certifying.certify(effect_id, target_identity="https://other.example.com#acct_1")
        assert (await certifying.granted(effect_id)).kind is GrantKind.STALE
        await certifying.certify(effect_id)
        assert (await certifying.granted(effect_id, target="elsewhere")).kind is GrantKind.STALE
        assert (await certifying.granted(effect_id)).kind is GrantKind.GRANTED
        assert len((await certifying.world.load(effect_id)).attempts) == 1

    async def test_no_caller_is_elected_without_one(self, certifying: Certifying) -> None:
        effect_id = await certifying.submit("order-1")

        async def elected() -> election.Election:
            plan = partial(
                election.elect,
                identity=TARGET,
                attempt_id=uuid4(),
                caller="caller:test",
                receipt_id=uuid4(),
            )
            world = certifying.world
            return await world.store.change(world.tenant_id, effect_id, plan)

        refused = await elected()
        assert (refused.elected, refused.view.reason) == (False, "awaiting_certificate")
        await certifying.certify(effect_id)
        assert (await elected()).elected

    async def test_one_that_ends_between_two_attempts_stops_the_second_and_no_evidence(
        self, certifying: Certifying
    ) -> None:
        effect_id = await certifying.submit("order-1")
        first = await certifying.certify(effect_id)
        assert (await certifying.granted(effect_id)).kind is GrantKind.GRANTED
        await certifying.revoke(first.certificate_id)
        under_way = await certifying.world.load(effect_id)
        plan = partial(
            changes.record_outcome,
            attempt_id=under_way.attempts[0].attempt_id,
            answer=Answer(Outcome.RETRYABLE, "busy"),
            result=None,
            result_digest=None,
            operation=None,
            receipt_id=uuid4(),
            executor_id="executor-1",
        )
        seen = await certifying.world.store.change(certifying.world.tenant_id, effect_id, plan)
        assert (seen.next, seen.reason) == (Next.END, "awaiting_certificate")
        held = await certifying.world.load(effect_id)
        assert (held.intent.state, held.parked) == (EffectState.RETRYABLE, True)
        assert (await certifying.granted(effect_id, 2)).kind is GrantKind.STALE
        await certifying.certify(effect_id)
        assert (await certifying.granted(effect_id, 2)).kind is GrantKind.GRANTED

    async def test_what_waits_goes_on_once_a_fitting_one_is_there_and_not_before(
        self, certifying: Certifying
    ) -> None:
        effect_id = await certifying.submit("order-1")
        await certifying.concluded(effect_id)
        other = await certifying.submit("order-2")
        parked = advance(
            LifeEvent.NOTHING_SENT, EffectState.PREPARED, None, reason="paused", parked=True
        )
        await certifying.world.write(other, parked)
        assert await certifying.release(TARGET) == 0
        await certifying.certify(effect_id, target_identity="https://other.example.com#acct_1")
        assert await certifying.release(TARGET) == 0
        await certifying.certify(effect_id)
        assert await certifying.release(TARGET) == 1
        assert await certifying.release(TARGET) == 0  # it is due now; once is enough
        due = await certifying.world.load(effect_id)
        assert due.intent.next_action_at is not None
        assert (due.parked, due.intent.next_action_at <= due.now) == (False, True)
        assert (await certifying.world.load(other)).parked
