"""What the SDK returns of the unresolved listing: effects that want attention, the most urgent
first. A row is what the broker knows of an effect at one moment, and what may be done about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from effect_broker.sdk.errors import Body, NotUnderstood
from effect_contracts.facts import EffectState, SafetyClass


@dataclass(frozen=True, slots=True)
class UnresolvedEffect:
    """One effect that is not final and not simply on its way, or that has an alert.

    Attributes:
        reasons: why it is listed; the first is the leading one.
        waits_for_person: nothing happens by itself.
        key_expires_at: when the target forgets the key, so that a repeat would be a second effect.
        last_evidence: what was last learned of it, with `source`, `says`, `code` and `at`.
        next_step, next_step_at: what the broker does next, and when; None where it does nothing.
    """

    effect_id: UUID
    operation_key: str
    tool: str
    safety: SafetyClass
    state: EffectState
    reasons: tuple[str, ...]
    waits_for_person: bool
    alert: str | None
    version: int
    created_at: datetime
    age_seconds: float
    key_expires_at: datetime | None
    last_evidence: Mapping[str, Any] | None
    next_step: str | None
    next_step_at: datetime | None


@dataclass(frozen=True, slots=True)
class UnresolvedPage:
    """A page of the listing; `cursor` asks for the next one, None on the last."""

    effects: tuple[UnresolvedEffect, ...]
    cursor: str | None


def page_from(body: Body) -> UnresolvedPage:
    """Read the answer of the unresolved listing.

    Raises:
        NotUnderstood.
    """
    try:
        return UnresolvedPage(tuple(_effect(row) for row in body["unresolved"]), body["cursor"])
    except (KeyError, TypeError, ValueError, AttributeError):
        pass
    # Outside of the except block: the errors of reading quote what they could not read.
    raise NotUnderstood("The answer is not a listing as this SDK knows it.")


def _effect(row: Body) -> UnresolvedEffect:
    step = row["next_action"]
    return UnresolvedEffect(
        effect_id=UUID(row["effect_id"]),
        operation_key=row["operation_key"],
        tool=row["tool"],
        safety=SafetyClass(row["safety"]),
        state=EffectState(row["state"]),
        reasons=tuple(row["reasons"]),
        waits_for_person=row["waits_for_person"],
        alert=row["alert"],
        version=row["version"],
        created_at=datetime.fromisoformat(row["created_at"]),
        age_seconds=float(row["age_seconds"]),
        key_expires_at=_moment(row["key_expires_at"]),
        last_evidence=row["last_evidence"],
        next_step=None if step is None else step["step"],
        next_step_at=None if step is None else _moment(step["at"]),
    )


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
