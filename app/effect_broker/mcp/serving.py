"""Serving an MCP server over stdio, or over HTTP on one address.

Whoever reaches the address acts with the API key of this process. So an address that others reach
asks for a token of its own, and one of this machine answers to names of this machine only (a page
in a browser could otherwise be made to speak to it).
"""

from __future__ import annotations

import hmac
from typing import Any, Final

import uvicorn
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import ASGIApp, Receive, Scope, Send

from effect_broker.config import ConfigurationProblem
from effect_contracts.expressions import is_loopback

PATH: Final = "/mcp"
TOKEN_CHARS_MIN: Final = 16


async def serve_stdio(server: Server[Any]) -> None:
    """Serve one client on stdin and stdout, until it leaves."""
    async with stdio_server() as (incoming, outgoing):
        options = server.create_initialization_options(NotificationOptions(tools_changed=True))
        await server.run(incoming, outgoing, options)


async def serve_http(server: Server[Any], address: str, token: str | None) -> None:
    """Serve streamable HTTP at `address` (HOST:PORT), until SIGINT or SIGTERM.

    Raises:
        ConfigurationProblem: the address is none, or has to have a token and has none.
    """
    host, port = checked_address(address, token)
    config = uvicorn.Config(
        http_app(server, host, token),
        host=host,
        port=port,
        log_config=None,  # the broker's own, as for `serve`
        access_log=False,
    )
    await uvicorn.Server(config).serve()


def checked_address(address: str, token: str | None) -> tuple[str, int]:
    """Return host and port of HOST:PORT.

    Raises:
        ConfigurationProblem.
    """
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigurationProblem(f"{address!r} is no HOST:PORT, such as 127.0.0.1:8765")
    if token is None and not is_loopback(host):
        raise ConfigurationProblem(
            f"{host} can be reached by others, who would act with the API key of this process: "
            "set a token of at least "
            f"{TOKEN_CHARS_MIN} characters (EFFECT_BROKER_MCP_TOKEN for `mcp serve`, front.token "
            "for `mcp proxy`)"
        )
    if token is not None and len(token) < TOKEN_CHARS_MIN:
        raise ConfigurationProblem(f"the token has fewer than {TOKEN_CHARS_MIN} characters")
    return host, int(port)


def http_app(server: Server[Any], host: str, token: str | None) -> ASGIApp:
    """Return the application that serves `server` at `PATH`."""
    security = _names_of_this_machine(host) if is_loopback(host) else None
    app = server.streamable_http_app(
        streamable_http_path=PATH, host=host, transport_security=security
    )
    return app if token is None else _WithToken(app, token)


def _names_of_this_machine(host: str) -> TransportSecuritySettings:
    """What a request may call an address of this machine; the library knows three spellings."""
    shown = f"[{host}]" if ":" in host else host.lower()
    names = list(dict.fromkeys(("127.0.0.1", "localhost", "[::1]", shown)))
    hosts = [name + port for name in names for port in ("", ":*")]
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=hosts,
        allowed_origins=[f"http://{known}" for known in hosts],
    )


class _WithToken:
    """Lets requests through that carry the bearer token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                await send(
                    {
                        "type": "http.response.start",
                        "status": 401,
                        "headers": [(b"www-authenticate", b"Bearer"), (b"content-length", b"0")],
                    }
                )
                await send({"type": "http.response.body", "body": b""})
                return
        await self._app(scope, receive, send)
