"""What a model is told of an effect: the same members and the same sentences at every tool.

A model acts on what it reads. So no state is told without the sentence that says what to do, an
outcome that nobody knows is a result like any other and never an error, and the one thing that must
not be tried is said in a member of its own: `do_not_retry`.
"""

from __future__ import annotations

from typing import Any, Final, Literal, assert_never

from pydantic import BaseModel, ConfigDict, Field

from effect_broker.sdk import (
    AccessRefused,
    BrokerError,
    Cancelled,
    Closed,
    Compensated,
    Conflict,
    Failed,
    NotUnderstood,
    NotYet,
    Outcome,
    RequestRefused,
    Succeeded,
    Unavailable,
    Unknown,
    WaitsForPerson,
)
from effect_broker.sdk.results import Effect, Receipt
from effect_contracts.facts import EffectState

Happened = Literal["yes", "no", "unknown", "not_yet"]

# A person has ended it: that settles the record, and proves nothing about the target.
_ENDED_BY_PERSON: Final = "failed_by_operator"


class Told(BaseModel):
    """An effect, for a model; `message` says in words what the other members mean."""

    model_config = ConfigDict(extra="forbid")

    effect_id: str = Field(description="The broker's id of this effect, for get_effect.")
    operation_key: str = Field(description="The name of the business intent.")
    tool: str
    state: str = Field(description="Where the effect stands.")
    reason: str = Field(description="Why it stands there.")
    happened: Happened = Field(
        description="Whether the change was made: yes, no, unknown (nobody can know by asking), "
        "or not_yet (the broker is still at work on it)."
    )
    final: bool = Field(description="Nothing changes any more.")
    waits_for_person: bool = Field(description="Nothing happens until a person acts.")
    do_not_retry: bool = Field(
        description="True: do not try to make this change again, by this tool under another "
        "operation_key or by any other way. The same operation_key is always safe; it only reports."
    )
    message: str = Field(description="What this means and what to do now.")
    external_id: str | None = Field(default=None, description="The target's id of the object.")
    result: Any = Field(default=None, description="What the target answered.")


class Refusal(BaseModel):
    """Why a call was refused; it is about the call, and never about an outcome."""

    model_config = ConfigDict(extra="forbid")

    error: str = Field(description="A stable code.")
    message: str = Field(description="What this means and what to do now.")
    field: str | None = Field(default=None, description="The place that is at fault.")
    effect_id: str | None = Field(default=None, description="The effect that stands in the way.")
    state: str | None = Field(default=None, description="The state of that effect.")


# Effects ---------------------------------------------------------------------------------------


def told(outcome: Outcome) -> Told:
    """Return what a model is told of an effect."""
    match outcome:
        case Succeeded(effect, receipt):
            named = (
                f" The target's id of it is {receipt.external_id}." if receipt.external_id else ""
            )
            said = (
                f"Done: the change was made, and its receipt is kept.{named} Nothing is left to do."
            )
            return _told(effect, "yes", said, receipt)
        case Compensated(effect, receipt):
            said = "The change was made, and a later effect has undone it. Nothing is left to do."
            return _told(effect, "yes", said, receipt)
        case Failed(effect, receipt) if effect.reason == _ENDED_BY_PERSON:
            said = (
                "A person has ended this effect as failed. Whether the change was made is not "
                "proved. Do not try it again by yourself; ask the user."
            )
            return _told(effect, "unknown", said, receipt)
        case Failed(effect, receipt):
            said = (
                f"The change was not made ({effect.reason}), and under this operation_key it never "
                "will be. If the user still wants it, that is a new intent with a new "
                "operation_key; correct first what was refused."
            )
            return _told(effect, "no", said, receipt, do_not_retry=False)
        case Cancelled(effect, receipt):
            said = "It was withdrawn before anything was sent. The change was not made."
            return _told(effect, "no", said, receipt, do_not_retry=False)
        case Unknown(effect):
            return _told(effect, "unknown", _UNKNOWN)
        case WaitsForPerson(effect):
            return _told(effect, *_waiting(effect))
        case NotYet(effect):
            return _told(effect, "not_yet", _under_way(effect))
        case never:
            assert_never(never)


_UNKNOWN: Final = (
    "The outcome is unknown: the request was sent, its answer was lost or did not say what has "
    "become of it, and nobody can find out by asking. The change may have been made. Do not retry: "
    "not with another operation_key, and not by another tool, since that could make it twice. Tell "
    "the user; a person has to look at the "
    "target and record what is true. Calling again with the same operation_key is safe and only "
    "reports the state."
)


def _waiting(effect: Effect) -> tuple[Happened, str]:
    if effect.attempts is not None and not effect.attempts:
        return "not_yet", (
            f"Nothing was sent yet ({effect.reason}): a person has to act first. Do not retry and "
            "do not look for another way; tell the user. Calling again with the same "
            "operation_key is safe and only reports the state."
        )
    return "unknown", (
        f"The broker cannot go on by itself ({effect.reason}), and a person has to decide. The "
        "change may have been made. Do not retry, neither with another operation_key nor by "
        "another tool; tell the user. Calling again with the same operation_key is safe and only "
        "reports the state."
    )


def _under_way(effect: Effect) -> str:
    lost = effect.state in {EffectState.OUTCOME_UNKNOWN, EffectState.RECONCILING}
    where = (
        "No answer has told yet, and the broker is finding out whether the change was made."
        if lost
        else "It is not finished yet."
    )
    return (
        f"{where} The broker goes on by itself, whatever you do. Do not retry with another "
        "operation_key and do not look for another way. To see what became of it, call again with "
        "the same operation_key and arguments: that never sends a second time."
    )


def _told(
    effect: Effect,
    happened: Happened,
    message: str,
    receipt: Receipt | None = None,
    *,
    do_not_retry: bool = True,
) -> Told:
    return Told(
        effect_id=str(effect.effect_id),
        operation_key=effect.operation_key,
        tool=effect.tool,
        state=effect.state.value,
        reason=effect.reason,
        happened=happened,
        final=effect.final,
        waits_for_person=effect.waits_for_person,
        do_not_retry=do_not_retry,
        message=message,
        external_id=None if receipt is None else receipt.external_id,
        result=None if receipt is None else receipt.result,
    )


# Refusals --------------------------------------------------------------------------------------

# Where nothing that the broker has said gives a code.
_NO_ANSWER: Final = "broker_unavailable"


def refusal(error: BrokerError, *, within: str = "") -> Refusal:
    """Return what a model is told of an error of the SDK; none of them is about an outcome.

    Args:
        within: the place in the broker's request that is the whole input of the tool.
    """
    code = error.code or _NO_ANSWER
    place = error.field
    if place is not None and within and (place + "/").startswith(within + "/"):
        place = place.removeprefix(within)
    match error:
        case Conflict() if code == "payload_conflict":
            said = (
                "This operation_key already stands for another request; the first difference is "
                f"at {place or 'the root'}. Nothing was sent now. For the same intent repeat "
                "exactly the same arguments; another intent needs another operation_key."
            )
        case RequestRefused():
            said = f"{error.detail} Nothing was stored and nothing was sent."
        case AccessRefused():
            said = (
                f"{error.detail} Nothing was sent. The API key does not permit it: tell the user."
            )
        case Unavailable() | NotUnderstood() | Closed():
            said = (
                "The broker gave no answer, so it is not known whether the request was stored. "
                "Make the same call again, with the same operation_key and arguments: that is "
                "safe. Do not use another operation_key and do not look for another way."
            )
        case _:
            said = error.detail
    effect_id, state = error.problem.get("effect_id"), error.problem.get("state")
    return Refusal(
        error=code,
        message=said,
        field=place,
        effect_id=effect_id if isinstance(effect_id, str) else None,
        state=state if isinstance(state, str) else None,
    )
