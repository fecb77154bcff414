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
    NotConfigured,
    NotFound,
    NotUnderstood,
    RateLimited,
    RequestRefused,
    StaleVersion,
    TooEarly,
    Unavailable,
)
from effect_broker.sdk.face import Broker
from effect_broker.sdk.patience import Deadline
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
    Unknown,
    WaitsForPerson,
)
from effect_contracts.facts import Conclusion

__all__ = [
    "AccessRefused",
    "AsyncBroker",
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
    "Evidence",
    "Failed",
    "NotConfigured",
    "NotFound",
    "NotUnderstood",
    "NotYet",
    "Outcome",
    "RateLimited",
    "Receipt",
    "RequestRefused",
    "StaleVersion",
    "Succeeded",
    "TooEarly",
    "Unavailable",
    "Unknown",
    "WaitsForPerson",
]
