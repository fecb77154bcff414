"""FC-24: the promise of idempotency is false: the key is taken and ignored, or not even taken."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.commands import Ended
from effect_broker.faultpoints import FaultAction, FaultPoint
from effect_broker.proof.broker import wait_until
from effect_broker.proof.contracts import charge
from effect_broker.proof.stack import ManagedProcess
from effect_broker.proof.target.modes import ModeName
from field_cases.cases import LEASE_SECONDS, SETTLE_SECONDS, Case, Offer
from field_cases.commands import Operator
from field_cases.provider import Provider, listens
from hosting.scenes import go_on
from observability.pages import api, page_of

UNKNOWN_PARAMETER = '{"error":"unknown parameter Idempotency-Key"}'


@pytest.fixture
def trial(case: Case) -> Case:
    """A case for targets on trial: what is sent to them belongs to no effect."""
    return Case(case.scene, f"{case.name}_trial")


def conformance(operator: Operator, offer: Offer, directory: Path) -> tuple[Ended, dict[str, str]]:
    """Try the contract at the target as an operator does; the judgement of each check."""
    assert offer.document is not None
    contract, arguments = directory / f"{offer.kind}.yaml", directory / f"{offer.kind}.json"
    contract.write_bytes(offer.document.canonical())
    arguments.write_text(json.dumps(charge("conformance")))
    words = ["contracts", "conformance", str(contract), "--arguments", str(arguments), "--json"]
    ended = operator(*words)
    checks = {c["check"]: c["judgement"] for c in ended.json["checks"]}
    assert ended.json["conforms"] is (set(checks.values()) == {"kept"})
    return ended, checks


def detected(case: Case, effect_id: str) -> bool | None:
    """Whether an event of the effect says that there are two objects."""
    kinds = [event["kind"] for event in case.scene.events(effect_id)]
    return "duplicate_detected" in kinds or None


def alerts(process: ManagedProcess) -> float:
    """How many duplicates a process has counted: the metric of the broken promise."""
    return page_of(process).value("alerts_total", alert="duplicate_detected")


def holds_of(case: Case, offer: Offer) -> list[tuple[str, ...]]:
    """What holds the offer's contract now: kind, reason, and who placed it."""
    rows = case.scene.rows(
        "SELECT kind, reason, placed_by FROM effect_broker.holds"
        " WHERE contract_name = %s AND lifted_at IS NULL",
        f"proof-{offer.kind.replace('_', '-')}",
    )
    return [tuple(row.values()) for row in rows]


@pytest.mark.parametrize(
    ("mode", "settings", "broken"),
    [
        ("dedupe", {}, set()),
        ("ignore_key", {}, {"same_key_same_effect", "drift_is_refused"}),
        ("dedupe", {"drift": "replay"}, {"drift_is_refused"}),
        ("neither", {}, {"same_key_same_effect", "drift_is_refused"}),
        ("conflict_existing", {}, {"same_key_same_effect", "drift_is_refused"}),
    ],
)
def test_fc_24_a_false_promise_fails_conformance_before_it_is_used(
    trial: Case,
    operator: Operator,
    tmp_path: Path,
    mode: ModeName,
    settings: dict[str, Any],
    broken: set[str],
) -> None:
    offer = trial.offer("idempotent", mode=mode, settings=settings)
    ended, checks = conformance(operator, offer, tmp_path)
    assert {name for name, judgement in checks.items() if judgement == "broken"} == broken
    assert ended.code == (1 if broken else 0)
    if not broken:
        # The target's own books: three requests of one key, one object.
        ledger = offer.ledger()
        assert (ledger.arrivals, ledger.effects, len(ledger.keys)) == (3, 1, 1)


def test_fc_24_a_look_up_is_tried_as_well(trial: Case, operator: Operator, tmp_path: Path) -> None:
    good = trial.offer("reconcilable")
    ended, checks = conformance(operator, good, tmp_path)
    assert (ended.code, set(checks.values())) == (0, {"kept"})
    assert {"found_once_by_key", "absence_is_shown"} <= set(checks)
    late = trial.offer("reconcilable", settings={"search_lag_seconds": 60.0})
    ended, checks = conformance(operator, late, tmp_path)
    assert (ended.code, checks["found_once_by_key"]) == (1, "broken")
    blind = trial.offer("reconcilable", mode="neither")
    ended, checks = conformance(operator, blind, tmp_path)
    assert ended.code == 1
    assert {checks["found_once_by_key"], checks["absence_is_shown"]} == {"broken"}


def test_fc_24_a_target_that_refuses_the_key_fails_conformance_and_at_runtime_for_good(
    case: Case, trial: Case, operator: Operator, tmp_path: Path
) -> None:
    offer = trial.offer("idempotent")
    offer.script(f"status(400,{UNKNOWN_PARAMETER})")
    ended, checks = conformance(operator, offer, tmp_path)
    assert (ended.code, checks) == (1, {"accepts_the_request": "broken"})

    offer = case.offer("idempotent")
    offer.script(f"status(400,{UNKNOWN_PARAMETER})", "ok")
    effect_id = offer.submit()
    offer.judge(effect_id, state="failed_final", reason="rejected", requests=1, effects=0)
    (request,) = offer.requests()
    assert request.header("idempotency-key")


def test_fc_24_two_ids_under_one_key_freeze_the_contract_and_leave_the_receipt(
    case: Case,
) -> None:
    case.scene.ensure_workers(3)
    slowly = {"backoff_initial_seconds": 4.0, "backoff_cap_seconds": 4.0}
    offer = case.offer(
        "idempotent", mode="ignore_key", retry=slowly, attempt_deadline_seconds=LEASE_SECONDS
    )
    case.broker.arm(FaultPoint.BEFORE_OUTCOME_COMMIT, FaultAction.STOP)
    effect_id = offer.submit()
    pid = case.scene.stopped_at(FaultPoint.BEFORE_OUTCOME_COMMIT)
    # Its successor sends again and gets an object of its own.
    offer.judge(effect_id, state="succeeded", requests=2, effects=2)
    offer.script("commit;FIN", "ok")
    under_way = offer.submit("under-way")
    offer.reached(under_way, "outcome_unknown")
    sender = next(worker for worker in case.scene.workers if worker.pid == pid)
    go_on(pid)
    wait_until(partial(detected, case, effect_id), "the second id is known", SETTLE_SECONDS)
    wait_until(lambda: alerts(sender) == 1 or None, "its sender has counted it")
    assert len({a["external_id"] for a in offer.attempts(effect_id)}) == 2
    effect = offer.judge(effect_id, state="succeeded", requests=2, effects=2)
    assert effect["final"]

    # A lost answer under this contract is not answered with another request, and nothing is begun.
    offer.judge(under_way, state="outcome_unknown", reason="frozen", requests=1, effects=1)
    new = offer.submit("new")
    offer.judge(new, state="prepared", reason="frozen", requests=0, effects=0)
    assert holds_of(case, offer) == [("frozen", "contract_violation", "broker")]
    assert page_of(api(case.scene)).value("ledger_holds", kind="frozen") >= 1


def test_fc_24_a_second_id_after_a_lost_answer_is_seen_when_the_target_tells_of_both(
    case: Case, evidence_api: ManagedProcess
) -> None:
    """The first id is in no answer: until somebody tells it, nobody can know of the duplicate."""
    offer = case.offer(
        "idempotent", mode="ignore_key", amend=listens, attempt_deadline_seconds=LEASE_SECONDS
    )
    offer.script("commit;hang")
    effect_id = offer.submit()
    effect = offer.judge(effect_id, state="succeeded", requests=2, effects=2)
    first, second = offer.effect_ids(effect_id)
    assert offer.receipt(effect_id)["external_id"] == second
    assert effect["alert"] is None
    assert holds_of(case, offer) == []

    with httpx.Client(base_url=evidence_api.wait_ready()) as http:
        provider = Provider(case, offer, http)
        assert provider.tells(effect_id, object=second) == "recorded"
        assert alerts(evidence_api) == 0
        assert provider.tells(effect_id, object=first) == "contradicts"
    assert detected(case, effect_id)
    wait_until(lambda: alerts(evidence_api) == 1 or None, "it is counted where it was taken in")
    effect = offer.judge(effect_id, state="succeeded", requests=2, effects=2)
    assert effect["alert"] == "duplicate_detected"
    assert offer.receipt(effect_id)["external_id"] == second
    assert holds_of(case, offer) == [("frozen", "contract_violation", "broker")]
    new = offer.submit("new")
    offer.judge(new, state="prepared", reason="frozen", requests=0, effects=0)
