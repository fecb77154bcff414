"""The rules of design §4 hold of themselves: a broker whose `decide` is wrong gives itself away.

In each test the table of decisions is spoilt, for the broker and for the check alike. The broker's
account is then consistent in every word, and wrong; the rule that judges without `decide` says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from effect_adapters.base import Answer, Finding
from effect_broker.proof.simulation.campaign import worlds
from effect_broker.protocol import changes
from effect_contracts import decide
from effect_contracts.decide import Action, Decision, Reason
from effect_contracts.facts import Outcome, Verdict
from effect_contracts.life import LifeEvent
from effect_contracts.trace import Rule, standing, verify_lines
from effect_contracts.trace.findings import Broken
from effect_contracts.trace.guards import check_grant
from effect_contracts.trace.log import EffectLine
from effect_contracts.trace.timeline import Timeline
from protocol.world import World, lost_answer
from trace_check import corpus
from trace_check.forging import parsed
from trace_check.staged import SCENES, account, world_of


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Any], None]:
    """Put something else in the place of one part of the table."""

    def spoilt(name: str, wrong: Any) -> None:
        monkeypatch.setattr(decide._Case, name, wrong)

    return spoilt


def broken(world: World) -> set[Rule]:
    """The rules that a world's account breaks."""
    found = verify_lines(account(world), whole=True).violations
    return {violation.rule for violation in found}


def dispatch(case: decide._Case, *_: object) -> Decision:
    """Send again, whatever is known."""
    ordinal = len(case.facts.attempts) + 1
    reason = Reason.SAME_KEY_AGAIN
    return Decision(Action.DISPATCH, LifeEvent.ATTEMPT_STARTED, reason, 11, ordinal=ordinal)


async def test_an_unsafe_effect_that_was_sent_again_after_doubt(
    spoil: Callable[[str, Any], None],
) -> None:
    world = world_of("unsafe")
    await world.submit()
    world.target.answers.append(lost_answer())
    spoil("_unknown_decision", dispatch)
    await world.run_until_at_rest()
    assert len(world.outcomes) == 2
    assert broken(world) == {Rule.UNSAFE}


async def test_a_redispatch_on_a_look_up_that_came_too_early(
    spoil: Callable[[str, Any], None],
) -> None:
    world = world_of("reconcilable")
    await world.submit()
    world.target.answers.append(lost_answer())
    world.target.findings.append(Finding(Verdict.NOT_COMMITTED, "absent"))
    spoil("_clears", lambda _self, evidence, _o: evidence.verdict is Verdict.NOT_COMMITTED)
    await world.run_until_at_rest()
    assert len(world.outcomes) == 2
    assert broken(world) == {Rule.CONCLUSIVE}


async def test_a_redispatch_with_a_key_that_may_be_forgotten(
    spoil: Callable[[str, Any], None],
) -> None:
    world = world_of("idempotent", key_retention_seconds=150)
    await world.submit()
    world.target.answers.append(lost_answer())
    await world.dispatch((await world.reserve()).version, 1)
    world.let_pass(120)
    spoil("_key_lives_through", lambda _self, _at: True)
    await world.run_until_at_rest()
    assert len(world.outcomes) == 2
    assert broken(world) == {Rule.RETENTION}


async def test_a_redispatch_while_the_attempt_before_may_still_send(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = world_of("idempotent", clock_margin_seconds=5)
    await world.submit()
    seen = await world.reserve()

    async def dies() -> None:
        raise KeyboardInterrupt

    world.target.while_sending = dies
    with pytest.raises(KeyboardInterrupt):
        await world.dispatch(seen.version, 1)
    monkeypatch.setattr(decide, "deadline", lambda a, _policy: a.recorded_at or a.deadline_at)
    world.let_pass(32)
    await world.run()
    assert len(world.outcomes) == 2
    assert broken(world) == {Rule.SETTLED_BY}


async def test_a_redispatch_after_the_effect_was_there(spoil: Callable[[str, Any], None]) -> None:
    world = world_of("idempotent")
    await world.submit()
    spoil("_commit_decision", lambda _self: None)
    spoil("_refusal_decision", lambda _self: None)
    await world.run_until_at_rest()
    assert len(world.outcomes) > 1
    assert broken(world) == {Rule.RESENT}


async def test_a_redispatch_after_a_refusal_for_good(spoil: Callable[[str, Any], None]) -> None:
    world = world_of("idempotent")
    await world.submit()
    world.target.answers.append(Answer(Outcome.REJECTED, "refused"))
    spoil("_cleared_decision", lambda _self: None)
    spoil("_unknown_decision", dispatch)
    await world.run_until_at_rest()
    assert len(world.outcomes) == 2
    assert broken(world) == {Rule.RESENT}


async def test_a_failure_that_is_not_proved(spoil: Callable[[str, Any], None]) -> None:
    world = world_of("unsafe")
    await world.submit()
    world.target.answers.append(lost_answer())
    spoil("_cleared", lambda _self, _attempt: True)
    await world.run_until_at_rest()
    assert world.state[0] == "failed_final"
    assert broken(world) == {Rule.SUPPORT}


async def test_a_success_that_nothing_says(spoil: Callable[[str, Any], None]) -> None:
    world = world_of("unsafe")
    await world.submit()
    world.target.answers.append(lost_answer())

    def hopes(case: decide._Case) -> Decision | None:
        if not case.facts.attempts or case.facts.attempts[0].outcome is None:
            return None
        winner = case.facts.attempts[0]
        return Decision(Action.SETTLE, LifeEvent.COMMIT_PROVED, Reason.COMMITTED, 2, winner=winner)

    spoil("_commit_decision", hopes)
    await world.run_until_at_rest()
    assert world.state[0] == "succeeded"
    assert broken(world) == {Rule.SUPPORT}


async def test_two_objects_are_no_success(spoil: Callable[[str, Any], None]) -> None:
    world = world_of("reconcilable")
    await world.submit()
    world.target.answers.append(lost_answer())
    world.target.findings.append(Finding(Verdict.COMMITTED, "found", ("sim_1", "sim_2")))

    def first_wins(case: decide._Case) -> Decision | None:
        found = [e for e in case.facts.evidence if e.verdict is Verdict.COMMITTED]
        if not found:
            return None
        return Decision(
            Action.SETTLE, LifeEvent.COMMIT_PROVED, Reason.COMMITTED, 2, winner=found[0]
        )

    spoil("_commit_decision", first_wins)
    await world.run_until_at_rest()
    assert world.state[0] == "succeeded"
    assert broken(world) == {Rule.SUPPORT}


def test_a_second_attempt_while_one_is_open() -> None:
    """No store lets such a row in, so the rule is asked itself."""
    lines = (_line(corpus.scheduled("idempotent", seed)) for seed in range(9))
    line = next(line for line in lines if line.attempts)
    timeline = Timeline(line, worlds()["idempotent"].document.policy(), None)
    check_grant(timeline, line.attempts[0].started_at)
    timeline.start(line.attempts[0])
    with pytest.raises(Broken) as problem:
        check_grant(timeline, line.attempts[0].deadline_at)
    assert problem.value.rule is Rule.ONE_OPEN


def _line(lines: list[bytes]) -> EffectLine:
    return EffectLine.model_validate_json(json.dumps(parsed(lines)[2]))


# What is right stays clean ------------------------------------------------------------------------


@pytest.mark.parametrize("world", corpus.WORLDS)
def test_no_schedule_of_the_protocol_breaks_a_rule(world: str) -> None:
    """A failure names its seed: `corpus.scheduled(world, seed)` is the same account again."""
    for seed in range(5000, 5080):
        found = verify_lines(corpus.scheduled(world, seed), whole=True).violations
        assert found == (), f"seed {seed}"


def test_a_requeue_may_wait_as_long_as_the_broker_lets_it() -> None:
    assert standing.REQUEUE_WAIT_SECONDS_MAX == changes.IDLE_WAIT_CAP_SECONDS


@pytest.mark.parametrize("scene", SCENES)
async def test_no_scene_breaks_a_rule(scene: str) -> None:
    assert verify_lines(account(await SCENES[scene]()), whole=True).violations == ()
