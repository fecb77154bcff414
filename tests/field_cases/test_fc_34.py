"""FC-34: two executors believe that they own the work."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from effect_broker.faultpoints import FaultAction, FaultPoint
from effect_broker.proof.broker import url_for
from effect_broker.proof.stack import ProcessNotReady
from effect_broker.store.roles import DatabaseRole
from field_cases.busy import judge_busy
from field_cases.cases import LEASE_SECONDS, Case, Offer
from field_cases.commands import Operator
from field_cases.odd_workers import paused
from field_cases.raw import rows_of
from hosting.scenes import READY_SECONDS, SAFETIES, go_on
from pooler import SWALLOWS_OPTIONS, pooler

SUBMITS = 10
# What fixes the engine's executor id, and its default, which two processes would share.
ONE_NAME = {"DBOS__VMID": "local"}


def executors(case: Case) -> list[str]:
    """Every executor that has ever beaten here."""
    rows = case.scene.rows("SELECT executor_id FROM effect_broker.workers")
    return [row["executor_id"] for row in rows]


def held_at_target(case: Case, offers: list[Offer]) -> list[str]:
    """One effect of each, done at the target, whose answer is held back."""
    for offer in offers:
        offer.script("gate(held)")
    effect_ids = [offer.submit() for offer in offers]
    for offer in offers:
        case.broker.target.client.wait_effects(1, kind=offer.kind, timeout_seconds=30)
    return effect_ids


@pytest.mark.timeout(240)
def test_fc_34_a_process_that_starts_with_the_same_name_leaves_live_work_alone(case: Case) -> None:
    case.scene.kill_workers()
    case.scene.start_workers(1, **ONE_NAME)
    offers = [case.offer(safety, attempt_deadline_seconds=60.0) for safety in SAFETIES]
    effect_ids = held_at_target(case, offers)
    case.scene.start_workers(1, **ONE_NAME)  # comes back from the launch: recovery has run
    beating = executors(case)
    assert len(set(beating)) == len(beating)
    assert "local" not in beating
    case.broker.target.client.release("held")
    for offer, effect_id in zip(offers, effect_ids, strict=True):
        offer.judge(effect_id, state="succeeded", requests=1, effects=1)
        assert len(offer.attempts(effect_id)) == 1


def test_fc_34_an_executor_that_is_gone_is_not_believed_to_have_failed(case: Case) -> None:
    """With an expired lease the answer of an unsafe target is unknown, and stays so."""
    case.scene.ensure_workers(2)
    offer = case.offer("unsafe", attempt_deadline_seconds=LEASE_SECONDS)
    case.broker.arm(FaultPoint.AFTER_TARGET_ANSWER, FaultAction.STOP)
    effect_id = offer.submit()
    pid = case.scene.stopped_at(FaultPoint.AFTER_TARGET_ANSWER)
    offer.judge(effect_id, state="outcome_unknown", requests=1, effects=1)
    go_on(pid)
    # The stopped one comes back with the answer, which is a fact.
    offer.reached(effect_id, "succeeded")
    offer.judge(effect_id, state="succeeded", requests=1, effects=1)


def test_fc_34_ten_submits_at_once_are_one_effect(case: Case) -> None:
    offer = case.offer("unsafe")
    with ThreadPoolExecutor(SUBMITS) as callers:
        answers = list(callers.map(lambda _: offer.post(), range(SUBMITS)))
    assert sorted(answer.status_code for answer in answers) == [200] * (SUBMITS - 1) + [202]
    (effect_id,) = {answer.json()["effect_id"] for answer in answers}
    assert rows_of(case, offer.tool) == 1
    offer.judge(effect_id, state="succeeded", requests=1, effects=1)


@pytest.mark.timeout(240)
def test_fc_34_work_that_is_recovered_twice_is_sent_once(case: Case) -> None:
    """A dead executor's runs are handed back by two workers and two reconcilers at once."""
    case.scene.ensure_workers(2)
    (dying,) = case.scene.start_workers(1)
    others = [worker for worker in case.scene.workers if worker is not dying]
    for worker in others:
        worker.pause()
    offers = [case.offer(safety, attempt_deadline_seconds=LEASE_SECONDS) for safety in SAFETIES]
    effect_ids = held_at_target(case, offers)
    dying.kill()
    reconcilers = [case.broker.stack.reconciler() for _ in range(2)]
    for worker in others:
        worker.resume()
    case.broker.target.client.release("held")
    for (safety, offer), effect_id in zip(
        zip(SAFETIES, offers, strict=True), effect_ids, strict=True
    ):
        state = "outcome_unknown" if safety == "unsafe" else "succeeded"
        requests = 2 if safety == "idempotent" else 1
        judge_busy(offer, effect_id, state=state, requests=requests, effects=1)
    for reconciler in reconcilers:
        reconciler.kill()


def test_fc_34_doctor_finds_an_executor_id_that_two_may_share(
    case: Case, operator: Operator
) -> None:
    assert operator.doctor(case)["executor_ids"] == "ok"
    case.scene.rows(
        "INSERT INTO effect_broker.workers (executor_id, ttl_seconds) VALUES ('local', 60)"
    )
    try:
        assert operator.doctor(case)["executor_ids"] == "fail"
    finally:
        case.scene.rows("DELETE FROM effect_broker.workers WHERE executor_id = 'local'")


# Transaction pooling --------------------------------------------------------------------------


@pytest.fixture
def pooled(case: Case, server_home: Path) -> Iterator[dict[str, str]]:
    """The URLs of a deployment whose every connection goes through a pool of transactions."""
    superuser = case.broker.superuser_url
    with pooler(server_home, superuser, "transaction", SWALLOWS_OPTIONS, as_superuser=False) as url:
        yield {
            "EFFECT_BROKER_API_DATABASE_URL": url_for(url, DatabaseRole.API),
            "EFFECT_BROKER_WORKER_DATABASE_URL": url_for(url, DatabaseRole.WORKER),
        }


def test_fc_34_doctor_refuses_a_pool_of_transactions(
    case: Case, pooled: dict[str, str], operator: Operator
) -> None:
    found = operator.doctor(case, pooled)
    assert (found["pooler_api"], found["pooler_worker"]) == ("fail", "fail")


def test_fc_34_no_process_starts_behind_a_pool_of_transactions(
    case: Case, pooled: dict[str, str]
) -> None:
    """It drops what we set for a session, so that nothing is accepted and nothing sent there."""
    offers = [case.offer(safety) for safety in SAFETIES]
    with paused(*case.scene.workers):
        effect_ids = [offer.submit() for offer in offers]
        worker = case.broker.stack.worker(pooled)
        for process in (worker, case.broker.stack.api(environment=pooled)):
            with pytest.raises(ProcessNotReady, match="transaction mode"):
                process.wait_ready(READY_SECONDS)
        assert [offer.ledger().arrivals for offer in offers] == [0, 0, 0]
    for offer, effect_id in zip(offers, effect_ids, strict=True):
        offer.judge(effect_id, state="succeeded", requests=1, effects=1)
