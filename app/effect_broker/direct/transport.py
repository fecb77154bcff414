"""The transport on Postgres: the API's own application, inside the caller's process.

There is no second implementation of anything: a call goes through the same routes, bodies, rights
and errors as over HTTP, only that no socket lies between. What it needs is what `effect-broker
serve` needs: the database login of the API's role, and the key ring.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Any, Final
from uuid import UUID

from effect_broker import assembly
from effect_broker.api.app import create_app
from effect_broker.api.services import Services
from effect_broker.assembly import DatabaseLogin
from effect_broker.config import ConfigurationProblem, Role, Settings
from effect_broker.direct.elections import DirectElections
from effect_broker.faultpoints import FaultSpecInvalid
from effect_broker.keyring import KeyRing, KeyRingProblem
from effect_broker.postgres.choice import PostgresNotFound
from effect_broker.protocol.ports import StoreError
from effect_broker.sdk.errors import Body, NotConfigured, Unavailable, error_of
from effect_broker.sdk.http import HttpTransport
from effect_broker.sdk.in_process import InProcess
from effect_broker.sdk.transport import Deed, Home
from effect_broker.store.joined import database_at
from effect_contracts.errors import EffectError, problem

# A caller's process makes far fewer calls at once than an API serves.
_SESSIONS_MAX: Final = 4
_NAME: Final = "effect-broker-sdk"
# Resolved by nobody: requests to it never leave the process.
_URL: Final = "http://in-process"


class PostgresTransport(HttpTransport):
    """Serves the calls of one client from the database.

    Args:
        api_key: of the tenant, as over HTTP.
        answer_seconds: within which an answer has to be there.

    Raises:
        NotConfigured: the key is none.
    """

    def __init__(
        self, settings: Settings, ring: KeyRing, api_key: str, *, answer_seconds: float
    ) -> None:
        self._settings = settings
        self._ring = ring
        self._api_key = api_key
        self._login: DatabaseLogin | None = None
        self._application = InProcess(self._opened)
        super().__init__(
            _URL, api_key, tls=None, answer_seconds=answer_seconds, inner=self._application
        )

        self._elections = DirectElections(self._application, api_key, answer_seconds)

    def __repr__(self) -> str:
        return "PostgresTransport()"

    async def elect(self, body: bytes) -> Body:
        """As `Transport.elect`."""
        return await self._elections.elect(body)

    async def attempt(self, effect_id: UUID, ordinal: int, deed: Deed, body: bytes) -> Body:
        """As `Transport.attempt`."""
        return await self._elections.attempt(effect_id, ordinal, deed, body)

    async def home(self) -> Home:
        """Return whose key this is, and which database is behind it."""
        services: Services = (await self._application.app()).state.services
        assert self._login is not None, "an application that runs has a database"
        try:
            tenant = await services.authenticator.tenant(self._api_key)
            database = await asyncio.to_thread(database_at, self._login.url)
        except EffectError as error:
            refusal: Exception = error_of(error.status, problem(error))
        except StoreError as error:
            refusal = Unavailable(f"The database did not answer ({type(error).__name__}).")
        else:
            return Home(tenant.tenant_id, database)
        raise refusal

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Any]:
        """Give the application, started.

        Raises:
            NotConfigured: nothing can be opened as it is configured.
            Unavailable: the database is not there, or not fit, for now.
        """
        stack = ExitStack()
        refusal: Exception
        try:
            # The embedded server of a project, where no URL is given, takes its time.
            self._login = await asyncio.to_thread(
                stack.enter_context, assembly.database(self._settings, Role.API)
            )
            services = partial(
                assembly.api_services,
                self._settings,
                self._login,
                self._ring,
                name=_NAME,
                sessions_max=_SESSIONS_MAX,
            )
            app = create_app(services)
            async with app.router.lifespan_context(app):
                yield app
            return
        except (KeyRingProblem, FaultSpecInvalid, PostgresNotFound) as trouble:
            refusal = NotConfigured(f"{trouble}.")
        except ConfigurationProblem as trouble:
            missing = self._login is None
            refusal = NotConfigured(f"{trouble}.") if missing else Unavailable(f"{trouble}.")
        except StoreError as trouble:
            refusal = Unavailable(f"The database cannot be used ({trouble}).")
        finally:
            await asyncio.to_thread(stack.close)
        raise refusal
