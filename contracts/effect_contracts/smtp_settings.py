"""The settings of the adapter `smtp`: one plain text mail to a submission server.

Mail knows no key: the downstream key becomes the Message-ID, which servers carry and do not
compare. So a contract is `unsafe`, unless it names a mailbox that gets a copy of each mail and can
be searched for the Message-ID; how long a mail may take to arrive there is then its settlement
bound.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from effect_contracts.expressions import SecretReference
from effect_contracts.section import Section

Host = Annotated[
    str,
    Field(pattern=r"^([0-9A-Fa-f:]+:[0-9A-Fa-f:.]*|[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?)$"),
    Field(max_length=253),
]
Port = Annotated[int, Field(ge=1, le=65535)]
# What every server takes (RFC 5321, section 4.1.2, without quoted local parts), in ASCII.
ADDRESS_PATTERN = (
    r"^[A-Za-z0-9!#$%&'*+/=?^_`{|}~.-]{1,64}@[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$"
)
Address = Annotated[str, Field(pattern=ADDRESS_PATTERN)]
Domain = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$")]

# How the connection is protected; `none` is for this machine only. TLS is always verified.
Security = Literal["tls", "starttls", "none"]


class MailLogin(Section):
    """A user name and a password."""

    username: SecretReference | Annotated[str, Field(pattern=r"^[\x21-\x7e]{1,256}$")]
    password: SecretReference


class MailboxSettings(Section):
    """A mailbox, read by IMAP, in which a copy of each mail arrives.

    Attributes:
        copy_to: added to the recipients of the envelope, in no header; its mail arrives in
        `folder`. folder: opened for reading only.
    """

    host: Host
    port: Port = 993
    security: Security = "tls"
    login: MailLogin
    folder: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._/-]{0,199}$")] = "INBOX"
    copy_to: Address


class SmtpSettings(Section):
    """A submission server.

    Attributes:
        security: `tls` from the first byte, or `starttls`, which a server has to offer.
        sender: the address of envelope and From.
        sender_name: shown beside it.
        to: template of an address or a list of addresses; all of them are accepted, or nothing is
            sent.
        subject, text: templates of texts; see `effect_contracts.body_template`.
        recipients_max: more make no mail.
        helo: the name by which the client greets; the sender's domain without it.
        mailbox: where a mail is looked for.
    """

    kind: Literal["smtp"]
    host: Host
    port: Port = 465
    security: Security = "tls"
    login: MailLogin | None = None
    sender: Address
    sender_name: Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]{1,100}$")] | None = None
    to: JsonValue
    subject: JsonValue
    text: JsonValue
    recipients_max: Annotated[int, Field(ge=1, le=100)] = 1
    helo: Domain | None = None
    mailbox: MailboxSettings | None = None
