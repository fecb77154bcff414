"""Elections without a request: a caller on Postgres pays for its two commits and for little else.

The bodies are read, judged and answered by the very functions that the API's routes call; what is
left out is the way through an HTTP client and a web framework, twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final
from uuid import UUID

from effect_broker.api import elections
from effect_broker.api.services import Services
from effect_broker.intake import Scope, Tenant
from effect_broker.protocol.ports import EffectMissing, StoreError
from effect_broker.sdk.errors import Body, BrokerError, NotFound, Unavailable, error_of
from effect_broker.sdk.in_process import InProcess
from effect_broker.sdk.transport import Deed
from effect_contracts.canonical import DEPTH_MAX, parse_strict
from effect_contracts.errors import EffectError, problem

# The envelope is a level of its own, as for the API.
_DEPTH_MAX: Final = DEPTH_MAX + 1

Call = Callable[[Services, Tenant], Awaitable[dict[str, Any]]]


class DirectElections:
    """The calls of `Transport` that elect, extend and tell, for an application in this process."""

    def __init__(self, application: InProcess, api_key: str, answer_seconds: float) -> None:
        self._application = application
        self._api_key = api_key
        self._answer_seconds = answer_seconds

    async def elect(self, body: bytes) -> Body:
        """As `Transport.elect`."""
        value = parse_strict(body, depth_max=_DEPTH_MAX)
        return await self._answered(
            lambda services, tenant: elections.elected(services, tenant, value)
        )

    async def attempt(self, effect_id: UUID, ordinal: int, deed: Deed, body: bytes) -> Body:
        """As `Transport.attempt`."""
        value = parse_strict(body, depth_max=_DEPTH_MAX)
        call = elections.told if deed == "confirm" else elections.extended
        return await self._answered(
            lambda services, tenant: call(services, tenant, effect_id, ordinal, value)
        )

    async def _answered(self, call: Call) -> Body:
        """Make one try of one call; its errors come out as the SDK's.

        Raises:
            BrokerError.
        """
        services: Services = (await self._application.app()).state.services
        refusal: BrokerError
        try:
            async with asyncio.timeout(self._answer_seconds):
                tenant = await services.authenticator.tenant(self._api_key)
                tenant.require(Scope.SUBMIT)
                return await call(services, tenant)
        except EffectError as error:
            refusal = error_of(error.status, problem(error))
        except EffectMissing:
            refusal = NotFound("There is no such effect of this tenant.", {"code": "not_found"})
        except StoreError as error:
            refusal = Unavailable(f"The database did not answer ({type(error).__name__}).")
        except TimeoutError:
            refusal = Unavailable("The database did not answer in time.")
        # Outside of the except blocks: what was raised may hold arguments.
        raise refusal
