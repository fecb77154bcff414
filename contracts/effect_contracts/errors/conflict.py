"""The request is fine, and the present state forbids it."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from effect_contracts.errors.base import EffectError
from effect_contracts.facts import EffectState
from effect_contracts.problem_codes import ProblemCode


class ConflictError(EffectError):
    """The request is well formed and contradicts what is stored."""


class PayloadConflict(ConflictError):
    """The operation key is taken by another request.

    `field` is the first place that differs (None where the stored arguments were erased);
    `effect_id` and `state` tell of the effect that holds the key. Nothing was dispatched.
    """

    code = ProblemCode.PAYLOAD_CONFLICT

    def __init__(
        self,
        *,
        field: str | None,
        effect_id: UUID | None = None,
        state: EffectState | None = None,
    ) -> None:
        super().__init__(
            "This operation key is bound to another request; nothing was sent. "
            "Repeat the first request unchanged, or use a new key for a new intent.",
            field=field,
            extras={
                "effect_id": None if effect_id is None else str(effect_id),
                "state": None if state is None else state.value,
            },
        )


class StaleVersion(ConflictError):
    """The decision was made on another version than the stored one."""

    code = ProblemCode.STALE_VERSION

    def __init__(self, *, expected: int, found: int | None = None) -> None:
        super().__init__(
            "The effect has changed since it was read; read it again and decide anew.",
            extras={"expected_version": expected, "version": found},
        )


class TooEarly(ConflictError):
    """The observation began before it could prove anything; it can from `not_before` on."""

    code = ProblemCode.TOO_EARLY

    def __init__(self, *, not_before: datetime) -> None:
        assert not_before.tzinfo is not None, "a moment without a zone is no moment"
        moment = not_before.astimezone(UTC).isoformat()
        super().__init__(
            f"This conclusion counts only if it was observed from {moment} on.",
            extras={"not_before": moment},
        )


class DecisionConflict(ConflictError):
    """The decision id stands for another statement already."""

    code = ProblemCode.DECISION_CONFLICT

    def __init__(self) -> None:
        super().__init__(
            "This decision id was used for another statement; nothing was changed. "
            "Choose a new id for a new decision."
        )


class AnotherRequest(ConflictError):
    """The request hash that was named is not that of the effect."""

    code = ProblemCode.ANOTHER_REQUEST

    def __init__(self) -> None:
        super().__init__(
            "The effect stands for another request than the one that was named; nothing was "
            "changed. Read it again, and decide on what it says."
        )


class AnotherAlert(ConflictError):
    """The alert that was named is not, or no longer, the one that the effect has."""

    code = ProblemCode.ANOTHER_ALERT

    def __init__(self) -> None:
        super().__init__(
            "The effect has another alert by now; nothing was changed. Read it again first."
        )


class CursorSuperseded(ConflictError):
    """A cursor of the event stream is of another copy of the database, or of a lost future."""

    code = ProblemCode.CURSOR_SUPERSEDED

    def __init__(self, *, resume: str) -> None:
        super().__init__(
            "The cursor is of another copy of this database. Go on after `resume`, and pass over "
            "the events whose id you have seen.",
            extras={"resume": resume},
        )


class LimitReached(ConflictError):
    """There are as many of these as there may be; one has to go, or to end, first."""

    code = ProblemCode.LIMIT_REACHED

    def __init__(self, *, limit: int) -> None:
        super().__init__(
            f"There are {limit} of these, as many as there may be; remove one, "
            "or wait until one has ended.",
            extras={"limit": limit},
        )


class TransitionRefused(ConflictError):
    """The effect's state does not permit what was asked."""

    code = ProblemCode.ILLEGAL_TRANSITION

    def __init__(self, *, state: EffectState) -> None:
        super().__init__(
            f"An effect in state '{state.value}' does not permit this; "
            "read it to see what it waits for.",
            extras={"state": state.value},
        )


class ElectionLost(ConflictError):
    """The caller does not hold the election any more; what it told was kept as a fact."""

    code = ProblemCode.ELECTION_LOST

    def __init__(self, *, effect_id: UUID, state: EffectState) -> None:
        super().__init__(
            "The lease had run out and somebody has gone on without this caller. What it told is "
            "recorded as a fact; it settles the effect only as far as that permits. Do not perform "
            "the effect again.",
            extras={"effect_id": str(effect_id), "state": state.value},
        )
