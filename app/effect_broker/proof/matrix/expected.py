"""What has to come out of a cell, as a table of rules. Nothing here was recorded from a run.

First rule: what place and fault leave behind (a `Situation`). Second rule: what each class of
target makes of it. The numbers are the target's: requests received, effects held.

    unharmed      the process went on, or another one could start from what was recorded
    lost_unsent   the attempt stands, its process is gone, nothing had been sent
    lost_sent     the same, but the target had committed
    late_unsent   as lost_unsent, and in the end the process comes back and says so
    late_sent     as lost_sent, and in the end the process comes back with the answer
    sends_late    as lost_unsent, and in the end the process comes back, sends, and says so
    answer_lost   the process lives and knows that it does not know
    never_sent    no attempt has left the machine
    expired       the moment before which it had to be sent has passed, and nothing was
    doubled       the way to the target delivered one request twice
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, assert_never

from effect_broker.faultpoints import FaultPoint as Point
from effect_broker.proof.matrix.axes import (
    ANSWERS,
    CONCLUDE_POINTS,
    KILLS,
    LOOK_UP_POINTS,
    Cell,
    Fault,
    TargetClass,
)


class Situation(StrEnum):
    """What place and fault leave behind."""

    UNHARMED = "unharmed"
    LOST_UNSENT = "lost_unsent"
    LOST_SENT = "lost_sent"
    LATE_UNSENT = "late_unsent"
    LATE_SENT = "late_sent"
    SENDS_LATE = "sends_late"
    ANSWER_LOST = "answer_lost"
    NEVER_SENT = "never_sent"
    EXPIRED = "expired"
    DOUBLED = "doubled"


@dataclass(frozen=True, slots=True)
class Expected:
    """What has to come out.

    Attributes:
        requests: that the target receives, exactly.
        effects: that the target holds, exactly.
        duplicate: by the contract's own lie, or of a process that sent after a look-up had
            truly found nothing; the broker has to find it, raise an alert and freeze the contract.
    """

    state: str
    requests: int
    effects: int
    reason: str | None = None
    duplicate: bool = False


_ONCE: Final = Expected("succeeded", 1, 1)
_SAME_KEY_AGAIN: Final = Expected("succeeded", 2, 1)
_FALSE_ABSENCE: Final = Expected("succeeded", 2, 2, duplicate=True)
_SECOND_OBJECT: Final = Expected("succeeded", 2, 2, duplicate=True)
_UNKNOWN_UNSENT: Final = Expected("outcome_unknown", 0, 0)
_UNKNOWN_SENT: Final = Expected("outcome_unknown", 1, 1)
_EXPIRED_UNSENT: Final = Expected("manual_review", 0, 0, "key_expired")
_EXPIRED_SENT: Final = Expected("manual_review", 1, 1, "key_expired")
_NEVER_SENT: Final = Expected("failed_final", 0, 0, "never_sent")
_EXPIRED: Final = Expected("failed_final", 0, 0, "expired")
# One attempt, two arrivals: no broker can see it, and only a key at the target prevents it.
_DOUBLED: Final = Expected("succeeded", 2, 2)

T = TargetClass
S = Situation
_ALL: Final[Mapping[TargetClass, Expected]] = dict.fromkeys(TargetClass, _ONCE)

# A class that is not named in a row makes one effect of one request.
OUTCOMES: Final[Mapping[Situation, Mapping[TargetClass, Expected]]] = MappingProxyType(
    {
        S.UNHARMED: _ALL,
        S.LOST_UNSENT: {
            **_ALL,
            T.IDEMPOTENT_EXPIRING: _EXPIRED_UNSENT,
            T.UNSAFE: _UNKNOWN_UNSENT,
        },
        S.LOST_SENT: {
            **_ALL,
            T.IDEMPOTENT: _SAME_KEY_AGAIN,
            T.IDEMPOTENT_EXPIRING: _EXPIRED_SENT,
            T.RECONCILABLE_LYING: _FALSE_ABSENCE,
            T.UNSAFE: _UNKNOWN_SENT,
        },
        # Its own word that nothing was sent is a proof for every class.
        S.LATE_UNSENT: _ALL,
        S.LATE_SENT: {
            **_ALL,
            T.IDEMPOTENT: _SAME_KEY_AGAIN,
            T.RECONCILABLE_LYING: _FALSE_ABSENCE,
        },
        # Behind the last gate nothing of ours can stop it: what follows is what the class bears.
        S.SENDS_LATE: {
            T.TRANSACTIONAL: _ONCE,  # its commit needs the key on which a successor has a fence
            T.IDEMPOTENT: _SAME_KEY_AGAIN,
            T.IDEMPOTENT_EXPIRING: _EXPIRED_SENT,  # nobody else has sent
            T.RECONCILABLE: _SECOND_OBJECT,
            T.RECONCILABLE_LAGGING: _SECOND_OBJECT,
            T.RECONCILABLE_LYING: _SECOND_OBJECT,
            T.UNSAFE: _UNKNOWN_SENT,  # nobody else has sent
        },
        S.ANSWER_LOST: {
            **_ALL,
            T.IDEMPOTENT: _SAME_KEY_AGAIN,
            T.IDEMPOTENT_EXPIRING: _SAME_KEY_AGAIN,  # at once, while the key is alive
            T.RECONCILABLE_LYING: _FALSE_ABSENCE,
            T.UNSAFE: _UNKNOWN_SENT,
        },
        S.NEVER_SENT: dict.fromkeys(TargetClass, _NEVER_SENT),
        S.EXPIRED: dict.fromkeys(TargetClass, _EXPIRED),
        S.DOUBLED: {
            **dict.fromkeys(TargetClass, _DOUBLED),
            T.IDEMPOTENT: _SAME_KEY_AGAIN,
            T.IDEMPOTENT_EXPIRING: _SAME_KEY_AGAIN,
        },
    }
)

# What leads up to a conclusion, see `leads`: a hold that is lifted again, a moment that has passed,
# a worker that was lost behind the target's answer.
CONCLUDED: Final[Mapping[TargetClass, Situation]] = {
    T.TRANSACTIONAL: S.UNHARMED,
    T.IDEMPOTENT: S.UNHARMED,
    T.RECONCILABLE: S.EXPIRED,
    T.UNSAFE: S.LOST_SENT,
}

_UNSENT_POINTS: Final = frozenset(
    {
        Point.AFTER_ATTEMPT_COMMIT,
        Point.BEFORE_SOCKET_WRITE,
        Point.AFTER_LAST_GATE,
        Point.INSIDE_MUTATION,
    }
)
_SENT_POINTS: Final = frozenset({Point.AFTER_TARGET_ANSWER, Point.BEFORE_OUTCOME_COMMIT})


def situation(cell: Cell) -> Situation:
    """Return what the cell's place and fault leave behind."""
    if cell.point in LOOK_UP_POINTS:
        # Led up to by a lost answer. The look-up is a read: whatever befalls it, it is repeated.
        return S.ANSWER_LOST
    if cell.point in CONCLUDE_POINTS:
        # Whatever befalls it, the conclusion is written by somebody, and what it says holds.
        return CONCLUDED[cell.target]
    if cell.fault in ANSWERS:
        return S.ANSWER_LOST
    unsent, sent = cell.point in _UNSENT_POINTS, cell.point in _SENT_POINTS
    match cell.fault:
        case fault if fault in KILLS:
            return S.LOST_UNSENT if unsent else S.LOST_SENT if sent else S.UNHARMED
        case Fault.STOP if cell.point is Point.AFTER_LAST_GATE:
            return S.SENDS_LATE
        case Fault.STOP:
            return S.LATE_UNSENT if unsent else S.LATE_SENT if sent else S.UNHARMED
        case Fault.DNS:
            return S.NEVER_SENT
        case Fault.TWICE:
            return S.DOUBLED
        case _:
            # The process lives: what it could not write at once it writes when it can, and what
            # it could not send (refused) it sends when it can.
            return S.UNHARMED


def expected(cell: Cell) -> Expected:
    """Return what has to come out in the end."""
    return OUTCOMES[situation(cell)][cell.target]


def expected_meanwhile(cell: Cell) -> Expected | None:
    """Return what has to stand while the stopped process has not come back; None for no stop."""
    if cell.fault is not Fault.STOP:
        return None
    if cell.point in CONCLUDE_POINTS:
        return expected(cell)
    match situation(cell):
        case S.LATE_UNSENT | S.SENDS_LATE:
            return OUTCOMES[S.LOST_UNSENT][cell.target]
        case S.LATE_SENT:
            return OUTCOMES[S.LOST_SENT][cell.target]
        case S.UNHARMED | S.ANSWER_LOST as same:
            return OUTCOMES[same][cell.target]
        case S.LOST_UNSENT | S.LOST_SENT | S.NEVER_SENT | S.EXPIRED | S.DOUBLED:
            raise AssertionError("no stop leaves this behind")
        case never:
            assert_never(never)
