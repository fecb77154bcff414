"""Owns the modes: how one kind of object treats keys and look-ups, and which values are legal.

========================  =============================================================
``dedupe``                the first answer is replayed by key, drift is refused
``store_errors``          as `dedupe`, and a scripted error is stored and replayed too
``ignore_key``            accepts a key and makes a new effect each time: the false promise
``conflict_existing``     a known key is refused with 409 and the id of the existing object
``forget_unheard``        as `dedupe`, but the key of a client that has gone before its answer
                          is forgotten, although the effect stays
``racing``                as `dedupe`, but two requests of a new key that overlap each make an
                          effect: the key is looked up first, and written at the end
``lookup``                never de-duplicates; the key is found by a look-up after the lag
``neither``               never de-duplicates, and every look-up is 404
``count_only``            for benchmarks: answers at once and counts in memory
========================  =============================================================
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

ModeName: TypeAlias = Literal[
    "dedupe",
    "store_errors",
    "ignore_key",
    "conflict_existing",
    "forget_unheard",
    "racing",
    "lookup",
    "neither",
    "count_only",
]
KIND = re.compile(r"[a-z][a-z0-9_]{0,39}")
"""What a kind may be called: it is a path segment and the head of object ids."""

_PREFIXES = {"charges": "ch", "refunds": "re", "emails": "em", "tickets": "ti", "deployments": "dp"}


class Mode(BaseModel):
    """The settings of one kind. Times are in seconds of the target's clock."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    mode: ModeName = "dedupe"
    ttl_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Key retention; afterwards the key is forgotten and a new effect is made."""
    drift: Literal["conflict", "bad_request", "replay"] = "conflict"
    """Same key, other request: 409, 400, or the old answer without a word."""
    in_flight: bool = False
    """Answer 409 ``in_progress`` while the first request of the key is still worked on."""
    retry_after_seconds: Annotated[int, Field(ge=0, le=3600)] = 1
    search_lag_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """How long a new object stays invisible to look-ups by key and to lists."""
    key_fields: tuple[str, ...] = ("correlation_key", "reference")
    """Body fields (dotted paths) that may carry the caller's key."""

    @property
    def replays(self) -> bool:
        return self.mode in ("dedupe", "store_errors", "forget_unheard", "racing")


def id_prefix(kind: str) -> str:
    """The head of an object's id: ``ch`` for charges, else the kind's first letters."""
    return _PREFIXES.get(kind, kind.replace("_", "")[:3])
