"""What may become of each kind of operation, and that the contracts leave no other way."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from effect_broker.proof.target.faults import Delay, Ok, parse_plan
from effect_chaos import tools
from effect_chaos.records import Safety
from effect_chaos.tools import TOOLS, Tool
from effect_contracts.decide import Action, Reason, decide
from effect_contracts.document import ContractDocument
from effect_contracts.facts import Attempt, Facts, Outcome

START = datetime(2026, 1, 1, tzinfo=UTC)
A_RUN_SECONDS = 600  # longer than faults and quiet of any run that is asked for


def contract(tool: Tool) -> ContractDocument:
    return ContractDocument.parse_yaml(tool.document("http://127.0.0.1:9"))


def lost(tool: Tool, count: int, outcome: Outcome = Outcome.AMBIGUOUS) -> tuple[Attempt, ...]:
    """So many attempts that showed nothing, one after the other."""
    policy = contract(tool).policy()
    made = []
    for ordinal in range(1, count + 1):
        at = START + timedelta(seconds=2.5 * (ordinal - 1))
        deadline_at = at + timedelta(seconds=policy.attempt_deadline_seconds)
        made.append(Attempt(ordinal, at, deadline_at, outcome, deadline_at, "lost"))
    return tuple(made)


# tool -> legal final states, the most effects, whether it may wait for a person
LEGAL = {
    "chaos.charge": (("succeeded",), 1, False),
    "chaos.busy": (("succeeded",), 1, False),
    "chaos.expiring": (("succeeded", "failed_final"), 1, True),
    "chaos.exists": (("succeeded",), 1, False),
    "chaos.stored": (("succeeded", "failed_final"), 1, True),
    "chaos.refused": (("failed_final",), 0, True),
    "chaos.lookup": (("succeeded",), 1, False),
    "chaos.once": (("succeeded",), 1, True),
    "chaos.entry": (("succeeded",), 1, False),
    "chaos.entry_refused": (("failed_final",), 0, False),
}


def test_the_legal_outcomes_of_every_kind_of_operation() -> None:
    shown = {t.name: (t.legal_states, t.effects_most, t.may_park) for t in TOOLS}
    assert shown == LEGAL
    assert {tool.safety for tool in TOOLS} == set(Safety)


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_the_contract_is_valid_and_of_its_class(tool: Tool) -> None:
    document = contract(tool)
    assert document.safety.value == tool.safety.value
    document.check_arguments(tool.arguments("mark" + "0" * 24, 5))


PATIENT = [tool for tool in TOOLS if not tool.may_park and not tool.transactional]


@pytest.mark.parametrize("tool", PATIENT, ids=lambda tool: tool.name)
@pytest.mark.parametrize("count", [1, 2, 10, 60])
def test_a_patient_contract_never_asks_a_person_within_a_run(tool: Tool, count: int) -> None:
    policy = contract(tool).policy()
    for outcome in (Outcome.AMBIGUOUS, Outcome.NOT_SENT, Outcome.RETRYABLE):
        facts = Facts(attempts=lost(tool, count, outcome))
        for second in range(0, A_RUN_SECONDS, 31):
            decision = decide(facts, policy, START + timedelta(seconds=2.5 * count + second))
            assert decision.action in (Action.DISPATCH, Action.PROBE, Action.WAIT)


def test_an_unsafe_effect_waits_for_a_person_after_one_lost_answer() -> None:
    decision = decide(
        Facts(attempts=lost(tools.ONCE, 1)),
        contract(tools.ONCE).policy(),
        START + timedelta(seconds=5),
    )
    assert (decision.action, decision.reason) == (Action.PARK, Reason.OUTCOME_UNKNOWN)


def test_a_key_that_expires_leads_to_a_person() -> None:
    policy = contract(tools.EXPIRING).policy()
    late = START + timedelta(seconds=tools.KEY_RETENTION)
    decision = decide(Facts(attempts=lost(tools.EXPIRING, 1)), policy, late)
    assert (decision.action, decision.reason) == (Action.PARK, Reason.KEY_EXPIRED)


def test_the_target_keeps_a_key_at_least_as_long_as_its_contract_says() -> None:
    assert tools.EXPIRING.mode is not None
    assert tools.EXPIRING.mode["ttl_seconds"] >= tools.KEY_RETENTION


def late_commit_seconds(plan: str) -> float:
    """How long after its arrival a request may be carried out under a plan."""
    made = parse_plan(plan)
    waits = [step.seconds for step in made.steps if isinstance(step, Delay)]
    commits = isinstance(made.ending, Ok) or "commit" in plan
    return sum(waits) if commits else 0.0


def test_a_look_up_is_truthful_within_its_bound_whatever_the_target_is_told() -> None:
    for tool in (tools.LOOK_UP, tools.EXISTS):
        slowest = max(late_commit_seconds(plan) for plan in tool.plans)
        assert slowest + tools.SEARCH_LAG < tools.SETTLEMENT_BOUND


def test_an_operation_that_is_refused_differs_in_what_the_target_refuses() -> None:
    mark = "mark" + "0" * 24
    assert tools.REFUSING.arguments(mark, 5)["amount"] == -5
    entry = tools.ENTRY_REFUSED.arguments(mark, 5)
    assert entry["debit"] == entry["credit"]  # the ledger's own CHECK
