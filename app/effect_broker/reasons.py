"""What each reason means, in the words of somebody who is asked at 3 a.m., for every surface.

One entry for every reason that `decide` can give; docs/state-machine.md says the same at length,
and a test holds the two lists together. The listing of what waits has some reasons of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from effect_broker.unresolved import CRASH_WINDOW, STALE_IN_FLIGHT
from effect_contracts.decide import Reason
from effect_contracts.facts import Alert


@dataclass(frozen=True, slots=True)
class Words:
    """What a reason means, and what a person can do; None where nothing is to be done."""

    meaning: str
    remedy: str | None = None


_LOOK = "Look at the target yourself, by the downstream key or the business reference, and record "

_R = Reason
WORDS: Final[dict[str, Words]] = {
    "submitted": Words("Accepted and stored; no worker has taken it up yet."),
    _R.FIRST_ATTEMPT: Words(
        "Being sent for the first time: an attempt is granted, and the request may be on its way."
    ),
    _R.SAME_KEY_AGAIN: Words(
        "The answer was lost. The same request is being sent again with the same key, which the "
        "target answers with its first result."
    ),
    _R.NO_COMMIT_PROVED: Words("It is proved that it has not happened, so it is sent again."),
    _R.ATTEMPT_OPEN: Words(
        "A worker or its caller is sending it, or was. Nobody else sends until the deadline."
    ),
    _R.AWAITING_CALLER: Words(
        "Its caller performs it, and nobody does now. The broker does not send it by itself.",
        "The next perform() under the same operation key goes on. If no caller will come, record "
        "what you know, or cancel what was never begun.",
    ),
    _R.BACKOFF: Words("Waiting before the next attempt."),
    _R.TARGET_BUSY: Words(
        "Its contract limits how hard the target is driven, and others have the places now. It "
        "waits for its turn; that is no attempt."
    ),
    _R.SETTLING: Words("The answer was lost. Waiting for the next look-up at the target."),
    _R.IN_PROGRESS: Words("The target says that it is working on it; waiting as it asked."),
    _R.LOOK_UP: Words("Asking the target whether it has happened."),
    _R.COMMITTED: Words("It has happened, and the receipt proves it."),
    _R.CANCELLED: Words("Withdrawn before anything was sent."),
    _R.EXPIRED: Words(
        "Its send_before had passed before a first attempt; nothing was sent.",
        "If it is still wanted, submit it under a new operation key.",
    ),
    _R.REJECTED: Words(
        "The target refused it for good. It has not happened.",
        "Correct the request and submit it under a new operation key.",
    ),
    _R.NEVER_SENT: Words(
        "No attempt ever reached the target. It has not happened.",
        "Repair the way to the target, then submit it under a new operation key.",
    ),
    _R.RETRIES_EXHAUSTED: Words(
        "The attempts that the contract allows are spent.",
        "In state failed_final it has not happened. In manual_review the last answers are lost: "
        + _LOOK
        + "what you find.",
    ),
    _R.PROVED_NOT_COMMITTED: Words(
        "A person proved that it has not happened. An unsafe effect is never sent again.",
        "If it is still wanted, submit it under a new operation key.",
    ),
    _R.FAILED_BY_OPERATOR: Words("A person has ended it as failed."),
    _R.OUTCOME_UNKNOWN: Words(
        "It was sent once, the answer was lost or told nothing, and this target can neither be "
        "asked nor be sent the same thing twice. Nobody knows whether it has happened.",
        _LOOK + "what you find. Do not send it by hand before you have looked.",
    ),
    _R.CONTRACT_VIOLATION: Words(
        "Two different objects exist at the target for this one intent. The contract version is "
        "frozen for this tenant.",
        "Undo one of them at the target, record which one stands, and do not thaw the contract "
        "before you know why.",
    ),
    _R.TARGET_KEY_CONFLICT: Words(
        "The target knows our key with other content, and refuses ours.",
        "Look up what the target holds under the key, and record it. A new key is never made.",
    ),
    _R.PARTIAL_RESULT: Words(
        "The target did one part of the batch and not the other.",
        "Read the results of the items, and submit the missing ones under keys of their own.",
    ),
    _R.KEY_EXPIRED: Words(
        "The answer was lost, and the target may have forgotten our key, so that sending again "
        "could do it twice.",
        _LOOK + "what you find.",
    ),
    _R.REPLAYED_ERROR: Words(
        "The target repeats a stored error for this key. It has most likely not happened, but "
        "only the target's own records prove it.",
        _LOOK + "what you find.",
    ),
    _R.AMBIGUOUS_PROBE: Words(
        "The look-up found several objects, or one whose content is not what was asked for.",
        "Compare them with the request, and record the right one, or failure.",
    ),
    _R.CONFLICT_UNATTRIBUTED: Words(
        "The target says that the object exists already, and nobody can tell whether ours made it.",
        "Compare the object with the request, and record the answer.",
    ),
    _R.PROBE_HORIZON_PASSED: Words(
        "The look-ups never gave a clear answer within the time that the contract allows.",
        _LOOK + "what you find.",
    ),
    _R.RUN_FAILING: Words(
        "Its runs end again and again without a new fact.",
        "Read the workers' logs for this effect id and repair the cause; then "
        "`effect-broker effects reconcile ID` lets it go on.",
    ),
    _R.PAUSED: Words(
        "A person has paused it: all of its tenant, its tool or its contract.",
        "`effect-broker holds list` says who and why; `effect-broker holds lift` lets it go on.",
    ),
    _R.FROZEN: Words(
        "Its contract version is frozen for this tenant.",
        "Find out why (look for the reason contract_violation) and mend it; then thaw it: "
        "`effect-broker holds list` and `effect-broker holds lift`.",
    ),
    _R.TENANT_DISABLED: Words(
        "Its tenant is disabled.",
        "Run `effect-broker tenants enable NAME` when it should go on, or leave it.",
    ),
    _R.AWAITING_CERTIFICATE: Words(
        "Its contract demands a certificate of the target, and none that fits is in force. Nothing "
        "is sent.",
        "`effect-broker contracts certificate list` says what has ended and why; "
        "`effect-broker contracts certify` makes a new one, and it goes on by itself.",
    ),
    _R.AWAITING_APPROVAL: Words(
        "Waiting for an approval.", "Somebody else than who submitted it approves or denies it."
    ),
    _R.DATABASE_RESTORED: Words(
        "The database went back in time, so attempts may be forgotten.",
        "Record the lost interval by `effect-broker database resume`; until then only idempotent "
        "effects are sent.",
    ),
    _R.TARGET_CHANGED: Words(
        "The address or account is no longer the one that it was first sent to. Nothing is sent "
        "and nothing is asked.",
        "Look in the old one, and record what you find.",
    ),
}

# The reasons of the listing that no effect stores (`effect_broker.unresolved`).
LISTED: Final[dict[str, Words]] = {
    CRASH_WINDOW: Words(
        "The process that sent it was lost before it could record the answer. It may have "
        "happened.",
    ),
    STALE_IN_FLIGHT: Words(
        "Its deadline has passed and nobody has taken it up.",
        "See that a worker runs: `effect-broker doctor`. It goes on by itself then.",
    ),
    Alert.DUPLICATE_DETECTED: Words(
        "It is final, and its target holds more than one object of it.",
        "Undo what is too much, under a new operation key, and correct the contract; then say so "
        "by `effect-broker effects acknowledge ID`.",
    ),
    Alert.LATE_CONTRADICTION: Words(
        "It is final, and its target has contradicted the receipt since.",
        "Look at the target and compare it with `effect-broker effects receipt ID`. When it was "
        "dealt with, say so by `effect-broker effects acknowledge ID`.",
    ),
}


def words_of(reason: str) -> Words:
    """Return the words for a stored reason; one of a newer release has none of its own."""
    return WORDS.get(reason) or Words(f"The reason is {reason}.")
