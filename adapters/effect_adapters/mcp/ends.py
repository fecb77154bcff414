"""One call of a tool, and the three ways in which an attempt at it ends.

Told      the server's answer to the call is in
NotSent   the call did not pass the gate, so no byte of it left
Lost      everything else: it may have arrived, and may have been carried out
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from effect_contracts.canonical import JsonValue


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call as it goes out; nothing of it is ever printed."""

    tool: str
    arguments: dict[str, JsonValue] = field(repr=False)
    meta: dict[str, JsonValue] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Told:
    """The server's answer: a result in its form on the wire, or an error that it has sent.

    Attributes:
        status: of the HTTP answer, where there is one. An answer may be nothing but a status.
    """

    result: dict[str, Any] | None = field(repr=False)
    error: dict[str, Any] | None = field(repr=False)
    status: int | None


@dataclass(frozen=True, slots=True)
class NotSent:
    """It is proved that the call did not leave."""

    code: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The call may have left, and nothing is known of it."""

    code: str
    status: int | None = None


End = Told | NotSent | Lost
