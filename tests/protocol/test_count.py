"""The count after the end: design §4, a redispatched reconcilable effect is looked up once more."""

from __future__ import annotations

import pytest

from effect_adapters.base import Answer, Finding
from effect_adapters.simulated import LedgerEntry
from effect_broker.protocol import changes
from effect_contracts.facts import CODE_SEVERAL_MATCHES, Alert, Outcome, Verdict
from protocol.world import ARGUMENTS, World, lost_answer

ABSENT = Finding(Verdict.NOT_COMMITTED, "absent")
BOUND_SECONDS = 60.0


async def redispatched(world: World, second: Answer | None = None) -> None:
    """Lose the first answer, be told that nothing is there, send again, settle."""
    await world.submit()
    world.target.answers.append(lost_answer())
    if second is not None:
        world.target.answers.append(second)
    # At once and, since that proves nothing, again after the bound.
    for _ in range(40):
        world.target.findings.append(ABSENT)
    while len(world.target.sent) < 2:
        await step(world)
    world.target.findings.clear()


async def step(world: World) -> None:
    """Wait for the next action and run it."""
    at = world.snapshot.intent.next_action_at
    assert at is not None
    world.clock.seconds += max((at - world.clock.now()).total_seconds(), 0.0)
    await world.requeue_due()
    await world.run(world.snapshot.intent.generation)


def kinds(world: World) -> list[str]:
    return [e.advance.kind for e in world.memory.events(world.effect_id)]


async def test_a_redispatched_effect_is_counted_and_one_object_is_well(reconcilable: World) -> None:
    await redispatched(reconcilable)
    assert reconcilable.state == ("succeeded", "committed")
    receipt, looked = reconcilable.receipt, len(reconcilable.target.looked)
    due = reconcilable.snapshot.intent.next_action_at
    assert due is not None
    assert (due - reconcilable.clock.now()).total_seconds() == pytest.approx(4 * BOUND_SECONDS)
    await step(reconcilable)
    assert len(reconcilable.target.looked) == looked + 1
    assert kinds(reconcilable)[-2:] == ["count_started", "counted"]
    assert reconcilable.memory.alert(reconcilable.effect_id) is None
    assert reconcilable.snapshot.intent.next_action_at is None
    assert reconcilable.receipt == receipt


async def test_two_objects_are_a_duplicate_that_is_never_hidden(reconcilable: World) -> None:
    """The look-up lied about its bound: the first request had made an object."""
    await redispatched(reconcilable)
    receipt = reconcilable.receipt
    key = reconcilable.snapshot.intent.downstream_key
    reconcilable.target.entries.append(LedgerEntry("sim_0", key, dict(ARGUMENTS)))
    await step(reconcilable)
    assert kinds(reconcilable)[-1] == "duplicate_detected"
    assert reconcilable.memory.alert(reconcilable.effect_id) is Alert.DUPLICATE_DETECTED
    assert reconcilable.state == ("succeeded", "committed")
    assert reconcilable.receipt == receipt
    # The contract has lied, so nothing else is sent again on its word.
    await reconcilable.submit("order-2")
    await reconcilable.run_until_at_rest()
    assert reconcilable.state == ("prepared", "frozen")


async def test_an_object_of_a_failed_effect_is_a_contradiction(reconcilable: World) -> None:
    """The second request was refused; the first, taken for absent, has made an object after all."""
    await redispatched(reconcilable, Answer(Outcome.REJECTED, "refused"))
    assert reconcilable.state == ("failed_final", "rejected")
    reconcilable.target.entries.append(reconcilable.entry())
    await step(reconcilable)
    assert reconcilable.memory.alert(reconcilable.effect_id) is Alert.LATE_CONTRADICTION
    assert reconcilable.state == ("failed_final", "rejected")
    await reconcilable.submit("order-2")
    await reconcilable.run_until_at_rest()
    assert reconcilable.state == ("prepared", "frozen")


async def test_a_failed_effect_without_an_object_is_well(reconcilable: World) -> None:
    await redispatched(reconcilable, Answer(Outcome.REJECTED, "refused"))
    await step(reconcilable)
    assert kinds(reconcilable)[-1] == "counted"
    assert reconcilable.memory.alert(reconcilable.effect_id) is None
    assert reconcilable.snapshot.intent.next_action_at is None


async def test_a_count_without_an_answer_is_asked_again_and_ends_some_time(
    reconcilable: World,
) -> None:
    await redispatched(reconcilable)
    began = reconcilable.clock.seconds
    looked = len(reconcilable.target.looked)
    for _ in range(100):
        reconcilable.target.findings.append(Finding(Verdict.UNKNOWN, "busy"))
    await reconcilable.run_until_at_rest()
    assert 4 <= len(reconcilable.target.looked) - looked <= 8
    assert reconcilable.clock.seconds - began > 128 * BOUND_SECONDS
    assert reconcilable.memory.alert(reconcilable.effect_id) is None


async def test_a_count_that_sees_nothing_of_a_success_contradicts_and_looks_again(
    reconcilable: World,
) -> None:
    await redispatched(reconcilable)
    reconcilable.target.findings.extend(
        [ABSENT, Finding(Verdict.MISMATCH, CODE_SEVERAL_MATCHES, ("sim_1", "sim_2"))]
    )
    await step(reconcilable)
    assert reconcilable.memory.alert(reconcilable.effect_id) is Alert.LATE_CONTRADICTION
    await step(reconcilable)
    assert reconcilable.memory.alert(reconcilable.effect_id) is Alert.DUPLICATE_DETECTED
    assert reconcilable.snapshot.intent.next_action_at is None


async def test_an_effect_that_was_sent_once_is_not_counted(reconcilable: World) -> None:
    await reconcilable.submit()
    reconcilable.target.answers.append(lost_answer())
    reconcilable.target.entries.append(reconcilable.entry())
    await reconcilable.run_until_at_rest()
    assert reconcilable.state == ("succeeded", "committed")
    assert "count_started" not in kinds(reconcilable)


async def test_another_target_is_not_counted(reconcilable: World) -> None:
    await redispatched(reconcilable)
    looked = len(reconcilable.target.looked)
    reconcilable.adapter.moved_to = "https://elsewhere"
    await step(reconcilable)
    assert len(reconcilable.target.looked) == looked
    assert kinds(reconcilable)[-1] == "count_given_up"
    assert reconcilable.snapshot.intent.next_action_at is None


async def test_a_count_whose_runs_keep_failing_is_given_up(reconcilable: World) -> None:
    """Not parked: a final effect waits for nobody."""
    await redispatched(reconcilable)
    reconcilable.clock.seconds += 10**6
    for _ in range(changes.IDLE_GENERATIONS_MAX + 1):
        await reconcilable.requeue_due()
        reconcilable.clock.seconds += changes.IDLE_WAIT_CAP_SECONDS + 1
    assert kinds(reconcilable)[-1] == "count_given_up"
    assert reconcilable.snapshot.intent.next_action_at is None
    assert reconcilable.state == ("succeeded", "committed")


async def test_a_count_that_is_killed_is_begun_again(reconcilable: World) -> None:
    await redispatched(reconcilable)

    def die() -> None:
        raise KeyboardInterrupt

    reconcilable.on_reach["after_probe_answer"] = die
    with pytest.raises(KeyboardInterrupt):
        await step(reconcilable)
    assert kinds(reconcilable)[-1] == "count_started"
    await reconcilable.run_until_at_rest()
    assert kinds(reconcilable)[-2:] == ["count_started", "counted"]


async def test_a_fact_from_elsewhere_leaves_the_count_where_it_is(reconcilable: World) -> None:
    await redispatched(reconcilable)
    due = reconcilable.snapshot.intent.next_action_at
    await reconcilable.evidence(Verdict.COMMITTED, "sim_1")
    assert reconcilable.snapshot.intent.next_action_at == due
    assert kinds(reconcilable)[-1] == "late_fact"


async def stopped_behind_the_gate(
    world: World, came_back: Answer, *, after: Answer | None = None
) -> None:
    """The first process stands still until its effect has settled and was counted, then sends.

    `after` is what the target tells the second one; `came_back`, what the first one sees.
    """
    await world.submit()
    zombie = world.ports_of(world.new_process("zombie"))

    async def settle() -> None:
        world.target.findings.extend([ABSENT] * 40)
        if after is not None:
            world.target.answers.append(after)
        world.clock.seconds += 60
        while len(world.target.sent) < 2:
            await world.run(world.snapshot.intent.generation)
            if len(world.target.sent) < 2:
                await step(world)
        world.target.findings.clear()
        await world.run_until_at_rest()
        assert kinds(world)[-1] == "counted"
        assert world.snapshot.intent.next_action_at is None
        world.target.answers.append(came_back)

    world.target.while_sending = settle
    await world.dispatch(1, 1, zombie)


@pytest.mark.parametrize("came_back", [lost_answer(), Answer(Outcome.COMMITTED, "committed")])
async def test_what_is_sent_after_the_count_is_counted_again(
    reconcilable: World, came_back: Answer
) -> None:
    """The look-up told the truth; the request came later than all of it."""
    await stopped_behind_the_gate(reconcilable, came_back)
    assert reconcilable.state == ("succeeded", "committed")
    due = reconcilable.snapshot.intent.next_action_at
    assert due is not None
    assert (due - reconcilable.clock.now()).total_seconds() == pytest.approx(4 * BOUND_SECONDS)
    assert reconcilable.memory.alert(reconcilable.effect_id) is None
    reconcilable.target.entries.append(reconcilable.entry())
    receipt = reconcilable.receipt
    await step(reconcilable)
    assert kinds(reconcilable)[-1] == "duplicate_detected"
    assert reconcilable.memory.alert(reconcilable.effect_id) is Alert.DUPLICATE_DETECTED
    assert reconcilable.receipt == receipt
    await reconcilable.submit("order-2")
    await reconcilable.run_until_at_rest()
    assert reconcilable.state == ("prepared", "frozen")


async def test_a_request_after_a_failure_is_looked_for(reconcilable: World) -> None:
    refusal = Answer(Outcome.REJECTED, "refused")
    await stopped_behind_the_gate(reconcilable, lost_answer(), after=refusal)
    assert reconcilable.state == ("failed_final", "rejected")
    reconcilable.target.entries.append(reconcilable.entry())
    await step(reconcilable)
    assert reconcilable.memory.alert(reconcilable.effect_id) is Alert.LATE_CONTRADICTION


async def test_a_late_word_that_nothing_was_sent_owes_no_count(reconcilable: World) -> None:
    await stopped_behind_the_gate(reconcilable, Answer(Outcome.REJECTED, "refused"))
    assert reconcilable.snapshot.intent.next_action_at is None
    assert kinds(reconcilable)[-1] == "late_fact"


async def test_an_early_run_waits_for_the_count(reconcilable: World) -> None:
    await redispatched(reconcilable)
    version, looked = reconcilable.snapshot.intent.version, len(reconcilable.target.looked)
    assert (await reconcilable.probe(version)).next == "reload"
    assert (await reconcilable.reserve(reconcilable.snapshot.intent.generation)).next == "end"
    assert len(reconcilable.target.looked) == looked
