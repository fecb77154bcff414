"""The outside of a simulated world: one target whose ledger is the truth.

The target keeps exactly the promises of its contract: keys for their retention, transit and
settlement within their bounds, look-ups that tell the truth about some moment of the exchange.
What it does with each request is chance's, within the faults of the scope; the faults that break
a promise are here too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

from effect_adapters.base import Answer, DispatchCall, Finding, ProbeCall
from effect_adapters.simulated import SimulatedAdapter
from effect_broker.proof.simulation.coroutines import stop
from effect_broker.proof.simulation.scope import Fault
from effect_contracts.canonical import JsonValue
from effect_contracts.document import ContractDocument
from effect_contracts.facts import (
    CODE_ALREADY_EXISTS,
    CODE_OPERATION_GONE,
    CODE_REPLAYED_ERROR,
    PROVES_NO_COMMIT,
    Outcome,
    SafetyClass,
    Verdict,
)

if TYPE_CHECKING:
    from effect_broker.proof.simulation.processes import SimulatedProcess
    from effect_broker.proof.simulation.world import World

# An exchange takes time, as everywhere: nothing happens at the very moment of something else.
EXCHANGE_SECONDS: Final = 2**-10

# For an object that becomes visible where the contract declares no bound for it.
_LAG_WITHOUT_BOUND_SECONDS: Final = 50.0

# Beyond every promise, and still within the life of a world.
TOO_LATE_SECONDS: Final = 4000.0

# What a request may meet; without a fault there is only the first. The fault `LOST_ANSWER` also
# lets an answer come at the end of the budget only.
_FATES: Final = (
    Fault.LOST_ANSWER,
    Fault.LATE_LANDING,
    Fault.LOST_REQUEST,
    Fault.REFUSAL,
    Fault.BUSY,
    Fault.UNREACHED,
    Fault.IN_PROGRESS,
    Fault.EXISTS,
    Fault.OPERATION,
    Fault.KEY_TAKEN,
    Fault.PARTIAL,
    Fault.STORED_ERROR,
    Fault.LANDS_TOO_LATE,
    Fault.FALSE_REFUSAL,
    Fault.FALSE_SUCCESS,
)
# What becomes of an accepted operation.
_LANDS, _FAILS, _NEVER_ENDS = "lands", "fails", "never_ends"
_OPERATION_ENDS: Final = (_LANDS, _FAILS, _NEVER_ENDS)
_INSIDE_FATES: Final = (Fault.REFUSAL, Fault.BUSY)


@dataclass(frozen=True, slots=True)
class Landing:
    """A request on its way to becoming an object, or the object that it has become."""

    effect_id: UUID
    identity: str
    key: str
    lands_at: float
    visible_at: float


@dataclass(frozen=True, slots=True)
class Entry:
    """An object that the target holds."""

    external_id: str
    identity: str
    lands_at: float
    visible_at: float


@dataclass(frozen=True, slots=True)
class Send:
    """One request that has left the broker, and what the target did with it."""

    effect_id: UUID
    attempt_id: UUID
    ordinal: int
    identity: str
    at: float
    fate: Fault | None


class Target:
    """Implements `SimulatedTarget` for one account; all accounts share one world's ledger."""

    def __init__(self, world: World, process: SimulatedProcess) -> None:
        self._world = world
        self._process = process

    async def receive(self, key: str, arguments: JsonValue, call: DispatchCall) -> Answer:
        """See `SimulatedTarget`. There is no stop between the last gate and the send."""
        world = self._world
        if Fault.STALLED_WRITE in world.scope.faults and world.choices.once_in(4):
            world.tell("stops between its last check and the socket")
            await stop(world.seconds + world.delay())
        fate = world.fate(_FATES if world.on_wire else _INSIDE_FATES)
        world.seconds += EXCHANGE_SECONDS
        world.judge.sent(self._process, key, call)
        now = world.seconds
        identity = self._process.identity
        send = Send(call.effect_id, call.attempt_id, call.ordinal, identity, now, fate)
        if world.telling:
            world.tell(f"sends attempt {call.ordinal}; {_FATE_WORDS[fate]}")
        world.saw(fate)
        if not world.on_wire:
            answer = self._inside(fate)
            world.record_send(send, answer.outcome not in PROVES_NO_COMMIT)
            await stop()
            return answer
        answer = self._landed(key, fate, call)
        world.record_send(send, answer.outcome not in PROVES_NO_COMMIT)
        world.saw(answer.outcome, answer.code, answer.operation, answer.external_id)
        await stop(now if fate is None else self._answers_at(fate, call))
        world.judge.answered(self._process, call, answer)
        if world.telling:
            world.tell(f"sees {answer.outcome} ({answer.code}) for attempt {call.ordinal}")
        return answer

    async def look_up(self, call: ProbeCall) -> Finding:
        """See `SimulatedTarget`: the answer was true at the beginning or at the end."""
        world, identity = self._world, self._process.identity
        world.seconds += EXCHANGE_SECONDS
        old = Fault.SLOW_LOOK_UP in world.scope.faults and world.spend(Fault.SLOW_LOOK_UP, 3)
        entries = world.entries(call.effect_id, identity, visible=True)
        world.saw(old, tuple(entries))
        if old:
            left = max(call.budget.remaining_seconds(), 0.0)
            await stop(world.seconds + left * world.choices.of(2))
        else:
            await stop()
            entries = world.entries(call.effect_id, identity, visible=True)
        finding = self._finding(call, entries)
        world.saw(finding.verdict, finding.code, finding.external_ids)
        if world.telling:
            world.tell(f"looks at the target: {finding.verdict} {' '.join(finding.external_ids)}")
        return finding

    # What a request becomes -----------------------------------------------------------------

    def _inside(self, fate: Fault | None) -> Answer:
        match fate:
            case Fault.REFUSAL:
                return Answer(Outcome.REJECTED, "refused")
            case Fault.BUSY:
                return Answer(Outcome.RETRYABLE, "busy")
            case _:
                return Answer(Outcome.COMMITTED, "committed", "sim_1")

    def _landed(self, key: str, fate: Fault | None, call: DispatchCall) -> Answer:
        world = self._world
        identity, now = self._process.identity, world.seconds
        lag = world.lag()
        match fate:
            case None:
                self._lands(key, call, now, lag)
                return Answer(Outcome.COMMITTED, "committed", self._latest(call).external_id)
            case Fault.LOST_ANSWER:
                self._lands(key, call, now, lag)
                return Answer(Outcome.AMBIGUOUS, "closed_without_answer")
            case Fault.LATE_LANDING | Fault.IN_PROGRESS:
                self._lands(key, call, now + world.transit(), lag)
                if fate is Fault.IN_PROGRESS:
                    return Answer(Outcome.IN_PROGRESS, "in_progress", retry_after_seconds=1.0)
                return Answer(Outcome.AMBIGUOUS, "deadline")
            case Fault.LOST_REQUEST:
                return Answer(Outcome.AMBIGUOUS, "deadline")
            case Fault.REFUSAL:
                return Answer(Outcome.REJECTED, "refused")
            case Fault.BUSY:
                return Answer(Outcome.RETRYABLE, "busy", retry_after_seconds=1.0)
            case Fault.UNREACHED:
                return Answer(Outcome.NOT_SENT, "connect_refused", bytes_may_have_left=False)
            case Fault.EXISTS:
                # True to its word: without an object it makes one, as if nothing had been said.
                if not world.entries(call.effect_id, identity):
                    self._lands(key, call, now, lag)
                    return Answer(Outcome.COMMITTED, "committed", self._latest(call).external_id)
                return Answer(Outcome.REJECTED, CODE_ALREADY_EXISTS)
            case Fault.OPERATION:
                end = _OPERATION_ENDS[world.choices.of(len(_OPERATION_ENDS))]
                if end == _LANDS:
                    self._lands(key, call, now + world.transit(), lag)
                operation = f"op-{call.ordinal}-{end}"
                return Answer(Outcome.IN_PROGRESS, "operation_accepted", operation=operation)
            case Fault.KEY_TAKEN:
                return Answer(Outcome.KEY_CONFLICT, "key_conflict")
            case Fault.PARTIAL:
                if world.choices.of(2):  # the part may be the one that counts
                    self._lands(key, call, now, lag)
                return Answer(Outcome.PARTIAL, "partial")
            case Fault.STORED_ERROR:
                return Answer(Outcome.AMBIGUOUS, CODE_REPLAYED_ERROR)
            case Fault.LANDS_TOO_LATE:
                self._lands(key, call, now + TOO_LATE_SECONDS, 0.0)
                return Answer(Outcome.AMBIGUOUS, "deadline")
            case Fault.FALSE_REFUSAL:
                self._lands(key, call, now, lag)
                return (
                    Answer(Outcome.REJECTED, "refused")
                    if world.choices.of(2)
                    else Answer(Outcome.RETRYABLE, "busy")
                )
            case Fault.FALSE_SUCCESS:
                return Answer(Outcome.COMMITTED, "committed", "sim_none")
            case _:
                raise AssertionError(f"{fate} is no fate of a request")

    def _lands(self, key: str, call: DispatchCall, lands_at: float, lag: float) -> None:
        self._world.landings.append(
            Landing(call.effect_id, self._process.identity, key, lands_at, lands_at + lag)
        )

    def _latest(self, call: DispatchCall) -> Entry:
        """The object that a request which has just landed has become, or has met."""
        entries = self._world.entries(call.effect_id, self._process.identity)
        return entries[-1]

    def _answers_at(self, fate: Fault, call: DispatchCall) -> float:
        world = self._world
        if fate not in {Fault.LOST_ANSWER, Fault.LATE_LANDING, Fault.LOST_REQUEST}:
            return world.seconds
        return world.seconds + max(call.budget.remaining_seconds(), 0.0) * world.choices.of(2)

    # What a look-up says --------------------------------------------------------------------

    def _finding(self, call: ProbeCall, entries: Sequence[Entry]) -> Finding:
        world = self._world
        if Fault.FAILED_LOOK_UP in world.scope.faults and world.spend(Fault.FAILED_LOOK_UP, 4):
            return Finding(Verdict.UNKNOWN, "unmatched_status_503")
        if Fault.BLIND_LOOK_UP in world.scope.faults and world.choices.once_in(2):
            entries = ()
        if call.operation is not None and self._forgets():
            # By our key, as adapters do; only what is found counts then.
            if not entries or not call.document.policy().probes:
                return Finding(Verdict.UNKNOWN, CODE_OPERATION_GONE)
        elif call.operation is not None:
            if call.operation.endswith(_FAILS):
                return Finding(Verdict.REJECTED, "operation_failed")
            if not entries:
                return Finding(Verdict.UNKNOWN, "operation_pending")
        ids = tuple(entry.external_id for entry in entries)
        if Fault.STRANGE_OBJECT in world.scope.faults and world.spend(Fault.STRANGE_OBJECT, 8):
            world.judge.shown_strange(call.effect_id)
            return Finding(Verdict.MISMATCH, "other_payload", ids or ("sim_strange",))
        if not entries:
            return Finding(Verdict.NOT_COMMITTED, "absent")
        if len(entries) > 1:
            return Finding(Verdict.MISMATCH, "several_matches", ids)
        return Finding(Verdict.COMMITTED, "found", ids)

    def _forgets(self) -> bool:
        world = self._world
        return Fault.FORGOTTEN_OPERATION in world.scope.faults and world.spend(
            Fault.FORGOTTEN_OPERATION, 2
        )


class SimulatedTargetAdapter(SimulatedAdapter):
    """The shipped simulated adapter, of a process that is set up for some account.

    It stops before the last gate, where a process may be paused for any time; no two renderings
    of it are alike, so that none can pass for another.
    """

    def __init__(self, world: World, process: SimulatedProcess) -> None:
        super().__init__({"target": Target(world, process)})
        self._world = world
        self._process = process

    def identity(self, document: ContractDocument) -> str:
        """Return the account that the process is set up for."""
        return self._process.identity

    def render(
        self, document: ContractDocument, arguments: JsonValue, downstream_key: str
    ) -> bytes:
        """See `Adapter.render`."""
        wire = json.loads(super().render(document, arguments, downstream_key))
        return json.dumps({**wire, "rendering": self._process.next_rendering()}).encode()

    async def dispatch(self, call: DispatchCall) -> Answer:
        """See `Adapter.dispatch`."""
        await stop()
        answer = await super().dispatch(call)
        if not answer.bytes_may_have_left and answer.code == "budget_spent":
            self._world.judge.vetoed(self._process, call)
            self._world.tell(f"finds the budget of attempt {call.ordinal} spent and sends nothing")
        return answer


def objects(
    landings: Sequence[Landing], safety: SafetyClass, retention_seconds: float | None
) -> list[Entry]:
    """Return the objects that these landings of one effect become, in order.

    Two requests with one key are one object at a target that keeps keys, as long as the second
    arrives before the key is forgotten.
    """
    found: list[Entry] = []
    alive: dict[tuple[str, str], float] = {}
    for landing in sorted(landings, key=lambda each: each.lands_at):
        place = (landing.identity, landing.key)
        if safety is SafetyClass.IDEMPOTENT and landing.lands_at < alive.get(place, 0.0):
            continue
        alive[place] = landing.lands_at + (retention_seconds or 0.0)
        name = f"sim_{len(found) + 1}"
        found.append(Entry(name, landing.identity, landing.lands_at, landing.visible_at))
    return found


_FATE_WORDS: Final = {
    None: "it lands and is answered",
    Fault.LOST_ANSWER: "it lands and the answer is lost",
    Fault.LATE_LANDING: "it is on its way for a while, and no answer comes",
    Fault.LOST_REQUEST: "it is lost on its way",
    Fault.REFUSAL: "the target refuses it",
    Fault.BUSY: "the target says that it did nothing",
    Fault.UNREACHED: "it does not reach the target",
    Fault.IN_PROGRESS: "the target is at work on it",
    Fault.EXISTS: "the target says that the object exists, if it does",
    Fault.OPERATION: "the target accepts it as an operation",
    Fault.KEY_TAKEN: "the target says that its key is another request's",
    Fault.PARTIAL: "the target says that it did a part",
    Fault.STORED_ERROR: "the target repeats a stored error",
    Fault.LANDS_TOO_LATE: "it is on its way for longer than the contract says",
    Fault.FALSE_REFUSAL: "it lands, and the target says that it did nothing",
    Fault.FALSE_SUCCESS: "it does not land, and the target says that it did",
}
