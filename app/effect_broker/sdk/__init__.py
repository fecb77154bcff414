"""The Python SDK: a broker from Python, with typed outcomes instead of exceptions to retry on.

`effect_broker` offers these names too, and imports this package when the first one is asked for.
"""

from effect_broker.sdk.client import AsyncBroker, EffectRef
from effect_broker.sdk.errors import (
    AccessRefused,
    BrokerError,
    Closed,
    Conflict,
    EffectFailed,
    ElectionLost,
    NotConfigured,
    NotElected,
    NotFound,
    NotJoined,
    NotUnderstood,
    RateLimited,
    RequestRefused,
    RunAgain,
    StaleVersion,
    TooEarly,
    TransactionEnded,
    Unavailable,
)
from effect_broker.sdk.face import Broker
from effect_broker.sdk.joined import Transacted
from effect_broker.sdk.patience import Deadline
from effect_broker.sdk.performing import (
    AsyncPerformance,
    Performance,
    Performed,
    PerformOutcome,
)
from effect_broker.sdk.results import (
    Attempt,
    Cancelled,
    Compensated,
    Effect,
    Evidence,
    Failed,
    NotYet,
    Outcome,
    Receipt,
    Succeeded,
    Tool,
    Unknown,
    WaitsForPerson,
)
from effect_broker.sdk.unresolved import UnresolvedEffect, UnresolvedPage
from effect_contracts.facts import Conclusion

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
]
