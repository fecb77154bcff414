"""What the SDK returns: effects as they stand, receipts, and the seven outcomes.

An outcome is a value. `Failed` is the only one that may be raised, and only where the caller asks
for it: an outcome that nobody knows must never travel as an exception, because the code that
catches exceptions is the code that tries again.

What is read of a broker's answer is read strictly; members that a newer broker adds are passed
over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NoReturn, Self, TypeAlias, TypeVar
from uuid import UUID

from effect_broker.sdk.errors import Body, EffectFailed, NotUnderstood
from effect_contracts.facts import EffectState, SafetyClass
from effect_contracts.facts import Outcome as AttemptOutcome

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One permission to send.

    Attributes:
        ordinal: 1 for the first.
        deadline_at: the last moment at which its worker may still write to the target.
        outcome: what it showed; None while it is open.
        code: the broker's or the contract's word for it.
        external_id: the target's id of the object, where the answer had one.
    """

    ordinal: int
    started_at: datetime
    deadline_at: datetime
    recorded_at: datetime | None
    outcome: AttemptOutcome | None
    code: str | None
    external_id: str | None


@dataclass(frozen=True, slots=True)
class Effect:
    """An effect as it stood at `now`.

    Attributes:
        effect_id: the same for the same tenant and operation key, whoever submits.
        safety, guarantee: the class of its contract, and what it promises in words.
        state, reason: where it stands, and why.
        final: nothing changes any more (a success may still become `compensated`).
        waits_for_person: nothing happens by itself; a person or new evidence moves it.
        version: goes up with every change; a decision names the one that it was made on.
        next_action_at: when the broker acts next; None where it does not.
        now: the database clock of this answer, None where only the commit is known of.
        alert: the target has contradicted a final effect; a person has to know.
        attempts: None in the answer to a submit, which does not tell them.
        replayed: this call met what an earlier one had made; nothing new was stored.
        changed: whether a wish (`reconcile`, `cancel`) changed anything; None for other calls.
        awaits_second_person: the resolution stands once another person has confirmed it.
        durable: False in the answer of a submit that has joined a transaction: the effect is there
            when that is committed, and only then.
    """

    effect_id: UUID
    operation_key: str
    tool: str
    contract_name: str
    contract_version: str
    request_hash: str
    safety: SafetyClass
    guarantee: str
    state: EffectState
    reason: str
    final: bool
    waits_for_person: bool
    version: int
    next_action_at: datetime | None
    created_at: datetime
    updated_at: datetime
    now: datetime | None
    alert: str | None
    attempts: tuple[Attempt, ...] | None = None
    replayed: bool = False
    changed: bool | None = None
    awaits_second_person: bool = False
    durable: bool = True

    @property
    def still(self) -> bool:
        """Whether waiting is over: it is final, or only a person can move it."""
        return self.final or self.waits_for_person


@dataclass(frozen=True, slots=True)
class Tool:
    """The contract that a submit of a tool would be bound to.

    Attributes:
        sent_by: `broker`, or `caller` where the contract leaves the call to `perform`.
    """

    tool: str
    contract_name: str
    contract_version: str
    safety: SafetyClass
    sent_by: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """The immutable record of a settled effect, of failure as well as of success.

    Attributes:
        source: what it rests on: `response`, `probe`, `webhook`, `operator`, `transaction`,
            `decision`.
        external_id: the target's own id of the object.
        attempts: how many there were.
        digest: SHA-256 of the record in hexadecimal.
        result: the target's answer; None where there was none or where it was erased.
        fields: what the contract extracts from the answer.
        document: the record with its signatures, for `effect-broker receipts verify`.
    """

    receipt_id: UUID
    effect_id: UUID
    state: EffectState
    reason: str
    source: str
    external_id: str | None
    attempts: int
    settled_at: datetime
    digest: str
    # What the target says may be confidential: it is in no `repr`, so in no log by accident.
    result: Any = field(repr=False)
    fields: Mapping[str, Any] = field(repr=False)
    document: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Evidence:
    """One thing that a person has looked at, for `resolve`.

    Attributes:
        kind: a word for it: `provider_dashboard`, `bank_statement`, `log`, …
        observed_at: when the look began; with a zone.
        reference: where it can be seen again; or
        digest: `sha256:` and 64 hexadecimal digits of what is kept elsewhere.
        note: at most 2000 bytes.
    """

    kind: str
    observed_at: datetime
    reference: str | None = None
    digest: str | None = None
    note: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class _Ended:
    """What every outcome has; `raise_for_failure` raises for `Failed` only."""

    effect: Effect

    def raise_for_failure(self) -> Self:
        """Return this outcome; `Failed` raises `EffectFailed` instead, and no other does."""
        return self


@dataclass(frozen=True, slots=True)
class _Settled(_Ended):
    receipt: Receipt


@dataclass(frozen=True, slots=True)
class Succeeded(_Settled):
    """It happened, once as the guarantee says; the receipt proves it."""

    @property
    def external_id(self) -> str | None:
        """The target's own id of the object."""
        return self.receipt.external_id

    @property
    def result(self) -> Any:
        """The target's answer."""
        return self.receipt.result


@dataclass(frozen=True, slots=True)
class Failed(_Settled):
    """Settled as failed: refused, never sent, proved not to exist, or ended by a person.

    `effect.reason` says which. With `failed_by_operator` it is a person's decision, not a proof.
    """

    def raise_for_failure(self) -> NoReturn:
        """Raise `EffectFailed`."""
        raise EffectFailed(self)


@dataclass(frozen=True, slots=True)
class Cancelled(_Settled):
    """Withdrawn before anything was sent."""


@dataclass(frozen=True, slots=True)
class Compensated(_Settled):
    """It happened, and a linked effect has undone it; the receipt is of what happened."""


@dataclass(frozen=True, slots=True)
class Unknown(_Ended):
    """It was sent, the answer was lost, and nobody can know by asking: it may have happened.

    Not a failure and no reason to send again, by whatever way. A person who has looked at the
    target says what is true (`resolve`).
    """


@dataclass(frozen=True, slots=True)
class WaitsForPerson(_Ended):
    """Nothing happens by itself until a person acts; `effect.reason` says what is asked.

    It may have happened already: a look at `effect.attempts` tells whether anything was sent.
    """


@dataclass(frozen=True, slots=True)
class NotYet(_Ended):
    """The caller's deadline is over, the effect goes on; wait again as often as you like.

    It was not withdrawn, and may have happened already. Of `perform` it is the answer to whoever
    is not elected now: somebody else performs it, or it may be performed again later.
    """

    @property
    def ask_again_at(self) -> datetime | None:
        """When the broker, or the lease of whoever performs it, comes to its next end."""
        return self.effect.next_action_at

    @property
    def ask_again_seconds(self) -> float:
        """How long from the answer until then; 0 where it is due, or nobody has told."""
        at, now = self.effect.next_action_at, self.effect.now
        return 0.0 if at is None or now is None else max(0.0, (at - now).total_seconds())


Outcome: TypeAlias = (
    Succeeded | Failed | Cancelled | Compensated | Unknown | WaitsForPerson | NotYet
)
"""What has become of an effect; `match` over it is total for a type checker."""


def outcome_of(effect: Effect, receipt: Receipt | None) -> Outcome:
    """Return the outcome; a final effect comes with its receipt."""
    match effect.state:
        case EffectState.SUCCEEDED if receipt:
            return Succeeded(effect, receipt)
        case EffectState.FAILED_FINAL if receipt:
            return Failed(effect, receipt)
        case EffectState.CANCELLED if receipt:
            return Cancelled(effect, receipt)
        case EffectState.COMPENSATED if receipt:
            return Compensated(effect, receipt)
        case EffectState.OUTCOME_UNKNOWN if effect.waits_for_person:
            return Unknown(effect)
        case _ if effect.waits_for_person:
            return WaitsForPerson(effect)
        case _:
            return NotYet(effect)


def effect_from(body: Body) -> Effect:
    """Read an effect as the API shows it.

    Raises:
        NotUnderstood.
    """
    return _read(body, _effect, "effect")


def receipt_from(body: Body) -> Receipt:
    """Read the answer about a receipt.

    Raises:
        NotUnderstood.
    """
    return _read(body, _receipt, "receipt")


def tool_from(body: Body) -> Tool:
    """Read the answer about a tool.

    Raises:
        NotUnderstood.
    """
    return _read(body, _tool, "a tool")


def _tool(body: Body) -> Tool:
    return Tool(
        tool=_is(str, body["tool"]),
        contract_name=_is(str, body["contract"]["name"]),
        contract_version=_is(str, body["contract"]["version"]),
        safety=SafetyClass(body["safety"]),
        sent_by=_is(str, body["sent_by"]),
    )


def _read(body: Body, reading: Callable[[Body], T], what: str) -> T:
    try:
        return reading(body)
    except (KeyError, TypeError, ValueError, AttributeError):
        pass
    # Outside of the except block: the errors of reading quote what they could not read.
    raise NotUnderstood(f"The answer is not {what} as this SDK knows it.")


def _effect(body: Body) -> Effect:
    attempts = body.get("attempts")
    return Effect(
        effect_id=UUID(body["effect_id"]),
        operation_key=_is(str, body["operation_key"]),
        tool=_is(str, body["tool"]),
        contract_name=_is(str, body["contract"]["name"]),
        contract_version=_is(str, body["contract"]["version"]),
        request_hash=_is(str, body["request_hash"]),
        safety=SafetyClass(body["safety"]),
        guarantee=_is(str, body["guarantee"]),
        state=EffectState(body["state"]),
        reason=_is(str, body["reason"]),
        final=_is(bool, body["final"]),
        waits_for_person=_is(bool, body["waits_for_person"]),
        version=_is(int, body["version"]),
        next_action_at=_moment(body["next_action_at"]),
        created_at=datetime.fromisoformat(body["created_at"]),
        updated_at=datetime.fromisoformat(body["updated_at"]),
        now=_moment(body["now"]),
        alert=_text(body["alert"]),
        attempts=None if attempts is None else tuple(_attempt(row) for row in attempts),
        replayed=_is(bool, body.get("replayed", False)),
        changed=body.get("changed"),
        awaits_second_person=_is(bool, body.get("awaits_second_person", False)),
    )


def _attempt(row: Body) -> Attempt:
    outcome = row["outcome"]
    return Attempt(
        ordinal=_is(int, row["ordinal"]),
        started_at=datetime.fromisoformat(row["started_at"]),
        deadline_at=datetime.fromisoformat(row["deadline_at"]),
        recorded_at=_moment(row["recorded_at"]),
        outcome=None if outcome is None else AttemptOutcome(outcome),
        code=_text(row["code"]),
        external_id=_text(row["external_id"]),
    )


def _receipt(body: Body) -> Receipt:
    record = body["receipt"]
    return Receipt(
        receipt_id=UUID(record["receipt_id"]),
        effect_id=UUID(record["effect_id"]),
        state=EffectState(record["state"]),
        reason=_is(str, record["reason"]),
        source=_is(str, record["source"]),
        external_id=_text(record["external_id"]),
        attempts=_is(int, record["attempts"]),
        settled_at=datetime.fromisoformat(record["settled_at"]),
        digest=_is(str, body["digest"]),
        result=body["result"],
        fields=_is(dict, body["fields"]),
        document=_is(dict, body["document"]),
    )


def _is(kind: type[T], value: object) -> T:
    # A boolean is an integer to Python, and to nobody else.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError
    return value


def _text(value: object) -> str | None:
    return None if value is None else _is(str, value)


def _moment(value: object) -> datetime | None:
    return None if value is None else datetime.fromisoformat(_is(str, value))
