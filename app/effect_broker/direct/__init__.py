"""The SDK's ways to Postgres: the API in the caller's process, and the caller's own transactions.

The SDK imports this package when one of them is asked for, and nothing of it before.
"""

from effect_broker.direct.joining import Joining
from effect_broker.direct.settings import ring_for, settings_for
from effect_broker.direct.transport import PostgresTransport

__all__ = ["Joining", "PostgresTransport", "ring_for", "settings_for"]
