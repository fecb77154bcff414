"""The guards of versions, identity and the mutation key, and those that only real parts lose."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from effect_broker.proof.simulation.guard import (
    CROWD,
    add,
    patched,
    scope_of,
    wrapping,
)
from effect_broker.proof.simulation.guards_deciding import LOOKED
from effect_broker.proof.simulation.guards_sending import on_any_version
from effect_broker.proof.simulation.invariants import Invariant
from effect_broker.proof.simulation.scope import Fault
from effect_broker.protocol import changes, conclusion, steps
from effect_broker.protocol.ports import (
    Change,
    FenceMutation,
    Ports,
    Snapshot,
)
from effect_contracts.facts import (
    Facts,
    SafetyClass,
)

_I = Invariant
_F = Fault
_IDEMPOTENT: Final = SafetyClass.IDEMPOTENT
_RECONCILABLE: Final = SafetyClass.RECONCILABLE
_UNSAFE: Final = SafetyClass.UNSAFE
_TRANSACTIONAL: Final = SafetyClass.TRANSACTIONAL

# Versions, generations and identity ---------------------------------------------------------------


def _any_generation(plan: Callable[..., Any], snapshot: Snapshot, **more: Any) -> Any:
    return plan(snapshot, **{**more, "expected_generation": snapshot.intent.generation})


class _AgelessStore:
    """A store that shows every run its own generation."""

    def __init__(self, inner: Any, generation: int) -> None:
        self._inner = inner
        self._generation = generation

    async def load(self, tenant_id: UUID, effect_id: UUID) -> Snapshot:
        snapshot: Snapshot = await self._inner.load(tenant_id, effect_id)
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

    return patched((conclusion, "held_facts", held), (changes, "held_facts", held))


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


add(
    "version_of_conclude",
    "a wait, park or end that is written on other facts than it was decided on",
    _I.FENCED,
    switched_off=wrapping(changes, "conclude", on_any_version),
    scope=scope_of(_UNSAFE, *CROWD),
)
add(
    "version_of_begin_probe",
    "a look-up that was decided before others had acted",
    _I.FENCED,
    switched_off=wrapping(changes, "begin_probe", on_any_version),
    scope=scope_of(_RECONCILABLE, *CROWD, *LOOKED),
)
add(
    "version_of_settle_transaction",
    "a fence that was decided before others had acted",
    _I.FENCED,
    switched_off=wrapping(changes, "settle_transaction", on_any_version),
    scope=scope_of(_TRANSACTIONAL, *CROWD, _F.LOOK, _F.GIVE_UP, moves=100),
)
add(
    "generation_of_requeue",
    "two reconcile loops that start two runs for one due moment",
    _I.ONE_RUN_PER_DUE,
    switched_off=wrapping(changes, "requeue", _any_generation),
    scope=scope_of(_IDEMPOTENT, *CROWD),
)
add(
    "generation_in_reserve",
    "a superseded run that goes on",
    _I.SUPERSEDED_RUN_ENDS,
    switched_off=wrapping(steps, "reserve", _ageless),
    scope=scope_of(_IDEMPOTENT, *CROWD, _F.LOST_ANSWER, _F.BUSY),
)
add(
    "may_dispatch",
    "an attempt that begins in a process which drains or is taken for dead",
    _I.UNFIT_STARTS_NOTHING,
    switched_off=wrapping(steps, "dispatch", _eager),
    scope=scope_of(_IDEMPOTENT, _F.DRAIN),
)
add(
    "target_identity",
    "an effect that is sent to another account than before, which knows nothing of it",
    _I.SAME_TARGET,
    _I.ONE_EFFECT,
    switched_off=_any_target,
    scope=scope_of(_IDEMPOTENT, _F.MOVED_TARGET, _F.LOST_ANSWER, *CROWD),
)
add(
    "stored_request_is_sent",
    "a second send with other bytes under the same key",
    _I.SAME_BYTES,
    switched_off=wrapping(steps, "_unsealed_wire", _rendering_again),
    scope=scope_of(_IDEMPOTENT, _F.LOST_ANSWER),
)
add(
    "request_digest",
    "a stored request that has become another one and is sent",
    _I.SAME_BYTES,
    switched_off=wrapping(steps, "_unsealed_wire", _trusting_the_stored),
    scope=scope_of(_IDEMPOTENT, _F.LOST_ANSWER, _F.SPOILED_REQUEST),
)
add(
    "first_request_stays",
    "two executions that each bind a request of their own",
    _I.NO_SURPRISE,
    switched_off=wrapping(changes, "bind_wire", _binding_again),
    scope=scope_of(_IDEMPOTENT, _F.UNRENDERED, *CROWD),
)


# The mutation key ---------------------------------------------------------------------------------


def _fencing_nothing(settle: Callable[..., Any], snapshot: Snapshot, **more: Any) -> Any:
    change = settle(snapshot, **more)
    kept = tuple(w for w in change.writes if not isinstance(w, FenceMutation))
    return Change(change.result, kept)


# One attempt at most: its absence ends the effect. That a stopped process goes on too late is what
# the world is about, so it is not judged here.
_LATE_MUTATION: Final = replace(
    scope_of(_TRANSACTIONAL, *CROWD, retry={"attempts_max": 1}),
    unjudged=frozenset({_I.SENT_WITHIN_BUDGET}),
)
add(
    "mutation_fence",
    "a mutation that commits after its absence was settled",
    _I.TRUE_RECEIPT,
    _I.NO_FALSE_ALERT,
    switched_off=wrapping(changes, "settle_transaction", _fencing_nothing),
    scope=_LATE_MUTATION,
    beside=("last_gate", "no_mutation_on_a_final_effect"),
)
add(
    "no_mutation_on_a_final_effect",
    "a mutation that commits although the effect has ended without it",
    _I.TRUE_RECEIPT,
    _I.NO_FALSE_ALERT,
    switched_off=lambda: patched((steps, "is_final", lambda _state: False)),
    scope=_LATE_MUTATION,
    beside=("last_gate", "mutation_fence"),
)

# What only a real database or process can lose ----------------------------------------------------

_SWITCHED_OFF: Final = "tests/store/test_switched_off.py"
_POSTGRES: Final = "tests/protocol/test_postgres.py"
_LOOK_UP: Final = (
    "tests/adapters/test_probing.py"
    "::test_without_the_match_of_key_or_payload_anothers_object_is_taken_for_ours"
)

# Most of these tests take the guard away on a real database, or in a real exchange, and show the
# harm. Those whose names do not say "without" show the guard at work only.
for _name, _prevents, _proof in (
    (
        "lock_timeout",
        "a successor that waits for ever for the lock of a stopped process",
        f"{_SWITCHED_OFF}"
        "::test_without_a_lock_timeout_a_successor_waits_for_as_long_as_the_lock_is_held",
    ),
    (
        "idle_in_transaction_timeout",
        "a stopped process that keeps its lock for ever",
        f"{_SWITCHED_OFF}::test_without_an_idle_timeout_a_stopped_process_keeps_its_lock",
    ),
    (
        "one_attempt_per_ordinal",
        "two rows of one attempt",
        f"{_SWITCHED_OFF}::test_without_one_attempt_per_ordinal_an_attempt_has_two_rows",
    ),
    (
        "one_open_attempt",
        "two open attempts of one effect",
        f"{_SWITCHED_OFF}::test_without_one_open_attempt_two_may_send_at_once",
    ),
    (
        "receipts_and_events_are_kept",
        "a receipt or an event that is changed or removed",
        f"{_SWITCHED_OFF}"
        "::test_without_its_triggers_an_event_is_rewritten_and_only_the_chain_tells",
    ),
    (
        "one_resolution_per_decision",
        "a person's decision that stands twice when it is said again",
        f"{_SWITCHED_OFF}::test_without_its_key_a_decision_stands_twice",
    ),
    (
        "a_decision_is_answered_again",
        "a decision that is refused when it is said again after a lost answer",
        "tests/api/test_resolve.py"
        "::test_without_the_look_for_it_a_decision_said_again_is_refused_and_stands_once",
    ),
    (
        "key_of_a_look_up",
        "a success on the word of a look-up that shows somebody else's object",
        _LOOK_UP,
    ),
    (
        "payload_of_a_look_up",
        "a success on the word of a look-up that shows an object with other content",
        _LOOK_UP,
    ),
    (
        "mutation_key",
        "a mutation that is taken for absent although its key stands",
        f"{_POSTGRES}::test_without_its_key_a_mutation_is_taken_for_absent_and_done_again",
    ),
    (
        "fence_waits_for_an_open_transaction",
        "an older transaction that commits behind the fence",
        f"{_POSTGRES}::test_a_fence_stops_an_older_open_transaction",
    ),
    (
        "heartbeat_before_dispatch",
        "a process that goes on sending when its peers have taken it for dead",
        f"{_POSTGRES}"
        "::test_without_its_heartbeats_gate_a_process_sends_when_its_peers_take_it_for_dead",
    ),
    (
        "halt_after_restore",
        "sends on facts that a restored database has lost",
        f"{_POSTGRES}::test_without_the_halt_a_restored_database_sends_an_unsafe_effect_again",
    ),
    (
        "runs_of_the_dead_are_handed_back",
        "runs of a dead process that wait until they are overdue",
        "tests/hosting/test_takeover.py::test_the_runs_of_dead_executors_are_handed_back",
    ),
):
    add(_name, _prevents, proof=_proof)
