"""Mail by SMTP: the downstream key becomes the Message-ID, and the final dot is the send.

A server takes responsibility for a mail when it answers the line with the single dot (RFC 5321,
section 4.1.1.4), and never for one whose dot it has not seen. So the last gate is in front of the
dot: whatever fails before it, a connection that breaks in the middle of the text included, is
proved not to be sent, and a lost answer after it is ambiguous. A refusal by number is a proof on
either side of it (section 4.2.1), 421 after the dot excepted: a server on its way out says that,
whatever it did.

Recipients are all accepted or nothing is sent. Nothing compares a Message-ID on the way: the class
is unsafe, or reconcilable with a mailbox that is searched (`effect_adapters.mailbox`).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import re
import socket
import ssl
from email.errors import HeaderParseError, MessageError
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP as WIRE_POLICY
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, Final

from effect_adapters.base import (
    Answer,
    DispatchCall,
    Finding,
    ProbeCall,
    RenderError,
    SecretResolver,
    SecretUnavailable,
    name_or_secret,
    not_sent,
    secret_value,
)
from effect_adapters.extras import ExtraMissing, require_extra
from effect_adapters.http.bodies import filled
from effect_adapters.http.connection import PLAIN_CLOSE, RESET_ON_CLOSE, trusting_tls
from effect_contracts.canonical import JsonObject, JsonValue, canonical_bytes
from effect_contracts.document import ContractDocument
from effect_contracts.errors import InvalidPayload
from effect_contracts.facts import Outcome, Verdict
from effect_contracts.smtp_settings import ADDRESS_PATTERN, MailLogin, SmtpSettings

if TYPE_CHECKING:
    from aiosmtplib import SMTP

WIRE_VERSION: Final = 1
DIGEST_HEADER: Final = "X-Effect-Digest"
_MAIL_BYTES_MAX: Final = 2 * 1024 * 1024
_SUBJECT_CHARS_MAX: Final = 500
_REPLY_CHARS_MAX: Final = 200

_ADDRESS: Final = re.compile(ADDRESS_PATTERN)
# The left side of a Message-ID without quotes (RFC 5322, dot-atom).
_KEY: Final = re.compile(r"[A-Za-z0-9_-]{1,200}")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")

_START_INPUT: Final = 354
_COMPLETED: Final = 250
_CLOSING: Final = 421


class SmtpAdapter:
    """Implements `effect_adapters.base.Adapter` for contracts of the kind `smtp`."""

    def __init__(self, secrets: SecretResolver, tls: ssl.SSLContext | None = None) -> None:
        """`tls` verifies peers; without one, the process's own context does."""
        self._secrets = secrets
        self._own_tls = tls

    def identity(self, document: ContractDocument) -> str:
        """Return the server, the sender and the account."""
        settings = _settings(document)
        return f"smtp://{settings.host}:{settings.port}/{settings.sender}#{document.account}"

    def render(
        self, document: ContractDocument, arguments: JsonValue, downstream_key: str
    ) -> bytes:
        """Return envelope and mail as canonical JSON, without a date. Pure.

        Raises:
            RenderError: the arguments do not make a mail under this contract.
        """
        settings = _settings(document)
        mail, recipients = _mail(settings, arguments, downstream_key)
        wire: JsonObject = {
            "version": WIRE_VERSION,
            "from": settings.sender,
            "to": list(recipients),
            "mail": mail,
        }
        try:
            return canonical_bytes(wire, bytes_max=_MAIL_BYTES_MAX)
        except InvalidPayload:
            raise RenderError("mail_too_large") from None

    async def dispatch(self, call: DispatchCall) -> Answer:
        """Send the stored mail at most once, within the budget."""
        settings = _settings(call.document)
        try:
            require_extra("smtp")
            stored = json.loads(call.wire)
            if stored["version"] != WIRE_VERSION or stored["from"] != settings.sender:
                return not_sent("wire_invalid")
            login = None if settings.login is None else credentials(settings.login, self._secrets)
        except ExtraMissing as missing:
            return not_sent(missing.code)
        except SecretUnavailable:
            return not_sent("secret_unavailable")
        except Exception:
            return not_sent("wire_invalid")
        tls = self._own_tls or trusting_tls()
        return await _Submission(settings, call, stored, login, tls).run()

    async def probe(self, call: ProbeCall) -> Finding:
        """Search the mailbox, where the contract has one, within the budget."""
        settings = _settings(call.document)
        if settings.mailbox is None:
            return Finding(Verdict.UNKNOWN, "no_probe")
        from effect_adapters.mailbox import look

        try:
            mail, _ = _mail(settings, call.arguments, call.downstream_key)
            login = credentials(settings.mailbox.login, self._secrets)
        except RenderError as error:
            return Finding(Verdict.UNKNOWN, error.code)
        except SecretUnavailable:
            return Finding(Verdict.UNKNOWN, "secret_unavailable")
        wanted = message_id(settings, call.downstream_key)
        digest = _header(mail, DIGEST_HEADER)
        tls = self._own_tls or trusting_tls()
        return await look(settings.mailbox, login, tls, wanted, digest, call.budget)


def credentials(login: MailLogin, secrets: SecretResolver) -> tuple[str, str]:
    """Return user name and password, read now.

    Raises:
        SecretUnavailable: one of them cannot be had.
    """
    return name_or_secret(login.username, secrets), secret_value(login.password, secrets)


# The mail --------------------------------------------------------------------------------------


def message_id(settings: SmtpSettings, key: str) -> str:
    """Return the Message-ID of an effect, in its angle brackets."""
    return f"<{key}@{settings.sender.rpartition('@')[2]}>"


def _mail(settings: SmtpSettings, arguments: JsonValue, key: str) -> tuple[str, tuple[str, ...]]:
    """Return the mail without a date, in ASCII with CR LF, and the recipients of the envelope."""
    if not _KEY.fullmatch(key):
        raise RenderError("key_invalid")
    to = _recipients(settings, filled(settings.to, arguments, key))
    subject, text = (
        _text(filled(template, arguments, key), name)
        for template, name in ((settings.subject, "subject"), (settings.text, "text"))
    )
    if _CONTROL.search(subject) or len(subject) > _SUBJECT_CHARS_MAX:
        raise RenderError("subject_invalid")
    content: JsonObject = {
        "from": settings.sender,
        "to": list(to),
        "subject": subject,
        "text": text,
    }
    digest = _digest(canonical_bytes(content, bytes_max=_MAIL_BYTES_MAX))
    mail = EmailMessage(policy=WIRE_POLICY)
    try:
        mail["From"] = Address(settings.sender_name or "", addr_spec=settings.sender)
        mail["To"] = ", ".join(to)
        mail["Subject"] = subject
        mail["Message-ID"] = message_id(settings, key)
        mail[DIGEST_HEADER] = digest
        # One transfer encoding for every text, so that it depends on nothing but the text.
        mail.set_content(text, cte="base64")
        written = mail.as_bytes().decode("ascii")
    except (ValueError, MessageError, HeaderParseError, LookupError):
        # The library's text repeats what it was given.
        raise RenderError("mail_invalid") from None
    copy = () if settings.mailbox is None else (settings.mailbox.copy_to,)
    return written, to + tuple(address for address in copy if address not in to)


def _digest(content: bytes) -> str:
    # In this alphabet it fits into a line of a header, so that no server folds it.
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


def _recipients(settings: SmtpSettings, value: Any) -> tuple[str, ...]:
    addresses = value if isinstance(value, list) else [value]
    if not all(isinstance(found, str) and _ADDRESS.fullmatch(found) for found in addresses):
        raise RenderError("recipient_invalid")
    if not 1 <= len(addresses) <= settings.recipients_max:
        raise RenderError("recipients_too_many" if addresses else "recipient_missing")
    return tuple(dict.fromkeys(addresses))


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise RenderError(f"{name}_not_text")
    return value


def _header(mail: str, name: str) -> str:
    found = re.search(rf"(?m)^{name}: (\S+)\r$", mail)
    assert found is not None, "written by _mail"
    return found.group(1)


# The submission --------------------------------------------------------------------------------


class _Refusal(Exception):
    """The server has answered before the dot that it will not take the mail."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(what)
        self.code = code
        self.what = what


class _Submission:
    """One attempt: greet, envelope, text, gate, dot, answer."""

    def __init__(
        self,
        settings: SmtpSettings,
        call: DispatchCall,
        stored: dict[str, Any],
        login: tuple[str, str] | None,
        tls: ssl.SSLContext,
    ) -> None:
        self._settings = settings
        self._call = call
        self._stored = stored
        self._login = login
        self._tls = tls
        self._transport: Any = None
        self._stage = "connect"
        self._dot_left = False

    async def run(self) -> Answer:
        """Send at most once, within the budget.

        Raises:
            asyncio.CancelledError: the task was cancelled; the connection has been reset.
        """
        from aiosmtplib import SMTP

        budget, settings = self._call.budget, self._settings
        if budget.remaining_seconds() <= 0:
            return not_sent("budget_spent")
        username, password = self._login or (None, None)
        client = SMTP(
            hostname=settings.host,
            port=settings.port,
            username=username,
            password=password,
            local_hostname=settings.helo or settings.sender.rpartition("@")[2],
            timeout=None,  # one deadline over the whole: a limit per read is none
            use_tls=settings.security == "tls",
            start_tls=settings.security == "starttls",
            tls_context=self._tls,
        )
        try:
            async with asyncio.timeout(budget.remaining_seconds()):
                return await self._sent(client)
        except TimeoutError:
            return self._unfinished("deadline")
        except _Refusal as refusal:
            return _refused(refusal)
        except Exception as error:
            # The mapping boundary: a library's text may hold what nobody may read.
            return self._unfinished(_code(error, self._stage))
        finally:
            if self._transport is not None:
                self._transport.abort()
            client.close()
            await asyncio.sleep(0)  # in which the loop closes the socket

    def _unfinished(self, code: str) -> Answer:
        return Answer(Outcome.AMBIGUOUS, code) if self._dot_left else not_sent(code)

    async def _sent(self, client: SMTP) -> Answer:
        await client.connect()
        self._transport = client.transport
        self._linger(RESET_ON_CLOSE)
        self._stage = "envelope"
        await self._envelope(client)
        protocol = client.protocol
        if protocol is None:
            raise ConnectionError
        self._stage = "text"
        started = await protocol.execute_command(b"DATA")
        if started.code != _START_INPUT:
            raise _Refusal(started.code, "data")
        protocol.write(self._text())
        self._call.reach("before_socket_write")
        if self._call.budget.remaining_seconds() <= 0:
            return not_sent("budget_spent")
        # Listening first: what comes while nobody listens is dropped by the library.
        answer = asyncio.ensure_future(protocol.read_response())
        try:
            await asyncio.sleep(0)
            if answer.done():
                raise _Refusal((await answer).code, "text")  # it did not wait for the dot
            self._dot_left = True
            self._call.reach("after_last_gate")
            protocol.write(b".\r\n")
            reply = await answer
        finally:
            answer.cancel()
        return self._answered(reply.code, reply.message)

    async def _envelope(self, client: SMTP) -> None:
        """Name the sender and every recipient; one that is refused ends it for all."""
        from aiosmtplib import SMTPRecipientRefused, SMTPSenderRefused

        try:
            await client.mail(self._stored["from"])
            for recipient in self._stored["to"]:
                await client.rcpt(recipient)
        except SMTPSenderRefused as refused:
            raise _Refusal(refused.code, "sender") from None
        except SMTPRecipientRefused as refused:
            raise _Refusal(refused.code, "recipient") from None

    def _text(self) -> bytes:
        """The mail with today's date, as it stands between DATA and the dot."""
        # Like a signature, the date is of the attempt and not of what is stored.
        dated = f"Date: {formatdate(usegmt=True)}\r\n{self._stored['mail']}".encode("ascii")
        if not dated.endswith(b"\r\n"):
            dated += b"\r\n"
        # Base64 has no dot, so none has to be doubled (RFC 5321, section 4.5.2).
        assert b"\n." not in dated, "no line of a mail of ours begins with a dot"
        return dated

    def _answered(self, code: int, text: str) -> Answer:
        if code == _COMPLETED:
            self._linger(PLAIN_CLOSE)
            identity = self._message_id()
            fields: dict[str, JsonValue] = {"message_id": identity, "reply": _shown(text)}
            return Answer(
                Outcome.COMMITTED,
                "committed",
                external_id=identity,
                result=dict(fields),
                receipt_fields=fields,
                status=code,
            )
        if code == _CLOSING or not 400 <= code <= 599:
            return Answer(Outcome.AMBIGUOUS, "unexpected_reply", status=_status(code))
        return _refused(_Refusal(code, "mail"))

    def _message_id(self) -> str:
        return message_id(self._settings, self._call.downstream_key)

    def _linger(self, value: bytes) -> None:
        sock = self._transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, value)


def _refused(refusal: _Refusal) -> Answer:
    """A refusal by number: 4xx may be tried again, 5xx is final, anything else proves no send."""
    code, name = refusal.code, f"{refusal.what}_refused"
    if 500 <= code <= 599:
        return Answer(Outcome.REJECTED, name, status=code)
    if 400 <= code <= 499:
        return Answer(Outcome.RETRYABLE, name, status=code)
    return not_sent("unexpected_reply")


def _code(error: Exception, stage: str) -> str:
    """Return what an exception means; the classes are those of aiosmtplib and of the socket."""
    import aiosmtplib

    causes = [error, error.__cause__, error.__context__]
    table: tuple[tuple[type[BaseException], str], ...] = (
        (ssl.SSLError, "tls_failed"),
        (ConnectionRefusedError, "connect_refused"),
        (socket.gaierror, "dns_failed"),
        (aiosmtplib.SMTPAuthenticationError, "access_denied"),
        (aiosmtplib.SMTPConnectResponseError, "greeting_refused"),
        (aiosmtplib.SMTPTimeoutError, "deadline"),
        (aiosmtplib.SMTPConnectError, "connect_failed"),
        (aiosmtplib.SMTPServerDisconnected, "closed_without_answer"),
        (aiosmtplib.SMTPResponseException, "garbage_answer"),
        (aiosmtplib.SMTPException, "server_unfit"),
        (ConnectionError, "closed_without_answer"),
    )
    for kind, code in table:
        if any(isinstance(cause, kind) for cause in causes):
            return code
    return "connect_failed" if stage == "connect" else "adapter_error"


def _shown(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)[:_REPLY_CHARS_MAX]


def _status(code: int) -> int | None:
    return code if 100 <= code <= 999 else None


def _settings(document: ContractDocument) -> SmtpSettings:
    assert isinstance(document.adapter, SmtpSettings), "the registry picks adapters by kind"
    return document.adapter
