"""The main job, shown: scenarios A, B and C with a real SIGKILL between commit and receipt.

Everything is real: separate processes, Postgres, SIGKILL and SIGSTOP. What counts is taken from
the target's own ledger. The scenarios:

    A    an idempotent target; the worker is killed after the target has committed. Its successor
         becomes a zombie (stopped after the answer, continued after the end). Ten concurrent
         resubmits. One charge.
    B    a target that does not de-duplicate, with a bounded look-up. Killed at the same point.
         The effect is found after the bound and not sent again. One charge.
    B'   the same, but the request never arrived. It is sent again, and only after the bound.
    C    a target with neither. The outcome stays unknown and is never sent again.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import httpx

from effect_broker.faultpoints import FaultAction, FaultPoint
from effect_broker.proof.broker import ProofBroker, wait_until
from effect_broker.proof.contracts import charge, tuned
from effect_broker.proof.target.client import LedgerView

SETTLEMENT_BOUND_SECONDS = 2.0
_RESUBMITS = 10
# How long scenario C is watched for a second request after it has come to rest.
_WATCH_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Check:
    """One guarantee and whether it held."""

    name: str
    held: bool


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """One line of the table."""

    scenario: str
    safety: str
    kill_point: str
    requests: int
    effects: int
    state: str
    receipt: bool
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether every check held."""
        return all(check.held for check in self.checks)


def run_scenarios(broker: ProofBroker, tell: Callable[[str], None]) -> Iterator[ScenarioResult]:
    """Run all scenarios on a prepared broker with an API and two workers."""
    origin = broker.target.url
    look_up: dict[str, Any] = {"settlement_bound_seconds": SETTLEMENT_BOUND_SECONDS}
    broker.target.client.set_mode("charge_a", "dedupe")
    for kind in ("charge_b", "charge_b2"):
        broker.target.client.set_mode(kind, "lookup", search_lag_seconds=1.0)
    broker.target.client.set_mode("charge_c", "neither")
    broker.apply(
        tuned("demo-charge-idempotent", origin, "charge_a"),
        tuned("demo-charge-reconcilable", origin, "charge_b", **look_up),
        tuned("demo-charge-reconcilable", origin, "charge_b2", **look_up),
        tuned("demo-charge-unsafe", origin, "charge_c"),
    )
    yield _scenario_a(broker, tell)
    yield _scenario_b(broker, tell)
    yield _scenario_b_twin(broker, tell)
    yield _scenario_c(broker, tell)


def _scenario_a(broker: ProofBroker, tell: Callable[[str], None]) -> ScenarioResult:
    tell("A: an idempotent target; SIGKILL after the target has committed")
    broker.arm(FaultPoint.AFTER_TARGET_ANSWER)
    effect_id = _submitted(broker, "charge_a")
    _successor(broker, FaultPoint.AFTER_TARGET_ANSWER)
    tell("A: ten concurrent resubmits, and the next attempt becomes a zombie (SIGSTOP)")
    broker.arm(FaultPoint.AFTER_TARGET_ANSWER, FaultAction.STOP)
    with ThreadPoolExecutor(_RESUBMITS) as callers:
        answers = list(callers.map(lambda _: _submit(broker, "charge_a"), range(_RESUBMITS)))
    zombie = broker.wait_fired(FaultPoint.AFTER_TARGET_ANSWER, FaultAction.STOP)
    broker.start_workers(1)
    effect = broker.settled(effect_id)
    receipt = broker.receipt(effect_id)
    os.kill(zombie, signal.SIGCONT)
    late = wait_until(lambda: _late_version(broker, effect), "the zombie's late answer")
    ledger = _ledger(broker, "charge_a")
    replays = [a.status_code == 200 and a.json()["effect_id"] == effect_id for a in answers]
    return _result(
        broker,
        "A",
        "after target commit (twice)",
        effect,
        ledger,
        Check("one effect at the target", ledger.effects == 1),
        Check("succeeded with a receipt", effect["state"] == "succeeded" and receipt is not None),
        Check("ten resubmits gave the same effect", all(replays)),
        Check("same key and bytes on every request", _same_requests(ledger)),
        Check("the zombie's answer changed no receipt", broker.receipt(effect_id) == receipt),
        Check("the zombie's answer is kept as a fact", late > effect["version"]),
    )


def _scenario_b(broker: ProofBroker, tell: Callable[[str], None]) -> ScenarioResult:
    tell("B: a look-up with a bound; SIGKILL after the target has committed")
    broker.arm(FaultPoint.AFTER_TARGET_ANSWER)
    effect_id = _submitted(broker, "charge_b")
    _successor(broker, FaultPoint.AFTER_TARGET_ANSWER)
    effect = broker.settled(effect_id)
    receipt = broker.receipt(effect_id)
    ledger = _ledger(broker, "charge_b")
    return _result(
        broker,
        "B",
        "after target commit",
        effect,
        ledger,
        Check("one effect at the target", ledger.effects == 1),
        Check("no second dispatch", ledger.arrivals == 1 and len(effect["attempts"]) == 1),
        Check("succeeded", effect["state"] == "succeeded"),
        Check("the receipt rests on a probe", _source(receipt) == "probe"),
    )


def _scenario_b_twin(broker: ProofBroker, tell: Callable[[str], None]) -> ScenarioResult:
    tell("B': the same, but SIGKILL before the request is written")
    broker.arm(FaultPoint.BEFORE_SOCKET_WRITE)
    effect_id = _submitted(broker, "charge_b2")
    _successor(broker, FaultPoint.BEFORE_SOCKET_WRITE)
    effect = broker.settled(effect_id)
    ledger = _ledger(broker, "charge_b2")
    first, *rest = effect["attempts"]
    waited = [
        (_moment(a["started_at"]) - _moment(first["deadline_at"])).total_seconds() for a in rest
    ]
    return _result(
        broker,
        "B'",
        "before socket write",
        effect,
        ledger,
        Check("one effect at the target", ledger.effects == 1),
        Check("one request at the target", ledger.arrivals == 1),
        Check("succeeded", effect["state"] == "succeeded"),
        Check(
            "sent again only after the bound",
            len(waited) == 1 and waited[0] > SETTLEMENT_BOUND_SECONDS,
        ),
    )


def _scenario_c(broker: ProofBroker, tell: Callable[[str], None]) -> ScenarioResult:
    tell("C: a target with neither key nor look-up; SIGKILL after the target has committed")
    broker.arm(FaultPoint.AFTER_TARGET_ANSWER)
    effect_id = _submitted(broker, "charge_c")
    _successor(broker, FaultPoint.AFTER_TARGET_ANSWER)
    effect = broker.settled(effect_id)
    for _ in range(3):
        _submit(broker, "charge_c")
    _rest(_WATCH_SECONDS)
    ledger = _ledger(broker, "charge_c")
    again = _sent_by_hand(broker, ledger)
    return _result(
        broker,
        "C",
        "after target commit",
        broker.effect(effect_id),
        ledger,
        Check("one request, one effect", ledger.arrivals == 1 and ledger.effects == 1),
        Check("the outcome is said to be unknown", effect["state"] == "outcome_unknown"),
        Check("no receipt is made up", broker.receipt(effect_id) is None),
        Check("the target would have made a second one", again == ledger.effects + 1),
    )


# Parts -------------------------------------------------------------------------------------------


def _submit(broker: ProofBroker, kind: str) -> httpx.Response:
    return broker.submit(f"order:42:{kind}:v1", f"proof.{kind}", charge("42"))


def _submitted(broker: ProofBroker, kind: str) -> str:
    answer = _submit(broker, kind)
    answer.raise_for_status()
    effect_id: str = answer.json()["effect_id"]
    return effect_id


def _successor(broker: ProofBroker, point: FaultPoint) -> None:
    """Wait until a worker was killed at the point, and start another in its place."""
    broker.wait_fired(point)
    broker.stack.worker()


def _ledger(broker: ProofBroker, kind: str) -> LedgerView:
    return broker.target.client.ledger(kind=kind)


def _same_requests(ledger: LedgerView) -> bool:
    return len(ledger.keys) == 1 and len(ledger.body_digests) == 1


def _source(receipt: dict[str, Any] | None) -> str | None:
    return receipt["receipt"]["source"] if receipt else None


def _late_version(broker: ProofBroker, effect: dict[str, Any]) -> int | None:
    version: int = broker.effect(effect["effect_id"])["version"]
    return version if version > effect["version"] else None


def _sent_by_hand(broker: ProofBroker, ledger: LedgerView) -> int:
    """Send the stored request of scenario C once more, past the broker; return the effects."""
    row = ledger.arrival_rows[0]
    headers = {name: value for name, value in row.headers if name.lower() != "host"}
    url = f"{broker.target.url}{row.path}"
    httpx.post(url, content=row.body, headers=headers, trust_env=False).raise_for_status()
    return _ledger(broker, "charge_c").effects


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _rest(seconds: float) -> None:
    threading.Event().wait(seconds)


def _result(
    broker: ProofBroker,
    scenario: str,
    kill_point: str,
    effect: dict[str, Any],
    ledger: LedgerView,
    *checks: Check,
) -> ScenarioResult:
    return ScenarioResult(
        scenario=scenario,
        safety=effect["safety"],
        kill_point=kill_point,
        requests=ledger.arrivals,
        effects=ledger.effects,
        state=effect["state"],
        receipt=broker.receipt(effect["effect_id"]) is not None,
        checks=checks,
    )
