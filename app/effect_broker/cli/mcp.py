"""`effect-broker mcp`: the broker for agents that speak MCP, as tools of its own and as a proxy."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from effect_broker.cli.output import complain
from effect_broker.config import ConfigurationProblem, Settings, load_settings
from effect_broker.secretrefs import SecretReferences
from effect_contracts.counting import counted

app = typer.Typer(help="The broker for agents that speak MCP.", no_args_is_help=True)

ENV_TOKEN: Final = "EFFECT_BROKER_MCP_TOKEN"
# A client waits a minute at most; it has to hear that the broker is away before that.
PATIENCE: Final = timedelta(seconds=20)

HttpOption = Annotated[
    str | None, typer.Option("--http", help="Serve streamable HTTP at HOST:PORT, path /mcp.")
]


@app.command("serve")
def serve(http: HttpOption = None) -> None:
    """Serve the broker's own tools: submit, look, receipt, list what is unknown, ask for a look.

    Over stdio, or HTTP. The broker is EFFECT_BROKER_URL, the key EFFECT_BROKER_API_KEY; over HTTP
    clients send EFFECT_BROKER_MCP_TOKEN as bearer token, if it is set.
    """
    _check_installed()

    async def work() -> None:
        from effect_broker.mcp.management import management_server
        from effect_broker.mcp.serving import checked_address, serve_http, serve_stdio
        from effect_broker.sdk import AsyncBroker

        token = os.environ.get(ENV_TOKEN) or None
        if http is not None:
            checked_address(http, token)
        async with AsyncBroker.from_environment(patience=PATIENCE) as broker:
            server = management_server(broker)
            await (serve_stdio(server) if http is None else serve_http(server, http, token))

    _run(work)


@app.command("proxy")
def proxy(
    config: Annotated[Path, typer.Option("--config", help="The YAML file of the proxy.")],
    check: Annotated[
        bool,
        typer.Option("--check", help="Look at the file, the upstream and the contracts, and end."),
    ] = False,
) -> None:
    """Stand in front of an MCP server; tools with a contract become effects of the broker."""
    _check_installed()

    async def work() -> None:
        from effect_broker.mcp.proxy import Proxy
        from effect_broker.mcp.proxy_config import config_from
        from effect_broker.mcp.serving import checked_address, serve_http, serve_stdio
        from effect_broker.sdk import AsyncBroker

        read = config_from(config)
        secrets = _secrets(load_settings())
        token = None
        if read.front is not None:
            if read.front.token is not None:
                token = read.front.token.prefix + secrets(read.front.token.secret)
            checked_address(read.front.http, token)
        async with AsyncBroker.from_environment(patience=PATIENCE) as broker:
            made = Proxy(read, broker, secrets)
            try:
                unnamed = await made.check()
                if check:
                    await made.check_contracts()
                    named = counted(len(read.tools), "tool is", "tools are")
                    typer.echo(f"{config}: good; {named} named")
                    if unnamed:
                        shown = (name if name.isprintable() else "?" for name in unnamed)
                        typer.echo(f"refused, as they are not named: {', '.join(shown)}")
                elif read.front is None:
                    await serve_stdio(made.server)
                else:
                    await serve_http(made.server, read.front.http, token)
            finally:
                await made.close()

    _run(work)


def _secrets(settings: Settings) -> SecretReferences:
    return SecretReferences(settings.secret_prefix, settings.secret_directory)


def _check_installed() -> None:
    if find_spec("mcp") is None:
        complain("this command needs the extra: pip install 'effect-broker[mcp]'")


def _run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    from effect_adapters.base import SecretUnavailable
    from effect_adapters.mcp.quiet import silence_libraries
    from effect_broker.sdk import BrokerError

    silence_libraries()
    try:
        asyncio.run(work())
    except (BrokerError, SecretUnavailable) as problem:
        raise ConfigurationProblem(str(problem)) from None
