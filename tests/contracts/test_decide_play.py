"""One effect, played forward by the broker's rules against a target that keeps a ledger.

Decide, write, act, learn, decide again; with late answers, lost answers, holds, webhooks and a
person in between. The target tells the truth when it tells anything, but commits late within its
bounds; its ledger must never hold two effects, and an effect's end must say what it holds.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from effect_contracts.decide import Action, Decision, Reason, conclusive_from, decide
from effect_contracts.facts import (
    FINAL_STATES,
    Attempt,
    EffectState,
    Evidence,
    EvidenceSource,
    Facts,
    Hold,
    Outcome,
    Policy,
    SafetyClass,
    Verdict,
)
from effect_contracts.life import LifeEvent, is_final, move

from .decide_histories import T0, closed, policies
from .decide_promises import broken_promises


class _Target:
    """A truthful target: what reaches it, when that shows, and how many effects it holds.

    `arrivals` are commits by ordinal and moment. An idempotent target forgets a key when the
    retention since its first use has passed; a transactional one honours its unique key.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.arrivals: dict[int, datetime] = {}
        self.fenced_through = 0

    def held(self) -> dict[int, datetime]:
        """Commits that made an effect of their own, of all that arrived or will arrive."""
        made: dict[int, datetime] = {}
        for ordinal, moment in sorted(self.arrivals.items(), key=lambda a: a[1]):
            if made and self.policy.safety is SafetyClass.TRANSACTIONAL:
                continue
            if made and self.policy.safety is SafetyClass.IDEMPOTENT:
                kept = timedelta(seconds=self.policy.key_retention_seconds or 0)
                if moment < min(made.values()) + kept:
                    continue
            made[ordinal] = moment
        return made

    def visible(self, now: datetime) -> bool:
        return any(moment <= now for moment in self.arrivals.values())


_HOLDS = [frozenset[Hold]()] * 8 + [
    frozenset({Hold.PAUSED}),
    frozenset({Hold.FROZEN, Hold.TENANT_DISABLED}),
    frozenset({Hold.TARGET_CHANGED}),
]


class EffectPlay(RuleBasedStateMachine):
    """The broker's loop over one effect, with every fact that can come at any time."""

    @initialize(policy=policies(), data=st.data())
    def submit(self, policy: Policy, data: st.DataObject) -> None:
        self.policy = replace(policy, probe_horizon_seconds=200.0)
        if policy.safety is SafetyClass.IDEMPOTENT:
            kept = data.draw(st.sampled_from([60.0, 300.0, 1e6]))
            self.policy = replace(self.policy, key_retention_seconds=kept)
        self.now = T0
        self.facts = Facts(jitter_seed=data.draw(st.integers(0, 5)))
        self.state = EffectState.PREPARED
        self.target = _Target(self.policy)
        self.ended: Decision | None = None
        self.parked = False

    # What the broker does ---------------------------------------------------------------------

    def learn(self, facts: Facts) -> None:
        """Every transaction that adds a fact re-derives the state and un-parks."""
        if is_final(self.state):
            assert move(self.state, LifeEvent.LATE_FACT) is self.state
            return
        self.facts, self.parked = facts, False
        decision = decide(facts, self.policy, self.now)
        if decision.action is not Action.DISPATCH:  # its event is written by the grant
            self.write(decision)

    def write(self, decision: Decision) -> None:
        broken = [*broken_promises(self.facts, self.policy, self.now, decision)]
        assert not broken
        self.facts = closed(self.facts, decision)
        self.state = move(self.state, decision.event)
        self.parked = decision.action is Action.PARK
        if decision.action is Action.SETTLE:
            assert is_final(self.state)
            self.ended = decision
        else:
            assert not is_final(self.state)

    def latest(self) -> datetime:
        """The end of sending, of transit and of the target's lag for an attempt granted now."""
        policy = self.policy
        ends = self.now + timedelta(
            seconds=policy.attempt_deadline_seconds + policy.clock_margin_seconds
        )
        return ends + self.lag()

    def lag(self) -> timedelta:
        """How long after its last byte a request may still commit or become visible."""
        if self.policy.safety is SafetyClass.IDEMPOTENT:
            bound = self.policy.settlement_bound_seconds
            transit = self.policy.transit_seconds
            return timedelta(seconds=transit if bound is None else min(transit, bound))
        return timedelta(seconds=self.policy.settlement_bound_seconds or 0)

    @rule(data=st.data(), steps=st.integers(1, 4), may_commit=st.booleans())
    def run(self, data: st.DataObject, steps: int, may_commit: bool) -> None:
        for _ in range(steps):
            if is_final(self.state) or self.parked:
                return
            self.step(data, may_commit)

    def step(self, data: st.DataObject, may_commit: bool) -> None:
        decision = decide(self.facts, self.policy, self.now)
        self.write(decision)
        event(f"{decision.action} {decision.reason}")
        match decision.action:
            case Action.DISPATCH:
                self.grant(data, may_commit)
            case Action.PROBE:
                self.probe(data)
            case Action.WAIT:
                assert decision.at is not None
                self.now = decision.at
                assert decide(self.facts, self.policy, self.now) != decision
            case Action.PARK | Action.SETTLE:
                pass

    def grant(self, data: st.DataObject, may_commit: bool) -> None:
        ordinal = len(self.facts.attempts) + 1
        ends_at = self.now + timedelta(seconds=self.policy.attempt_deadline_seconds)
        granted = Attempt(ordinal, self.now, ends_at)
        self.facts = replace(
            self.facts,
            attempts=(*self.facts.attempts, granted),
            probes_since_attempt=0,
            probe_began_at=None,
        )
        if may_commit:
            share = data.draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]), "arrives")
            self.target.arrivals[ordinal] = self.now + (self.latest() - self.now) * share

    def probe(self, data: st.DataObject) -> None:
        probes = self.facts.probes_since_attempt + 1
        facts = replace(self.facts, probes_since_attempt=probes, probe_began_at=self.now)
        if not data.draw(st.booleans(), "answers"):
            self.learn(facts)
            return
        covers = len(facts.attempts)
        source = EvidenceSource.PROBE
        if self.target.visible(self.now):
            verdict = Verdict.COMMITTED
        else:
            verdict = Verdict.NOT_COMMITTED
            if self.policy.safety is SafetyClass.TRANSACTIONAL:
                # The fence row makes every older transaction fail.
                source = EvidenceSource.TRANSACTION
                self.target.arrivals.clear()
        ids = ("x1",) if verdict is Verdict.COMMITTED else ()
        self.add(facts, Evidence("p", source, verdict, self.now, covers, ids))

    def add(self, facts: Facts, found: Evidence) -> None:
        self.learn(replace(facts, evidence=(*facts.evidence, found)))

    # What comes from outside --------------------------------------------------------------------

    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        """The sender records an outcome, in time or over a presumption."""
        waiting = [a for a in self.facts.attempts if a.recorded_at is None]
        if not waiting:
            return
        attempt = data.draw(st.sampled_from(waiting))
        arrives = self.target.arrivals.get(attempt.ordinal)
        if arrives is None:
            choices = [Outcome.NOT_SENT, Outcome.RETRYABLE, Outcome.REJECTED, Outcome.AMBIGUOUS]
            if self.policy.safety is SafetyClass.IDEMPOTENT:
                choices.append(Outcome.IN_PROGRESS)
        else:
            # Nothing is on its way from us after the record, but what is may still arrive.
            margin = timedelta(seconds=self.policy.clock_margin_seconds)
            sent_by = min(self.now, attempt.deadline_at + margin)
            arrives = min(arrives, sent_by + self.lag())
            self.target.arrivals[attempt.ordinal] = arrives
            choices = [Outcome.AMBIGUOUS]
            if arrives <= self.now:
                choices.append(Outcome.COMMITTED)
        outcome = data.draw(st.sampled_from(choices))
        ids = "x1" if outcome is Outcome.COMMITTED else None
        asked = data.draw(st.none() | st.sampled_from([1.0, 40.0]))
        recorded = replace(
            attempt,
            outcome=outcome,
            recorded_at=self.now,
            external_id=ids,
            retry_after_seconds=asked,
        )
        attempts = tuple(
            recorded if a.ordinal == attempt.ordinal else a for a in self.facts.attempts
        )
        self.learn(replace(self.facts, attempts=attempts))

    @rule(seconds=st.sampled_from([0.000001, 0.5, 1, 5, 11, 30, 150, 2000]))
    def time_passes(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    @rule(data=st.data())
    def time_passes_to_the_end_of_a_key(self, data: st.DataObject) -> None:
        """To where an attempt still fits by its deadline, but not with its transit."""
        kept = self.policy.key_retention_seconds
        if kept is None or not self.facts.attempts:
            return
        since = data.draw(st.sampled_from(self.facts.attempts), "since").started_at
        edge = since + timedelta(seconds=kept) + (self.now - self.latest()) + self.lag()
        self.now = max(self.now, edge)

    @rule(data=st.data())
    def a_person_finds_out(self, data: st.DataObject) -> None:
        facts, covers = self.facts, len(self.facts.attempts)
        asked = self.state in (EffectState.OUTCOME_UNKNOWN, EffectState.MANUAL_REVIEW)
        if not covers or not asked:
            return
        source = EvidenceSource.OPERATOR
        if self.target.visible(self.now):
            self.add(facts, Evidence("o", source, Verdict.COMMITTED, self.now, covers, ("x1",)))
            return
        # A denial is taken only when it can be conclusive; before that it is `too_early`.
        bounded = replace(
            self.policy, settlement_bound_seconds=self.policy.settlement_bound_seconds or 0.0
        )
        from_ = conclusive_from(facts.attempts, bounded)
        if from_ is not None and self.now > from_ and not self.target.arrivals:
            verdict = Verdict.NOT_COMMITTED
            self.add(facts, Evidence("o", source, verdict, self.now, covers))
        elif data.draw(st.sampled_from([False, False, True]), "gives up"):
            self.learn(replace(facts, failed_by_operator=True))

    @rule()
    def a_webhook_comes(self) -> None:
        if not self.target.visible(self.now):
            return
        covers = len(self.facts.attempts)
        source = EvidenceSource.WEBHOOK
        found = Evidence("w", source, Verdict.COMMITTED, self.now, covers, ("x1",))
        self.add(self.facts, found)

    @rule(holds=st.sampled_from(_HOLDS))
    def holds_change(self, holds: frozenset[Hold]) -> None:
        self.learn(replace(self.facts, holds=holds))

    @rule(really=st.sampled_from([False] * 9 + [True]))
    def a_cancel_is_asked(self, really: bool) -> None:
        if really:
            self.learn(replace(self.facts, cancel_requested=True))

    # What always holds --------------------------------------------------------------------------

    @invariant()
    def the_target_never_holds_two_effects(self) -> None:
        held = self.target.held()
        assert len(held) <= 1, (held, self.facts, self.policy)

    @invariant()
    def an_end_tells_the_truth_and_stays(self) -> None:
        if self.ended is None:
            return
        assert self.state in FINAL_STATES
        made = self.target.held()
        match self.ended.event:
            case LifeEvent.COMMIT_PROVED:
                assert len(made) == 1
            case LifeEvent.FAILURE_PROVED:
                assert not made or self.ended.reason is Reason.FAILED_BY_OPERATOR
            case LifeEvent.CANCEL_GRANTED:
                assert not self.facts.attempts
            case other:
                raise AssertionError(other)

    @invariant()
    def an_unparked_effect_can_always_go_on(self) -> None:
        if is_final(self.state):
            return
        decision = decide(self.facts, self.policy, self.now)
        assert decision.at is None or decision.at > self.now


TestEffectPlay: Any = EffectPlay.TestCase
TestEffectPlay.settings = settings(
    max_examples=400,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
