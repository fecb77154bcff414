"""effect-broker: a correctness boundary for tool calls that change the outside world.

This module owns the package's public names: the version, and the Python SDK. Both are looked up
when they are asked for, so that importing the package costs its other users nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from effect_broker.sdk import (
        AccessRefused,
        AsyncBroker,
        AsyncPerformance,
        Attempt,
        Broker,
        BrokerError,
        Cancelled,
        Closed,
        Compensated,
        Conclusion,
        Conflict,
        Deadline,
        Effect,
        EffectFailed,
        EffectRef,
        ElectionLost,
        Evidence,
        Failed,
        NotConfigured,
        NotElected,
        NotFound,
        NotJoined,
        NotUnderstood,
        NotYet,
        Outcome,
        Performance,
        Performed,
        PerformOutcome,
        RateLimited,
        Receipt,
        RequestRefused,
        RunAgain,
        StaleVersion,
        Succeeded,
        TooEarly,
        Tool,
        Transacted,
        TransactionEnded,
        Unavailable,
        Unknown,
        UnresolvedEffect,
        UnresolvedPage,
        WaitsForPerson,
    )

    __version__: str

__all__ = [
    "AccessRefused",
    "AsyncBroker",
    "AsyncPerformance",
    "Attempt",
    "Broker",
    "BrokerError",
    "Cancelled",
    "Closed",
    "Compensated",
    "Conclusion",
    "Conflict",
    "Deadline",
    "Effect",
    "EffectFailed",
    "EffectRef",
    "ElectionLost",
    "Evidence",
    "Failed",
    "NotConfigured",
    "NotElected",
    "NotFound",
    "NotJoined",
    "NotUnderstood",
    "NotYet",
    "Outcome",
    "PerformOutcome",
    "Performance",
    "Performed",
    "RateLimited",
    "Receipt",
    "RequestRefused",
    "RunAgain",
    "StaleVersion",
    "Succeeded",
    "TooEarly",
    "Tool",
    "Transacted",
    "TransactionEnded",
    "Unavailable",
    "Unknown",
    "UnresolvedEffect",
    "UnresolvedPage",
    "WaitsForPerson",
    "__version__",
]

# Hidden from type checkers: they would take it for the answer to every misspelt name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name == "__version__":
            from importlib.metadata import version

            found = version("effect-broker")
        elif name in __all__:
            from effect_broker import sdk

            found = getattr(sdk, name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
