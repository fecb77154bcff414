"""One connection for one exchange: this file owns sockets, TLS and what a close does.

A connection is fresh, serves one exchange and is never kept. It holds no bytes of its own on the
way out: a byte that was written is in the kernel, one that was not never leaves. Until a complete
answer is in, the socket carries SO_LINGER 0, so that every end of it (a close, an abort, the
death of the process) resets the connection and makes the kernel drop what it still had to send;
a plain close would go on sending it.

What goes wrong before the connection stands is `ConnectFailed` with a stable code. What goes wrong
on it is raised in httpcore's words, since httpcore reads a response also after a failed write.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Any, Final, TypeVar

import certifi
import httpcore

from effect_adapters.base import Budget

T = TypeVar("T")

# Values of SO_LINGER. A reset drops what the kernel still holds, which a plain close would send on.
RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
PLAIN_CLOSE: Final = struct.pack("ii", 0, 0)

# The budget is read again before each piece of a body. 64 KiB is what one TLS read or write of
# OpenSSL and one asyncio read handle at most, and far below a default send buffer.
_PIECE_BYTES = 65536


class ConnectFailed(Exception):
    """No connection stands, so nothing of the request was sent. `code` is stable."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class ResponseTooLarge(Exception):
    """The answer grew over its limit; the rest is not read."""


class BudgetSpent(Exception):
    """The time of this exchange is over: the next byte may not leave."""


@functools.cache
def verifying_tls() -> ssl.SSLContext:
    """Return the process's TLS context: verifies the chain and the host name, HTTP/1.1 only.

    Making one reads some 140 certificates and costs more than ten exchanges, so it is made once.
    """
    context = _trusting()
    context.set_alpn_protocols(["http/1.1"])
    return context


@functools.cache
def trusting_tls() -> ssl.SSLContext:
    """Return the same for protocols that are not HTTP: without a protocol's name."""
    return _trusting()


def _trusting() -> ssl.SSLContext:
    """The system's trust store counts (SSL_CERT_FILE moves it), certifi's where there is none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    paths = ssl.get_default_verify_paths()
    if paths.cafile or paths.capath:
        context.load_default_certs()
    else:
        context.load_verify_locations(certifi.where())
    return context


class Connection(httpcore.AsyncNetworkStream):
    """A connected socket, perhaps with TLS on it, that one exchange writes to and reads from.

    Attributes:
        request_bytes: bytes of the request that were given to the kernel, at least in part.
        received_bytes: bytes of the answer that came in.
        answer_bytes_max: how many of them are read at most, head and framing included.
        ended_by_peer: the peer has closed its side.
        completes: what is written next ends the request.
        past_last_gate: is called behind the last reading of the budget, in front of the piece
            that ends the request; whoever has only a part of it carries nothing out.
    """

    def __init__(self, sock: socket.socket, budget: Budget) -> None:
        self._sock = sock
        self._budget = budget
        self._loop = asyncio.get_running_loop()
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        self.request_bytes = 0
        self._write_failed = False
        self.received_bytes = 0
        self.answer_bytes_max = 0
        self.ended_by_peer = False
        self.completes = False
        self.past_last_gate: Callable[[], None] = lambda: None

    async def secure(self, context: ssl.SSLContext, host: str) -> None:
        """Make the TLS handshake.

        Raises:
            ssl.SSLError, OSError: it failed; nothing of a request was sent.
        """
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        await self._pump(self._tls.do_handshake)

    async def write(  # the signature is httpcore's
        self,
        buffer: bytes,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> None:
        """Give all of `buffer` to the kernel, piece by piece while the budget lasts.

        Raises:
            BudgetSpent: before a piece that may not leave any more.
            httpcore.WriteError: the connection is gone.
        """
        view = memoryview(buffer)
        for start in range(0, len(view), _PIECE_BYTES):
            if self._budget.remaining_seconds() <= 0:
                raise BudgetSpent
            piece = view[start : start + _PIECE_BYTES]
            self.request_bytes += len(piece)
            if self.completes and start + _PIECE_BYTES >= len(view):
                self.past_last_gate()
            try:
                if self._tls is None:
                    await self._loop.sock_sendall(self._sock, piece)
                else:
                    await self._pump(functools.partial(self._tls.write, piece))
            except OSError:
                self._write_failed = True
                raise httpcore.WriteError from None

    async def read(  # the signature is httpcore's
        self,
        max_bytes: int,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> bytes:
        """Return the next bytes, empty at the peer's end of them.

        Raises:
            ResponseTooLarge: more came than may be read.
            httpcore.ReadError: the connection was reset, or TLS was cut without its farewell
                (whoever cuts there could pass off half an answer as a whole one).
        """
        try:
            if self._tls is None:
                chunk = await self._loop.sock_recv(self._sock, max_bytes)
            else:
                chunk = await self._pump(functools.partial(self._tls.read, max_bytes))
        except ssl.SSLZeroReturnError:
            chunk = b""
        except OSError:
            raise httpcore.ReadError from None
        if not chunk and self._write_failed:
            # The write took the reset's report with it; what is left looks like a quiet end.
            raise httpcore.ReadError
        self.received_bytes += len(chunk)
        if self.received_bytes > self.answer_bytes_max:
            raise ResponseTooLarge
        self.ended_by_peer = self.ended_by_peer or not chunk
        return chunk

    def end_of_writing(self) -> None:
        """Send FIN behind what was written; what the peer still says can be read.

        Under TLS it comes without a farewell, so that to the peer the connection is broken.
        """
        with contextlib.suppress(OSError):  # the peer was quicker
            self._sock.shutdown(socket.SHUT_WR)

    async def aclose(self) -> None:
        """Reset the connection; httpcore calls this when an exchange has failed."""
        self.abort()

    def abort(self) -> None:
        """Reset the connection unless `release` came first. May be called again."""
        self._sock.close()

    def release(self) -> None:
        """Close in peace, after a complete answer."""
        if self._sock.fileno() != -1:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, PLAIN_CLOSE)
            self._sock.close()

    def get_extra_info(self, info: str) -> Any:
        """Return nothing: httpcore asks only what a pool of connections would need."""
        return None

    async def _pump(self, step: Callable[[], T]) -> T:
        """Run one step of TLS, moving its bytes to and from the socket until it is through."""
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                await self._flush()
                received = await self._loop.sock_recv(self._sock, _PIECE_BYTES)
                if received:
                    self._incoming.write(received)
                else:
                    self.ended_by_peer = True
                    self._incoming.write_eof()
            except ssl.SSLError:
                await self._flush()  # an alert tells the peer why
                raise
            else:
                await self._flush()
                return result

    async def _flush(self) -> None:
        if self._outgoing.pending:
            await self._loop.sock_sendall(self._sock, self._outgoing.read())


async def connect(
    host: str,
    port: int,
    tls: ssl.SSLContext | None,
    budget: Budget,
    admit: Callable[[str], bool] | None = None,
) -> Connection:
    """Return a connection to the first address of `host` that accepts one, TLS made.

    Addresses share the remaining time, so that a dead one leaves some for the next. To try the
    next address is no repetition of an effect: no byte of the request has left. An address that
    `admit` refuses is not tried; the one that it has judged is the one that is connected to.

    Raises:
        ConnectFailed: `dns_failed`, `dns_timeout`, `address_refused`, `connect_refused`,
            `connect_failed`, `connect_timeout`, `tls_failed` or `tls_timeout`.
    """
    addresses = await _within(budget.remaining_seconds(), "dns", _resolve(host, port))
    code = "connect_failed"
    if admit is not None:
        addresses = [found for found in addresses if admit(found[4][0])]
        code = code if addresses else "address_refused"
    for index, (family, kind, protocol, _, address) in enumerate(addresses):
        share = budget.remaining_seconds() / (len(addresses) - index)
        try:
            sock = await _within(share, "connect", _open(family, kind, protocol, address))
        except ConnectFailed as failure:
            code = failure.code
            continue
        connection = Connection(sock, budget)
        if tls is None:
            return connection
        try:
            handshake = connection.secure(tls, host)
            await _within(budget.remaining_seconds(), "tls", handshake)
        except BaseException:
            connection.abort()
            raise
        return connection
    raise ConnectFailed(code)


async def _within(seconds: float, stage: str, work: Any) -> Any:
    """Await one stage of connecting; every failure of it becomes a `ConnectFailed`."""
    try:
        async with asyncio.timeout(max(seconds, 0)):
            return await work
    except TimeoutError:
        # The kernel's own ETIMEDOUT is this class too, and means the same.
        raise ConnectFailed(f"{stage}_timeout") from None
    except ConnectionRefusedError:
        raise ConnectFailed("connect_refused") from None
    except (OSError, UnicodeError):
        # UnicodeError: a host name that cannot be encoded as one.
        raise ConnectFailed(f"{stage}_failed") from None


async def _resolve(host: str, port: int) -> Any:
    flags = socket.AI_NUMERICSERV
    loop = asyncio.get_running_loop()
    kind, protocol = socket.SOCK_STREAM, socket.IPPROTO_TCP
    try:
        # A numeric address needs no thread and no resolver.
        return socket.getaddrinfo(
            host, port, type=kind, proto=protocol, flags=flags | socket.AI_NUMERICHOST
        )
    except socket.gaierror:
        return await loop.getaddrinfo(host, port, type=kind, proto=protocol, flags=flags)


async def _open(family: int, kind: int, protocol: int, address: Any) -> socket.socket:
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock
