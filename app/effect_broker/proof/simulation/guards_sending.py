"""The guards of transaction 1, of the budget and of transaction 2, and how each is switched off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from effect_adapters.base import Budget
from effect_broker.proof.simulation.exploration import Depth
from effect_broker.proof.simulation.guard import (
    CROWD,
    add,
    patched,
    scope_of,
    wrapping,
)
from effect_broker.proof.simulation.invariants import Invariant
from effect_broker.proof.simulation.scope import Fault, Scope, sample
from effect_broker.protocol import changes, conclusion, steps
from effect_broker.protocol.conclusion import Next, View
from effect_broker.protocol.ports import (
    AddReceipt,
    Advance,
    Change,
    FreezeContract,
    LoseAttempt,
    Ports,
    Snapshot,
)
from effect_contracts import decide as decisions
from effect_contracts.decide import Action, Decision, Reason
from effect_contracts.facts import (
    Attempt,
    Facts,
    Outcome,
    Policy,
    SafetyClass,
)
from effect_contracts.life import LifeEvent

_I = Invariant
_F = Fault
_IDEMPOTENT: Final = SafetyClass.IDEMPOTENT
_RECONCILABLE: Final = SafetyClass.RECONCILABLE
_UNSAFE: Final = SafetyClass.UNSAFE
_TRANSACTIONAL: Final = SafetyClass.TRANSACTIONAL

# Transaction 1 ------------------------------------------------------------------------------------


def _granting_blindly(grant: Callable[..., Change[Any]], *args: Any, **more: Any) -> Change[Any]:
    """Whatever was decided on the older view is granted."""
    real = vars(changes)["decide"]

    def decided(facts: Facts, policy: Policy, now: datetime) -> Decision:
        lost = real(facts, policy, now).lost
        return Decision(
            Action.DISPATCH,
            LifeEvent.ATTEMPT_STARTED,
            Reason.SAME_KEY_AGAIN,
            11,
            ordinal=more["ordinal"],
            lost=lost,
        )

    with patched((changes, "decide", decided)):
        return grant(*args, **more)


def on_any_version(plan: Callable[..., Any], snapshot: Snapshot, **more: Any) -> Any:
    return plan(snapshot, **{**more, "expected_version": snapshot.intent.version})


def _owning_nothing(grant: Callable[..., Any], snapshot: Snapshot, **more: Any) -> Any:
    return grant(replace(snapshot, attempts=()), **more)


add(
    "decide_again_in_transaction_1",
    "a permission that was right when it was decided, and is not when it is granted",
    _I.HELD_NOT_SENT,
    _I.SEND_BEFORE_KEPT,
    _I.ONE_EFFECT,
    switched_off=wrapping(changes, "grant_attempt", _granting_blindly),
    scope=scope_of(_IDEMPOTENT, *CROWD, _F.HOLD, _F.SEND_BEFORE, _F.LOST_ANSWER),
)
add(
    "certificate_before_dispatch",
    "a send to a target whose certificate has ended, although the contract demands one",
    _I.CERTIFIED,
    switched_off=lambda: patched(
        (decisions._Case, "_certified", lambda _case: True),
        (changes, "certificate_named", lambda *_: {}),
    ),
    scope=Scope(
        sample(_IDEMPOTENT, oversight={"certificate": {}}),
        frozenset({_F.UNCERTIFIED, _F.LOST_ANSWER, _F.BUSY}),
    ),
)
add(
    "place_before_dispatch",
    "a send to a target that has no room for it, as its contract limits it",
    _I.WITHIN_LIMITS,
    switched_off=wrapping(decisions._Case, "_in_turn", lambda _rule, _case, granted: granted),
    scope=scope_of(_IDEMPOTENT, *CROWD, _F.LOST_ANSWER, effects=3, limits={"concurrency_max": 1}),
)
add(
    "version_in_transaction_1",
    "a permission on a decision that was made on other facts",
    _I.FENCED,
    switched_off=wrapping(changes, "grant_attempt", on_any_version),
    scope=scope_of(_IDEMPOTENT, *CROWD, _F.LOST_ANSWER, _F.BUSY, _F.OPERATOR),
)
add(
    "owned_ordinal",
    "a second permission for an attempt that another execution owns",
    _I.NO_SURPRISE,
    switched_off=wrapping(changes, "grant_attempt", _owning_nothing),
    scope=scope_of(_IDEMPOTENT, *CROWD, _F.LOST_ANSWER),
    beside=("decide_again_in_transaction_1", "version_in_transaction_1"),
)


def _closing_no_attempt() -> AbstractContextManager[None]:
    return patched(
        (changes, "losses", lambda _decision: ()), (conclusion, "losses", lambda _decision: ())
    )


add(
    "closing_of_lost_attempts",
    "an attempt that stays open for ever and stands in the way of the next",
    _I.NO_SURPRISE,
    _I.ONE_OPEN_ATTEMPT,
    _I.NOTHING_STUCK,
    _I.TOLD_IS_STORED,
    _I.STATE_FOLLOWS_FACTS,
    switched_off=_closing_no_attempt,
    scope=scope_of(_IDEMPOTENT, _F.DEATH, _F.PAUSE, _F.TAKEOVER),
)


def _assuming_it_stands(_confirm: Callable[..., Any], *_: Any, **__: Any) -> Change[bool]:
    return Change(True)


add(
    "read_back_after_lost_commit",
    "bytes that leave for an attempt whose row was never committed",
    _I.NO_BYTE_WITHOUT_PERMISSION,
    _I.NO_SURPRISE,
    switched_off=wrapping(changes, "confirm_grant", _assuming_it_stands),
    scope=scope_of(_UNSAFE, _F.COMMIT_LOST, _F.TAKEOVER),
)


# The budget ---------------------------------------------------------------------------------------


async def _beginning_after(
    granted: Callable[..., Any], ports: Ports, *args: Any, **more: Any
) -> Any:
    """The clock is read when transaction 1 has been committed, and not before it began."""
    began = ports.clock.boot_seconds()
    permission = await granted(ports, *args, **more)
    if permission is None:
        return None
    passed = ports.clock.boot_seconds() - began
    return replace(permission, deadline_seconds=permission.deadline_seconds + passed)


class _EndlessBudget(Budget):
    """A budget that the last gate never finds spent."""

    def remaining_seconds(self) -> float:
        return max(super().remaining_seconds(), 1.0)


_LATE_SEND: Final = (_I.SENT_WITHIN_BUDGET, _I.ONE_EFFECT)
add(
    "budget_before_transaction_1",
    "bytes that leave when the database's deadline of the attempt is over",
    *_LATE_SEND,
    switched_off=wrapping(steps, "_granted", _beginning_after),
    scope=scope_of(_RECONCILABLE, *CROWD, _F.LOST_ANSWER),
)
add(
    "last_gate",
    "bytes that leave a process which was stopped until its successor had settled the effect",
    *_LATE_SEND,
    switched_off=lambda: patched((steps, "Budget", _EndlessBudget)),
    scope=scope_of(_RECONCILABLE, *CROWD, _F.LOST_ANSWER),
)


def _without_margin(_deadline: Callable[..., datetime], attempt: Attempt, _: Policy) -> datetime:
    return attempt.recorded_at if attempt.recorded_at is not None else attempt.deadline_at


def _no_clock_margin() -> AbstractContextManager[None]:
    plain = wrapping(decisions, "deadline", _without_margin)()

    @contextmanager
    def off() -> Iterator[None]:
        with plain, patched((changes, "deadline", decisions.deadline)):
            yield

    return off()


add(
    "clock_margin",
    "a successor that acts while a process with a slow clock may still send",
    _I.ONE_EFFECT,
    switched_off=_no_clock_margin,
    scope=scope_of(
        _RECONCILABLE,
        _F.PAUSE,
        _F.SLOW_CLOCK,
        clock_margin_seconds=25,
        settlement_bound_seconds=1,
        transit_seconds=0.5,
        processes=1,
    ),
    depth=Depth(),
)


# Transaction 2 and late facts ---------------------------------------------------------------------


def _telling_nobody(record: Callable[..., Any], snapshot: Snapshot, **more: Any) -> Any:
    """A late outcome is stored, and nothing follows from it."""
    change = record(snapshot, **more)
    row = next(a for a in snapshot.attempts if a.attempt_id == more["attempt_id"])
    if row.fact.outcome is not Outcome.PRESUMED_AMBIGUOUS or not change.writes:
        return change
    intent = snapshot.intent
    kept = tuple(
        write
        for write in change.writes
        if not isinstance(write, Advance | AddReceipt | LoseAttempt | FreezeContract)
    )
    advance = next(write for write in change.writes if isinstance(write, Advance))
    rests = replace(
        advance,
        state=intent.state,
        reason=intent.reason,
        next_action_at=intent.next_action_at,
        parked=intent.next_action_at is None,
    )
    end = View(Next.END, intent.version + 1, intent.state, intent.reason, snapshot.now)
    return Change(end, (*kept, rests))


async def _recording_once(recorded: Callable[..., Any], *args: Any) -> Any:
    """Transaction 2 is tried once; the read-back of transaction 1 is left alone."""
    ports, call, answer = args
    planned = steps._outcome_plan(ports, call, answer)
    return await ports.store.change(call.tenant_id, call.effect_id, planned)


def _writing_again(record: Callable[..., Any], snapshot: Snapshot, **more: Any) -> Any:
    """Whatever outcome stands is written over."""
    rows = tuple(
        replace(row, fact=replace(row.fact, outcome=None))
        if row.attempt_id == more["attempt_id"]
        else row
        for row in snapshot.attempts
    )
    return record(replace(snapshot, attempts=rows), **more)


def _rewriting_ends(
    _late: Callable[..., Any],
    after: Snapshot,
    writes: tuple[Any, ...],
    actor: str,
    metadata: Any,
    _sighting: Any,
) -> Any:
    """A fact on a final effect is concluded as if it were not final."""
    decision = decisions.decide(after.facts, after.document.policy(), after.now)
    change = conclusion.write_decision(
        after, after.facts, decision, UUID(int=0), actor, "late_fact", metadata
    )
    return Change(change.result, (*writes, *change.writes))


add(
    "late_facts_derive_again",
    "an effect that stays parked although its sender has told how it ended",
    _I.STATE_FOLLOWS_FACTS,
    _I.TOLD_IS_STORED,
    _I.NOTHING_STUCK,
    switched_off=wrapping(changes, "record_outcome", _telling_nobody),
    scope=scope_of(_UNSAFE, *CROWD),
)
add(
    "transaction_2_is_retried",
    "an answer that a living process has seen and nobody stores",
    _I.NOTHING_LOST,
    switched_off=wrapping(steps, "_recorded", _recording_once),
    scope=scope_of(_UNSAFE, _F.STORE_AWAY, _F.STORE_BUSY, _F.TAKEOVER),
)
add(
    "an_outcome_is_written_once",
    "an outcome that is written over by the next",
    _I.NO_SURPRISE,
    _I.NOTHING_STUCK,
    switched_off=wrapping(changes, "record_outcome", _writing_again),
    scope=scope_of(_IDEMPOTENT, _F.COMMIT_UNHEARD),
)
add(
    "final_effects_stay",
    "a settled effect that a late fact settles again",
    _I.NO_SURPRISE,
    _I.END_STAYS,
    _I.RECEIPT_STAYS,
    switched_off=wrapping(conclusion, "_late_fact", _rewriting_ends),
    scope=scope_of(_IDEMPOTENT, *CROWD),
)
