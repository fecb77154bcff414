"""What the fold takes on either side of its rules: versions, texts, losses, defaults."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from effect_contracts.facts import Outcome
from effect_contracts.history import (
    SCHEMA_MEMBER,
    SCHEMA_VERSION,
    EffectThen,
    EventUnreadable,
    upcast,
)

from .test_history import BEGAN_AT, folded, story


@pytest.mark.parametrize("metadata", ["", "{", "{'a': 1}", "[" * 100_000])
def test_an_event_whose_text_is_no_json_is_unread_and_the_others_are_not(metadata: str) -> None:
    """The last one is deeper than the library goes."""
    told = story()
    told[1] = told[1].model_copy(update={"metadata": metadata})
    with pytest.raises(EventUnreadable, match=r"^its metadata is not JSON$"):
        upcast(told[1])
    then = folded(told)
    assert then.unread == (2,)
    assert (then.state, then.look_ups, then.contradicted) == ("succeeded", 1, True)


def _in_version(version: Any) -> str:
    first = story()[0]
    metadata = json.loads(first.metadata) | {SCHEMA_MEMBER: version}
    try:
        upcast(first.model_copy(update={"metadata": json.dumps(metadata)}))
    except EventUnreadable as unreadable:
        return str(unreadable)
    return "read"


def test_the_version_that_is_folded_is_no_newer_one() -> None:
    newer = "it was written by a newer release"
    assert _in_version(SCHEMA_VERSION + 1) == newer
    assert _in_version(SCHEMA_VERSION) != newer


@pytest.mark.parametrize("unknown", [2, 9])
def test_a_loss_of_an_attempt_that_is_not_known_hides_no_other(unknown: int) -> None:
    lost_at = BEGAN_AT + timedelta(seconds=2)
    attempt = folded(story()[:3], {unknown: lost_at, 1: lost_at}).attempts[1]
    assert attempt.outcome == Outcome.PRESUMED_AMBIGUOUS.value


def test_what_was_not_told_is_not_assumed() -> None:
    then = EffectThen(1, 1, BEGAN_AT, "prepared", "submitted", "caller:c-1")
    assert (then.look_ups, then.contradicted, then.unread) == (0, False, ())
    assert (then.submitted_by, then.drill_id) == (None, None)
    assert [then.attempts, then.evidence, then.resolutions, then.deeds] == [{}] * 4
