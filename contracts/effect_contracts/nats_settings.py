"""The settings of the adapter `nats`: one subject of one JetStream stream.

The downstream key is the header `Nats-Msg-Id`. JetStream keeps an id for the stream's duplicate
window, which its own configuration states: the adapter reads it before each publish, and sends
nothing where it is shorter than the contract's `key_retention_seconds`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from effect_contracts.aws_settings import MessageBody
from effect_contracts.expressions import SecretReference
from effect_contracts.http_settings import JsonBody
from effect_contracts.section import Section

_HOST = r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?)"


class NatsPassword(Section):
    """A user name and a password."""

    kind: Literal["password"]
    username: SecretReference | Annotated[str, Field(pattern=r"^[\x21-\x7e]{1,256}$")]
    password: SecretReference


class NatsToken(Section):
    """A token."""

    kind: Literal["token"]
    token: SecretReference


class NatsSettings(Section):
    """A stream of JetStream.

    Attributes:
        server: `tls://host:port`, or `nats://` to this machine. Other servers that this one names
            are not asked.
        stream: has to capture the subject, and no other stream may take the message.
        subject: fixed, without wildcards.
        body: the message.
    """

    kind: Literal["nats"]
    server: Annotated[
        str, Field(pattern=rf"^(tls|nats)://{_HOST}(:[0-9]{{1,5}})?$", max_length=300)
    ]
    stream: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    subject: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$", max_length=255)]
    auth: Annotated[NatsPassword | NatsToken, Field(discriminator="kind")] | None = None
    body: MessageBody = JsonBody(kind="json")
