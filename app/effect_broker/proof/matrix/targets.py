"""The contracts of the matrix and how the target behaves for them.

Every cell has a tool, a contract and a kind of object of its own, so that the ledgers of two cells
never mix. The documents are those of the catalog with shorter times.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from effect_broker.faultpoints import FaultPoint
from effect_broker.proof.contracts import charge, tuned
from effect_broker.proof.matrix.axes import ANSWERS, HELD, LOOK_UP_POINTS, Cell, Fault, TargetClass
from effect_broker.proof.matrix.expected import Situation, situation
from effect_broker.proof.target.client import TargetClient
from effect_broker.proof.target.modes import ModeName
from effect_contracts.catalog import catalog_documents
from effect_contracts.document import ContractDocument
from effect_contracts.facts import SafetyClass

# All times are in seconds, and are multiplied with the pace of the cell.
# The deadline of attempts whose end the cell has to wait for: long enough for an honest exchange
# on a busy machine, short enough to be waited for often. The others get a patient one, so that a
# process which waits at its place is not presumed lost.
DEADLINE_SECONDS: Final = 1.5
PATIENT_DEADLINE_SECONDS: Final = 20.0
BOUND_SECONDS: Final = 0.6
LAG_SECONDS: Final = 0.4  # within the bound
LIE_SECONDS: Final = 1000.0  # the target's clock is moved on when the lie has done its harm
# With two attempts the retry schedule reaches 3.7 s, which the key outlives, as a contract has to
# declare. From 3.5 s on a whole attempt (deadline, margin, transit) no longer fits.
KEY_LIVES_SECONDS: Final = 5.0
KEY_SPENT_AFTER_SECONDS: Final = 3.5
PATIENT_KEY_LIVES_SECONDS: Final = 60.0

_UNKNOWN_NAME: Final = "https://no-such-host.invalid"  # RFC 6761: never resolves


_PROBES: Final[Mapping[str, Any]] = {
    "initial_seconds": 0.3,
    "factor": 2,
    "cap_seconds": 2,
    "horizon_seconds": 3600,
}
# Here the deadline of a lost attempt has to pass.
_WAITED_FOR: Final = frozenset(
    {
        Situation.LOST_UNSENT,
        Situation.LOST_SENT,
        Situation.LATE_UNSENT,
        Situation.LATE_SENT,
        Situation.SENDS_LATE,
    }
)


@dataclass(frozen=True, slots=True)
class _Behaviour:
    document: str
    mode: ModeName
    search_lag_seconds: float = 0.0


_BEHAVIOURS: Final[Mapping[TargetClass, _Behaviour]] = {
    TargetClass.IDEMPOTENT: _Behaviour("demo-charge-idempotent", "dedupe"),
    TargetClass.IDEMPOTENT_EXPIRING: _Behaviour("demo-charge-idempotent", "dedupe"),
    TargetClass.RECONCILABLE: _Behaviour("demo-charge-reconcilable", "lookup"),
    TargetClass.RECONCILABLE_LAGGING: _Behaviour("demo-charge-reconcilable", "lookup", LAG_SECONDS),
    TargetClass.RECONCILABLE_LYING: _Behaviour("demo-charge-reconcilable", "lookup", LIE_SECONDS),
    TargetClass.UNSAFE: _Behaviour("demo-charge-unsafe", "neither"),
}

# What the target does with the request, and with a look-up.
_BAD_ANSWERS: Final[Mapping[Fault, str]] = {
    Fault.FIN: "FIN",
    Fault.RST: "RST",
    Fault.HANG: "hang(10)",
    Fault.STATUS_503: "status(503)",
    Fault.TRUNCATED: "trunc(length)",
    Fault.DRIP: "drip(1, 0.4, 25)",
}


def document_for(cell: Cell, origin: str) -> ContractDocument:
    """Return the contract of a cell for a target at `origin`."""
    patient = _patient(cell)
    deadline = PATIENT_DEADLINE_SECONDS if patient else DEADLINE_SECONDS
    members: dict[str, Any] = {"attempt_deadline_seconds": deadline * cell.pace}
    if cell.target is TargetClass.TRANSACTIONAL:
        document = json.loads(catalog_documents()["demo-ledger-transactional"].canonical())
        names = {"name": f"proof-{cell.kind}", "tool": f"proof.{cell.kind}"}
        return ContractDocument.parse_yaml(json.dumps(document | names | members))
    retry: dict[str, Any] = {"attempts_max": 3 if cell.fault is Fault.DNS else 8}
    if cell.target.safety is SafetyClass.RECONCILABLE:
        members["settlement_bound_seconds"] = BOUND_SECONDS * cell.pace
        members["probe"] = _PROBES
    if _key_expires(cell):
        members["key_retention_seconds"] = _key_lives_seconds(cell)
        retry["attempts_max"] = 2
    named = _UNKNOWN_NAME if cell.fault is Fault.DNS else origin
    document = _BEHAVIOURS[cell.target].document
    return tuned(document, named, cell.kind, retry=retry, **members)


def _patient(cell: Cell) -> bool:
    """Whether no deadline has to pass before the cell is at its end."""
    if cell.fault in {Fault.HANG, Fault.DRIP}:
        return False
    if cell.target is TargetClass.TRANSACTIONAL and cell.fault in HELD:
        return False  # an unknown end of its transaction is settled behind the deadline
    return situation(cell) not in _WAITED_FOR


def _key_expires(cell: Cell) -> bool:
    """Connections that fail use up attempts, of which an expiring key leaves two."""
    never_sent = cell.fault in {Fault.DNS, Fault.REFUSED}
    return cell.target is TargetClass.IDEMPOTENT_EXPIRING and not never_sent


def _key_lives_seconds(cell: Cell) -> float:
    patient = _patient(cell)
    return (PATIENT_KEY_LIVES_SECONDS if patient else KEY_LIVES_SECONDS) * cell.pace


def arguments_for(cell: Cell) -> dict[str, Any]:
    """Return the arguments of a cell's request."""
    if cell.target is TargetClass.TRANSACTIONAL:
        memo = cell.operation_key
        return {"debit": "a", "credit": "b", "amount": 100, "currency": "eur", "memo": memo}
    return charge(cell.kind)


def set_target(cell: Cell, client: TargetClient) -> None:
    """Let the target behave as the cell's class, and queue the answers that the cell needs."""
    if cell.target is TargetClass.TRANSACTIONAL:
        return
    # A request that an earlier cell has left hanging would count as one that is held here.
    client.release()
    behaviour = _BEHAVIOURS[cell.target]
    settings: dict[str, Any] = {}
    if behaviour.search_lag_seconds:
        settings["search_lag_seconds"] = behaviour.search_lag_seconds * cell.pace
    if _key_expires(cell):
        settings["ttl_seconds"] = _key_lives_seconds(cell)
    client.set_mode(cell.kind, behaviour.mode, **settings)
    if cell.point in LOOK_UP_POINTS:
        # A look-up needs something to look for, and a reason.
        held = "hold;" if cell.fault is Fault.REFUSED else ""
        client.script(f"{held}commit;FIN", kind=cell.kind)
        if cell.fault in ANSWERS:
            assert cell.point is FaultPoint.BEFORE_PROBE, "a look-up's answer is one place"
            client.script(_BAD_ANSWERS[cell.fault], kind=cell.kind, method="GET")
    elif cell.fault in ANSWERS:
        client.script(f"commit;{_BAD_ANSWERS[cell.fault]}", kind=cell.kind)
