"""What the routes stand on: the parts that the composition root hands to the application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from effect_broker.intake import Intake, Tenant
from effect_broker.protocol.ports import Vault
from effect_broker.reading import EffectReads
from effect_broker.resolving import Resolving


@dataclass(frozen=True, slots=True)
class Health:
    """What readiness has found.

    Attributes:
        ready: submits can be accepted.
        degraded: they can, and something else is missing, such as a live worker.
        checks: name to `ok` or a code.
    """

    ready: bool
    degraded: bool
    checks: dict[str, str]


class Authenticator(Protocol):
    """Finds the tenant of an API key."""

    async def tenant(self, api_key: str) -> Tenant:
        """Return who asks.

        Raises:
            Unauthenticated, TenantDisabled, StoreError.
        """


@dataclass(frozen=True, slots=True)
class Services:
    """The parts that the routes stand on."""

    intake: Intake
    reads: EffectReads
    resolving: Resolving
    vault: Vault
    authenticator: Authenticator
    health: Callable[[], Awaitable[Health]]


ServicesContext = Callable[[], AbstractAsyncContextManager[Services]]
