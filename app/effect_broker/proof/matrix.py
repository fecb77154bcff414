"""The crash matrix: safety class times kill point, with real SIGKILLs, judged by the target.

    before reservation commit   the API dies; the caller submits again
    after reservation           the API dies; nobody submits again
    after attempt commit        the worker dies before anything is opened
    before socket write         the worker dies at the last gate
    after target commit         the worker dies with the answer in hand
    before receipt commit       the worker dies inside transaction 2
    after receipt commit        the worker dies with everything recorded

For a transactional effect the target's commit is the receipt's commit, so the points around the
socket lie inside its mutation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx

from effect_broker.faultpoints import FaultPoint
from effect_broker.proof.broker import ProofBroker
from effect_broker.proof.contracts import charge, tuned
from effect_broker.proof.target.modes import ModeName
from effect_broker.store import demo_ledger
from effect_contracts.catalog import catalog_documents
from effect_contracts.document import ContractDocument
from effect_contracts.facts import SafetyClass

BOUND_SECONDS: Final = 1.5

API_POINTS: Final = {
    "before reservation commit": FaultPoint.BEFORE_SUBMIT_COMMIT,
    "after reservation": FaultPoint.AFTER_SUBMIT_COMMIT,
}
WORKER_POINTS: Final = {
    "after attempt commit": FaultPoint.AFTER_ATTEMPT_COMMIT,
    "before socket write": FaultPoint.BEFORE_SOCKET_WRITE,
    "after target commit": FaultPoint.AFTER_TARGET_ANSWER,
    "before receipt commit": FaultPoint.BEFORE_OUTCOME_COMMIT,
    "after receipt commit": FaultPoint.AFTER_OUTCOME_COMMIT,
}


@dataclass(frozen=True, slots=True)
class Counted:
    """What the target's ledger and the broker show in the end."""

    state: str
    requests: int
    effects: int


_ONCE: Final = Counted("succeeded", 1, 1)
_TWICE_ASKED: Final = Counted("succeeded", 2, 1)
_UNKNOWN_UNSENT: Final = Counted("outcome_unknown", 0, 0)
_UNKNOWN_SENT: Final = Counted("outcome_unknown", 1, 1)

# Everything that is not named here ends as succeeded, with one request and one effect.
_EXCEPTIONS: Final[Mapping[tuple[SafetyClass, str], Counted]] = {
    (SafetyClass.IDEMPOTENT, "after target commit"): _TWICE_ASKED,
    (SafetyClass.IDEMPOTENT, "before receipt commit"): _TWICE_ASKED,
    (SafetyClass.UNSAFE, "after attempt commit"): _UNKNOWN_UNSENT,
    (SafetyClass.UNSAFE, "before socket write"): _UNKNOWN_UNSENT,
    (SafetyClass.UNSAFE, "after target commit"): _UNKNOWN_SENT,
    (SafetyClass.UNSAFE, "before receipt commit"): _UNKNOWN_SENT,
}
_TARGETS: Final[Mapping[SafetyClass, tuple[str, ModeName, Mapping[str, Any]]]] = {
    SafetyClass.IDEMPOTENT: ("demo-charge-idempotent", "dedupe", {}),
    SafetyClass.RECONCILABLE: (
        "demo-charge-reconcilable",
        "lookup",
        {"settlement_bound_seconds": BOUND_SECONDS},
    ),
    SafetyClass.UNSAFE: ("demo-charge-unsafe", "neither", {}),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell: a class of target and a place at which a process is killed."""

    safety: SafetyClass
    point: str

    @property
    def name(self) -> str:
        """A name without spaces."""
        return f"{self.safety}-{self.point.replace(' ', '-')}"

    @property
    def expected(self) -> Counted:
        """What has to come out."""
        return _EXCEPTIONS.get((self.safety, self.point), _ONCE)

    @property
    def kind(self) -> str:
        """The kind of object at the target."""
        return self.name.replace("-", "_")[:39]

    @property
    def fault(self) -> FaultPoint:
        """The fault point that kills the process."""
        fault = API_POINTS.get(self.point) or WORKER_POINTS[self.point]
        around_socket = {FaultPoint.BEFORE_SOCKET_WRITE, FaultPoint.AFTER_TARGET_ANSWER}
        if self.safety is SafetyClass.TRANSACTIONAL and fault in around_socket:
            return FaultPoint.INSIDE_MUTATION
        return fault


CELLS: Final = tuple(
    Cell(safety, point) for safety in SafetyClass for point in (*API_POINTS, *WORKER_POINTS)
)


@dataclass(frozen=True, slots=True)
class CellResult:
    """What one cell showed. `problems` is empty if every guarantee held."""

    cell: Cell
    counted: Counted
    receipt: bool
    problems: tuple[str, ...]


def run_cell(broker: ProofBroker, cell: Cell) -> CellResult:
    """Run one cell on a prepared broker with an API and at least one worker.

    Raises:
        NotInTime: the effect did not come to rest.
    """
    document = _contract(broker, cell)
    broker.apply(document)
    key, arguments = f"matrix:{cell.name}", _arguments(cell)
    problems: list[str] = []
    broker.arm(cell.fault)
    if cell.point in API_POINTS:
        _kill_api(broker, cell, key, document.tool, arguments, problems)
    else:
        broker.submit(key, document.tool, arguments).raise_for_status()
        broker.wait_fired(cell.fault)
        broker.stack.worker()
    effect_id = _effect_id(broker, key)
    effect = broker.settled(effect_id)
    replay = broker.submit(key, document.tool, arguments)
    if (replay.status_code, replay.json().get("effect_id")) != (200, effect_id):
        problems.append("a resubmit did not give the same effect")
    return _judged(broker, cell, effect, problems)


def _kill_api(
    broker: ProofBroker,
    cell: Cell,
    key: str,
    tool: str,
    arguments: Mapping[str, Any],
    problems: list[str],
) -> None:
    try:
        broker.submit(key, tool, arguments)
        problems.append("the API answered although it was to be killed")
    except httpx.TransportError:
        broker.wait_fired(cell.fault)
    broker.start_api()
    stored = len(_found(broker, key))
    if cell.fault is FaultPoint.BEFORE_SUBMIT_COMMIT:
        if stored:
            problems.append("an intent stands although its commit was never sent")
        broker.submit(key, tool, arguments).raise_for_status()
    elif not stored:
        problems.append("an acknowledged commit is gone")


def _judged(
    broker: ProofBroker, cell: Cell, effect: Mapping[str, Any], problems: list[str]
) -> CellResult:
    if cell.safety is SafetyClass.TRANSACTIONAL:
        count = demo_ledger.count(broker.superuser_url, cell.name)
        counted = Counted(effect["state"], count, count)
    else:
        ledger = broker.target.client.ledger(kind=cell.kind)
        counted = Counted(effect["state"], ledger.arrivals, ledger.effects)
        if len(ledger.keys) > 1 or len(ledger.body_digests) > 1:
            problems.append("not the same key and bytes on every request")
    if counted != cell.expected:
        problems.append(f"expected {cell.expected}")
    receipt = broker.receipt(effect["effect_id"]) is not None
    if receipt != effect["final"]:
        problems.append("a receipt belongs to every settled effect and to no other")
    if not effect["final"] and not effect["waits_for_person"]:
        problems.append("neither final nor visibly waiting")
    return CellResult(cell, counted, receipt, tuple(problems))


def _contract(broker: ProofBroker, cell: Cell) -> ContractDocument:
    if cell.safety is SafetyClass.TRANSACTIONAL:
        document = json.loads(catalog_documents()["demo-ledger-transactional"].canonical())
        document |= {"name": "proof-entry", "tool": "proof.entry", "attempt_deadline_seconds": 1.5}
        return ContractDocument.parse_yaml(json.dumps(document))
    catalog, mode, members = _TARGETS[cell.safety]
    broker.target.client.set_mode(cell.kind, mode)
    return tuned(catalog, broker.target.url, cell.kind, **dict(members))


def _arguments(cell: Cell) -> dict[str, Any]:
    if cell.safety is SafetyClass.TRANSACTIONAL:
        return {"debit": "a", "credit": "b", "amount": 100, "currency": "eur", "memo": cell.name}
    return charge(cell.name)


def _found(broker: ProofBroker, key: str) -> list[Mapping[str, Any]]:
    answer = broker.http.get("/v1/effects", params={"operation_prefix": key})
    answer.raise_for_status()
    found: list[Mapping[str, Any]] = answer.json()["effects"]
    return found


def _effect_id(broker: ProofBroker, key: str) -> str:
    (found,) = _found(broker, key)
    return str(found["effect_id"])
