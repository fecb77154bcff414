"""A target inside the process: what the simulator, and tests of the broker, send effects to.

`SimulatedAdapter` keeps every promise of the port (last gate, budget, no exception escapes) over
any `SimulatedTarget`. `LedgerTarget` is one: an in-memory target whose ledger is the truth and
whose faults are scripted. There is no socket, no clock and no chance in here, so that a run with
the same script is the same run.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, assert_never

from effect_adapters.base import Answer, DispatchCall, Finding, ProbeCall, RenderError, not_sent
from effect_contracts.canonical import JsonValue, canonical_bytes, first_difference
from effect_contracts.document import ContractDocument, SimulatedSettings
from effect_contracts.errors import InvalidPayload
from effect_contracts.facts import CODE_REPLAYED_ERROR, CODE_SEVERAL_MATCHES, Outcome, Verdict

_WIRE_BYTES_MAX = 1024 * 1024


class SimulatedTarget(Protocol):
    """What stands behind the name that a contract gives as its target."""

    async def receive(self, key: str, arguments: JsonValue, call: DispatchCall) -> Answer:
        """Take one request that has left the broker."""

    async def look_up(self, call: ProbeCall) -> Finding:
        """Answer whether the effect of the call's key exists; change nothing."""


class SimulatedAdapter:
    """Implements `Adapter` and `TransactionalAdapter` for contracts of the kind `simulated`."""

    def __init__(self, targets: Mapping[str, SimulatedTarget]) -> None:
        """`targets` by the name that contracts use."""
        self._targets = targets

    def identity(self, document: ContractDocument) -> str:
        """Return the target's name and the account."""
        return f"simulated:{_settings(document).target}#{document.account}"

    def render(
        self, document: ContractDocument, arguments: JsonValue, downstream_key: str
    ) -> bytes:
        """Return target, arguments and key as canonical JSON. Pure.

        Raises:
            RenderError: the arguments are no JSON, or too large.
        """
        wire: dict[str, JsonValue] = {
            "target": _settings(document).target,
            "arguments": arguments,
            "key": downstream_key,
        }
        try:
            return canonical_bytes(wire, bytes_max=_WIRE_BYTES_MAX)
        except InvalidPayload:
            raise RenderError("request_invalid") from None

    async def dispatch(self, call: DispatchCall) -> Answer:
        """Hand the stored request to the target once, if the last gate lets it through."""
        target = self._targets.get(_settings(call.document).target)
        if target is None:
            return not_sent("target_missing")
        wire = json.loads(call.wire)
        call.reach("before_socket_write")
        if call.budget.remaining_seconds() <= 0:
            return not_sent("budget_spent")
        call.reach("after_last_gate")
        try:
            return await target.receive(wire["key"], wire["arguments"], call)
        except Exception:
            return Answer(Outcome.AMBIGUOUS, "adapter_error")

    async def mutate(self, connection: Any, call: DispatchCall) -> Answer:
        """Do the same for a transactional contract: the target is in the caller's hands."""
        return await self.dispatch(call)

    async def probe(self, call: ProbeCall) -> Finding:
        """Ask the target."""
        target = self._targets.get(_settings(call.document).target)
        if target is None:
            return Finding(Verdict.UNKNOWN, "target_missing")
        if call.budget.remaining_seconds() <= 0:
            return Finding(Verdict.UNKNOWN, "budget_spent")
        try:
            return await target.look_up(call)
        except Exception:
            return Finding(Verdict.UNKNOWN, "adapter_error")


def _settings(document: ContractDocument) -> SimulatedSettings:
    assert isinstance(document.adapter, SimulatedSettings), "the registry picks adapters by kind"
    return document.adapter


# A target with a ledger ------------------------------------------------------------------------


class Fate(StrEnum):
    """What becomes of one request or look-up of a `LedgerTarget`."""

    OK = "ok"  # carried out (or replayed) and answered
    COMMIT_AND_LOSE = "commit_and_lose"  # carried out, the answer is lost
    LOSE = "lose"  # nothing is carried out, and nobody knows
    UNREACHED = "unreached"  # no byte left
    REFUSE = "refuse"  # a final refusal
    BUSY = "busy"  # proves no commit, may be tried again
    IN_PROGRESS = "in_progress"  # the target still works on this key
    STORED_ERROR = "stored_error"  # an error under this key, sent again
    FAIL_LOOK_UP = "fail_look_up"  # the look-up proves nothing


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One effect that the target holds."""

    external_id: str
    key: str
    arguments: JsonValue = field(repr=False)


class LedgerTarget:
    """A target in memory.

    Attributes:
        entries: the effects it holds, in the order in which they came about.
        arrivals: the key of every request that reached it.
    """

    def __init__(self, *, deduplicates: bool, fates: Iterable[Fate] = ()) -> None:
        """`fates` are used up one by one, by requests and look-ups; then everything is `OK`."""
        self.entries: list[LedgerEntry] = []
        self.arrivals: list[str] = []
        self._deduplicates = deduplicates
        self._fates = deque(fates)

    def add_fates(self, *fates: Fate) -> None:
        """Add to what becomes of the next requests and look-ups."""
        self._fates.extend(fates)

    async def receive(self, key: str, arguments: JsonValue, call: DispatchCall) -> Answer:
        """See `SimulatedTarget`."""
        fate = self._next_fate()
        if fate is Fate.UNREACHED:
            return not_sent("connect_refused")
        self.arrivals.append(key)
        match fate:
            case Fate.OK:
                return self._carried_out(key, arguments)
            case Fate.COMMIT_AND_LOSE:
                self._carried_out(key, arguments)
                return Answer(Outcome.AMBIGUOUS, "closed_without_answer")
            case Fate.LOSE | Fate.FAIL_LOOK_UP:
                return Answer(Outcome.AMBIGUOUS, "deadline")
            case Fate.REFUSE:
                return Answer(Outcome.REJECTED, "refused")
            case Fate.BUSY:
                return Answer(Outcome.RETRYABLE, "busy", retry_after_seconds=1.0)
            case Fate.IN_PROGRESS:
                return Answer(Outcome.IN_PROGRESS, "in_progress")
            case Fate.STORED_ERROR:
                return Answer(Outcome.AMBIGUOUS, CODE_REPLAYED_ERROR)
            case never:
                assert_never(never)

    async def look_up(self, call: ProbeCall) -> Finding:
        """See `SimulatedTarget`."""
        if self._next_fate() is not Fate.OK:
            return Finding(Verdict.UNKNOWN, "unmatched_status_503")
        found = [entry for entry in self.entries if entry.key == call.downstream_key]
        ids = tuple(entry.external_id for entry in found)
        if not found:
            return Finding(Verdict.NOT_COMMITTED, "absent_from_list")
        if len(found) > 1:
            return Finding(Verdict.MISMATCH, CODE_SEVERAL_MATCHES, ids)
        if first_difference(found[0].arguments, call.arguments) is not None:
            return Finding(Verdict.MISMATCH, "fields_disagree", ids)
        return Finding(Verdict.COMMITTED, "found", ids)

    def _next_fate(self) -> Fate:
        return self._fates.popleft() if self._fates else Fate.OK

    def _carried_out(self, key: str, arguments: JsonValue) -> Answer:
        if self._deduplicates:
            for entry in self.entries:
                if entry.key == key:
                    if first_difference(entry.arguments, arguments) is not None:
                        return Answer(Outcome.KEY_CONFLICT, "idempotency_error")
                    return Answer(Outcome.COMMITTED, "committed", entry.external_id)
        entry = LedgerEntry(f"sim_{len(self.entries) + 1}", key, arguments)
        self.entries.append(entry)
        return Answer(Outcome.COMMITTED, "committed", entry.external_id)
