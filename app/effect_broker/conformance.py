"""Conformance: does a target keep what its contract says? Asked before anything is at stake.

A contract is believed: one that promises more than the target keeps can cause a duplicate. This
file owns the questions that show such a promise to be false. They are real requests with keys of
their own, sent through the same adapter and judged by the same rules as in a worker, so they
belong to a test account. Nothing is stored.

    accepts_the_request      every class: a plain request with a new key succeeds
    one_attempt_one_arrival  reconcilable and unsafe: nothing on the way delivers it twice
    same_key_same_effect     idempotent: the same request again gives the same object
    drift_is_refused         idempotent: the same key with other arguments is a key conflict
    found_once_by_key        with a look-up: it shows exactly the object that was made
    absence_is_shown         with a look-up: for a key that was never sent it shows nothing

`effect_broker.certification` has the hostile ones, which come after these. A new check is one
coroutine and one line in `CHECKS`. Each gets the `Trial` and returns its
`Result`, or None where the contract promises nothing of the kind.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol, TypeAlias
from uuid import UUID

from effect_adapters.base import Adapter, Answer, Budget, DispatchCall, Finding, ProbeCall
from effect_broker.obstacles import is_ours, words_of_code
from effect_broker.protocol.steps import PROBE_SECONDS_MAX
from effect_contracts import keys
from effect_contracts.canonical import JsonValue
from effect_contracts.document import ContractDocument
from effect_contracts.facts import Outcome, SafetyClass, Verdict

# No target knows a key of these: the tenant is new in every trial.
_SECRET: Final = b"effect-broker conformance trial\0"

# A target that is still at work on the first request says so; its answer is worth a wait.
_IN_PROGRESS_SECONDS_MAX: Final = 30.0
_PAUSE_SECONDS: Final = 0.5

_COUNTED: Final = {2: "two", 3: "three"}


class CouldNotRun(Exception):
    """Nothing reached the target, so that nothing was learned of it; the text says what to mend."""


class Judgement(StrEnum):
    """What one check has shown."""

    KEPT = "kept"
    BROKEN = "broken"
    UNPROVED = "unproved"


@dataclass(frozen=True, slots=True)
class Result:
    """One check; `text` says what was seen and, unless all is well, what to do."""

    check: str
    judgement: Judgement
    text: str


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request or look-up of a trial, and what the target said."""

    looked: bool
    said: str


class Clock(Protocol):
    """What the trial needs of time; `effect_broker.clock.SystemClock` is one."""

    def boot_seconds(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


@dataclass(slots=True)
class Trial:
    """One contract on trial at its target.

    Attributes:
        arguments: of the plain request; they satisfy the contract.
        drifted: other arguments that satisfy it too; None where none are known.
        new_id: the source of identities.
        arrivals: how many requests have arrived at the end of the route; None where nobody
            counts there.
        first: the plain request's answer, once it was sent.
        arrived_before: what `arrivals` said before it was sent.
        exchanges: every request and look-up so far, in order, with its outcome or verdict.
        figures: what checks have measured, by name.
    """

    document: ContractDocument
    adapter: Adapter
    arguments: JsonValue = field(repr=False)
    drifted: JsonValue = field(repr=False)
    clock: Clock
    new_id: Callable[[], UUID]
    arrivals: Callable[[], Awaitable[int]] | None = None
    first: Answer | None = None
    arrived_before: int = 0
    exchanges: list[Exchange] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tenant_id = self.new_id()
        self.first_key = self.fresh_key()

    tenant_id: UUID = field(init=False)
    first_key: str = field(init=False)

    def fresh_key(self) -> str:
        """Return a downstream key in the contract's format that nobody has seen."""
        name = f"conformance:{self.new_id()}"
        return keys.downstream_key(_SECRET, self.tenant_id, name, self.document.key_format)

    async def send(self, key: str, arguments: JsonValue, *, hang_up: bool = False) -> Answer:
        """Send one request once and return what its answer proves.

        Args:
            hang_up: break the connection once the request is written, where the adapter can; see
                `effect_adapters.base.DispatchCall`.

        Raises:
            RenderError: the arguments do not make a request.
        """
        call = DispatchCall(
            effect_id=self.new_id(),
            tenant_id=self.tenant_id,
            attempt_id=self.new_id(),
            ordinal=1,
            downstream_key=key,
            wire=self.adapter.render(self.document, arguments, key),
            document=self.document,
            budget=self._budget(self.document.attempt_deadline_seconds),
            reach=_nowhere,
            hang_up=hang_up,
        )
        answer = await self.adapter.dispatch(call)
        self.exchanges.append(Exchange(False, answer.outcome.value))
        return answer

    async def look(self, key: str) -> Finding:
        """Ask the target once for the object of a key.

        Raises:
            CouldNotRun: a secret or a package is missing here, so that nobody was asked.
        """
        timeout = min(self.document.attempt_deadline_seconds, PROBE_SECONDS_MAX)
        call = ProbeCall(
            effect_id=self.new_id(),
            tenant_id=self.tenant_id,
            downstream_key=key,
            arguments=self.arguments,
            document=self.document,
            operation=None,
            budget=self._budget(timeout),
            reach=_nowhere,
        )
        finding = await self.adapter.probe(call)
        if finding.verdict is Verdict.UNKNOWN and is_ours(finding.code):
            raise CouldNotRun(_not_sent(self.document, finding.code))
        self.exchanges.append(Exchange(True, finding.verdict.value))
        return finding

    def _budget(self, seconds: float) -> Budget:
        return Budget(self.clock.boot_seconds() + seconds, self.clock.boot_seconds)


Check: TypeAlias = Callable[[Trial], Awaitable[Result | None]]


async def examine(trial: Trial) -> tuple[Result, ...]:
    """Run every check that the contract's promises ask for, in order.

    If the plain request does not succeed, nothing else is asked: no answer would mean anything.

    Raises:
        RenderError: the arguments do not make a request.
        CouldNotRun: the request or a look-up could not be sent from here.
    """
    results = []
    for check in CHECKS:
        result = await check(trial)
        if result is not None:
            results.append(result)
        if trial.first is not None and trial.first.outcome is not Outcome.COMMITTED:
            break
    return tuple(results)


def conforms(results: tuple[Result, ...]) -> bool:
    """Whether every check has shown that its promise is kept."""
    return all(result.judgement is Judgement.KEPT for result in results)


# The checks -----------------------------------------------------------------------------------


async def accepts_the_request(trial: Trial) -> Result | None:
    """A plain request with a new key succeeds."""
    name = "accepts_the_request"
    if trial.arrivals is not None:
        trial.arrived_before = await trial.arrivals()
    trial.first = await trial.send(trial.first_key, trial.arguments)
    if trial.first.outcome is Outcome.NOT_SENT:
        raise CouldNotRun(_not_sent(trial.document, trial.first.code))
    if trial.first.outcome is Outcome.COMMITTED:
        return Result(name, Judgement.KEPT, f"done, id {trial.first.external_id or 'not given'}")
    return Result(
        name,
        Judgement.BROKEN,
        f"a plain request was answered with {said(trial.first)}; see whether the target takes "
        "the key where the contract puts it, and whether the arguments are good ones",
    )


async def one_attempt_one_arrival(trial: Trial) -> Result | None:
    """Nothing on the way to the target delivers a request twice.

    A proxy that sends a slow request again does it below the broker, where no attempt is seen. An
    idempotent target makes one object of both; a look-up shows both where there is one; at an
    unsafe target only a count at the end of the route can tell.
    """
    name, safety = "one_attempt_one_arrival", trial.document.safety
    if trial.arrivals is None:
        if safety is not SafetyClass.UNSAFE:
            return None
        return Result(
            name,
            Judgement.UNPROVED,
            "what the route delivers twice cannot be seen from here: put `effect-broker target` "
            "at its end and name it with --counter",
        )
    # A second delivery may still be on its way, as long as the contract says that one may be.
    await trial.clock.sleep(trial.document.transit_seconds)
    count = await trial.arrivals() - trial.arrived_before
    if count == 1:
        return Result(name, Judgement.KEPT, "one attempt, one arrival")
    if count == 0:
        return Result(
            name, Judgement.UNPROVED, "one attempt, no arrival: the route ends somewhere else"
        )
    # From two on: one is what a route is asked for.
    seen = f"one attempt, {_COUNTED.get(count, str(count))} arrivals"
    if safety is SafetyClass.IDEMPOTENT:
        return Result(name, Judgement.KEPT, f"{seen}, of which the key makes one object")
    return Result(
        name,
        Judgement.BROKEN,
        f"{seen}: something on the route delivers requests again; switch off its retries (for a "
        "proxy, those of non-idempotent requests) before an effect goes this way",
    )


async def same_key_same_effect(trial: Trial) -> Result | None:
    """The same request with the same key gives the same object."""
    if trial.document.safety is not SafetyClass.IDEMPOTENT:
        return None
    name = "same_key_same_effect"
    again = await answered(trial, trial.first_key, trial.arguments)
    assert trial.first is not None, "the plain request goes first"
    if again.outcome is not Outcome.COMMITTED:
        return Result(
            name,
            Judgement.BROKEN,
            f"the same request with the same key was answered with {said(again)}, so a repeat "
            "cannot settle a lost answer; use another safety class",
        )
    if again.external_id is None or trial.first.external_id is None:
        return Result(
            name,
            Judgement.UNPROVED,
            "both requests succeeded, but the contract extracts no external_id to compare",
        )
    if again.external_id != trial.first.external_id:
        return Result(
            name,
            Judgement.BROKEN,
            f"one key made two objects, {trial.first.external_id} and {again.external_id}: the "
            "target does not honour the key; use another safety class",
        )
    return Result(name, Judgement.KEPT, f"the repeat gave {again.external_id} again")


async def drift_is_refused(trial: Trial) -> Result | None:
    """The same key with other arguments is a key conflict."""
    if trial.document.safety is not SafetyClass.IDEMPOTENT or not drift_is_tried(trial.document):
        return None
    name = "drift_is_refused"
    if trial.drifted is None:
        return Result(
            name, Judgement.UNPROVED, "no other arguments were found to try; give some of your own"
        )
    answer = await answered(trial, trial.first_key, trial.drifted)
    match answer.outcome:
        case Outcome.KEY_CONFLICT:
            return Result(name, Judgement.KEPT, f"refused with {answer.code}")
        case Outcome.COMMITTED:
            done = "another object" if _another(trial, answer) else "the first request's result"
            return Result(
                name,
                Judgement.BROKEN,
                f"other arguments under the same key were answered with success ({done})",
            )
        case _:
            return Result(
                name,
                Judgement.BROKEN,
                f"other arguments under the same key were answered with {said(answer)}; list "
                "this answer under answers.key_conflict, else it is taken for the request's own",
            )


async def found_once_by_key(trial: Trial) -> Result | None:
    """The look-up shows exactly the object that was made, within the settlement bound."""
    if not trial.document.policy().probes:
        return None
    name = "found_once_by_key"
    assert trial.first is not None, "the plain request goes first"
    bound = trial.document.settlement_bound_seconds or 0.0
    until = trial.clock.boot_seconds() + bound
    while True:
        late = trial.clock.boot_seconds() > until
        found = await trial.look(trial.first_key)
        if found.verdict is not Verdict.NOT_COMMITTED or late:
            break
        await trial.clock.sleep(min(_PAUSE_SECONDS, max(bound / 4, 0.05)))
    ids = ", ".join(found.external_ids)
    if found.verdict is not Verdict.COMMITTED:
        return Result(
            name,
            Judgement.BROKEN,
            f"{bound:g} s after success the look-up says {found.verdict.value} ({found.code})"
            + (f": {ids}" if ids else ""),
        )
    if trial.first.external_id is not None and ids != trial.first.external_id:
        return Result(
            name, Judgement.BROKEN, f"{trial.first.external_id} was made, the look-up shows {ids}"
        )
    return Result(name, Judgement.KEPT, f"the look-up shows {ids or 'the object'} alone")


async def absence_is_shown(trial: Trial) -> Result | None:
    """For a key that was never sent, the look-up says that there is nothing."""
    if not trial.document.policy().probes:
        return None
    name = "absence_is_shown"
    found = await trial.look(trial.fresh_key())
    if found.verdict is Verdict.NOT_COMMITTED:
        return Result(name, Judgement.KEPT, "nothing is shown for a key that was never sent")
    return Result(
        name,
        Judgement.BROKEN,
        f"for a key that was never sent the look-up says {found.verdict.value} ({found.code}), so "
        "an effect that did not happen could never be cleared; see adapter.probe.absent",
    )


CHECKS: Final[tuple[Check, ...]] = (
    accepts_the_request,
    one_attempt_one_arrival,
    same_key_same_effect,
    drift_is_refused,
    found_once_by_key,
    absence_is_shown,
)


# Other arguments -------------------------------------------------------------------------------


def drifted_arguments(
    document: ContractDocument, adapter: Adapter, arguments: JsonValue
) -> JsonValue:
    """Return other arguments that the contract takes and that make another request, or None.

    One scalar is changed at a time: a number by one, a text by one character, a truth by denial.
    """
    key = keys.downstream_key(_SECRET, UUID(int=0), "drift", document.key_format)
    plain = adapter.render(document, arguments, key)
    for candidate in _changed(arguments):
        try:
            document.check_arguments(candidate)
            if adapter.render(document, candidate, key) != plain:
                return candidate
        except Exception:  # noqa: S112 - a candidate that makes no request is no candidate
            continue
    return None


def _changed(value: JsonValue) -> Iterator[JsonValue]:
    match value:
        case bool():
            yield not value
        case int() | float():
            yield value + 1
            yield value - 1
        case str() if value:
            yield value + value[-1]
            yield value[:-1] + ("b" if value[-1] == "a" else "a")
        case list():
            for index, element in enumerate(value):
                for other in _changed(element):
                    yield [*value[:index], other, *value[index + 1 :]]
        case dict():
            for name, member in value.items():
                for other in _changed(member):
                    yield {**value, name: other}
        case _:
            return


# Words ----------------------------------------------------------------------------------------


async def answered(trial: Trial, key: str, arguments: JsonValue) -> Answer:
    """Send under a key, and again while the target says that it is at work on it."""
    until = trial.clock.boot_seconds() + _IN_PROGRESS_SECONDS_MAX
    while True:
        answer = await trial.send(key, arguments)
        if answer.outcome is not Outcome.IN_PROGRESS or trial.clock.boot_seconds() > until:
            return answer
        await trial.clock.sleep(_PAUSE_SECONDS)


def drift_is_tried(document: ContractDocument) -> bool:
    """Whether the target is one that compares more than the key.

    A queue compares ids and no texts, and no contract on one promises more. That a key keeps its
    arguments is then the broker's doing alone: it binds them, and stores the request before a send.
    """
    return document.adapter.kind not in {"nats", "sqs"}


def _another(trial: Trial, answer: Answer) -> bool:
    return trial.first is not None and answer.external_id != trial.first.external_id


def said(answer: Answer) -> str:
    """Return an answer's outcome and code, for a person."""
    return f"{answer.outcome.value} ({answer.code})"


def _not_sent(document: ContractDocument, code: str) -> str:
    words = words_of_code(document, code, here=True)
    text = "The request was not sent." if words is None else f"{words.meaning} {words.remedy}"
    return f"{text} ({code})"


def _nowhere(_point: str) -> None:
    """No fault point is armed in a trial."""


__all__ = [
    "CHECKS",
    "Check",
    "Clock",
    "CouldNotRun",
    "Exchange",
    "Judgement",
    "Result",
    "Trial",
    "answered",
    "conforms",
    "drift_is_tried",
    "drifted_arguments",
    "examine",
    "said",
]
