"""The scenarios: for each bug one or a few effects, and the fault that brings the bug to light.

A scenario does the same on a sound broker and on a broken one. What it expects is what the sound
one owes; it looks at nothing itself, the auditor does.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

from effect_broker.faultpoints import FaultAction, FaultPoint
from effect_chaos.planted.bugs import BUGS, Bug
from effect_chaos.planted.stage import OTHER_TENANT, Play, Stage
from effect_chaos.records import Safety

_IDEMPOTENT: Final = "demo-charge-idempotent"
_RECONCILABLE: Final = "demo-charge-reconcilable"
_UNSAFE: Final = "demo-charge-unsafe"

# Longer than the schedule of two attempts (3.7 s), and than what a busy machine loses before the
# second is decided.
_RETENTION_SECONDS: Final = 6.0
_SHORT_RETENTION: Final = {
    "key_retention_seconds": _RETENTION_SECONDS,
    "attempt_deadline_seconds": 1.5,
    "retry": {"attempts_max": 2},
}
_HELD_SECONDS: Final = 30.0


def play(stage: Stage, bug: Bug, folder: Path, *, planted: bool) -> Path:
    """Play the scenario of a bug, with the bug or without it; return the evidence."""
    stage.cast(bug if planted else None)
    name = f"{bug.name}_{'planted' if planted else 'sound'}"
    patience_seconds = bug.patience_seconds if planted else 60.0
    scene = Play(stage, name, patience_seconds, folder)
    try:
        SCENARIOS[bug.name](scene)
        return scene.finish()
    finally:
        scene.close()


def _plain(scene: Play, safety: Safety) -> None:
    """An effect without a fault, so that the rules on ends have something to judge."""
    operation = scene.operation(safety, "plain")
    scene.submit(operation)
    scene.rest(operation)


def _unsafe_lost(scene: Play) -> None:
    """An unsafe effect whose answer is lost after the commit."""
    scene.contract(_UNSAFE, "neither")
    _plain(scene, Safety.UNSAFE)
    scene.target.script("commit;RST", kind=scene.kind)
    operation = scene.operation(Safety.UNSAFE, may_park=True)
    scene.submit(operation)
    scene.rest(operation)


def _idempotent_lost(scene: Play) -> None:
    """An idempotent effect whose first answer is lost; the target replays, drift or not."""
    scene.contract(_IDEMPOTENT, "dedupe", target={"drift": "replay"})
    scene.target.script("commit;RST", kind=scene.kind)
    operation = scene.operation(Safety.IDEMPOTENT)
    scene.submit(operation)
    scene.rest(operation)


def _seen_late(scene: Play) -> None:
    """A reconcilable effect that the look-up shows late, but within its bound."""
    scene.contract(
        _RECONCILABLE, "lookup", target={"search_lag_seconds": 2.5}, settlement_bound_seconds=4.0
    )
    scene.target.script("commit;RST", kind=scene.kind)
    operation = scene.operation(Safety.RECONCILABLE)
    scene.submit(operation)
    scene.rest(operation)


def _committed_and_503(scene: Play) -> None:
    """A reconcilable effect that is committed, and answered with 503."""
    scene.contract(_RECONCILABLE, "lookup", settlement_bound_seconds=1.5)
    scene.target.script("commit;status(503)", kind=scene.kind)
    operation = scene.operation(Safety.RECONCILABLE)
    scene.submit(operation)
    scene.rest(operation)


def _stopped_past_retention(scene: Play) -> None:
    """A worker that has decided to send again, and is stopped until the key is forgotten."""
    retention = {"ttl_seconds": _RETENTION_SECONDS}
    scene.contract(_IDEMPOTENT, "dedupe", target=retention, **_SHORT_RETENTION)
    _plain(scene, Safety.IDEMPOTENT)
    scene.target.script("commit;RST", kind=scene.kind)
    operation = scene.operation(Safety.IDEMPOTENT, may_park=True)
    # The first stop is there to set the second: no decision may come between.
    scene.arm(FaultPoint.AFTER_OUTCOME_COMMIT, FaultAction.STOP)
    scene.submit(operation)
    scene.wait_stopped(FaultPoint.AFTER_OUTCOME_COMMIT)
    scene.arm(FaultPoint.AFTER_RESERVE, FaultAction.STOP)
    scene.stage.worker.resume()
    scene.wait_stopped(FaultPoint.AFTER_RESERVE)
    scene.pause(_RETENTION_SECONDS)
    scene.stage.worker.resume()
    scene.rest(operation)


def _asked_to_wait_past_retention(scene: Play) -> None:
    """An idempotent effect that is to wait for longer than the target keeps its key."""
    retention = {"ttl_seconds": _RETENTION_SECONDS}
    scene.contract(_IDEMPOTENT, "dedupe", target=retention, **_SHORT_RETENTION)
    busy = json.dumps({"error": "in_progress"})
    scene.target.script(f'commit;status(409,{busy},{{"retry-after": "6"}})', kind=scene.kind)
    operation = scene.operation(Safety.IDEMPOTENT, may_park=True)
    scene.submit(operation)
    scene.rest(operation)


def _run_lost(scene: Play) -> None:
    """An effect whose run the engine has forgotten."""
    scene.contract(_IDEMPOTENT, "dedupe")
    scene.stage.stop_worker()
    operation = scene.operation(Safety.IDEMPOTENT)
    scene.submit(operation)
    scene.lose_run(operation)
    scene.stage.start_worker()
    scene.rest(operation)


def _waits_for_another_try(scene: Play) -> None:
    """An effect that has to wait before it is sent again, on a schema that would let it be lost."""
    scene.loosen()
    scene.contract(_IDEMPOTENT, "dedupe")
    scene.target.script("commit;RST", kind=scene.kind)
    operation = scene.operation(Safety.IDEMPOTENT)
    scene.submit(operation)
    scene.seen(operation, "outcome_unknown")
    scene.rest(operation)


def _killed_with_all_recorded(scene: Play) -> None:
    """A worker that is killed right after it has recorded the outcome."""
    scene.contract(_IDEMPOTENT, "dedupe")
    scene.arm(FaultPoint.AFTER_OUTCOME_COMMIT)
    operation = scene.operation(Safety.IDEMPOTENT)
    scene.submit(operation)
    scene.replace_worker(FaultPoint.AFTER_OUTCOME_COMMIT)
    scene.rest(operation)


def _killed_with_the_answer(scene: Play) -> None:
    """A worker that is killed with the answer to an unsafe request in hand."""
    scene.contract(_UNSAFE, "neither")
    scene.arm(FaultPoint.AFTER_TARGET_ANSWER)
    operation = scene.operation(Safety.UNSAFE, may_park=True)
    scene.submit(operation)
    scene.replace_worker(FaultPoint.AFTER_TARGET_ANSWER)
    scene.rest(operation)


def _another_object_under_our_key(scene: Play) -> None:
    """A look-up that shows an object under our key with another amount."""
    scene.contract(
        _RECONCILABLE, "lookup", settlement_bound_seconds=1.5, attempt_deadline_seconds=10.0
    )
    _plain(scene, Safety.RECONCILABLE)
    scene.target.script("hold(first);RST", kind=scene.kind)
    operation = scene.operation(Safety.RECONCILABLE, may_park=True)
    scene.submit(operation)
    scene.target.wait_held(1, timeout_seconds=_HELD_SECONDS)
    key = scene.target.ledger(kind=scene.kind).arrival_rows[-1].downstream_key
    other = {"id": "other_1", "idempotency_key": key, "amount": 1, "currency": "eur"}
    page = json.dumps({"data": [{**other, "order": "another"}], "has_more": False})
    scene.target.script(f"status(200,{page})", kind=scene.kind, method="GET", repeat_last=True)
    scene.target.release("first")
    scene.rest(operation)


def _killed_inside_the_mutation(scene: Play) -> None:
    """A worker that is killed in the transaction of a mutation."""
    operation = scene.operation(Safety.TRANSACTIONAL)
    scene.arm(FaultPoint.INSIDE_MUTATION)
    scene.submit(operation)
    scene.replace_worker(FaultPoint.INSIDE_MUTATION)
    scene.rest(operation)


def _another_payload(scene: Play) -> None:
    """A second submit of the same key with another amount, and a third with the first one."""
    scene.contract(_IDEMPOTENT, "dedupe")
    operation = scene.operation(Safety.IDEMPOTENT)
    scene.submit(operation)
    scene.submit(operation, amount=99)
    scene.rest(operation)
    scene.submit(operation)


def _two_receipts(scene: Play) -> None:
    """Two effects whose receipts are read in turn, and more than once."""
    scene.contract(_IDEMPOTENT, "dedupe")
    first = scene.operation(Safety.IDEMPOTENT, "first")
    second = scene.operation(Safety.IDEMPOTENT, "second")
    for operation in (first, second):
        scene.submit(operation)
        scene.rest(operation)
    for operation in (first, second, first):
        scene.receipt(operation)


def _many_reads(scene: Play) -> None:
    """An effect that is read again and again after its end."""
    scene.contract(_IDEMPOTENT, "dedupe")
    operation = scene.operation(Safety.IDEMPOTENT)
    scene.submit(operation)
    scene.look(operation)
    scene.rest(operation)
    for _ in range(4):
        scene.look(operation)


def _two_tenants(scene: Play) -> None:
    """Two tenants with the same operation key, each with an intent of its own."""
    scene.contract(_IDEMPOTENT, "dedupe")
    own = scene.operation(Safety.IDEMPOTENT)
    other = scene.operation(Safety.IDEMPOTENT, tenant=OTHER_TENANT)
    for operation in (own, other):
        scene.submit(operation)
        scene.rest(operation)
    scene.peek(own, OTHER_TENANT)


SCENARIOS: Final[dict[str, Callable[[Play], None]]] = {
    "blind_resend": _unsafe_lost,
    "unsafe_failed": _unsafe_lost,
    "never_parks": _unsafe_lost,
    "early_negative": _seen_late,
    "new_key": _idempotent_lost,
    "new_body": _idempotent_lost,
    "no_fence": _stopped_past_retention,
    "no_reconcile": _run_lost,
    "no_next_action": _waits_for_another_try,
    "success_first": _killed_with_all_recorded,
    "send_first": _killed_with_the_answer,
    "server_error_is_no": _committed_and_503,
    "key_never_expires": _asked_to_wait_past_retention,
    "mismatch_is_commit": _another_object_under_our_key,
    "mutation_apart": _killed_inside_the_mutation,
    "accept_drift": _another_payload,
    "other_receipt": _two_receipts,
    "rewritten_receipt": _two_receipts,
    "stale_reads": _many_reads,
    "tenants_mixed": _two_tenants,
}

assert SCENARIOS.keys() == BUGS.keys(), "each bug has a scenario"
