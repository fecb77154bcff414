"""What every store promises of contracts that limit their target; a part of the suite."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any
from uuid import UUID, uuid4

from effect_adapters.base import Answer
from effect_broker.protocol import changes, wishes
from effect_broker.protocol.changes import Grant, GrantKind
from effect_broker.protocol.ports import Requeue, Snapshot
from effect_contracts.document import ContractDocument
from effect_contracts.facts import EffectState, Outcome
from store.conformance import World
from store.samples import TARGET, contract

GRANTED, BUSY, STALE = GrantKind.GRANTED, GrantKind.BUSY, GrantKind.STALE
# Far more than a test takes on a busy machine, far less than a turn is apart from the next.
SOON = timedelta(seconds=60)


@dataclass
class Limited:
    """A store that knows contracts which limit their target: places, a rate, deadlines.

    Attributes:
        other_tenant: another tenant of the same broker.
    """

    world: World
    documents: Sequence[ContractDocument]
    other_tenant: UUID

    async def submit(self, kind: str, key: str, *, other: bool = False) -> UUID:
        document = next(d for d in self.documents if d.version == kind)
        world = World(self.world.store, self.other_tenant, self.world.runs) if other else self.world
        return await world.submit(
            key,
            tool=document.tool,
            contract_name=document.name,
            contract_version=document.version,
            contract_digest=document.digest(),
        )

    async def granted(
        self, effect_id: UUID, ordinal: int = 1, *, target: str = TARGET, other: bool = False
    ) -> GrantKind:
        """Run transaction 1 as a worker that is set up for this target."""
        tenant_id = self.other_tenant if other else self.world.tenant_id
        version = (await self.world.store.load(tenant_id, effect_id)).intent.version
        plan = partial(
            changes.grant_attempt,
            identity=target,
            expected_version=version,
            ordinal=ordinal,
            attempt_id=uuid4(),
            executor_id="executor-1",
        )
        grant: Grant = await self.world.store.change(
            tenant_id, effect_id, plan, lambda document: target, new=ordinal == 1
        )
        return grant.kind

    async def answered(self, effect_id: UUID, answer: Answer) -> None:
        """Record the outcome of the latest attempt, as its sender does."""
        attempt = (await self.world.load(effect_id)).attempts[-1]
        plan = partial(
            changes.record_outcome,
            attempt_id=attempt.attempt_id,
            answer=answer,
            result=None,
            result_digest=None,
            operation=None,
            receipt_id=uuid4(),
            executor_id="executor-1",
        )
        await self.world.store.change(self.world.tenant_id, effect_id, plan)

    async def cancelled(self, effect_id: UUID, *, other: bool = False) -> None:
        """Withdraw an effect."""
        tenant_id = self.other_tenant if other else self.world.tenant_id
        plan = partial(wishes.cancel, receipt_id=uuid4(), actor="caller:test")
        await self.world.store.change(tenant_id, effect_id, plan)

    async def turn_at(self, effect_id: UUID, *, other: bool = False) -> datetime:
        """The turn that an effect waits for."""
        tenant_id = self.other_tenant if other else self.world.tenant_id
        snapshot = await self.world.store.load(tenant_id, effect_id)
        assert snapshot.intent.reason == "target_busy"
        assert snapshot.intent.next_action_at is not None
        return snapshot.intent.next_action_at

    async def after(self, moment: datetime, effect_id: UUID) -> Snapshot:
        """The effect, when the store's clock has passed this moment."""
        for _ in range(10_000):  # each look moves a clock that is not the machine's
            if (seen := await self.world.load(effect_id)).now > moment:
                return seen
            await asyncio.sleep(0.001)
        raise AssertionError("the store's clock does not get there")


def limiting() -> list[ContractDocument]:
    """Versions of one contract: two places; one place; a short deadline; a low and a high rate."""

    def version(name: str, limits: dict[str, Any], **more: Any) -> ContractDocument:
        return contract(
            "idempotent",
            name,
            name="limited",
            tool=f"tool.limited.{name}",
            limits=limits,
            retry={"backoff_initial_seconds": 0.000001},
            **more,
        )

    return [
        version("two", {"concurrency_max": 2}),
        version("one", {"concurrency_max": 1}),
        version("short", {"concurrency_max": 1}, attempt_deadline_seconds=0.2,
                clock_margin_seconds=0.1),
        version("slow", {"per_second_max": 0.01, "burst_max": 2}),
        version("fast", {"per_second_max": 500, "burst_max": 1}),
        version("wide", {"concurrency_max": 2, "per_second_max": 2, "burst_max": 9}),
    ]  # fmt: skip


class LimitConformance:
    """The suite."""

    async def test_no_more_attempts_are_open_than_the_contract_permits(
        self, limited: Limited
    ) -> None:
        first, second, third = [await limited.submit("two", f"order-{n}") for n in range(3)]
        assert await limited.granted(first) is GRANTED
        assert await limited.granted(second) is GRANTED
        assert await limited.granted(third) is BUSY
        await limited.answered(first, Answer(Outcome.REJECTED, "no"))
        waits = await limited.after(await limited.turn_at(third), third)
        assert (waits.intent.state, waits.attempts) == (EffectState.PREPARED, ())
        assert await limited.granted(third) is GRANTED

    async def test_of_two_grants_at_once_on_the_last_place_one_is_made(
        self, limited: Limited
    ) -> None:
        ids = [await limited.submit("two", f"order-{n}") for n in range(6)]
        granted = await asyncio.gather(*(limited.granted(effect_id) for effect_id in ids))
        assert sorted(granted) == sorted([GRANTED] * 2 + [BUSY] * 4)
        waiting = [one for one, kind in zip(ids, granted, strict=True) if kind is BUSY]
        turns = [await limited.turn_at(effect_id) for effect_id in waiting]
        assert len(set(turns)) == 4  # nobody comes together with another

    async def test_versions_and_tenants_share_the_places_of_a_target(
        self, limited: Limited
    ) -> None:
        mine, theirs = await limited.submit("two", "mine"), await limited.submit("one", "one")
        assert await limited.granted(mine) is GRANTED
        assert await limited.granted(theirs) is BUSY  # one place, which another version has taken
        other = await limited.submit("one", "other", other=True)
        assert await limited.granted(other, other=True) is BUSY
        assert await limited.granted(other, other=True) is STALE  # its turn is to come
        elsewhere = await limited.submit("one", "elsewhere")
        assert await limited.granted(elsewhere, target="https://other.example.com#a") is GRANTED

    async def test_a_place_is_free_when_the_deadline_of_a_lost_attempt_has_passed(
        self, limited: Limited
    ) -> None:
        lost, next_ = await limited.submit("short", "lost"), await limited.submit("short", "next")
        assert await limited.granted(lost) is GRANTED
        under_way = await limited.world.load(lost)
        assert await limited.granted(next_) is BUSY
        turn = await limited.turn_at(next_)
        until = under_way.attempts[0].fact.deadline_at + timedelta(seconds=0.1)
        seen = await limited.after(max(until, turn), next_)
        assert seen.intent.reason == "target_busy"
        assert await limited.granted(next_) is GRANTED
        assert (await limited.world.load(lost)).attempts[0].fact.outcome is None  # nobody cleaned

    async def test_no_more_are_begun_than_the_rate_and_its_burst_permit(
        self, limited: Limited
    ) -> None:
        ids = [await limited.submit("slow", f"order-{n}") for n in range(5)]
        granted = [await limited.granted(effect_id) for effect_id in ids]
        assert granted == [GRANTED, GRANTED, BUSY, BUSY, BUSY]
        await limited.answered(ids[0], Answer(Outcome.REJECTED, "no"))  # frees no rate
        assert await limited.granted(await limited.submit("slow", "late")) is BUSY
        turns = [await limited.turn_at(effect_id) for effect_id in ids[2:]]
        now = (await limited.world.load(ids[0])).now
        assert turns[0] > now + SOON
        assert [later - sooner for sooner, later in pairwise(turns)] == [timedelta(seconds=100)] * 2

    async def test_another_tenants_effect_does_not_wait_behind_a_backlog(
        self, limited: Limited
    ) -> None:
        ids = [await limited.submit("slow", f"order-{n}") for n in range(8)]
        for effect_id in ids:
            await limited.granted(effect_id)
        single = await limited.submit("slow", "single", other=True)
        assert await limited.granted(single, other=True) is BUSY
        turn = await limited.turn_at(single, other=True)
        assert turn < await limited.turn_at(ids[5])

    async def test_who_waits_is_no_attempt_and_comes_when_its_turn_is(
        self, limited: Limited
    ) -> None:
        holder, waiter = await limited.submit("one", "holder"), await limited.submit("one", "waits")
        await limited.granted(holder)
        before = await limited.world.load(waiter)
        assert await limited.granted(waiter) is BUSY
        waits = await limited.world.load(waiter)
        assert waits.intent.version == before.intent.version + 1
        assert (waits.attempts, waits.parked) == ((), False)
        assert waits.facts.turn_at == waits.intent.next_action_at
        # It is not lost in vain generations either: a turn is progress.
        await limited.world.write(waiter, Requeue(waits.intent.generation, waits.now))
        requeued = await limited.world.load(waiter)
        assert requeued.intent.generation == requeued.intent.progress_generation + 1
        assert await limited.granted(waiter) is BUSY
        again = (await limited.world.load(waiter)).intent
        assert again.generation == again.progress_generation

    async def test_a_redispatch_waits_for_a_place_too_and_keeps_its_state(
        self, limited: Limited
    ) -> None:
        first, second = await limited.submit("one", "first"), await limited.submit("one", "second")
        await limited.granted(first)
        await limited.answered(first, Answer(Outcome.RETRYABLE, "busy"))
        assert await limited.granted(second) is GRANTED
        assert await limited.granted(first, 2) is BUSY
        waits = await limited.world.load(first)
        standing = (waits.intent.state, waits.intent.reason, len(waits.attempts))
        assert standing == (EffectState.RETRYABLE, "target_busy", 1)

    async def test_who_waits_can_be_withdrawn(self, limited: Limited) -> None:
        holder, waiter = await limited.submit("one", "holder"), await limited.submit("one", "waits")
        await limited.granted(holder)
        await limited.granted(waiter)
        await limited.cancelled(waiter)
        cancelled = await limited.world.load(waiter)
        assert cancelled.intent.state is EffectState.CANCELLED

    async def test_nobody_waits_behind_those_who_were_withdrawn(self, limited: Limited) -> None:
        ids = [await limited.submit("slow", f"order-{n}") for n in range(8)]
        granted = [await limited.granted(effect_id) for effect_id in ids]
        assert granted == [GRANTED] * 2 + [BUSY] * 6
        for effect_id in ids[3:]:
            await limited.cancelled(effect_id)
        late = await limited.submit("slow", "late")
        assert await limited.granted(late) is BUSY
        waits, last = await limited.turn_at(late), await limited.turn_at(ids[2])
        assert waits <= last + timedelta(seconds=101)  # and not after the five who are gone

    async def test_a_tenant_of_whom_nobody_waits_any_more_takes_no_turns_from_others(
        self, limited: Limited
    ) -> None:
        ids = [await limited.submit("slow", f"order-{n}") for n in range(4)]
        for effect_id in ids:
            await limited.granted(effect_id)
        single = await limited.submit("slow", "single", other=True)
        assert await limited.granted(single, other=True) is BUSY
        after_now = (await limited.world.load(ids[0])).now + timedelta(seconds=200)
        assert await limited.turn_at(single, other=True) > after_now - SOON  # two tenants
        await limited.cancelled(single, other=True)
        for effect_id in ids[2:]:
            await limited.cancelled(effect_id)
        alone = await limited.submit("slow", "alone")
        assert await limited.granted(alone) is BUSY
        assert await limited.turn_at(alone) < after_now - SOON

    async def test_a_backlog_under_a_low_limit_does_not_stop_a_version_with_a_higher_one(
        self, limited: Limited
    ) -> None:
        for n in range(2):
            assert await limited.granted(await limited.submit("slow", f"order-{n}")) is GRANTED
        fast = await limited.submit("fast", "fast")
        now = (await limited.world.load(fast)).now
        if await limited.granted(fast) is BUSY:
            turn = await limited.turn_at(fast)
            assert turn < now + SOON
            await limited.after(turn, fast)
            assert await limited.granted(fast) is GRANTED

    async def test_a_turn_in_vain_moves_the_next_action_and_writes_no_history(
        self, limited: Limited
    ) -> None:
        """A place may be taken for minutes, and who waits for it comes every moment."""
        holder, waiter = await limited.submit("one", "holder"), await limited.submit("one", "waits")
        await limited.granted(holder)
        assert await limited.granted(waiter) is BUSY
        first = await limited.after(await limited.turn_at(waiter), waiter)
        assert await limited.granted(waiter) is BUSY
        second = await limited.world.load(waiter)
        assert second.intent.version == first.intent.version
        assert second.intent.next_action_at is not None
        assert second.intent.next_action_at > first.now
        assert (second.facts.turn_at, second.parked) == (second.intent.next_action_at, False)
        await limited.answered(holder, Answer(Outcome.REJECTED, "no"))
        await limited.after(second.intent.next_action_at, waiter)
        assert await limited.granted(waiter) is GRANTED

    async def test_a_grant_that_leaves_room_wakes_who_would_be_next(self, limited: Limited) -> None:
        """The target hung when the turns were given, and is quick now."""
        ids = [await limited.submit("wide", f"order-{n}") for n in range(12)]
        granted = [await limited.granted(effect_id) for effect_id in ids]
        assert granted == [GRANTED] * 2 + [BUSY] * 10
        stranger = await limited.submit("wide", "stranger", other=True)
        assert await limited.granted(stranger, other=True) is BUSY
        for effect_id in ids[:2]:
            await limited.answered(effect_id, Answer(Outcome.REJECTED, "no"))
        await limited.after(await limited.turn_at(ids[2]), ids[2])
        before = {effect_id: await limited.turn_at(effect_id) for effect_id in ids[3:]}
        theirs = await limited.turn_at(stranger, other=True)
        assert await limited.granted(ids[2]) is GRANTED
        after = [await limited.world.load(effect_id) for effect_id in ids[3:]]
        started_at = (await limited.world.load(ids[2])).attempts[0].fact.started_at
        woken = [one for one in after if one.intent.next_action_at != before[one.intent.effect_id]]
        far = [at for at in before.values() if at > started_at + timedelta(seconds=1)]
        (first,) = woken  # one place is free
        assert before[first.intent.effect_id] == min(far)
        assert first.intent.next_action_at is not None
        assert first.intent.next_action_at <= first.now
        assert first.intent.reason == "target_busy"
        assert await limited.turn_at(stranger, other=True) == theirs
        assert await limited.granted(first.intent.effect_id) is GRANTED
        assert [
            await limited.turn_at(one.intent.effect_id) for one in after if one is not first
        ] == [
            before[one.intent.effect_id] for one in after if one is not first
        ]  # it has taken the last place, and wakes nobody
