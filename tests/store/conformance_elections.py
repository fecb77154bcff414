"""What every store promises of elections; a part of the suite in `conformance`."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from effect_adapters.base import Answer
from effect_broker.protocol import election
from effect_broker.protocol.ports import Change, ExtendAttempt, Sealed, Snapshot, StaleWrite
from effect_broker.protocol.submission import Elected, ElectionStore, FirstElection
from effect_contracts.facts import EffectState, Outcome
from effect_contracts.life import LifeEvent
from store.conformance import World
from store.samples import TARGET, advance, contract, submission

LEASE = timedelta(seconds=30)
MARGIN = timedelta(seconds=0.5)


def first_of(**changes: Any) -> FirstElection:
    """As a caller of the sample contract asks; the lease is that of the contract."""
    made = FirstElection(
        attempt_id=uuid4(),
        caller="caller:test",
        target_identity=TARGET,
        lease_seconds=LEASE.total_seconds(),
        clock_margin_seconds=MARGIN.total_seconds(),
        key_retention_seconds=86400,
        reason="first_attempt",
        lease_extends=True,
    )
    return replace(made, **changes)


def elections(world: World) -> ElectionStore:
    return cast(ElectionStore, world.store)


async def elected(world: World, key: str = "order-1") -> tuple[Elected, FirstElection]:
    wanted, first = submission(world.tenant_id, key), first_of()
    return await elections(world).elect_first(wanted, first), first


def success(snapshot: Snapshot, attempt_id: UUID) -> Change[election.Told]:
    """The plan of a confirm."""
    return election.tell(
        snapshot,
        attempt_id=attempt_id,
        ordinal=1,
        answer=Answer(Outcome.COMMITTED, "ok", external_id="ch_1"),
        result=Sealed("k1", b"sealed result"),
        result_digest=b"\x01" * 32,
        receipt_id=uuid4(),
    )


class ElectionConformance:
    """The suite's part on elections."""

    async def test_the_first_caller_is_elected_with_its_intent(self, world: World) -> None:
        made, first = await elected(world)
        assert made.created
        assert made.first == first
        snapshot = await world.load(made.intent.effect_id)
        # What is written in one statement is what the plan would have written.
        intent = snapshot.intent
        assert (intent.state, intent.version, intent.reason, intent.generation) == (
            EffectState.DISPATCHING, 2, "first_attempt", 1,
        )  # fmt: skip
        assert intent.target_identity == TARGET
        (row,) = snapshot.attempts
        assert (row.attempt_id, row.executor_id, row.fact.outcome) == (
            first.attempt_id, "caller:test", None,
        )  # fmt: skip
        assert row.fact.deadline_at - row.fact.started_at == LEASE
        assert intent.next_action_at == row.fact.deadline_at + MARGIN
        assert snapshot.urgency.open_until == row.fact.deadline_at + MARGIN
        assert snapshot.urgency.key_expires_at == row.fact.started_at + timedelta(days=1)
        assert made.intent == intent
        assert world.runs(intent.effect_id) == [], "the reconcile loop starts its recovery"

    async def test_what_an_election_leaves_is_known_without_a_read(self, world: World) -> None:
        made, _ = await elected(world)
        known = election.first_snapshot(made, contract("idempotent"))
        stored = await world.load(made.intent.effect_id)
        same = replace(known, now=stored.now, wire=stored.wire, urgency=stored.urgency)
        assert same == stored

    async def test_an_operation_key_that_stands_elects_nobody(self, world: World) -> None:
        made, _ = await elected(world)
        again, _ = await elected(world)
        assert (again.created, again.first) == (False, None)
        assert again.intent == made.intent
        assert len((await world.load(made.intent.effect_id)).attempts) == 1

    async def test_a_success_is_settled_on_what_the_election_left(self, world: World) -> None:
        made, first = await elected(world)
        known = election.first_snapshot(made, contract("idempotent"))
        known = replace(known, now=(await world.load(made.intent.effect_id)).now)
        change = success(known, first.attempt_id)
        assert await elections(world).settle_first(known, change)
        snapshot = await world.load(made.intent.effect_id)
        assert (snapshot.intent.state, snapshot.intent.version) == (EffectState.SUCCEEDED, 3)
        assert snapshot.attempts[0].fact.outcome is Outcome.COMMITTED
        assert snapshot.attempts[0].fact.external_id == "ch_1"
        assert snapshot.attempts[0].result_digest == b"\x01" * 32
        assert (snapshot.urgency.open_until, snapshot.urgency.key_expires_at) == (None, None)
        ref = str(first.attempt_id)
        sealed = await world.store.payload(world.tenant_id, made.intent.effect_id, "result", ref)
        assert sealed == Sealed("k1", b"sealed result")
        # Once: the version is another one now.
        assert not await elections(world).settle_first(known, change)

    async def test_a_success_is_not_settled_on_what_has_moved(self, world: World) -> None:
        made, first = await elected(world)
        known = election.first_snapshot(made, contract("idempotent"))
        await world.write(
            made.intent.effect_id,
            advance(LifeEvent.ATTEMPT_OPEN, EffectState.DISPATCHING, made.intent.next_action_at),
        )
        known = replace(known, now=(await world.load(made.intent.effect_id)).now)
        assert not await elections(world).settle_first(known, success(known, first.attempt_id))
        assert (await world.load(made.intent.effect_id)).attempts[0].fact.outcome is None

    async def test_a_lease_gets_longer_and_never_shorter(self, world: World) -> None:
        made, first = await elected(world)
        assert made.granted_at is not None
        until = made.granted_at + 2 * LEASE

        async def extend(at: Any) -> None:
            await world.write(
                made.intent.effect_id,
                ExtendAttempt(first.attempt_id, at),
                advance(LifeEvent.ATTEMPT_OPEN, EffectState.DISPATCHING, at),
            )

        await extend(until)
        snapshot = await world.load(made.intent.effect_id)
        assert snapshot.attempts[0].fact.deadline_at == until
        assert snapshot.urgency.open_until == until + MARGIN
        with pytest.raises(StaleWrite):
            await extend(until - LEASE)
        await world.record(made.intent.effect_id, first.attempt_id, Outcome.AMBIGUOUS)
        with pytest.raises(StaleWrite):
            await extend(until + LEASE)
