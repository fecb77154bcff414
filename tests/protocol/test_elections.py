"""Effects that callers perform: who is elected, what extends a lease, what a telling is."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from effect_adapters.base import Adapter, Answer, TransactionalAdapter
from effect_adapters.caller import CallerAdapter
from effect_adapters.simulated import SimulatedAdapter
from effect_broker.intake import EffectRequest, Intake
from effect_broker.keyring import AesVault
from effect_broker.proof.memory_certificates import MemoryCertificate
from effect_broker.proof.memory_store import MemoryStore
from effect_broker.protocol import election
from effect_broker.protocol.conclusion import Next
from effect_broker.protocol.election import Election, Extension, Telling, Told
from effect_broker.protocol.ports import (
    Advance,
    AttemptRow,
    Change,
    ExtendAttempt,
    Sealed,
    Snapshot,
)
from effect_broker.protocol.submission import Elected, FirstElection, Submission
from effect_contracts.document import ContractDocument
from effect_contracts.facts import Certified, EffectState, Hold, Outcome
from effect_contracts.life import LifeEvent
from protocol.world import RING, TENANT, WatchedTarget, WorldClock

IDENTITY = "caller:shop.example#acct_1"
CALLER = election.caller_of("test")
LEASE, MARGIN = 30.0, 0.5
DONE = Answer(Outcome.COMMITTED, "ok", external_id="ch_1")
SEALED = Sealed("k1", b"sealed result")


class Desk:
    """A broker without an engine, for one contract whose effects callers perform."""

    def __init__(self, safety: str = "idempotent", **changes: Any) -> None:
        self.clock = WorldClock()
        self.memory = MemoryStore(self.clock.now)
        fields: dict[str, Any] = {
            "name": "shop", "version": "1", "tool": "shop.sell", "safety": safety,
            "account": "acct_1", "arguments": {"type": "object"},
            "attempt_deadline_seconds": LEASE, "clock_margin_seconds": MARGIN,
            "adapter": {"kind": "caller", "target": "shop.example", "lease_seconds_max": 70},
        }  # fmt: skip
        if safety == "idempotent":
            fields["key_retention_seconds"] = 86400
        self.document = ContractDocument.parse_yaml(json.dumps(fields | changes))
        self.memory.apply_contract(self.document)
        self.effect_id = UUID(int=0)
        target = WatchedTarget(self.clock, deduplicates=True)
        simulated = SimulatedAdapter({"ledger": target})
        adapters: dict[str, Adapter | TransactionalAdapter] = {
            "caller": CallerAdapter(simulated),
            "simulated": simulated,
        }
        self._intake = Intake(self.memory, adapters, RING, AesVault(RING), lambda _name: None)

    async def submit(self) -> None:
        """An intent that stands and that nobody performs yet."""
        request = EffectRequest("order-1", self.document.tool, {})
        self.effect_id = (await self._intake.submit(TENANT, request)).intent.effect_id

    async def first(self, attempt_id: UUID) -> Elected:
        """The election of a caller whose effect is new."""

        async def made(submission: Submission, document: ContractDocument) -> Elected:
            policy = document.policy()
            asked = FirstElection(
                attempt_id, CALLER, IDENTITY, policy.attempt_deadline_seconds,
                policy.clock_margin_seconds, policy.key_retention_seconds,
                "first_attempt", lease_extends=True,
            )  # fmt: skip
            return await self.memory.elect_first(submission, asked)

        request = EffectRequest("order-1", self.document.tool, {})
        elected = await self._intake.elect(TENANT, request, made)
        self.effect_id = elected.intent.effect_id
        return elected

    async def elect(
        self, attempt_id: UUID, caller: str = CALLER, identity: str = IDENTITY
    ) -> Election:
        def planned(snapshot: Snapshot) -> Change[Election]:
            return election.elect(
                snapshot, identity=identity, attempt_id=attempt_id, caller=caller,
                receipt_id=uuid4(),
            )  # fmt: skip

        return await self.memory.change(TENANT.tenant_id, self.effect_id, planned)

    async def extend(self, attempt_id: UUID, ordinal: int = 1) -> Extension:
        def planned(snapshot: Snapshot) -> Change[Extension]:
            return election.extend(snapshot, attempt_id=attempt_id, ordinal=ordinal)

        return await self.memory.change(TENANT.tenant_id, self.effect_id, planned)

    async def tell(
        self, attempt_id: UUID, answer: Answer = DONE, ordinal: int = 1, digest: bytes | None = None
    ) -> Told:
        committed = answer.outcome is Outcome.COMMITTED

        def planned(snapshot: Snapshot) -> Change[Told]:
            return election.tell(
                snapshot, attempt_id=attempt_id, ordinal=ordinal, answer=answer,
                result=SEALED if committed else None,
                result_digest=(digest or b"\1" * 32) if committed else None, receipt_id=uuid4(),
            )  # fmt: skip

        return await self.memory.change(TENANT.tenant_id, self.effect_id, planned)

    @property
    def snapshot(self) -> Snapshot:
        return self.memory.snapshot(self.effect_id)

    @property
    def stands(self) -> tuple[EffectState, int]:
        return self.snapshot.intent.state, self.snapshot.intent.version

    @property
    def leases(self) -> list[tuple[int, str, Outcome | None]]:
        rows = self.snapshot.attempts
        return [(row.fact.ordinal, row.executor_id, row.fact.outcome) for row in rows]

    def let_pass(self, seconds: float) -> None:
        self.clock.seconds += seconds


async def elected(safety: str = "idempotent", **changes: Any) -> tuple[Desk, UUID]:
    """A desk whose first caller holds its lease."""
    desk, mine = Desk(safety, **changes), uuid4()
    await desk.submit()
    assert (await desk.elect(mine)).elected
    return desk, mine


# The token ---------------------------------------------------------------------------------------


def test_the_attempt_of_a_token_never_changes() -> None:
    """Whoever asks again after an upgrade has to meet the attempt that it was given before."""
    found = election.attempt_id_of(UUID(int=7), UUID(int=9), "token-1")
    assert found == UUID("256e17fa-d526-85c3-b940-29c00d1f9e3a")
    assert (found.version, found.variant) == (8, "specified in RFC 4122")


def test_each_tenant_effect_and_token_has_an_attempt_of_its_own() -> None:
    made = {
        election.attempt_id_of(UUID(int=tenant), UUID(int=effect), token)
        for tenant in (1, 2)
        for effect in (1, 2)
        for token in ("a", "b", "ab")
    }
    assert len(made) == 12
    assert {one.version for one in made} == {8}
    assert {one.variant for one in made} == {"specified in RFC 4122"}


def test_a_caller_is_named_as_the_sender() -> None:
    assert CALLER == "caller:test"


# Elect -------------------------------------------------------------------------------------------


async def test_whoever_is_elected_has_the_next_attempt_for_one_lease() -> None:
    desk, mine = Desk(), uuid4()
    await desk.submit()
    found = await desk.elect(mine)
    assert (found.elected, found.ordinal, found.lease_seconds) == (True, 1, LEASE)
    snapshot = desk.snapshot
    began = desk.clock.now()
    (row,) = snapshot.attempts
    assert (row.attempt_id, row.executor_id, row.fact.started_at) == (mine, CALLER, began)
    assert row.fact.deadline_at == began + timedelta(seconds=LEASE)
    intent = snapshot.intent
    assert (intent.state, intent.reason, intent.version) == (
        EffectState.DISPATCHING, "first_attempt", 2,
    )  # fmt: skip
    assert intent.target_identity == IDENTITY
    assert intent.next_action_at == row.fact.deadline_at + timedelta(seconds=MARGIN)
    assert not snapshot.parked
    view = found.view
    assert (view.version, view.state, view.next, view.now) == (
        2, EffectState.DISPATCHING, Next.DISPATCH, began,
    )  # fmt: skip


async def test_asking_again_with_the_same_token_is_the_same_election_for_what_is_left() -> None:
    desk, mine = await elected()
    desk.let_pass(10)
    again = await desk.elect(mine)
    assert (again.elected, again.ordinal, again.lease_seconds) == (True, 1, LEASE - 10)
    assert desk.stands == (EffectState.DISPATCHING, 2)
    assert len(desk.leases) == 1


async def test_whoever_asks_beside_an_open_lease_changes_nothing() -> None:
    desk, _ = await elected()
    desk.let_pass(LEASE - 0.001)
    other = await desk.elect(uuid4(), "caller:other")
    assert other == Election(False, other.view)
    assert (other.ordinal, other.lease_seconds) == (0, 0.0)
    assert (other.view.next, other.view.version) == (Next.WAIT, 2)
    assert desk.stands == (EffectState.DISPATCHING, 2)


@pytest.mark.parametrize("passed", [LEASE, LEASE + MARGIN / 2])
async def test_a_lease_that_has_run_out_is_held_no_more(passed: float) -> None:
    """Its margin is for the others: until it is over, nobody else is elected either."""
    desk, mine = await elected()
    desk.let_pass(passed)
    assert not (await desk.elect(mine)).elected
    assert not (await desk.elect(uuid4())).elected
    assert desk.stands == (EffectState.DISPATCHING, 2)


async def test_a_successor_closes_the_attempt_before_and_binds_no_other_target() -> None:
    desk, mine = await elected()
    desk.let_pass(LEASE + MARGIN + 0.001)
    waits = await desk.elect(uuid4(), "caller:other")
    # The attempt is lost; what follows is a wait of the table, and then the same key again.
    while not waits.elected:
        assert waits.view.at is not None
        assert waits.view.version == desk.snapshot.intent.version
        desk.let_pass((waits.view.at - desk.clock.now()).total_seconds())
        waits = await desk.elect(uuid4(), "caller:other")
    assert waits.ordinal == 2
    assert desk.leases == [
        (1, CALLER, Outcome.PRESUMED_AMBIGUOUS),
        (2, "caller:other", None),
    ]
    assert desk.snapshot.intent.target_identity == IDENTITY
    assert not (await desk.elect(mine)).elected


async def test_what_nobody_may_send_again_elects_nobody_and_says_so() -> None:
    desk, mine = await elected("unsafe")
    desk.let_pass(LEASE + MARGIN + 0.001)
    found = await desk.elect(uuid4(), "caller:other")
    assert not found.elected
    assert desk.leases == [(1, CALLER, Outcome.PRESUMED_AMBIGUOUS)]
    assert desk.stands == (EffectState.OUTCOME_UNKNOWN, 3)
    assert (found.view.state, found.view.version) == desk.stands
    # It is written: asking once more changes nothing.
    again = await desk.elect(mine)
    assert not again.elected
    assert again.view.version == 3
    assert desk.stands == (EffectState.OUTCOME_UNKNOWN, 3)


async def test_after_the_end_nobody_is_elected() -> None:
    desk, mine = await elected()
    await desk.tell(mine)
    for token in (mine, uuid4()):
        found = await desk.elect(token)
        assert found == Election(False, found.view)
        assert (found.view.state, found.view.next) == (EffectState.SUCCEEDED, Next.END)
    assert desk.stands == (EffectState.SUCCEEDED, 3)


async def test_nobody_is_elected_for_another_target_than_the_bound_one() -> None:
    desk, mine = await elected()
    await desk.tell(mine, Answer(Outcome.NOT_SENT, "refused", bytes_may_have_left=False))
    desk.let_pass(600)
    assert not (await desk.elect(uuid4(), identity="caller:other.example#acct_1")).elected
    assert desk.snapshot.intent.reason == Hold.TARGET_CHANGED.value
    assert (await desk.elect(uuid4())).elected


async def test_nobody_is_elected_while_it_is_held() -> None:
    desk = Desk()
    await desk.submit()
    desk.memory.holds.add(Hold.PAUSED)
    found = await desk.elect(uuid4())
    assert not found.elected
    assert desk.snapshot.intent.reason == "paused"
    assert desk.leases == []


async def test_an_election_names_the_certificate_that_it_was_granted_on() -> None:
    """No contract of callers can demand one today; the gate is the same for all who send."""
    adapter = {"kind": "simulated", "target": "ledger", "probes": False}
    desk = Desk(adapter=adapter, oversight={"certificate": {}})
    await desk.submit()
    assert not (await desk.elect(uuid4())).elected
    now = desk.clock.now()
    said = Certified("c-1", IDENTITY, frozenset(), now, now + timedelta(days=1))
    desk.memory.certificates.store(MemoryCertificate(desk.document.digest(), said, now))
    mine = uuid4()

    change = election.elect(
        desk.snapshot, identity=IDENTITY, attempt_id=mine, caller=CALLER, receipt_id=uuid4()
    )
    advance = change.writes[-1]
    assert isinstance(advance, Advance)
    assert change.result.elected
    assert advance.kind == "attempt_started"
    assert advance.actor == CALLER
    assert advance.metadata == {
        "ordinal": 1, "attempt_id": str(mine), "certificate_id": "c-1",
        "certified_until": "2026-01-02T00:00:00.000000Z",
    }  # fmt: skip


# The first of all --------------------------------------------------------------------------------


async def test_what_a_first_election_leaves_is_known_without_a_read() -> None:
    desk, mine = Desk(), uuid4()
    made = await desk.first(mine)
    known = election.first_snapshot(made, desk.document)
    stored = desk.snapshot
    assert replace(known, wire=stored.wire, urgency=stored.urgency) == stored
    assert known.attempts == (AttemptRow(known.facts.attempts[0], mine, CALLER),)
    view = election.first_view(made.intent, LEASE)
    began = desk.clock.now()
    assert (view.next, view.version, view.state, view.now) == (
        Next.WAIT, 2, EffectState.DISPATCHING, began,
    )  # fmt: skip
    assert view.at == began + timedelta(seconds=LEASE)


# Extend ----------------------------------------------------------------------------------------


async def test_an_extension_lasts_one_lease_from_now() -> None:
    desk, mine = await elected()
    desk.let_pass(20)
    assert await desk.extend(mine) == Extension(True, LEASE)
    until = desk.clock.now() + timedelta(seconds=LEASE)
    assert desk.snapshot.attempts[0].fact.deadline_at == until
    intent = desk.snapshot.intent
    assert (intent.state, intent.version, intent.reason) == (
        EffectState.DISPATCHING, 3, "attempt_open",
    )  # fmt: skip
    assert intent.next_action_at == until + timedelta(seconds=MARGIN)
    assert not desk.snapshot.parked
    # No longer than the contract lets one election last in all.
    desk.let_pass(29)
    assert await desk.extend(mine) == Extension(True, 70.0 - 49.0)
    # And then it is held for what is left, and nothing is written.
    desk.let_pass(1)
    assert await desk.extend(mine) == Extension(True, 20.0)
    assert desk.snapshot.intent.version == 4


async def test_what_is_written_of_an_extension() -> None:
    desk, mine = await elected()
    desk.let_pass(20)
    change = election.extend(desk.snapshot, attempt_id=mine, ordinal=1)
    extended, advance = change.writes
    until = desk.clock.now() + timedelta(seconds=LEASE)
    assert extended == ExtendAttempt(mine, until)
    assert isinstance(advance, Advance)
    assert (advance.kind, advance.actor, advance.event, advance.parked) == (
        "attempt_extended", CALLER, LifeEvent.ATTEMPT_OPEN, False,
    )  # fmt: skip
    assert advance.metadata == {"ordinal": 1, "deadline_at": "2026-01-01T00:00:50.000000Z"}


async def test_nobody_extends_what_it_does_not_hold() -> None:
    desk, mine = await elected()
    desk.let_pass(20)
    lost = Extension(False, 0.0)
    assert await desk.extend(uuid4()) == lost
    assert await desk.extend(mine, ordinal=2) == lost
    assert await desk.extend(mine, ordinal=0) == lost
    desk.let_pass(LEASE - 20)
    assert await desk.extend(mine) == lost, "at its very end it is over"
    assert desk.snapshot.intent.version == 2


async def test_nobody_extends_a_call_that_has_ended() -> None:
    desk, mine = await elected()
    await desk.tell(mine, Answer(Outcome.AMBIGUOUS, "closed_without_answer"))
    version = desk.snapshot.intent.version
    assert await desk.extend(mine) == Extension(False, 0.0)
    assert desk.snapshot.intent.version == version


async def test_without_a_longest_lease_it_is_held_for_what_is_left() -> None:
    adapter = {"kind": "caller", "target": "shop.example"}
    desk, mine = await elected(adapter=adapter)
    desk.let_pass(20)
    assert await desk.extend(mine) == Extension(True, 10.0)
    assert desk.snapshot.intent.version == 2


# Tell --------------------------------------------------------------------------------------------


async def test_what_the_holder_tells_settles_the_effect() -> None:
    desk, mine = await elected()
    told = await desk.tell(mine)
    assert (told.telling, told.repeated) == (Telling.RECORDED, False)
    assert (told.view.state, told.view.version, told.view.next) == (
        EffectState.SUCCEEDED, 3, Next.END,
    )  # fmt: skip
    assert desk.stands == (EffectState.SUCCEEDED, 3)
    (row,) = desk.snapshot.attempts
    assert (row.fact.outcome, row.fact.external_id) == (Outcome.COMMITTED, "ch_1")
    assert row.result_digest == b"\1" * 32


async def test_the_same_once_more_is_a_repetition_and_anything_else_is_another() -> None:
    desk, mine = await elected()
    await desk.tell(mine)
    again = await desk.tell(mine)
    assert (again.telling, again.repeated) == (Telling.REPEATED, True)
    for other in (
        replace(DONE, code="created"),
        replace(DONE, external_id="ch_2"),
        Answer(Outcome.REJECTED, "ok", external_id="ch_1"),
    ):
        assert (await desk.tell(mine, other)).telling is Telling.ANOTHER
    assert (await desk.tell(mine, digest=b"\2" * 32)).telling is Telling.ANOTHER
    assert desk.stands == (EffectState.SUCCEEDED, 3)


async def test_only_the_holder_of_the_attempt_tells_of_it() -> None:
    desk, mine = await elected()
    assert (await desk.tell(uuid4())).telling is Telling.NOBODY
    for ordinal in (0, 2):
        assert (await desk.tell(mine, ordinal=ordinal)).telling is Telling.NOBODY
    assert desk.stands == (EffectState.DISPATCHING, 2)
    assert desk.leases == [(1, CALLER, None)]


async def test_what_is_told_too_late_is_kept_as_a_fact_and_honoured() -> None:
    desk, mine = await elected("unsafe")
    desk.let_pass(LEASE + MARGIN + 0.001)
    await desk.elect(uuid4())
    told = await desk.tell(mine)
    assert told.telling is Telling.LATE
    assert told.view.state is EffectState.SUCCEEDED
    assert desk.leases == [(1, CALLER, Outcome.COMMITTED)]


async def test_what_is_told_within_the_margin_is_in_time() -> None:
    """Nobody has been elected since: the word of the one that sent is what there is."""
    desk, mine = await elected()
    desk.let_pass(LEASE + MARGIN + 60)
    assert (await desk.tell(mine)).telling is Telling.RECORDED


async def test_of_an_effect_whose_attempts_are_gone_it_is_too_late_and_no_stranger_is_made() -> (
    None
):
    """Retention removes the attempts of what has settled long ago, and nothing before."""
    desk, mine = await elected()
    await desk.tell(mine)

    def told(snapshot: Snapshot) -> Telling:
        change = election.tell(
            snapshot, attempt_id=mine, ordinal=1, answer=DONE, result=SEALED,
            result_digest=b"\1" * 32, receipt_id=uuid4(),
        )  # fmt: skip
        assert change.writes == ()
        return change.result.telling

    settled = desk.snapshot
    removed = replace(settled, attempts=(), facts=replace(settled.facts, attempts=()))
    assert told(removed) is Telling.LATE
    unsettled = replace(removed.intent, state=EffectState.DISPATCHING)
    assert told(replace(removed, intent=unsettled)) is Telling.NOBODY
    never_sent = replace(removed.intent, target_identity=None, state=EffectState.CANCELLED)
    assert told(replace(removed, intent=never_sent)) is Telling.NOBODY


def test_the_answers_are_words_of_the_protocol() -> None:
    assert {one.value for one in Telling} == {"recorded", "late", "repeated", "another", "nobody"}
