"""An application in the caller's process instead of a server: what httpx sends through then.

The application lives in a task of its own from the first request on. Its parts have to be closed
where they were opened, and the task of a caller may end at any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

import httpx

Opened: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]
"""Gives an ASGI application that has started; it ends with the block."""


class InProcess(httpx.AsyncBaseTransport):
    """Sends requests to an application that is opened when the first one comes.

    What opening raises is raised to whoever asked; the next request opens it anew.
    """

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._ending = asyncio.Event()
        self._life: asyncio.Task[None] | None = None
        self._app: asyncio.Future[Any] | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Serve one request, as a server would: what the application raises is a status 500."""
        inner = httpx.ASGITransport(app=await self.app(), raise_app_exceptions=False)
        return await inner.handle_async_request(request)

    async def app(self) -> Any:
        """Return the running application."""
        if self._app is None or self._life is None or self._life.done():
            self._app = asyncio.get_running_loop().create_future()
            self._life = asyncio.create_task(self._live(self._app))
        # Who gives up waiting leaves it to those who still wait.
        return await asyncio.shield(self._app)

    async def aclose(self) -> None:
        """End the application, and wait until all that it held is given back."""
        self._ending.set()
        if self._life is not None:
            await asyncio.gather(self._life, return_exceptions=True)

    async def _live(self, ready: asyncio.Future[Any]) -> None:
        try:
            async with self._opened() as app:
                ready.set_result(app)
                await self._ending.wait()
        except Exception as problem:
            if ready.done():
                raise
            ready.set_exception(problem)
            ready.exception()  # seen: nobody may be there any more who waits for it
        finally:
            ready.cancel()
