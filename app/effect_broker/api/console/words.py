"""The words of the console: what a person reads of states, events, actors and choices.

What a reason means is in `effect_broker.reasons`, for every surface. Nothing here is HTML.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from effect_broker.protocol.resolution import Permitted
from effect_broker.reasons import LISTED, words_of
from effect_broker.reasons import Words as Words
from effect_broker.unresolved import LastEvidence, NextStep, Step, UnresolvedEffect
from effect_contracts.counting import span
from effect_contracts.facts import Conclusion, EffectState, Hold, Outcome, Verdict
from effect_contracts.life import is_final

STATES: Final[Mapping[EffectState, str]] = {
    EffectState.PREPARED: "Not sent yet",
    EffectState.DISPATCHING: "Being sent",
    EffectState.RETRYABLE: "Not done yet",
    EffectState.OUTCOME_UNKNOWN: "Nobody knows whether it happened",
    EffectState.RECONCILING: "Asking the target whether it happened",
    EffectState.MANUAL_REVIEW: "A person has to look",
    EffectState.SUCCEEDED: "It happened",
    EffectState.FAILED_FINAL: "Over, as failed",
    EffectState.CANCELLED: "Withdrawn, nothing was sent",
    EffectState.COMPENSATED: "It happened and was undone",
}

CONCLUSIONS: Final[Mapping[Conclusion, tuple[str, str]]] = {
    Conclusion.COMMITTED: (
        "It happened",
        "You have seen it at the target. It ends as succeeded; nothing more is sent.",
    ),
    Conclusion.NOT_COMMITTED: (
        "It did not happen",
        "You have looked and it is not there. The contract decides what follows: it may be sent "
        "again with the same key, or end as failed.",
    ),
    Conclusion.FAILED: (
        "It is over",
        "Nobody needs it any more, whatever happened. It ends as failed; nothing more is sent.",
    ),
}

# What follows from it where the contract permits one send in all.
NEVER_AGAIN: Final = (
    "You have looked and it is not there. It ends as failed, since an unsafe effect is never sent "
    "twice. If it is still wanted, it is submitted under a new operation key."
)

OUTCOMES: Final[Mapping[Outcome, str]] = {
    Outcome.COMMITTED: "done",
    Outcome.REJECTED: "refused for good",
    Outcome.NOT_SENT: "never left",
    Outcome.RETRYABLE: "not done, may be sent again",
    Outcome.IN_PROGRESS: "the target works on it",
    Outcome.KEY_CONFLICT: "the target knows the key with other content",
    Outcome.PARTIAL: "done in part",
    Outcome.AMBIGUOUS: "answer lost",
    Outcome.PRESUMED_AMBIGUOUS: "sender lost",
}

VERDICTS: Final[Mapping[str, str]] = {
    Verdict.COMMITTED: "it is there",
    Verdict.NOT_COMMITTED: "it is not there",
    Verdict.REJECTED: "it was refused",
    Verdict.MISMATCH: "something else is there",
    Verdict.UNKNOWN: "no clear answer",
}

SOURCES: Final[Mapping[str, str]] = {
    "attempt": "the answer to an attempt",
    "probe": "look-up at the target",
    "webhook": "message from the target",
    "operator": "a person",
    "transaction": "the database's own commit",
}

_EVENTS: Final[Mapping[str, str]] = {
    "submitted": "Submitted and stored",
    "attempt_started": "Attempt {ordinal} begins; from now on it may have been sent",
    "outcome_recorded": "Attempt {ordinal} ended: {said}",
    "probe_started": "Asking the target",
    "evidence_added": "Learned from {source}: {said}",
    "count_started": "Counting its objects at the target",
    "counted": "Counted its objects at the target",
    "count_given_up": "Counting at the target was given up",
    "resolved": "A person concluded: {said}",
    "approved": "Approved",
    "denied": "Denied and withdrawn",
    "cancelled": "Withdrawn before the first attempt",
    "reconcile_asked": "Somebody asked for a look now",
    "parked": "Set aside for a person: its runs failed",
    "park": "Stands still until somebody acts",
    "settle": "Settled",
    "wait": "Waits",
    "probe": "The target is to be asked",
    "dispatch": "It is to be sent",
    "mutation_key_fenced": "Closed against a late commit",
}

_STEPS: Final[Mapping[Step, str]] = {
    Step.SEND: "it is sent",
    Step.LOOK_UP: "the target is asked",
    Step.CLOSE_ATTEMPT: "the open attempt is closed",
    Step.SETTLE: "it is settled",
    Step.ASK_A_PERSON: "a person is asked",
    Step.COUNT: "its objects at the target are counted",
    Step.WAIT: "it is looked at again",
}

CHECKS: Final[Mapping[str, str]] = {
    "database": "Database",
    "schema": "Schema of the database",
    "engine": "Engine that hands work to workers",
    "key_ring": "Key ring",
    "workers": "Workers",
}

# Holds that somebody lifts; what they stop goes on by itself then.
_LIFTED: Final = frozenset(map(str, Hold)) - {Hold.TARGET_CHANGED}

_WHO_CHARS: Final = 8
_DIGEST_CHARS: Final = 64


def clock(at: datetime | None) -> str:
    """Return a moment to the second; the database's clock is in UTC."""
    return f"{at:%Y-%m-%d %H:%M:%S} UTC" if at else ""


def ago(at: datetime, now: datetime) -> str:
    """Return how long ago, or in how long."""
    seconds = (now - at).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"{span(seconds)} ago" if seconds > 0 else f"in {span(-seconds)}"


def words(reason: str) -> Words:
    """Return the words for a reason, stored or of the listing."""
    return LISTED.get(reason) or words_of(reason)


def who(actor: str, me: str) -> str:
    """Return who did it: `operator 5fd31c20 (you)`, `worker host-17-ab`."""
    kind, _, name = actor.partition(":")
    if not name:
        return kind
    own = " (you)" if name == me else ""
    shown = name if kind == "worker" or len(name) < 2 * _WHO_CHARS else name[:_WHO_CHARS]
    return f"{kind} {shown}{own}"


def event(kind: str, metadata: str) -> str:
    """Return what happened, in a sentence; one of a newer release has its name for words."""
    details = event_details(metadata)
    ordinal, source = details.get("ordinal", "?"), details.get("source", "")
    pattern = _EVENTS.get(kind)
    if pattern is None:
        return kind.replace("_", " ").capitalize()
    said = details.get("conclusion") or details.get("verdict") or details.get("outcome") or ""
    return pattern.format(
        ordinal=ordinal, source=SOURCES.get(source, source), said=_said(kind, said)
    )


def _said(kind: str, value: str) -> str:
    if kind == "resolved" and value in set(Conclusion):
        return CONCLUSIONS[Conclusion(value)][0].lower()
    if kind == "outcome_recorded" and value in set(Outcome):
        return OUTCOMES[Outcome(value)]
    return VERDICTS.get(value, value.replace("_", " "))


def event_details(text: str) -> dict[str, str]:
    """Return an event's metadata without digests, which tell a person nothing."""
    metadata = json.loads(text)
    return {
        str(name): str(value)
        for name, value in metadata.items()
        if value is not None and len(str(value)) != _DIGEST_CHARS
    }


def expiry(row: UnresolvedEffect) -> str:
    """Return for how long sending again with the same key is safe."""
    left = row.key_expires_in_seconds
    if left is None:
        return ""
    return f"key expired {span(-left)} ago" if left < 0 else f"key expires in {span(left)}"


def learned(known: LastEvidence | None, now: datetime) -> str:
    """Return what was learned last."""
    if known is None:
        return "nothing yet"
    said = VERDICTS.get(known.says, known.says.replace("_", " "))
    if known.source == "attempt" and known.says in set(Outcome):
        said = OUTCOMES[Outcome(known.says)]
    return f"{SOURCES.get(known.source, known.source)}: {said}, {ago(known.at, now)}"


def step(following: NextStep | None, reason: str, *, alert: bool, now: datetime) -> str:
    """Return what happens next without anybody's doing."""
    if following is None:
        if alert:
            return "nothing happens by itself; a person has to look"
        if reason == Hold.AWAITING_APPROVAL:
            return "it is sent once somebody has approved it"
        if reason in _LIFTED:
            return "it goes on by itself when the hold ends"
        return "nothing happens by itself; it waits for a person"
    left = (following.at - now).total_seconds()
    what = _STEPS[following.step]
    if left < -1:
        return f"{what} (due {span(-left)} ago)"
    return f"{what} {'now' if left < 1 else 'in ' + span(left)}"


def why_not(
    conclusion: Conclusion,
    permitted: tuple[Permitted, ...],
    state: EffectState,
    following: str,
    now: datetime,
) -> str | None:
    """Return why a conclusion cannot be recorded now; None where it can."""
    found = {one.conclusion: one for one in permitted}
    if is_final(state):
        return f"It is final ({state.value}). A receipt is never changed."
    if not found:
        return f"The broker is still finding out by itself: {following}. Nobody is asked yet."
    one = found.get(conclusion)
    if one is None:
        return (
            "Under this contract it would change nothing: the effect would wait for a person for "
            "the same reason. If you have looked and nobody needs it, choose "
            f"“{CONCLUSIONS[Conclusion.FAILED][0]}”."
        )
    after = one.observed_after
    if after is not None and after >= now:
        return (
            f"Too early. What was sent may still arrive. A look counts if it begins after "
            f"{clock(after)} ({ago(after, now)}). Open this page again then."
        )
    return None
