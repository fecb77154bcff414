"""The planted bugs: what each one does wrong, in which process, and which rules have to see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from effect_chaos.planted import api_bugs, worker_bugs


@dataclass(frozen=True, slots=True)
class Bug:
    """One bug. `rules`: each of these rules of the auditor has to report it.

    `patience_seconds`: how long a scenario waits for effects that the bug keeps from resting.
    """

    name: str
    sentence: str
    process: Literal["worker", "api"]
    plant: Callable[[], None]
    rules: tuple[str, ...]
    patience_seconds: float = 60.0


def _of_worker(
    plant: Callable[[], None], sentence: str, *rules: str, patience_seconds: float = 60.0
) -> Bug:
    return Bug(plant.__name__, sentence, "worker", plant, rules, patience_seconds)


def _of_api(plant: Callable[[], None], sentence: str, *rules: str) -> Bug:
    return Bug(plant.__name__, sentence, "api", plant, rules)


_ALL = (
    _of_worker(
        worker_bugs.blind_resend,
        "sends an unsafe effect again after a lost answer",
        "unsafe_once",
        "no_duplicate",
    ),
    _of_worker(
        worker_bugs.early_negative,
        "believes a look-up that finds nothing before the settlement bound",
        "no_duplicate",
    ),
    _of_worker(
        worker_bugs.new_key,
        "mints a new downstream key for every attempt",
        "one_key",
        "no_duplicate",
    ),
    _of_worker(
        worker_bugs.new_body,
        "renders the body anew for every attempt",
        "same_bytes",
    ),
    _of_worker(
        worker_bugs.no_fence,
        "grants an attempt on an old decision, without the version and the second look",
        "no_duplicate",
    ),
    _of_worker(
        worker_bugs.no_reconcile,
        "has lost the loop that finds effects without a run",
        "settled_or_parked",
        patience_seconds=4.0,
    ),
    _of_worker(
        worker_bugs.never_parks,
        "waits for a day where only a person can go on",
        "settled_or_parked",
        patience_seconds=4.0,
    ),
    _of_worker(
        worker_bugs.no_next_action,
        "ends a run that has to wait, and keeps no next action for it",
        "next_action",
        "settled_or_parked",
        patience_seconds=4.0,
    ),
    _of_worker(
        worker_bugs.success_first,
        "records the success before it sends",
        "state_agrees",
    ),
    _of_worker(
        worker_bugs.send_first,
        "sends before the attempt is committed",
        "unsafe_once",
        "no_duplicate",
    ),
    _of_worker(
        worker_bugs.server_error_is_no,
        "takes a 5xx for a proof of no commit",
        "no_duplicate",
    ),
    _of_worker(
        worker_bugs.key_never_expires,
        "sends again although the target has forgotten the key",
        "no_duplicate",
    ),
    _of_worker(
        worker_bugs.mismatch_is_commit,
        "takes an object under our key for ours although its fields disagree",
        "own_object",
        "state_agrees",
    ),
    _of_worker(
        worker_bugs.unsafe_failed,
        "settles an unsafe effect with a lost answer as failed",
        "state_agrees",
    ),
    _of_worker(
        worker_bugs.mutation_apart,
        "commits the transactional mutation apart from its receipt",
        "no_duplicate",
    ),
    _of_api(
        api_bugs.accept_drift,
        "takes another payload under a key that is in use for a replay",
        "payload_conflict",
    ),
    _of_api(
        api_bugs.other_receipt,
        "shows the receipt of another effect",
        "own_object",
        "receipt_stays",
    ),
    _of_api(
        api_bugs.rewritten_receipt,
        "shows a receipt that has changed since it was read",
        "receipt_stays",
    ),
    _of_api(
        api_bugs.stale_reads,
        "shows an effect as it was before it ended",
        "final_stays",
        "versions_forward",
    ),
    _of_api(
        api_bugs.tenants_mixed,
        "takes every caller for the first one",
        "tenants_apart",
        "payload_conflict",
    ),
)

BUGS = {bug.name: bug for bug in _ALL}
