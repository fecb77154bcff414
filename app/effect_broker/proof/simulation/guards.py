"""The guards of the protocol (design §4), each of which can be switched off alone.

A guard is worth its place only if somebody notices when it is gone. Each entry names its promise,
how it is switched off, a world in which its loss shows, and the invariants that break there. The
guards that only a real database or a real process can lose name the test that shows them.

Some guards are second locks: what they prevent is prevented by others too. Those name the others
in `beside`. A second lock is shown to hold by itself: with the others off the world is still
clean, with it off as well it is not.

Switching off replaces one function or one class of the protocol by a wrapper around itself; no
protocol code is copied here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from effect_adapters.base import Budget
from effect_broker.proof.simulation.exploration import Depth
from effect_broker.proof.simulation.invariants import Invariant
from effect_broker.proof.simulation.scope import Fault, Scope, sample
from effect_broker.protocol import changes, conclusion, resolution, steps
from effect_broker.protocol.conclusion import Next, View
from effect_broker.protocol.ports import (
    AddReceipt,
    Advance,
    Change,
    FenceMutation,
    FreezeContract,
    LoseAttempt,
    Ports,
    Snapshot,
)
from effect_contracts import decide as decisions
from effect_contracts.decide import Action, Decision, Reason
from effect_contracts.facts import (
    Attempt,
    Evidence,
    EvidenceSource,
    Facts,
    Outcome,
    Policy,
    SafetyClass,
)
from effect_contracts.life import LifeEvent

_I = Invariant
_F = Fault
_LATEST: Final = datetime.max.replace(tzinfo=UTC)

# Faults that bring two executions of one effect together, at any moment.
_CROWD: Final = frozenset({_F.DEATH, _F.PAUSE, _F.TAKEOVER, _F.HASTY_REPAIR, _F.LOST_RUN})


@dataclass(frozen=True)
class Guard:
    """One guard.

    Attributes:
        name: its name in reports.
        prevents: what would happen without it.
        switched_off: switches it off for a block; None if no simulation can.
        scope: a world in which its loss shows.
        breaks: the invariants of which one breaks there.
        depth: explore that world to this depth; without it, chance leads.
        beside: guards that hold the same promise.
        proof: the test that shows a guard which no simulation can lose.
    """

    name: str
    prevents: str
    switched_off: Callable[[], AbstractContextManager[None]] | None = None
    scope: Scope | None = None
    breaks: frozenset[Invariant] = frozenset()
    depth: Depth | None = None
    beside: tuple[str, ...] = ()
    proof: str | None = None


GUARDS: Final[dict[str, Guard]] = {}


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Switch guards off while the block runs.

    Raises:
        KeyError: there is no such guard.
    """
    with ExitStack() as stack:
        for name in names:
            off = GUARDS[name].switched_off
            assert off is not None, f"{name} cannot be switched off in a simulation"
            stack.enter_context(off())
        yield


@contextmanager
def _patched(*places: tuple[object, str, object]) -> Iterator[None]:
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    for owner, name, value in places:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in reversed(before):
            setattr(owner, name, value)


def _wrapping(
    owner: object, name: str, wrapper: Callable[..., Any]
) -> Callable[[], AbstractContextManager[None]]:
    """Switch off by a wrapper, which gets the original as its first argument."""

    def off() -> AbstractContextManager[None]:
        original = getattr(owner, name)

        def wrapped(*args: Any, **more: Any) -> Any:
            return wrapper(original, *args, **more)

        return _patched((owner, name, wrapped))

    return off


def _scope(safety: SafetyClass, *faults: Fault, **members: Any) -> Scope:
    sizes = {k: members.pop(k) for k in ("effects", "processes", "moves") if k in members}
    return Scope(sample(safety, **members), frozenset(faults), **sizes)


def _add(name: str, prevents: str, *breaks: Invariant, **more: Any) -> None:
    assert name not in GUARDS
    GUARDS[name] = Guard(name, prevents, breaks=frozenset(breaks), **more)


_IDEMPOTENT: Final = SafetyClass.IDEMPOTENT
_RECONCILABLE: Final = SafetyClass.RECONCILABLE
_UNSAFE: Final = SafetyClass.UNSAFE
_TRANSACTIONAL: Final = SafetyClass.TRANSACTIONAL


# Transaction 1 ----------------------------------------------------------------------------------


def _granting_blindly(grant: Callable[..., Change[Any]], *args: Any, **more: Any) -> Change[Any]:
    """Whatever was decided on the older view is granted."""
    real = changes.decide

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

    with _patched((changes, "decide", decided)):
        return grant(*args, **more)


def _on_any_version(plan: Callable[..., Any], snapshot: Snapshot, **more: Any) -> Any:
    return plan(snapshot, **{**more, "expected_version": snapshot.intent.version})


def _owning_nothing(grant: Callable[..., Any], snapshot: Snapshot, **more: Any) -> Any:
    return grant(replace(snapshot, attempts=()), **more)


_add(
    "decide_again_in_transaction_1",
    "a permission that was right when it was decided, and is not when it is granted",
    _I.HELD_NOT_SENT,
    _I.SEND_BEFORE_KEPT,
    _I.ONE_EFFECT,
    switched_off=_wrapping(changes, "grant_attempt", _granting_blindly),
    scope=_scope(_IDEMPOTENT, *_CROWD, _F.HOLD, _F.SEND_BEFORE, _F.LOST_ANSWER),
)
_add(
    "version_in_transaction_1",
    "a permission on a decision that was made on other facts",
    _I.FENCED,
    switched_off=_wrapping(changes, "grant_attempt", _on_any_version),
    scope=_scope(_IDEMPOTENT, *_CROWD, _F.LOST_ANSWER, _F.BUSY, _F.OPERATOR),
)
_add(
    "owned_ordinal",
    "a second permission for an attempt that another execution owns",
    _I.NO_SURPRISE,
    switched_off=_wrapping(changes, "grant_attempt", _owning_nothing),
    scope=_scope(_IDEMPOTENT, *_CROWD, _F.LOST_ANSWER),
    beside=("decide_again_in_transaction_1", "version_in_transaction_1"),
)


def _losing_nothing(_losses: Callable[..., Any], _decision: Decision) -> tuple[()]:
    return ()


def _closing_no_attempt() -> AbstractContextManager[None]:
    return _patched(
        (changes, "losses", lambda _decision: ()), (conclusion, "losses", lambda _decision: ())
    )


_add(
    "closing_of_lost_attempts",
    "an attempt that stays open for ever and stands in the way of the next",
    _I.NO_SURPRISE,
    _I.ONE_OPEN_ATTEMPT,
    _I.NOTHING_STUCK,
    _I.TOLD_IS_STORED,
    _I.STATE_FOLLOWS_FACTS,
    switched_off=_closing_no_attempt,
    scope=_scope(_IDEMPOTENT, _F.DEATH, _F.PAUSE, _F.TAKEOVER),
)


def _assuming_it_stands(_confirm: Callable[..., Any], *_: Any, **__: Any) -> Change[bool]:
    return Change(True)


_add(
    "read_back_after_lost_commit",
    "bytes that leave for an attempt whose row was never committed",
    _I.NO_BYTE_WITHOUT_PERMISSION,
    _I.NO_SURPRISE,
    switched_off=_wrapping(changes, "confirm_grant", _assuming_it_stands),
    scope=_scope(_UNSAFE, _F.COMMIT_LOST, _F.TAKEOVER),
)


# The budget -------------------------------------------------------------------------------------


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
_add(
    "budget_before_transaction_1",
    "bytes that leave when the database's deadline of the attempt is over",
    *_LATE_SEND,
    switched_off=_wrapping(steps, "_granted", _beginning_after),
    scope=_scope(_RECONCILABLE, *_CROWD, _F.LOST_ANSWER),
)
_add(
    "last_gate",
    "bytes that leave a process which was stopped until its successor had settled the effect",
    *_LATE_SEND,
    switched_off=lambda: _patched((steps, "Budget", _EndlessBudget)),
    scope=_scope(_RECONCILABLE, *_CROWD, _F.LOST_ANSWER),
)


def _without_margin(_deadline: Callable[..., datetime], attempt: Attempt, _: Policy) -> datetime:
    return attempt.recorded_at if attempt.recorded_at is not None else attempt.deadline_at


def _no_clock_margin() -> AbstractContextManager[None]:
    plain = _wrapping(decisions, "deadline", _without_margin)()

    @contextmanager
    def off() -> Iterator[None]:
        with plain, _patched((changes, "deadline", decisions.deadline)):
            yield

    return off()


_add(
    "clock_margin",
    "a successor that acts while a process with a slow clock may still send",
    _I.ONE_EFFECT,
    switched_off=_no_clock_margin,
    scope=_scope(
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


_add(
    "late_facts_derive_again",
    "an effect that stays parked although its sender has told how it ended",
    _I.STATE_FOLLOWS_FACTS,
    _I.TOLD_IS_STORED,
    _I.NOTHING_STUCK,
    switched_off=_wrapping(changes, "record_outcome", _telling_nobody),
    scope=_scope(_UNSAFE, *_CROWD),
)
_add(
    "transaction_2_is_retried",
    "an answer that a living process has seen and nobody stores",
    _I.NOTHING_LOST,
    switched_off=_wrapping(steps, "_recorded", _recording_once),
    scope=_scope(_UNSAFE, _F.STORE_AWAY, _F.STORE_BUSY, _F.TAKEOVER),
)
_add(
    "an_outcome_is_written_once",
    "an outcome that is written over by the next",
    _I.NO_SURPRISE,
    _I.NOTHING_STUCK,
    switched_off=_wrapping(changes, "record_outcome", _writing_again),
    scope=_scope(_IDEMPOTENT, _F.COMMIT_UNHEARD),
)
_add(
    "final_effects_stay",
    "a settled effect that a late fact settles again",
    _I.NO_SURPRISE,
    _I.END_STAYS,
    _I.RECEIPT_STAYS,
    switched_off=_wrapping(conclusion, "_late_fact", _rewriting_ends),
    scope=_scope(_IDEMPOTENT, *_CROWD),
)


# Evidence -----------------------------------------------------------------------------------------


def _timeless(source: EvidenceSource) -> Callable[[], AbstractContextManager[None]]:
    def clears(original: Callable[..., bool], case: Any, evidence: Evidence, ordinal: int) -> bool:
        if evidence.source is source:
            evidence = replace(evidence, began_at=_LATEST)
        return original(case, evidence, ordinal)

    return _method("_clears", clears)


def _method(name: str, wrapper: Callable[..., Any]) -> Callable[[], AbstractContextManager[None]]:
    """Switch off in the table of `decide`."""
    return _wrapping(decisions._Case, name, wrapper)


def _covering_all(
    original: Callable[..., bool], case: Any, evidence: Evidence, ordinal: int
) -> bool:
    return original(case, evidence, min(ordinal, evidence.covers_through))


def _timed_at_the_end(add: Callable[..., Any], snapshot: Snapshot, **more: Any) -> Any:
    if more["source"] is EvidenceSource.PROBE:
        more["began_at"] = snapshot.now
    return add(snapshot, **more)


def _resolving_any_version(resolve: Callable[..., Any], snapshot: Snapshot, **more: Any) -> Any:
    stated = replace(more.pop("resolution"), expected_version=snapshot.intent.version)
    return resolve(snapshot, resolution=stated, **more)


_LOOKED: Final = (_F.LOST_ANSWER, _F.LATE_LANDING, _F.LOST_REQUEST, _F.LAG)
_add(
    "absence_begins_after_the_bound",
    "a second send on the word of a look-up that came too early",
    _I.ONE_EFFECT,
    switched_off=_timeless(EvidenceSource.PROBE),
    scope=_scope(_RECONCILABLE, *_LOOKED),
)
_add(
    "absence_counts_from_its_beginning",
    "a second send on the word of a look-up whose answer was old when it came",
    _I.ONE_EFFECT,
    switched_off=_wrapping(changes, "add_evidence", _timed_at_the_end),
    scope=_scope(
        _RECONCILABLE,
        *_LOOKED,
        _F.SLOW_LOOK_UP,
        _F.PAUSE,
        settlement_bound_seconds=20,
        transit_seconds=2,
    ),
)
_add(
    "absence_covers_its_ordinals",
    "a third send on a look-up that was before the second",
    _I.ONE_EFFECT,
    _I.TRUE_RECEIPT,
    switched_off=_method("_clears", _covering_all),
    scope=_scope(_RECONCILABLE, *_LOOKED),
)
_add(
    "an_operators_absence_waits",
    "a second send on the word of a person who looked too early",
    _I.ONE_EFFECT,
    _I.TRUE_RECEIPT,
    switched_off=_timeless(EvidenceSource.OPERATOR),
    scope=_scope(_RECONCILABLE, *_LOOKED, _F.OPERATOR),
    beside=("too_early_is_refused",),
)
_add(
    "too_early_is_refused",
    "a person's observation that is taken although something may still be on its way",
    _I.ONE_EFFECT,
    _I.TRUE_RECEIPT,
    switched_off=_wrapping(resolution, "absence_counts_from", lambda _original, _snapshot: None),
    scope=_scope(_RECONCILABLE, *_LOOKED, _F.OPERATOR),
    beside=("an_operators_absence_waits",),
)
_add(
    "version_of_resolution",
    "a person's conclusion that is written on other facts than the person has seen",
    _I.FENCED,
    switched_off=_wrapping(resolution, "resolve", _resolving_any_version),
    scope=_scope(_RECONCILABLE, *_CROWD, *_LOOKED, _F.OPERATOR),
)


# By class ---------------------------------------------------------------------------------------


def _always(_original: Callable[..., bool], *_: Any) -> bool:
    return True


def _daring(original: Callable[..., Decision], case: Any) -> Decision:
    if case.policy.safety is SafetyClass.UNSAFE and case._budget_left():
        return Decision(
            Action.DISPATCH,
            LifeEvent.ATTEMPT_STARTED,
            Reason.SAME_KEY_AGAIN,
            11,
            ordinal=len(case.facts.attempts) + 1,
        )
    return original(case)


def _reviving(original: Callable[..., Decision | None], case: Any) -> Decision | None:
    decision = original(case)
    if decision is None or decision.reason is not Reason.PROVED_NOT_COMMITTED:
        return decision
    revived = replace(case, policy=replace(case.policy, safety=SafetyClass.RECONCILABLE))
    return original(revived)


def _never_freezing(
    original: Callable[..., Decision], facts: Facts, policy: Policy, now: datetime
) -> Decision:
    return replace(original(facts, policy, now), freezes=False)


_add(
    "key_retention",
    "a second send of a key that the target has forgotten",
    _I.ONE_EFFECT,
    switched_off=_method("_key_lives_through", _always),
    scope=_scope(_IDEMPOTENT, _F.LOST_ANSWER, _F.PAUSE, _F.DEATH),
)
_add(
    "unsafe_is_not_sent_again",
    "a second send of an unsafe effect after doubt",
    _I.UNSAFE_ONCE,
    switched_off=_method("_unknown_decision", _daring),
    scope=_scope(_UNSAFE, _F.LOST_ANSWER),
)
_add(
    "unsafe_is_spent_by_proof",
    "a second send of an unsafe effect on a person's word",
    _I.UNSAFE_ONCE,
    switched_off=_method("_cleared_decision", _reviving),
    scope=_scope(_UNSAFE, _F.LOST_REQUEST, _F.OPERATOR),
)
_add(
    "freeze_on_contract_violation",
    "more sends to a target that was seen to make two objects of one key",
    _I.FROZEN_AFTER_VIOLATION,
    switched_off=_wrapping(conclusion, "decide", _never_freezing),
    scope=_scope(
        _IDEMPOTENT, _F.KEYS_IGNORED, _F.LOST_ANSWER, _F.WEBHOOK, effects=3
    ),
)


# Versions, generations and identity ----------------------------------------------------------------


def _any_generation(plan: Callable[..., Any], snapshot: Snapshot, **more: Any) -> Any:
    return plan(snapshot, **{**more, "expected_generation": snapshot.intent.generation})


class _AgelessStore:
    """A store that shows every run its own generation."""

    def __init__(self, inner: Any, generation: int) -> None:
        self._inner = inner
        self._generation = generation

    async def load(self, tenant_id: UUID, effect_id: UUID) -> Snapshot:
        snapshot = await self._inner.load(tenant_id, effect_id)
        intent = replace(snapshot.intent, generation=self._generation)
        return replace(snapshot, intent=intent)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _ageless(
    reserve: Callable[..., Any], ports: Ports, tenant_id: UUID, effect_id: UUID, generation: int
) -> Any:
    store: Any = _AgelessStore(ports.store, generation)
    return reserve(replace(ports, store=store), tenant_id, effect_id, generation)


class _EagerProcess:
    """A process that always may dispatch."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def may_dispatch(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _eager(dispatch: Callable[..., Any], ports: Ports, *args: Any) -> Any:
    process: Any = _EagerProcess(ports.process)
    return dispatch(replace(ports, process=process), *args)


def _any_target() -> AbstractContextManager[None]:
    def held(snapshot: Snapshot, _identity: str) -> Facts:
        return snapshot.facts

    return _patched((conclusion, "held_facts", held), (changes, "held_facts", held))


def _rendering_again(_unsealed: Callable[..., bytes], ports: Ports, snapshot: Snapshot) -> bytes:
    adapter = ports.adapters[snapshot.document.adapter.kind]
    return adapter.render(snapshot.document, {"amount": 5}, snapshot.intent.downstream_key)


def _trusting_the_stored(
    _unsealed: Callable[..., bytes], ports: Ports, snapshot: Snapshot
) -> bytes:
    intent = snapshot.intent
    assert snapshot.wire is not None
    return ports.vault.unseal(intent.tenant_id, intent.effect_id, "wire", snapshot.wire)


def _binding_again(bind: Callable[..., Any], snapshot: Snapshot, **more: Any) -> Any:
    return bind(replace(snapshot, intent=replace(snapshot.intent, wire_digest=None)), **more)


_add(
    "version_of_conclude",
    "a wait, park or end that is written on other facts than it was decided on",
    _I.FENCED,
    switched_off=_wrapping(changes, "conclude", _on_any_version),
    scope=_scope(_UNSAFE, *_CROWD),
)
_add(
    "version_of_begin_probe",
    "a look-up that was decided before others had acted",
    _I.FENCED,
    switched_off=_wrapping(changes, "begin_probe", _on_any_version),
    scope=_scope(_RECONCILABLE, *_CROWD, *_LOOKED),
)
_add(
    "version_of_settle_transaction",
    "a fence that was decided before others had acted",
    _I.FENCED,
    switched_off=_wrapping(changes, "settle_transaction", _on_any_version),
    scope=_scope(_TRANSACTIONAL, *_CROWD, _F.LOOK, _F.GIVE_UP, moves=100),
)
_add(
    "generation_of_requeue",
    "two reconcile loops that start two runs for one due moment",
    _I.ONE_RUN_PER_DUE,
    switched_off=_wrapping(changes, "requeue", _any_generation),
    scope=_scope(_IDEMPOTENT, *_CROWD),
)
_add(
    "generation_in_reserve",
    "a superseded run that goes on",
    _I.SUPERSEDED_RUN_ENDS,
    switched_off=_wrapping(steps, "reserve", _ageless),
    scope=_scope(_IDEMPOTENT, *_CROWD, _F.LOST_ANSWER, _F.BUSY),
)
_add(
    "may_dispatch",
    "an attempt that begins in a process which drains or is taken for dead",
    _I.UNFIT_STARTS_NOTHING,
    switched_off=_wrapping(steps, "dispatch", _eager),
    scope=_scope(_IDEMPOTENT, _F.DRAIN),
)
_add(
    "target_identity",
    "an effect that is sent to another account than before, which knows nothing of it",
    _I.SAME_TARGET,
    _I.ONE_EFFECT,
    switched_off=_any_target,
    scope=_scope(_IDEMPOTENT, _F.MOVED_TARGET, _F.LOST_ANSWER, *_CROWD),
)
_add(
    "stored_request_is_sent",
    "a second send with other bytes under the same key",
    _I.SAME_BYTES,
    switched_off=_wrapping(steps, "_unsealed_wire", _rendering_again),
    scope=_scope(_IDEMPOTENT, _F.LOST_ANSWER),
)
_add(
    "request_digest",
    "a stored request that has become another one and is sent",
    _I.SAME_BYTES,
    switched_off=_wrapping(steps, "_unsealed_wire", _trusting_the_stored),
    scope=_scope(_IDEMPOTENT, _F.LOST_ANSWER, _F.SPOILED_REQUEST),
)
_add(
    "first_request_stays",
    "two executions that each bind a request of their own",
    _I.NO_SURPRISE,
    switched_off=_wrapping(changes, "bind_wire", _binding_again),
    scope=_scope(_IDEMPOTENT, _F.UNRENDERED, *_CROWD),
)


# The mutation key -----------------------------------------------------------------------------------


def _fencing_nothing(settle: Callable[..., Any], snapshot: Snapshot, **more: Any) -> Any:
    change = settle(snapshot, **more)
    kept = tuple(w for w in change.writes if not isinstance(w, FenceMutation))
    return Change(change.result, kept)


# One attempt at most: its absence ends the effect. That a stopped process goes on too late is what
# the world is about, so it is not judged here.
_LATE_MUTATION: Final = replace(
    _scope(_TRANSACTIONAL, *_CROWD, retry={"attempts_max": 1}),
    unjudged=frozenset({_I.SENT_WITHIN_BUDGET}),
)
_add(
    "mutation_fence",
    "a mutation that commits after its absence was settled",
    _I.TRUE_RECEIPT,
    _I.NO_FALSE_ALERT,
    switched_off=_wrapping(changes, "settle_transaction", _fencing_nothing),
    scope=_LATE_MUTATION,
    beside=("last_gate", "no_mutation_on_a_final_effect"),
)
_add(
    "no_mutation_on_a_final_effect",
    "a mutation that commits although the effect has ended without it",
    _I.TRUE_RECEIPT,
    _I.NO_FALSE_ALERT,
    switched_off=lambda: _patched((steps, "is_final", lambda _state: False)),
    scope=_LATE_MUTATION,
    beside=("last_gate", "mutation_fence"),
)

# What only a real database or process can lose -------------------------------------------------------

for _name, _prevents, _proof in (
    (
        "lock_timeout",
        "a successor that waits for ever for the lock of a stopped process",
        "tests/store/test_failures.py::test_a_lock_that_is_not_granted_makes_the_store_busy",
    ),
    (
        "idle_in_transaction_timeout",
        "a stopped process that keeps its lock for ever",
        "tests/store/test_failures.py::test_a_stopped_holder_of_a_lock_loses_it",
    ),
    (
        "one_attempt_per_ordinal",
        "two rows of one attempt",
        "tests/store/test_guards.py::test_a_constraint_refuses_it",
    ),
    (
        "one_open_attempt",
        "two open attempts of one effect",
        "tests/store/test_guards.py::test_a_constraint_refuses_it",
    ),
    (
        "receipts_and_events_are_kept",
        "a receipt or an event that is changed or removed",
        "tests/store/test_guards.py::test_identity_and_history_are_kept",
    ),
    (
        "mutation_key",
        "a mutation that is taken for absent although its key stands",
        "tests/protocol/test_postgres.py::test_a_mutation_that_has_committed_is_found_by_its_key",
    ),
    (
        "fence_waits_for_an_open_transaction",
        "an older transaction that commits behind the fence",
        "tests/protocol/test_postgres.py::test_a_fence_stops_an_older_open_transaction",
    ),
    (
        "heartbeat_before_dispatch",
        "a process that goes on sending when its peers have taken it for dead",
        "tests/hosting/test_heartbeat.py"
        "::test_a_worker_that_cannot_beat_stops_dispatching_and_goes_on_afterwards",
    ),
    (
        "halt_after_restore",
        "sends on facts that a restored database has lost",
        "tests/hosting/test_restored_database.py"
        "::test_dispatch_halts_for_every_class_but_idempotent_until_the_interval_is_recorded",
    ),
):
    _add(_name, _prevents, proof=_proof)


def simulated_guards() -> Sequence[Guard]:
    """Return the guards that a simulation can lose."""
    return [guard for guard in GUARDS.values() if guard.scope is not None]
