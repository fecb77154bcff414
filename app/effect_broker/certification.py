"""Certification: hostile trials at a sandbox of a target, and what they show for how long.

`effect_broker.conformance` asks politely whether a target keeps what its contract says. Here it is
treated as the world will treat it, through the same `Trial`, after the polite checks:

    lost_answer_is_settled  idempotent, reconcilable: a connection breaks before its answer is
                            read, and the effect is found again the way that a worker would go
    ten_at_once             idempotent: one key from many connections at the same moment gives one
                            object
    settlement_lag          with a look-up and a bound: of several effects each is seen within the
                            bound, and what was seen once is seen again; the slowest is measured
    key_is_kept             idempotent: after a wait the key still gives its first object

What a trial could not see is `not_shown`. A certificate says so only of a key's retention, which is
mostly longer than anybody wants to wait, and of a lost answer, of which a target that gives up with
its client may show nothing; anything else that was not shown makes none.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

from effect_adapters.base import Answer
from effect_broker.conformance import (
    CHECKS,
    Check,
    Judgement,
    Result,
    Trial,
    answered,
    drift_is_tried,
    said,
)
from effect_contracts.certificates import TrialVerdict, trial_body
from effect_contracts.counting import counted
from effect_contracts.document import ContractDocument
from effect_contracts.facts import Outcome, SafetyClass, Verdict

KEY_IS_KEPT: Final = "key_is_kept"
LOST_ANSWER: Final = "lost_answer_is_settled"

# What may stay open and be certified: no target, or not every one, lets it be seen in the time.
_MAY_BE_OPEN: Final = frozenset({KEY_IS_KEPT, LOST_ANSWER})

# The first look follows the answer at once; the pauses grow, so that a long bound costs few looks.
_LOOK_PAUSE_SECONDS: Final = 0.05
_LOOK_PAUSE_FACTOR: Final = 1.5
_LOOK_PAUSES_MAX: Final = 20

_VERDICTS: Final = {
    Judgement.KEPT: TrialVerdict.HOLDS,
    Judgement.BROKEN: TrialVerdict.BROKEN,
    Judgement.UNPROVED: TrialVerdict.NOT_SHOWN,
}


@dataclass(frozen=True, slots=True)
class Terms:
    """How hard the trials try.

    Attributes:
        retention_wait_seconds: how long to wait for a key to be forgotten, from its first use.
        lag_samples: of how many effects the settlement lag is measured.
        at_once: how many requests of one key are sent at the same moment.
    """

    retention_wait_seconds: float = 60.0
    lag_samples: int = 5
    at_once: int = 10


@dataclass(frozen=True, slots=True)
class Plan:
    """What the trials will do, said before they begin.

    Attributes:
        requests: how many requests may change something; a target that says that it is still at
            work on a key gets that request again.
        objects: how many objects a target that keeps its promises has made of them.
        wait_seconds: the longest wait for a key's retention.
    """

    requests: int
    objects: int
    wait_seconds: float


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One trial: what was sent, what came back, and what it shows.

    Attributes:
        answers: outcomes and verdicts of the target's answers, counted.
    """

    trial: str
    requests: int
    look_ups: int
    answers: Mapping[str, int]
    verdict: TrialVerdict
    seen: str

    def body(self) -> dict[str, Any]:
        """Return the record as reports and certificates have it."""
        return trial_body(
            self.trial, self.requests, self.look_ups, self.answers, self.verdict, self.seen
        )


def plan(document: ContractDocument, terms: Terms, *, drifts: bool) -> Plan:
    """Return what `certify` will send; `drifts` says that other arguments are known."""
    requests = objects = 1
    wait = 0.0
    if document.safety is SafetyClass.IDEMPOTENT:
        # The repeat, the lost one and its repeat, all at once and one after them, the late one.
        requests += 1 + 2 + (terms.at_once + 1) + 1
        requests += int(drifts and drift_is_tried(document))
        objects += 2
        wait = min(terms.retention_wait_seconds, _relied_on_seconds(document))
    elif document.safety is SafetyClass.RECONCILABLE:
        requests += 1
        objects += 1
    if _measures_lag(document):
        requests += terms.lag_samples
        objects += terms.lag_samples
    return Plan(requests, objects, wait)


async def certify(trial: Trial, terms: Terms) -> tuple[TrialRecord, ...]:
    """Run all trials that the contract's promises ask for, in order.

    If the plain request does not succeed, nothing else is sent.

    Raises:
        RenderError: the arguments do not make a request.
        CouldNotRun: the request or a look-up could not be sent from here.
    """
    began = trial.clock.boot_seconds()
    hostile: tuple[Check, ...] = (
        lost_answer_is_settled,
        partial(ten_at_once, terms=terms),
        partial(settlement_lag, terms=terms),
        partial(key_is_kept, terms=terms, began_seconds=began),
    )
    records: list[TrialRecord] = []
    for check in (*CHECKS, *hostile):
        before = len(trial.exchanges)
        result = await check(trial)
        if result is not None:
            records.append(_recorded(trial, result, before))
        if trial.first is not None and trial.first.outcome is not Outcome.COMMITTED:
            break
    return tuple(records)


def certifiable(records: Sequence[TrialRecord]) -> bool:
    """Whether a certificate may be made of them."""
    return bool(records) and all(
        record.verdict is TrialVerdict.HOLDS
        or (record.verdict is TrialVerdict.NOT_SHOWN and record.trial in _MAY_BE_OPEN)
        for record in records
    )


def is_sandbox(identity: str, own: str, others: Sequence[str], *, production: bool) -> bool:
    """Whether what is sent to a target can do no harm, as far as can be known from here.

    A place of this machine is one, and so is an origin that neither the contract nor another one
    that is in use names. Nothing is where this process has the settings of production: its secrets
    are those of production too.

    Args:
        identity: of the target on trial.
        own: the identity that the contract itself names.
        others: the identities of the contracts in use.
    """
    if production:
        return False
    place = _place(identity)
    host = urlsplit(place).hostname or ""
    if host == "localhost":
        return True
    try:
        if ip_address(host).is_loopback:
            return True
    except ValueError:
        pass
    return place not in {_place(own), *map(_place, others)}


# The trials -----------------------------------------------------------------------------------


async def lost_answer_is_settled(trial: Trial) -> Result | None:
    """An effect whose connection broke before its answer is found as a worker would find it.

    Our side of the connection ends right behind the request, so that the target finds it broken
    while it is at work, or when it answers. An answer that comes all the same is used only to judge
    what is found. Adapters that cannot break a connection read the answer, which is then lost here.
    """
    safety = trial.document.safety
    if safety not in {SafetyClass.IDEMPOTENT, SafetyClass.RECONCILABLE}:
        return None
    key = trial.fresh_key()
    lost = await trial.send(key, trial.arguments, hang_up=True)
    if lost.outcome not in {Outcome.COMMITTED, Outcome.AMBIGUOUS}:
        text = f"a plain request with another key was answered with {said(lost)}"
        return Result(LOST_ANSWER, Judgement.BROKEN, text)
    if safety is SafetyClass.IDEMPOTENT:
        return await _settled_by_its_key(trial, key, lost)
    return await _settled_by_look_up(trial, key, lost)


async def _settled_by_its_key(trial: Trial, key: str, lost: Answer) -> Result:
    again = await answered(trial, key, trial.arguments)
    if again.outcome is not Outcome.COMMITTED:
        text = f"the request was sent again and answered with {said(again)}"
        return Result(LOST_ANSWER, Judgement.BROKEN, text)
    if again.external_id is None:
        text = "the contract extracts no external_id to compare"
        return Result(LOST_ANSWER, Judgement.UNPROVED, text)
    if lost.outcome is Outcome.COMMITTED:
        return _compared(lost, (again.external_id,))
    if trial.document.policy().probes:
        # Nothing came of the first one, so that only the look-up knows whether there are two.
        found, ids = await _found(trial, key)
        if found != Verdict.COMMITTED.value or (ids and ids != (again.external_id,)):
            text = f"the same key gave {again.external_id}; then the look-up said {found}"
            return Result(LOST_ANSWER, Judgement.BROKEN, f"{text} {', '.join(ids)}".rstrip())
        text = f"the same key gave {again.external_id}, which the look-up shows alone"
        return Result(LOST_ANSWER, Judgement.KEPT, text)
    text = (
        f"no answer came ({lost.code}); the same key gave {again.external_id}, and without a "
        "look-up nobody can tell whether there is another object"
    )
    return Result(LOST_ANSWER, Judgement.UNPROVED, text)


async def _settled_by_look_up(trial: Trial, key: str, lost: Answer) -> Result:
    found, ids = await _found(trial, key)
    bound = trial.document.settlement_bound_seconds or 0.0
    if found == Verdict.COMMITTED.value:
        if lost.outcome is Outcome.COMMITTED:
            return _compared(lost, ids)
        text = f"no answer came; {', '.join(ids) or 'the object'} was found"
        return Result(LOST_ANSWER, Judgement.KEPT, text)
    if found == Verdict.NOT_COMMITTED.value and lost.outcome is Outcome.AMBIGUOUS:
        text = (
            f"no answer came ({lost.code}), and within the bound of {bound:g} s the look-up showed "
            "nothing: the target gives up with its client, or shows the effect too late"
        )
        return Result(LOST_ANSWER, Judgement.UNPROVED, text)
    text = f"within the bound of {bound:g} s the look-up said {found}"
    return Result(LOST_ANSWER, Judgement.BROKEN, text)


async def _found(trial: Trial, key: str) -> tuple[str, tuple[str, ...]]:
    """What the look-up says of a key by the end of its bound, and the ids that it shows."""
    bound = trial.document.settlement_bound_seconds or 0.0
    _, found = (await _seen(trial, {key: trial.clock.boot_seconds()}, bound))[key]
    if found != Verdict.COMMITTED.value:
        return found, ()
    return found, (await trial.look(key)).external_ids


def _compared(lost: Answer, ids: tuple[str, ...]) -> Result:
    if lost.external_id is None or not ids:
        text = "the contract extracts no external_id to compare"
        return Result(LOST_ANSWER, Judgement.UNPROVED, text)
    if ids != (lost.external_id,):
        text = f"{lost.external_id} was made and its answer lost; found was {', '.join(ids)}"
        return Result(LOST_ANSWER, Judgement.BROKEN, text)
    return Result(LOST_ANSWER, Judgement.KEPT, f"{lost.external_id} was found again")


async def ten_at_once(trial: Trial, *, terms: Terms) -> Result | None:
    """One key from many connections at the same moment gives one object.

    Some of the requests may be put off or refused as still in progress; none may give another
    object, or be told that the key conflicts.
    """
    if trial.document.safety is not SafetyClass.IDEMPOTENT:
        return None
    name, key = "ten_at_once", trial.fresh_key()
    answers = await asyncio.gather(
        *(trial.send(key, trial.arguments) for _ in range(terms.at_once))
    )
    last = await answered(trial, key, trial.arguments)
    wrong = [a for a in answers if a.outcome in {Outcome.KEY_CONFLICT, Outcome.REJECTED}]
    if wrong:
        text = f"the same request at the same moment was answered with {said(wrong[0])}"
        return Result(name, Judgement.BROKEN, text)
    done = [a for a in (*answers, last) if a.outcome is Outcome.COMMITTED]
    if last.outcome is not Outcome.COMMITTED:
        text = f"afterwards the same request was answered with {said(last)}"
        return Result(name, Judgement.BROKEN, text)
    ids = {a.external_id for a in done}
    if None in ids:
        text = "the contract extracts no external_id to compare"
        return Result(name, Judgement.UNPROVED, text)
    if len(ids) > 1:
        requests, objects = counted(terms.at_once, "request"), counted(len(ids), "object")
        text = f"{requests} of one key at once made {objects}"
        return Result(name, Judgement.BROKEN, text)
    text = f"{terms.at_once} at once made one object; {len(done) - 1} of them were told its id"
    return Result(name, Judgement.KEPT, text)


async def settlement_lag(trial: Trial, *, terms: Terms) -> Result | None:
    """Each of several effects is seen within the bound, and stays seen."""
    if not _measures_lag(trial.document):
        return None
    name, bound = "settlement_lag", trial.document.settlement_bound_seconds or 0.0
    made: dict[str, float] = {}
    for _ in range(terms.lag_samples):
        key = trial.fresh_key()
        answer = await trial.send(key, trial.arguments)
        if answer.outcome is not Outcome.COMMITTED:
            text = f"a plain request was answered with {said(answer)}"
            return Result(name, Judgement.BROKEN, text)
        made[key] = trial.clock.boot_seconds()
    seen = await _seen(trial, made, bound)
    unseen = [verdict for _, verdict in seen.values() if verdict != Verdict.COMMITTED.value]
    if unseen:
        text = (
            f"{bound:g} s after its answer the look-up still said {unseen[0]} of "
            f"{len(unseen)} of {counted(len(made), 'effect')}; a worker would have sent them again"
        )
        return Result(name, Judgement.BROKEN, text)
    slowest = max(lag for lag, _ in seen.values())
    trial.figures["settlement_lag_seconds_max"] = round(slowest, 3)
    trial.figures["settlement_lag_samples"] = len(made)
    again = [await trial.look(key) for key in made]
    denied = [one for one in again if one.verdict is not Verdict.COMMITTED]
    if denied:
        text = f"what the look-up had shown it denied later: {denied[0].verdict.value}"
        return Result(name, Judgement.BROKEN, text)
    if slowest > bound:
        text = (
            f"the slowest of {len(made)} was seen only {slowest:.3f} s after its answer: too near"
        )
        return Result(name, Judgement.UNPROVED, f"{text} the bound of {bound:g} s to tell")
    text = f"{counted(len(made), 'effect')}, the slowest seen after {slowest:.3f} s of {bound:g} s"
    return Result(name, Judgement.KEPT, text)


async def key_is_kept(trial: Trial, *, terms: Terms, began_seconds: float) -> Result | None:
    """After a wait, the first key still gives the first object."""
    document = trial.document
    if document.safety is not SafetyClass.IDEMPOTENT:
        return None
    relied_on = _relied_on_seconds(document)
    until = began_seconds + min(relied_on, terms.retention_wait_seconds)
    await trial.clock.sleep(max(until - trial.clock.boot_seconds(), 0.0))
    held = trial.clock.boot_seconds() - began_seconds
    again = await answered(trial, trial.first_key, trial.arguments)
    assert trial.first is not None, "the plain request goes first"
    same = again.outcome is Outcome.COMMITTED and again.external_id == trial.first.external_id
    if not same:
        what = said(again) if again.outcome is not Outcome.COMMITTED else "another object"
        text = (
            f"{held:.1f} s after its first use the key gave {what}; the contract says "
            f"{document.key_retention_seconds:g} s"
        )
        return Result(KEY_IS_KEPT, Judgement.BROKEN, text)
    trial.figures["key_held_seconds"] = round(held, 3)
    if trial.first.external_id is None:
        text = "the contract extracts no external_id to compare"
        return Result(KEY_IS_KEPT, Judgement.UNPROVED, text)
    if held < relied_on:
        text = (
            f"held for {held:.1f} s; that it holds for all of {document.key_retention_seconds:g} s "
            "was not waited for (--retention-wait)"
        )
        return Result(KEY_IS_KEPT, Judgement.UNPROVED, text)
    text = f"held for {held:.1f} s, as long as a worker relies on it"
    return Result(KEY_IS_KEPT, Judgement.KEPT, text)


# Words ----------------------------------------------------------------------------------------


async def _seen(
    trial: Trial, made: Mapping[str, float], bound: float
) -> dict[str, tuple[float, str]]:
    """Look for each key until it is seen, or once after its bound; the lag, and the last verdict.

    `made` has the moment at which each key's answer was there. A lag is up to the beginning of the
    look that saw it, so that the target is not charged for the look itself.
    """
    found: dict[str, tuple[float, str]] = {}
    pause = _LOOK_PAUSE_SECONDS
    while len(found) < len(made):
        for key, at in made.items():
            if key in found:
                continue
            lag = trial.clock.boot_seconds() - at
            finding = await trial.look(key)
            if finding.verdict is Verdict.COMMITTED or lag > bound:
                found[key] = (lag, finding.verdict.value)
        waiting = [at for key, at in made.items() if key not in found]
        if waiting:
            left = max(min(waiting) + bound - trial.clock.boot_seconds(), 0.0)
            # A little beyond the bound, where a look begins to count against the target.
            await trial.clock.sleep(min(pause, left + _LOOK_PAUSE_SECONDS))
            pause = min(pause * _LOOK_PAUSE_FACTOR, max(bound / _LOOK_PAUSES_MAX, pause))
    return found


def _measures_lag(document: ContractDocument) -> bool:
    return document.policy().probes and document.settlement_bound_seconds is not None


def _relied_on_seconds(document: ContractDocument) -> float:
    """How long after its first use a worker may still begin an attempt with a key."""
    whole = (
        document.attempt_deadline_seconds + document.clock_margin_seconds + document.transit_seconds
    )
    return max((document.key_retention_seconds or 0.0) - whole, 0.0)


def _recorded(trial: Trial, result: Result, before: int) -> TrialRecord:
    own = trial.exchanges[before:]
    return TrialRecord(
        trial=result.check,
        requests=sum(not one.looked for one in own),
        look_ups=sum(one.looked for one in own),
        answers=Counter(one.said for one in own),
        verdict=_VERDICTS[result.judgement],
        seen=result.text,
    )


def _place(identity: str) -> str:
    """The origin of a target's identity, without the account; a host's two spellings are one."""
    origin = identity.partition("#")[0]
    parts = urlsplit(origin)
    host = parts.hostname or ""
    if parts.scheme not in {"http", "https"} or ":" in host:
        return origin
    # By either scheme it is the same machine, and so is a name with the dot of the root.
    port = "" if parts.port is None else f":{parts.port}"
    return f"https://{host.rstrip('.')}{port}{parts.path}"


__all__ = [
    "KEY_IS_KEPT",
    "LOST_ANSWER",
    "Plan",
    "Terms",
    "TrialRecord",
    "certifiable",
    "certify",
    "is_sandbox",
    "key_is_kept",
    "lost_answer_is_settled",
    "plan",
    "settlement_lag",
    "ten_at_once",
]
