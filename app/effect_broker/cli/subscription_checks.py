"""What `doctor` says of subscriptions to events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from effect_broker.cli import checks
from effect_broker.cli.checks import Finding
from effect_broker.store.subscriptions import Standing
from effect_contracts.counting import counted

# Those in trouble come first, so that more than this would only repeat what is said.
STANDINGS_MAX: Final = 1000
_NAMED: Final = 5
_CHECK: Final = "subscriptions"


def subscription_findings(found: Sequence[Standing]) -> Iterator[Finding]:
    """Judge whether those who want to be told of events are told."""
    paused = [one for one in found if one.pause_code is not None]
    failing = [one for one in found if one.pause_code is None and one.failing_since is not None]
    dead = [one for one in found if one.dead]
    if paused:
        yield checks.warn(
            _CHECK, f"paused, and nothing is delivered: {_named(paused)}",
            "mend the receiver, then `effect-broker subscriptions resume ID`",
        )  # fmt: skip
    if failing:
        yield checks.warn(
            _CHECK, f"the receiver accepts nothing: {_named(failing)}",
            "look at the receiver; `effect-broker subscriptions list` has the last code",
        )  # fmt: skip
    if dead:
        yield checks.warn(
            _CHECK, f"with dead letters: {_named(dead)}",
            "`effect-broker subscriptions dead-letters ID`, then `redeliver`",
        )  # fmt: skip
    if not (paused or failing or dead):
        yield checks.ok(_CHECK, f"{counted(len(found), 'subscription')}, none in trouble")


def _named(found: Sequence[Standing]) -> str:
    names = ", ".join(
        f"{one.subscription_id} of {one.tenant} ({one.pause_code or one.last_code or 'waits'})"
        for one in found[:_NAMED]
    )
    return names + (f" and {len(found) - _NAMED} more" if len(found) > _NAMED else "")
