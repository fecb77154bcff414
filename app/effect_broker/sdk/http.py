"""The transport over HTTP, and the one boundary at which the errors of httpx become the SDK's.

The API key is in one place, the header of the client that this file makes. It is checked before it
gets there, because libraries quote what they cannot send; redirects are not followed, because the
key would follow them.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote
from uuid import UUID

import httpx

from effect_broker.sdk.errors import (
    Body,
    BrokerError,
    NotConfigured,
    NotUnderstood,
    Unavailable,
    error_of,
)
from effect_broker.sdk.transport import Deed, Home, Wish

# A connection to a machine that is there takes far less; one that is gone says nothing at all.
_CONNECT_SECONDS: Final = 5.0
_IDLE_CONNECTIONS_MAX: Final = 20
_ANSWERS: Final = frozenset({200, 202})
# Nobody was reached, so that nobody has anything to be told of.
_WITHOUT_A_CONNECTION: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class HttpTransport:
    """Speaks to the API of a broker.

    Args:
        base_url: of the API; a path in it is kept, for brokers behind a prefix.
        api_key: of the tenant.
        tls: trust other certificates than those that httpx trusts. Verification stays on.
        answer_seconds: within which an answer has to be there, what it waits for not counted.
        inner: takes the requests instead of a connection.

    Raises:
        NotConfigured.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        tls: ssl.SSLContext | None,
        answer_seconds: float,
        inner: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._url = _checked_url(base_url)
        if tls is not None and (tls.verify_mode != ssl.CERT_REQUIRED or not tls.check_hostname):
            raise NotConfigured("The TLS context does not verify the server; it has to.")
        self._answer_seconds = answer_seconds
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {_checked_key(api_key)}"},
            verify=tls if tls is not None else True,
            # Of a whole exchange; httpx's own limits are for each read and each write.
            timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS),
            # Who waits holds a connection; how many may wait is the broker's to say.
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=_IDLE_CONNECTIONS_MAX
            ),
            follow_redirects=False,
            transport=inner,
        )

    def __repr__(self) -> str:
        return f"HttpTransport({str(self._url)!r})"

    async def submit(self, body: bytes) -> Body:
        """As `Transport.submit`."""
        return await self._call("POST", "", body=body)

    async def effect(self, effect_id: UUID, wait_seconds: float) -> Body:
        """As `Transport.effect`."""
        return await self._call("GET", f"/{effect_id}", wait_seconds=wait_seconds)

    async def receipt(self, effect_id: UUID) -> Body:
        """As `Transport.receipt`."""
        return await self._call("GET", f"/{effect_id}/receipt")

    async def resolve(self, effect_id: UUID, body: bytes) -> Body:
        """As `Transport.resolve`."""
        return await self._call("POST", f"/{effect_id}/resolve", body=body)

    async def wish(self, effect_id: UUID, wish: Wish) -> Body:
        """As `Transport.wish`."""
        return await self._call("POST", f"/{effect_id}/{wish}")

    async def tool(self, name: str) -> Body:
        """As `Transport.tool`."""
        path = quote(name, safe="")
        return await self._send(self._client.build_request("GET", f"{self._url}/v1/tools/{path}"))

    async def unresolved(self, query: Mapping[str, str]) -> Body:
        """As `Transport.unresolved`."""
        return await self._send(
            self._client.build_request("GET", f"{self._url}/v1/unresolved", params=query)
        )

    async def home(self) -> Home | None:
        """As `Transport.home`."""
        return None

    async def elect(self, body: bytes) -> Body:
        """As `Transport.elect`."""
        return await self._call("POST", "/elect", body=body)

    async def attempt(self, effect_id: UUID, ordinal: int, deed: Deed, body: bytes) -> Body:
        """As `Transport.attempt`."""
        return await self._call("POST", f"/{effect_id}/attempts/{ordinal}/{deed}", body=body)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def _call(
        self, method: str, path: str, *, body: bytes | None = None, wait_seconds: float = 0.0
    ) -> Body:
        request = self._client.build_request(
            method,
            f"{self._url}/v1/effects{path}",
            content=body,
            params={"wait": f"{wait_seconds:.3f}"} if wait_seconds > 0 else None,
            headers={"Content-Type": "application/json"} if body is not None else None,
        )
        return await self._send(request, wait_seconds)

    async def _send(self, request: httpx.Request, wait_seconds: float = 0.0) -> Body:
        try:
            async with asyncio.timeout(self._answer_seconds + wait_seconds):
                answer = await self._client.send(request)
        except TimeoutError:
            problem: BrokerError = Unavailable("The broker did not answer in time.")
        except httpx.HTTPError as error:
            unavailable = Unavailable(_said(error))
            unavailable._reached = not isinstance(error, _WITHOUT_A_CONNECTION)
            problem = unavailable
        else:
            return _body_of(answer)
        # Outside of the except blocks: an error of httpx holds the request, and with it the key.
        raise problem


def _said(error: httpx.HTTPError) -> str:
    """What may be told of an error of httpx."""
    kind = type(error).__name__
    # Refused, no such host, a bad certificate: what a person needs to mend it. Other texts may
    # quote what was sent.
    told = f": {error}" if isinstance(error, httpx.ConnectError) and str(error) else ""
    return f"The broker did not answer ({kind}{told})."


def _body_of(answer: httpx.Response) -> Body:
    body: Any
    try:
        body = answer.json()
    except (ValueError, RecursionError):
        body = None
    if answer.status_code not in _ANSWERS:
        raise error_of(answer.status_code, body, answer.headers.get("Retry-After"))
    if not isinstance(body, dict):
        raise NotUnderstood(f"Status {answer.status_code} without a JSON object.")
    return body


def _checked_url(base_url: str) -> str:
    """Return the URL without the slash at its end.

    Raises:
        NotConfigured.
    """
    try:
        url = httpx.URL(base_url)
    except (httpx.InvalidURL, TypeError):
        url = httpx.URL()
    if url.scheme not in {"http", "https"} or not url.host:
        raise NotConfigured("The broker's URL has to be http(s)://host[:port][/prefix].")
    if url.userinfo or url.query or url.fragment:
        raise NotConfigured("The broker's URL holds no user, no query and no fragment.")
    return str(url).rstrip("/")


def _checked_key(api_key: str) -> str:
    """Return the key if a header can carry it.

    Raises:
        NotConfigured: it says nothing of the key.
    """
    if type(api_key) is not str or not api_key:
        raise NotConfigured("The API key is missing.")
    if not all("!" <= character <= "~" for character in api_key):
        raise NotConfigured("The API key holds characters that no API key has.")
    return api_key
