"""What every store promises of a first attempt that is asked for as one; a part of the suite.

`new` is a hint. Whatever has become of the effect, the answer and all that is stored are those of
the same change without it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID, uuid4

import pytest

from effect_broker.protocol import changes, wishes
from effect_broker.protocol.changes import Grant, GrantKind
from effect_broker.protocol.ports import AskToCancel, Change, Requeue, Snapshot
from effect_contracts.facts import EffectState, SafetyClass
from effect_contracts.life import LifeEvent
from store.conformance import World
from store.samples import TARGET, advance

Before = Callable[[World, UUID], Awaitable[object]]


async def first_grant(
    world: World, effect_id: UUID, *, new: bool, version: int = 1, ordinal: int = 1
) -> Grant:
    """Run transaction 1."""
    plan = partial(
        changes.grant_attempt,
        identity=TARGET,
        expected_version=version,
        ordinal=ordinal,
        attempt_id=uuid4(),
        executor_id="executor-1",
    )
    return await world.store.change(world.tenant_id, effect_id, plan, lambda _: TARGET, new=new)


async def nothing(world: World, effect_id: UUID) -> None:
    """The effect is as its submit has left it."""


async def another_attempt(world: World, effect_id: UUID) -> None:
    await first_grant(world, effect_id, new=False)


async def another_generation(world: World, effect_id: UUID) -> None:
    def plan(seen: Snapshot) -> Change[None]:
        return Change(None, (Requeue(seen.intent.generation, seen.now),))

    await world.store.change(world.tenant_id, effect_id, plan)


async def another_version(world: World, effect_id: UUID) -> None:
    await world.plan(
        effect_id,
        lambda seen: (advance(LifeEvent.NOTHING_SENT, EffectState.PREPARED, seen.now),),
    )


async def a_wish_to_cancel(world: World, effect_id: UUID) -> None:
    await world.plan(effect_id, lambda seen: (AskToCancel(seen.now),))


async def a_wish_to_reconcile(world: World, effect_id: UUID) -> None:
    await world.store.change(
        world.tenant_id,
        effect_id,
        partial(wishes.reconcile, receipt_id=uuid4(), actor="operator:test"),
    )


HAPPENED = [
    nothing,
    another_attempt,
    another_generation,
    another_version,
    a_wish_to_cancel,
    a_wish_to_reconcile,
]


def _told(snapshot: Snapshot) -> Snapshot:
    """An effect without its name, and with moments as seconds since its attempt or submit."""
    since = (
        snapshot.attempts[0].fact.started_at if snapshot.attempts else snapshot.intent.created_at
    )

    def rounded(at: datetime | None) -> datetime | None:
        return None if at is None else datetime.min + (at - since)

    intent = replace(
        snapshot.intent,
        effect_id=UUID(int=0), operation_key="", downstream_key="", request_hash=b"",
        created_at=datetime.min, updated_at=datetime.min,
        next_action_at=rounded(snapshot.intent.next_action_at) if snapshot.attempts else None,
    )  # fmt: skip
    facts = replace(
        snapshot.facts,
        jitter_seed=0,
        attempts=(),
        look_up_asked_at=snapshot.facts.look_up_asked_at and datetime.min,
    )
    attempts = tuple(
        replace(
            row,
            attempt_id=UUID(int=0),
            fact=replace(
                row.fact,
                started_at=datetime.min,
                deadline_at=datetime.min + (row.fact.deadline_at - since),
            ),
        )
        for row in snapshot.attempts
    )
    urgency = replace(
        snapshot.urgency,
        key_expires_at=rounded(snapshot.urgency.key_expires_at),
        open_until=rounded(snapshot.urgency.open_until),
    )
    return replace(
        snapshot, intent=intent, facts=facts, attempts=attempts, urgency=urgency, now=datetime.min
    )


class FirstGrantConformance:
    """The suite's part on first attempts."""

    @pytest.mark.parametrize("safety", list(SafetyClass))
    async def test_a_new_effect_is_granted_its_first_attempt(
        self, world: World, safety: SafetyClass
    ) -> None:
        effect_id = await world.submit(safety=safety)
        assert (await first_grant(world, effect_id, new=True)).kind is GrantKind.GRANTED
        snapshot = await world.load(effect_id)
        assert (snapshot.intent.state, snapshot.intent.version) == (EffectState.DISPATCHING, 2)
        assert (await first_grant(world, effect_id, new=True)).kind is GrantKind.OWNED

    @pytest.mark.parametrize("happened", HAPPENED)
    async def test_the_hint_changes_neither_the_answer_nor_what_is_stored(
        self, world: World, happened: Before
    ) -> None:
        for version, ordinal in ((1, 1), (2, 1), (1, 2), (2, 2)):
            seen = []
            for new in (True, False):
                effect_id = await world.submit(f"order-{version}-{ordinal}-{new}")
                await happened(world, effect_id)
                grant = await first_grant(
                    world, effect_id, new=new, version=version, ordinal=ordinal
                )
                seen.append((grant, _told(await world.load(effect_id))))
            assert seen[0] == seen[1]

    @pytest.mark.parametrize(
        ("seconds", "kind"), [(-1, GrantKind.STALE), (3600, GrantKind.GRANTED)]
    )
    async def test_nothing_is_granted_after_the_moment_before_which_it_had_to_be_sent(
        self, world: World, seconds: int, kind: GrantKind
    ) -> None:
        now = (await world.load(await world.submit("clock"))).now
        effect_id = await world.submit(send_before=now + timedelta(seconds=seconds))
        assert (await first_grant(world, effect_id, new=True)).kind is kind
