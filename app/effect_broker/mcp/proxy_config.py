"""The configuration of the proxy: what is behind it, what before it, and which tools do what.

    upstream:
      command: /srv/notes/bin/server        # or url: https://mcp.acme.example/mcp
      args: [--stdio]
      env: {NOTES_TOKEN: {secret: "env:EFFECT_BROKER_SECRET_NOTES"}}
    tools:
      create_note: {effect: notes.create_note}   # a tool of a contract of the broker
      list_notes: read_only

Strict, like a contract: a misspelt name is refused with its place, because a tool that is not the
one that was meant would be let through.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import Discriminator, Field, Tag, ValidationError, model_validator

from effect_adapters.mcp.programs import Program, SecretText
from effect_broker.config import ConfigurationProblem
from effect_contracts.document_text import json_text, problems_of, read_yaml
from effect_contracts.errors import ContractInvalid
from effect_contracts.expressions import HeaderName, HeaderText, is_loopback, origin_of
from effect_contracts.mcp_settings import FixedUrl, ToolName
from effect_contracts.section import Section

READ_ONLY: Final = "read_only"

# Clients give a tool about a minute.
_WAIT_SECONDS: Final = 45.0
_ANSWER_BYTES_MAX: Final = 16 << 20
_READ_SECONDS: Final = 60.0

PropertyName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")]


class UrlUpstream(Section):
    """A server over streamable HTTP; redirects to other origins are not followed."""

    url: FixedUrl
    headers: Annotated[dict[HeaderName, HeaderText | SecretText], Field(max_length=64)] = Field(
        default_factory=dict
    )
    allow_plaintext: bool = False

    @model_validator(mode="after")
    def _private(self) -> UrlUpstream:
        parts = urlsplit(origin_of(self.url))
        clear = parts.scheme == "http" and not is_loopback(parts.hostname or "")
        if clear and not self.allow_plaintext:
            raise ValueError(
                "http:// is in the clear: use https://, or state allow_plaintext: true"
            )
        for name, value in self.headers.items():
            if name.lower() == "authorization" and isinstance(value, str):
                raise ValueError("write a credential as {secret: env:NAME}")
        return self


def _upstream_kind(value: Any) -> str | None:
    if isinstance(value, UrlUpstream) or (isinstance(value, dict) and "url" in value):
        return "url"
    if isinstance(value, Program) or (isinstance(value, dict) and "command" in value):
        return "program"
    return None


Upstream = Annotated[
    Annotated[Program, Tag("program")] | Annotated[UrlUpstream, Tag("url")],
    Discriminator(
        _upstream_kind,
        custom_error_type="upstream_kind",
        custom_error_message="an upstream has a command (and args, env, cwd) or a url",
    ),
]


class Front(Section):
    """Where the proxy listens; stdin and stdout without it.

    Attributes:
        http: HOST:PORT. An address that others reach needs a token.
        token: what clients send as bearer token.
    """

    http: Annotated[str, Field(max_length=300)]
    token: SecretText | None = None


class ContractedTool(Section):
    """A tool whose calls become effects.

    Attributes:
        effect: the tool, as a contract of the broker names it.
        operation_key: the property that carries the operation key, if not the proxy's usual one.
    """

    effect: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,127}$")]
    operation_key: PropertyName | None = None


class ProxyConfig(Section):
    """See the head of this file.

    Attributes:
        protocol: how the upstream is greeted; `legacy` for servers that cannot be asked first.
        strict: a tool that is not listed under `tools` is refused.
        trust_read_only_hint: a tool that is not listed, and of which the upstream claims that it
            only reads, is let through.
        wait_seconds: how long a call waits for an outcome; the effect goes on after that.
        read_seconds: how long a call that is let through may take.
        answer_bytes_max: of one message of the upstream; the line ends with a longer one.
        operation_key: the property that is added to the input of tools with a contract.
    """

    upstream: Upstream
    protocol: Literal["auto", "legacy"] = "auto"
    front: Front | None = None
    strict: bool = True
    trust_read_only_hint: bool = False
    wait_seconds: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = _WAIT_SECONDS
    read_seconds: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] = _READ_SECONDS
    answer_bytes_max: Annotated[int, Field(ge=1024, le=1 << 30)] = _ANSWER_BYTES_MAX
    operation_key: PropertyName = "operation_key"
    tools: Annotated[
        dict[ToolName, Literal["read_only"] | ContractedTool], Field(max_length=1000)
    ] = Field(default_factory=dict)

    def key_name(self, tool: ContractedTool) -> str:
        """Return the property that carries the operation key of a tool."""
        return tool.operation_key or self.operation_key


def read_config(text: str) -> ProxyConfig:
    """Read a configuration.

    Raises:
        ContractInvalid: with every problem and its place.
    """
    value = read_yaml(text)
    if not isinstance(value, dict):
        raise ConfigurationProblem("a proxy's configuration begins with upstream: …")
    try:
        return ProxyConfig.model_validate_json(json_text(value))
    except ValidationError as error:
        refusal = problems_of(error, value, _names())
    raise refusal


def config_from(path: Path) -> ProxyConfig:
    """Read a configuration file.

    Raises:
        ConfigurationProblem: it cannot be read, or what is wrong in it.
    """
    try:
        return read_config(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError):
        raise ConfigurationProblem(f"{path} cannot be read as a text file") from None
    except ContractInvalid as problem:
        raise ConfigurationProblem(f"{path}: {problems_text(problem)}") from None


def problems_text(problem: ContractInvalid) -> str:
    """Return every problem with its place, in one line."""
    found = problem.extras["problems"]
    assert isinstance(found, list)
    return "; ".join(f"{one['field'] or '/'}: {one['message']}" for one in found)


def _names() -> tuple[str, ...]:
    models = (ProxyConfig, Program, UrlUpstream, Front, ContractedTool, SecretText)
    return tuple(sorted({name for model in models for name in model.model_fields}))
