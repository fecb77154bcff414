"""Every outcome is a value of its own type, told by a real broker with a real target."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import pytest

from effect_broker import (
    Broker,
    Cancelled,
    Compensated,
    Conflict,
    Effect,
    EffectFailed,
    Evidence,
    Failed,
    NotFound,
    NotYet,
    RequestRefused,
    StaleVersion,
    Succeeded,
    TooEarly,
    Unknown,
    WaitsForPerson,
)
from effect_broker.clock import utc_now
from effect_broker.proof.broker import wait_until
from effect_broker.proof.contracts import charge
from effect_contracts.facts import EffectState, Outcome, SafetyClass
from hosting.scenes import Scene
from sdk.conftest import Access

SOON = timedelta(seconds=1)
# Of the machine, not of the broker: a worker on a busy one.
PATIENT = timedelta(seconds=60)


def submit(broker: Broker, tool: str, order: str) -> Effect:
    return broker.submit(tool, charge(order), operation_key=f"{tool}:{order}")


def in_doubt(scene: Scene, broker: Broker, kind: str) -> Effect:
    """An effect of an unsafe target that has done it and whose answer was lost."""
    tool = scene.offer(kind, "unsafe")
    scene.broker.target.client.script("commit;RST", kind=kind)
    effect = submit(broker, tool, "1")
    outcome = broker.result(effect, deadline=PATIENT)
    assert isinstance(outcome, Unknown)
    return outcome.effect


def seen(scene: Scene) -> list[Evidence]:
    now: datetime = scene.value("SELECT clock_timestamp()")
    return [Evidence(kind="dashboard", observed_at=now, reference="books/1", note="seen")]


def test_a_success_has_the_targets_id_and_result(scene: Scene, broker: Broker) -> None:
    tool = scene.offer("plain")
    effect = submit(broker, tool, "1")
    assert (effect.tool, effect.operation_key) == (tool, f"{tool}:1")
    assert (effect.safety, effect.replayed) == (SafetyClass.IDEMPOTENT, False)
    outcome = broker.result(effect, deadline=PATIENT)
    assert isinstance(outcome, Succeeded)
    assert outcome.raise_for_failure() is outcome
    (row,) = scene.ledger("plain").effect_rows
    assert outcome.external_id == row.object_id
    assert outcome.result["amount"] == 1200
    assert outcome.receipt.effect_id == effect.effect_id
    assert outcome.receipt.document["digest"] == outcome.receipt.digest
    assert outcome.effect.attempts is not None
    assert [attempt.outcome for attempt in outcome.effect.attempts] == [Outcome.COMMITTED]
    assert outcome.receipt == broker.receipt(str(effect.effect_id))
    again = submit(broker, tool, "1")
    assert (again.effect_id, again.replayed, again.final) == (effect.effect_id, True, True)


def test_a_refusal_is_a_failure_and_the_only_outcome_that_raises(
    scene: Scene, broker: Broker
) -> None:
    tool = scene.offer("refused")
    scene.broker.target.client.script("status(402)", kind="refused", repeat_last=True)
    outcome = broker.result(submit(broker, tool, "1"), deadline=PATIENT)
    assert isinstance(outcome, Failed)
    assert outcome.receipt.reason == "rejected"
    with pytest.raises(EffectFailed, match="rejected") as raised:
        outcome.raise_for_failure()
    assert pickle.loads(pickle.dumps(raised.value)).outcome == outcome


def test_an_unknown_outcome_is_a_value_and_nothing_is_sent_again(
    scene: Scene, broker: Broker
) -> None:
    effect = in_doubt(scene, broker, "doubted")
    outcome = broker.result(effect, deadline=PATIENT)
    assert isinstance(outcome, Unknown)
    assert outcome.raise_for_failure() is outcome
    assert outcome.effect.state is EffectState.OUTCOME_UNKNOWN
    with pytest.raises(NotFound):
        broker.receipt(effect)
    assert submit(broker, effect.tool, "1").replayed
    ledger = scene.ledger("doubted")
    assert (ledger.arrivals, ledger.effects) == (1, 1)


def test_a_person_ends_a_doubt_once(scene: Scene, broker: Broker, operator: Broker) -> None:
    effect = in_doubt(scene, broker, "settled_by_hand")
    (row,) = scene.ledger("settled_by_hand").effect_rows

    def resolve(version: int, decision_id: str = "incident-1") -> Effect:
        return operator.resolve(
            effect,
            "committed",
            decision_id=decision_id,
            expected_version=version,
            reason="It is in the target's books.",
            evidence=evidence,
            external_id=row.object_id,
        )

    evidence = seen(scene)
    with pytest.raises(StaleVersion) as stale:
        resolve(effect.version - 1)
    assert stale.value.code == "stale_version"
    first, again = resolve(effect.version), resolve(effect.version)
    assert (first.state, first.replayed) == (EffectState.SUCCEEDED, False)
    assert (again.version, again.replayed) == (first.version, True)
    with pytest.raises(Conflict, match=r"decision_conflict|stale_version|illegal_transition"):
        resolve(first.version, "incident-2")
    outcome = broker.result(effect)
    assert isinstance(outcome, Succeeded)
    assert (outcome.external_id, outcome.receipt.source) == (row.object_id, "operator")


def test_a_look_that_proves_nothing_yet_is_told_with_the_time(
    scene: Scene, broker: Broker, operator: Broker
) -> None:
    effect = in_doubt(scene, broker, "too_early")
    assert effect.attempts is not None
    begun = effect.attempts[0].started_at
    with pytest.raises(TooEarly) as early:
        operator.resolve(
            effect,
            "not_committed",
            decision_id="incident-3",
            expected_version=effect.version,
            reason="It is not in the books.",
            evidence=[Evidence(kind="dashboard", observed_at=begun, reference="books/2")],
        )
    assert early.value.not_before is not None
    assert early.value.not_before > begun


def test_what_waits_for_an_approval_waits_for_a_person_and_can_be_withdrawn(
    scene: Scene, broker: Broker
) -> None:
    tool = scene.offer("approved", oversight={"approval_valid_seconds": 60})
    effect = submit(broker, tool, "1")
    outcome = broker.result(effect, deadline=PATIENT)
    assert isinstance(outcome, WaitsForPerson)
    assert outcome.effect.reason == "awaiting_approval"
    assert outcome.raise_for_failure() is outcome
    assert broker.cancel(effect).changed is True
    assert broker.cancel(effect).changed is False
    withdrawn = broker.result(effect)
    assert isinstance(withdrawn, Cancelled)
    assert withdrawn.raise_for_failure() is withdrawn
    assert scene.ledger("approved").arrivals == 0


def test_what_was_undone_is_compensated(scene: Scene, broker: Broker) -> None:
    tool, undo_tool = scene.offer("done"), scene.offer("undone")
    done = submit(broker, tool, "1")
    assert isinstance(broker.result(done, deadline=PATIENT), Succeeded)
    undo = broker.submit(undo_tool, charge("1"), operation_key=f"{undo_tool}:1", compensates=done)
    assert isinstance(broker.result(undo, deadline=PATIENT), Succeeded)
    wait_until(lambda: broker.get(done).state is EffectState.COMPENSATED or None, "it is undone")
    outcome = broker.result(done)
    assert isinstance(outcome, Compensated)
    assert outcome.raise_for_failure() is outcome


def test_a_deadline_ends_the_waiting_and_not_the_effect(scene: Scene, broker: Broker) -> None:
    tool = scene.offer("held", attempt_deadline_seconds=60.0)
    scene.broker.target.client.script("hold(held)", kind="held")
    effect = submit(broker, tool, "1")
    scene.broker.target.client.wait_held()
    begun = time.monotonic()
    outcome = broker.result(effect, deadline=SOON)
    took = time.monotonic() - begun
    assert isinstance(outcome, NotYet)
    assert outcome.raise_for_failure() is outcome
    assert outcome.effect.state is EffectState.DISPATCHING
    assert SOON.total_seconds() / 2 < took < 30  # the target holds its answer for as long
    assert isinstance(broker.result(effect, deadline=utc_now() + SOON), NotYet)
    assert isinstance(broker.result(effect.effect_id, deadline=timedelta(0)), NotYet)
    with pytest.raises(Conflict) as refused:
        broker.cancel(effect)
    assert (refused.value.code, refused.value.state) == ("illegal_transition", "dispatching")
    assert broker.reconcile(effect).changed is False
    scene.broker.target.client.release("held")
    assert isinstance(broker.result(effect, deadline=PATIENT), Succeeded)
    assert scene.ledger("held").effects == 1


async def test_a_cancelled_caller_cancels_no_effect(scene: Scene, access: Access) -> None:
    await asyncio.to_thread(scene.ensure_workers, 1)
    tool = await asyncio.to_thread(scene.offer, "left_alone", attempt_deadline_seconds=60.0)
    scene.broker.target.client.script("hold(left)", kind="left_alone")
    async with access.async_broker() as broker:
        effect = await broker.submit(tool, charge("1"), operation_key=f"{tool}:1")
        waiting = asyncio.create_task(broker.result(effect))
        await asyncio.to_thread(scene.broker.target.client.wait_held)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        scene.broker.target.client.release("left")
        assert isinstance(await broker.result(effect, deadline=PATIENT), Succeeded)


def test_the_same_key_for_another_request_is_a_conflict_that_names_the_place(
    scene: Scene, broker: Broker
) -> None:
    tool = scene.offer("bound")
    effect = submit(broker, tool, "1")
    with pytest.raises(Conflict) as conflict:
        broker.submit(tool, charge("1", 7), operation_key=effect.operation_key)
    error = conflict.value
    assert (error.code, error.field) == ("payload_conflict", "/arguments/amount")
    assert error.effect_id == effect.effect_id
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.effect_id) == (str(error), error.effect_id)


def test_what_breaks_a_rule_is_refused_and_not_stored(scene: Scene, broker: Broker) -> None:
    tool = scene.offer("rules")
    refusals: dict[str, Callable[[], object]] = {
        "invalid_operation_key": lambda: broker.submit(tool, charge("1"), operation_key="a b"),
        "unknown_tool": lambda: broker.submit("no.such", charge("1"), operation_key="k1"),
        "invalid_arguments": lambda: broker.submit(tool, {"order": 1}, operation_key="k2"),
        "invalid_payload": lambda: broker.submit(
            tool, charge("1") | {"amount": float("nan")}, operation_key="k3"
        ),
        "invalid_request": lambda: broker.submit(
            tool, charge("1"), operation_key="k4", send_before=datetime(2030, 1, 1)
        ),
    }
    for code, call in refusals.items():
        with pytest.raises(RequestRefused) as refused:
            call()
        assert refused.value.code == code
    assert scene.value("SELECT count(*) FROM effect_broker.effect_intents WHERE tool = %s", tool) \
        == 0  # fmt: skip


def test_what_is_not_there_is_not_found(broker: Broker) -> None:
    calls: list[Callable[[UUID], object]] = [
        broker.get, broker.wait, broker.result, broker.receipt, broker.cancel, broker.reconcile,
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(NotFound):
            call(uuid4())
    with pytest.raises(RequestRefused):
        broker.get("../tenants")
