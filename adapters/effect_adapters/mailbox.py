"""Looking for a mail by its Message-ID in a mailbox, by IMAP and by reads alone.

The library blocks, so it runs in a thread; when the budget ends, its socket is shut down from here,
and the thread ends with it. A search is a substring without regard to case, so what it finds is
read and compared, exactly:

    committed      one mail has our Message-ID, and the digest of what we sent
    mismatch       several have it, or one with another digest
    not_committed  the search was carried out and none has it
    unknown        everything else
"""

from __future__ import annotations

import asyncio
import contextlib
import imaplib
import re
import socket
import ssl
from collections.abc import Callable
from email.parser import BytesHeaderParser
from typing import Any, Final

from effect_adapters.base import Budget, Finding
from effect_contracts.facts import CODE_SEVERAL_MATCHES, Verdict
from effect_contracts.smtp_settings import MailboxSettings

# A search by a key of ours that finds more than so many is of no use to anybody.
_FOUND_MAX: Final = 20
# What a whole look-up may read: some headers of a few mails.
_BYTES_MAX: Final = 1 << 20
_DIGEST_HEADER: Final = "X-Effect-Digest"
_HEADERS: Final = f"(BODY.PEEK[HEADER.FIELDS (MESSAGE-ID {_DIGEST_HEADER.upper()})])"


class _Undecided(Exception):
    """This look-up proves nothing; `code` says why."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


async def look(
    settings: MailboxSettings,
    login: tuple[str, str],
    tls: ssl.SSLContext,
    message_id: str,
    digest: str,
    budget: Budget,
) -> Finding:
    """Return what the mailbox shows of `message_id`, within the budget."""
    seconds = budget.remaining_seconds()
    if seconds <= 0:
        return Finding(Verdict.UNKNOWN, "budget_spent")
    search = _Search(settings, login, tls, seconds)
    work = asyncio.ensure_future(asyncio.to_thread(search.found, message_id, digest))
    try:
        # Shielded, so that the end of the budget ends the socket and with it the thread.
        async with asyncio.timeout(seconds):
            return await asyncio.shield(work)
    except TimeoutError:
        return Finding(Verdict.UNKNOWN, "deadline")
    finally:
        search.abort()
        work.cancel()


class _Imap(imaplib.IMAP4):
    """The library's client over a socket of ours; it calls `open` for one, as documented."""

    def __init__(
        self, connected: Callable[[str, int], socket.socket], host: str, port: int, seconds: float
    ) -> None:
        self._connected = connected
        self._bytes_left = _BYTES_MAX
        super().__init__(host, port, seconds)

    def open(self, host: str = "", port: int = 143, timeout: float | None = None) -> None:
        """Connect."""
        self.host, self.port = host, port
        self.sock = self._connected(host, port)
        self.file = self.sock.makefile("rb")

    def read(self, size: int) -> bytes:
        """Read so many bytes; the server has said how many."""
        if size > self._bytes_left:
            raise _Undecided("answer_too_large")
        return self._counted(super().read(size))

    def readline(self) -> bytes:
        """Read a line."""
        return self._counted(super().readline())

    def _counted(self, piece: bytes) -> bytes:
        self._bytes_left -= len(piece)
        if self._bytes_left < 0:
            raise _Undecided("answer_too_large")
        return piece


class _Search:
    """One look-up, in a thread."""

    def __init__(
        self,
        settings: MailboxSettings,
        login: tuple[str, str],
        tls: ssl.SSLContext,
        seconds: float,
    ) -> None:
        self._settings = settings
        self._login = login
        self._tls = tls
        self._seconds = seconds
        self._over = False
        self._imap: imaplib.IMAP4 | None = None
        # Another handle of the connection, whatever TLS the library lays around its own.
        self._handle: socket.socket | None = None

    def abort(self) -> None:
        """End the connection, from any thread."""
        self._over = True
        if self._handle is not None:
            with contextlib.suppress(OSError):
                self._handle.shutdown(socket.SHUT_RDWR)

    def found(self, message_id: str, digest: str) -> Finding:
        """Return what the mailbox shows; never raises."""
        try:
            self._open()
            return _finding(self._matches(message_id), message_id, digest)
        except _Undecided as undecided:
            return Finding(Verdict.UNKNOWN, undecided.code)
        except ssl.SSLError:
            return Finding(Verdict.UNKNOWN, "tls_failed")
        except ConnectionRefusedError:
            return Finding(Verdict.UNKNOWN, "connect_refused")
        except TimeoutError:
            return Finding(Verdict.UNKNOWN, "deadline")
        except Exception:
            # The mapping boundary: a library's text may hold what nobody may read.
            return Finding(Verdict.UNKNOWN, "mailbox_unavailable")
        finally:
            self._close()

    def _open(self) -> None:
        settings = self._settings
        self._imap = _Imap(self._connected, settings.host, settings.port, self._seconds)
        if settings.security == "starttls":
            self._imap.starttls(ssl_context=self._tls)
        try:
            self._imap.login(*self._login)
        except imaplib.IMAP4.abort:
            raise
        except imaplib.IMAP4.error:
            raise _Undecided("access_denied") from None
        status, _ = self._imap.select(f'"{settings.folder}"', readonly=True)
        if status != "OK":
            raise _Undecided("folder_missing")

    def _connected(self, host: str, port: int) -> socket.socket:
        """Return the connected socket, TLS made where it is there from the first byte."""
        sock = socket.create_connection((host, port), timeout=self._seconds)
        self._handle = sock.dup()
        if self._over:
            raise _Undecided("deadline")
        if self._settings.security != "tls":
            return sock
        return self._tls.wrap_socket(sock, server_hostname=host)

    def _matches(self, message_id: str) -> list[str]:
        """Return the digest of every mail with exactly this Message-ID."""
        imap = self._imap
        assert imap is not None, "opened"
        status, lines = imap.uid("SEARCH", "HEADER", "Message-ID", f'"{message_id}"')
        if status != "OK" or len(lines) != 1:
            raise _Undecided("search_failed")
        numbers = (lines[0] or b"").split()
        if len(numbers) > _FOUND_MAX or not all(number.isdigit() for number in numbers):
            raise _Undecided("search_failed")
        digests = []
        for number in numbers:
            status, parts = imap.uid("FETCH", number.decode(), _HEADERS)
            if status != "OK":
                raise _Undecided("fetch_failed")
            mail = BytesHeaderParser().parsebytes(_literal(parts))
            if str(mail.get("Message-ID", "")).strip() == message_id:
                digests.append(str(mail.get(_DIGEST_HEADER, "")).strip())
        return digests

    def _close(self) -> None:
        if self._imap is not None:
            with contextlib.suppress(Exception):
                self._imap.shutdown()
        if self._handle is not None:
            self._handle.close()


def _literal(parts: list[Any]) -> bytes:
    for part in parts:
        if isinstance(part, tuple) and len(part) == 2 and re.search(rb"BODY\[HEADER", part[0]):
            return bytes(part[1])
    raise _Undecided("fetch_failed")


def _finding(digests: list[str], message_id: str, digest: str) -> Finding:
    if not digests:
        return Finding(Verdict.NOT_COMMITTED, "absent_from_mailbox")
    if len(digests) > 1:
        ids = tuple(f"{message_id}#{number}" for number in range(1, len(digests) + 1))
        return Finding(Verdict.MISMATCH, CODE_SEVERAL_MATCHES, ids)
    if digests[0] != digest:
        return Finding(Verdict.MISMATCH, "fields_disagree", (message_id,))
    fields = {"message_id": message_id}
    return Finding(
        Verdict.COMMITTED, "found", (message_id,), result=dict(fields), receipt_fields=dict(fields)
    )
