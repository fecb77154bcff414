"""Thousands of seeded schedules through every world; the judge says if a promise was broken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from effect_broker.proof.simulation.campaign import Tally, run_campaign, world_of, worlds
from effect_broker.proof.simulation.invariants import MEANINGS, Invariant
from effect_broker.proof.simulation.schedule import run_picks, run_seed, silence
from effect_broker.proof.simulation.scope import WORDS, Fault
from effect_contracts.decide import Reason
from effect_contracts.facts import Conclusion, Hold, Outcome, SafetyClass, Verdict
from effect_contracts.life import LifeEvent
from effect_contracts.trace.kinds import EventKind

# About as many as a loaded machine of two cores runs in half a minute.
SCHEDULES = 3000
BROKEN = "idempotent-keys-ignored"
# Two objects that a living effect is told of are seldom among them.
BROKEN_SCHEDULES = 100
# "It exists already" after a lost answer, and then a look-up that shows somebody else's object.
STRANGE = "idempotent-looked-up"
STRANGE_FAULTS = frozenset({Fault.LOST_ANSWER, Fault.EXISTS, Fault.STRANGE_OBJECT})
STRANGE_SCHEDULES = 1000
# A target that repeats a stored error until a person is asked: one schedule in hundreds.
REPLAYED = "idempotent"
REPLAYED_FAULTS = frozenset({Fault.STORED_ERROR})
REPLAYED_SCHEDULES = 60


@pytest.fixture(scope="module")
def tally() -> Tally:
    """One campaign for all that is asked of it."""
    found = run_campaign(0, SCHEDULES)
    # A broken contract is rare, and what it must not grant any more is rarer still.
    with silence():
        for seed in range(BROKEN_SCHEDULES):
            found.add(BROKEN, seed, run_seed(worlds()[BROKEN], seed))
        strange = replace(worlds()[STRANGE], faults=STRANGE_FAULTS)
        for seed in range(STRANGE_SCHEDULES):
            found.add(STRANGE, seed, run_seed(strange, seed))
        replayed = replace(worlds()[REPLAYED], faults=REPLAYED_FAULTS)
        for seed in range(REPLAYED_SCHEDULES):
            found.add(REPLAYED, seed, run_seed(replayed, seed))
    return found


def test_no_schedule_breaks_a_promise(tally: Tally) -> None:
    """A failure names world and seed; `effect-broker demo simulate` shrinks and replays it."""
    rare = BROKEN_SCHEDULES + STRANGE_SCHEDULES + REPLAYED_SCHEDULES
    assert tally.schedules == SCHEDULES + rare
    assert {broken.text: (broken.world, broken.seed) for broken in tally.first.values()} == {}


def test_every_invariant_was_really_tried(tally: Tally) -> None:
    assert tally.untried() == []
    # The walk must go where it hurts, or it proves nothing.
    for invariant in (
        Invariant.ONE_EFFECT,
        Invariant.RECEIPT_STAYS,
        Invariant.SAME_BYTES,
        Invariant.SENT_WITHIN_BUDGET,
        Invariant.SUPERSEDED_RUN_ENDS,
    ):
        assert tally.tried[invariant] > SCHEDULES / 10, invariant


def test_effects_end_in_every_way(tally: Tally) -> None:
    ends = {name.split(" ")[0] for name in tally.endings}
    assert ends >= {"succeeded", "failed_final", "cancelled", "outcome_unknown", "manual_review"}
    assert tally.late_facts > 0
    assert set(tally.worlds) == set(worlds())


def words(tally: Tally, what: str, *classes: SafetyClass) -> set[str]:
    """What some classes, or all, have gone through."""
    shown = [tally.shown[safety] for safety in classes or SafetyClass]
    return {word for each in shown for kind, word in each if kind == what}


def test_everything_that_can_happen_to_an_effect_has_happened(tally: Tally) -> None:
    assert words(tally, "event") == {kind.value for kind in EventKind} - {
        "submitted",  # before a schedule begins
        "attempt_extended",  # no simulated effect is performed by its caller
        "approved",  # no simulated contract wants an approval
        "denied",
        "acknowledged",  # nor does anybody here deal with an alert,
        "compensated",  # or undo one effect by another
    }
    assert words(tally, "move") == {move.value for move in LifeEvent} - {
        "undone",  # by another effect, which no broker of this version makes
    }
    # Nobody asks for approvals here, performs an effect itself, or restores the database.
    never = {"awaiting_approval", "approval_denied", "awaiting_caller", "database_restored"}
    assert words(tally, "reason") == {reason.value for reason in Reason} - never
    assert {hold.value for hold in Hold} - words(tally, "reason") <= never


@pytest.mark.parametrize("safety", [s for s in SafetyClass if s is not SafetyClass.TRANSACTIONAL])
def test_every_class_has_met_every_outcome_every_verdict_and_every_act_of_a_person(
    tally: Tally, safety: SafetyClass
) -> None:
    assert words(tally, "outcome", safety) >= {outcome.value for outcome in Outcome}
    verdicts = {word.split(" ")[1] for word in words(tally, "evidence", safety)}
    assert verdicts == set(Verdict)
    assert words(tally, "resolution", safety) == set(Conclusion)


def test_one_seed_is_one_schedule_and_so_are_its_picks() -> None:
    with silence():
        for seed in range(40):
            scope = worlds()[world_of(seed)]
            first, again = run_seed(scope, seed), run_seed(scope, seed)
            replayed = run_picks(scope, first.picks)
            assert first.picks == again.picks == replayed.picks
            assert first.endings == again.endings == replayed.endings
            assert first.tried == again.tried == replayed.tried
        scope = worlds()["reconcilable"]
        assert run_seed(scope, 3).picks != run_seed(scope, 4).picks


def test_telling_a_schedule_changes_nothing_in_it() -> None:
    scope = worlds()["idempotent-crowd"]
    with silence():
        plain = run_seed(scope, 11)
        told = run_picks(scope, plain.picks, telling=True)
    assert told.endings == plain.endings
    assert any("commits permission for attempt 1" in line for line in told.story)


def test_many_processes_count_as_one_does() -> None:
    alone, together = run_campaign(0, 500), run_campaign(0, 500, processes=2)
    assert alone.tried == together.tried
    assert alone.endings == together.endings
    assert alone.worlds == together.worlds


def test_every_fault_and_every_invariant_has_its_words() -> None:
    assert set(WORDS) == set(Fault)
    assert set(MEANINGS) == set(Invariant)
