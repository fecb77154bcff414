"""Every (state, event) pair of an effect's life, against a table written out here by hand."""

from __future__ import annotations

from itertools import product

import pytest

from effect_contracts.decide import Reason
from effect_contracts.facts import FINAL_STATES, EffectState
from effect_contracts.life import LIFE, IllegalTransition, LifeEvent, is_final, mermaid, move

from .state_diagram import COMMAND, PAGE, block, with_block

# One line per pair: state, event, target. What is not here is illegal. `cancelled` only before a
# first attempt, `compensated` only out of `succeeded`, and nothing else leaves a final state.
LEGAL = """
prepared         nothing_sent      prepared
prepared         attempt_started   dispatching
prepared         review_needed     manual_review
prepared         failure_proved    failed_final
prepared         cancel_granted    cancelled

dispatching      attempt_started   dispatching
dispatching      attempt_open      dispatching
dispatching      no_commit_proved  retryable
dispatching      outcome_lost      outcome_unknown
dispatching      evidence_sought   reconciling
dispatching      review_needed     manual_review
dispatching      commit_proved     succeeded
dispatching      failure_proved    failed_final

retryable        attempt_started   dispatching
retryable        attempt_open      dispatching
retryable        no_commit_proved  retryable
retryable        outcome_lost      outcome_unknown
retryable        evidence_sought   reconciling
retryable        review_needed     manual_review
retryable        commit_proved     succeeded
retryable        failure_proved    failed_final

outcome_unknown  attempt_started   dispatching
outcome_unknown  attempt_open      dispatching
outcome_unknown  no_commit_proved  retryable
outcome_unknown  outcome_lost      outcome_unknown
outcome_unknown  evidence_sought   reconciling
outcome_unknown  review_needed     manual_review
outcome_unknown  commit_proved     succeeded
outcome_unknown  failure_proved    failed_final

reconciling      attempt_started   dispatching
reconciling      attempt_open      dispatching
reconciling      no_commit_proved  retryable
reconciling      outcome_lost      outcome_unknown
reconciling      evidence_sought   reconciling
reconciling      review_needed     manual_review
reconciling      commit_proved     succeeded
reconciling      failure_proved    failed_final

manual_review    nothing_sent      prepared
manual_review    attempt_started   dispatching
manual_review    attempt_open      dispatching
manual_review    no_commit_proved  retryable
manual_review    outcome_lost      outcome_unknown
manual_review    evidence_sought   reconciling
manual_review    review_needed     manual_review
manual_review    commit_proved     succeeded
manual_review    failure_proved    failed_final
manual_review    cancel_granted    cancelled

succeeded        late_fact         succeeded
succeeded        undone            compensated
failed_final     late_fact         failed_final
cancelled        late_fact         cancelled
compensated      late_fact         compensated
"""
EXPECTED = {
    (EffectState(state), LifeEvent(event)): EffectState(target)
    for state, event, target in (line.split() for line in LEGAL.splitlines() if line)
}
FINAL = ("succeeded", "failed_final", "cancelled", "compensated")


@pytest.mark.parametrize(
    ("state", "event"), list(product(EffectState, LifeEvent)), ids=lambda member: str(member)
)
def test_every_pair_moves_as_written_or_is_refused(state: EffectState, event: LifeEvent) -> None:
    target = EXPECTED.get((state, event))
    if target is not None:
        assert move(state, event) is target
        return
    before = repr(LIFE)
    with pytest.raises(IllegalTransition, match=f"no move from {state} by {event}") as refused:
        move(state, event)
    assert (refused.value.state, refused.value.event) == (state, event)
    assert repr(LIFE) == before


def test_final_states_are_the_four_and_only_compensation_leaves_one() -> None:
    assert {state.value for state in FINAL_STATES} == set(FINAL)
    for state in EffectState:
        assert is_final(state) is (state.value in FINAL)
        if is_final(state):
            left_by = {event for event, target in LIFE[state].items() if target is not state}
            assert left_by == ({LifeEvent.UNDONE} if state is EffectState.SUCCEEDED else set())
            assert LIFE[state][LifeEvent.LATE_FACT] is state


def test_a_late_fact_belongs_to_final_states_only() -> None:
    for state in EffectState:
        assert (LifeEvent.LATE_FACT in LIFE[state]) is is_final(state)


def test_every_state_is_reached_and_no_state_is_a_trap() -> None:
    reached, frontier = {EffectState.PREPARED}, [EffectState.PREPARED]
    while frontier:
        for target in LIFE[frontier.pop()].values():
            if target not in reached:
                reached.add(target)
                frontier.append(target)
    assert reached == set(EffectState)
    for state in EffectState:
        if not is_final(state):
            assert any(is_final(target) for target in LIFE[state].values())


def test_success_is_never_reached_without_an_attempt() -> None:
    targets = set(LIFE[EffectState.PREPARED].values())
    assert not targets & {EffectState.SUCCEEDED, EffectState.OUTCOME_UNKNOWN}


# The page ---------------------------------------------------------------------------------------


def test_the_diagram_in_the_docs_is_printed_from_the_table() -> None:
    printed = block(PAGE.read_text("utf-8"))
    assert printed == mermaid(), f"the table has changed; print the diagram anew with `{COMMAND}`"


def test_the_diagram_shows_every_move() -> None:
    shown = set()
    for line in mermaid().splitlines()[2:]:
        move_, _, events = line.partition(" : ")
        state, _, target = move_.strip().partition(" --> ")
        if target != "[*]":
            shown |= {(state, event, target) for event in events.split(", ")}
    expected = {(s.value, e.value, t.value) for (s, e), t in EXPECTED.items()}
    assert shown == expected


def test_printing_the_diagram_touches_nothing_else() -> None:
    page = PAGE.read_text("utf-8")
    changed = with_block(page, "stateDiagram-v2\n")
    assert block(changed) == "stateDiagram-v2\n"
    assert with_block(changed, block(page)) == page
    with pytest.raises(ValueError, match="exactly one"):
        block(page.replace("<!-- end of the printed diagram -->", ""))


@pytest.mark.parametrize("word", [*EffectState, *LifeEvent, *Reason], ids=str)
def test_the_page_explains_every_state_event_and_reason(word: str) -> None:
    text = PAGE.read_text("utf-8").replace(block(PAGE.read_text("utf-8")), "")
    assert f"`{word}`" in text, f"explain `{word}` in docs/state-machine.md"
