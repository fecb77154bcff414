"""What a kill has shown: counts of the target's ledger, and what the peer's own record says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of one effect whose sender was killed once the target had committed.

    Attributes:
        requests: that the target has received, in all.
        effects: that the target holds.
        says: what the peer's record says at the end of the wait, in its own words.
        done: a caller has got the target's answer from the peer.
        asks: the peer's record waits for a person, by the peer's own marks.
        ended: the peer gave a last answer, and it was no result.
        seconds: from the kill to `done` or `ended`; else the whole wait.
    """

    requests: int
    effects: int
    says: str
    done: bool
    asks: bool
    ended: bool
    seconds: float

    @property
    def counts(self) -> str:
        """Requests and effects as a cell."""
        return f"{self.requests}/{self.effects}"

    @property
    def verdict(self) -> str:
        """Return the kind of end; the ledger goes before what the peer says."""
        if self.effects > 1:
            return "duplicate"
        if self.done:
            return "settled by itself"
        if self.asks:
            return "asks a person"
        return "says failed" if self.ended else "stuck"

    @property
    def told(self) -> str:
        """Return the verdict with the peer's own words and the time it took."""
        took = f" after {self.seconds:.0f} s" if self.done or self.ended else ""
        return f"{self.verdict}{took} ({self.says})"


def missing(figures: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a line for each row of the part's figures that was not measured, or not killed."""
    lines = []
    for name, peer in figures.items():
        if peer["failed"] is not None:
            lines.append(f"{name}: {peer['failed']}")
        elif not (peer["version"] and peer["per_second_8"] and peer["median_ms_1"]):
            lines.append(f"{name}: not measured")
        lines += [f"{row}: not killed" for row, ends in peer["after_a_kill"].items() if not ends]
    return lines
