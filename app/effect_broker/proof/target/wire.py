"""Owns one client connection: HTTP is parsed by h11, every byte and every close is ours.

The promises: nothing is read ahead of what is asked for, apart from one chunk; `abort` is seen
by the client as ECONNRESET, `close` as FIN; a client that goes away raises `ClientGone` and
nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Iterable
from http import HTTPStatus

import h11

from effect_broker.proof.target.messages import Answer, Request

CHUNK_BYTES = 65536
BODY_BYTES_MAX = 16 * 1024 * 1024
"""Far over what the broker may send (256 KiB); the ledger keeps whole bodies."""
_LINGER_ZERO = struct.pack("ii", 1, 0)  # on, 0 s: close() sends RST
_NO_BODY = (204, 304)


class ClientGone(Exception):
    """The client closed or reset the connection; `part` is what had arrived of a request."""

    def __init__(self, part: Request | None = None) -> None:
        super().__init__("the client is gone")
        self.part = part


class NotHttp(Exception):
    """The client's bytes are no HTTP request, or exceed a limit; `status` is the answer."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Connection:
    """One accepted socket."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=CHUNK_BYTES)
        self._bytes_in_cycle = 0
        self._ended = False
        self.open = True

    # -- reading ---------------------------------------------------------------------------------

    async def peek(self) -> bytes:
        """The first bytes that wait in the kernel, without reading them; empty at the end."""
        readable: asyncio.Future[None] = self._loop.create_future()
        descriptor = self._sock.fileno()
        self._loop.add_reader(descriptor, _mark, readable)
        try:
            await readable
            return self._sock.recv(256, socket.MSG_PEEK)
        except ConnectionError as error:
            raise ClientGone from error
        finally:
            self._loop.remove_reader(descriptor)

    def gone(self) -> bool:
        """Whether the client has ended its side, or all; nothing is read."""
        try:
            return not self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    async def read_head(self) -> Request | None:
        """The next request without its body; `None` if the client is done.

        Raises `ClientGone` in mid-head, `NotHttp`.
        """
        try:
            event = await self._next_event()
        except ClientGone as gone:
            raise ClientGone(self._broken_head()) from gone
        match event:
            case h11.Request():
                return Request(
                    event.method.decode("ascii"),
                    event.target.decode("latin-1"),
                    tuple((n.decode("latin-1"), v.decode("latin-1")) for n, v in event.headers),
                    b"",
                    "early",
                )
            case h11.ConnectionClosed():
                return None
            case _:
                raise NotHttp(400, "not a request")

    def _broken_head(self) -> Request | None:
        return Request("", "", (), b"", "cut") if self._bytes_in_cycle else None

    async def read_body(self, head: Request) -> Request:
        """The same request with its whole body. Raises `ClientGone`, `NotHttp`."""
        if self._http.they_are_waiting_for_100_continue:
            await self._send(h11.InformationalResponse(status_code=100, headers=[]))
        chunks: list[bytes] = []
        length = 0
        try:
            while True:
                event = await self._next_event()
                match event:
                    case h11.Data():
                        chunks.append(bytes(event.data))
                        length += len(event.data)
                        if length > BODY_BYTES_MAX:
                            raise NotHttp(413, f"a body has at most {BODY_BYTES_MAX} bytes")
                    case h11.EndOfMessage():
                        return _with_body(head, chunks, whole=True)
                    case _:
                        raise ClientGone
        except ClientGone as gone:
            raise ClientGone(_with_body(head, chunks, whole=False)) from gone

    async def _next_event(self) -> h11.Event:
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                if self._ended:
                    raise ClientGone from error
                raise NotHttp(error.error_status_hint, "the request is malformed") from error
            if isinstance(event, h11.Event):
                return event
            assert event is h11.NEED_DATA, "a cycle ends before the next request is read"
            try:
                received = await self._loop.sock_recv(self._sock, CHUNK_BYTES)
            except ConnectionError as error:
                raise ClientGone from error
            self._bytes_in_cycle += len(received)
            self._ended = not received
            self._http.receive_data(received)

    # -- writing ---------------------------------------------------------------------------------

    async def answer(self, answer: Answer, *, more: bool) -> bool:
        """Send a well-formed answer; true if the connection may serve another request.

        `more` false makes it the last one. Raises `ClientGone`.
        """
        headers = list(answer.headers)
        if answer.status not in _NO_BODY:
            headers.append(("content-length", str(len(answer.body))))
        if not more:
            headers.append(("connection", "close"))
        reason = _reason(answer.status).encode()
        await self._send(
            h11.Response(status_code=answer.status, headers=headers, reason=reason),
            h11.Data(data=answer.body if answer.status not in _NO_BODY else b""),
            h11.EndOfMessage(),
        )
        if not more or self._http.our_state is not h11.DONE:
            return False
        if self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        self._bytes_in_cycle = len(self._http.trailing_data[0])
        return True

    async def raw(self, *pieces: bytes) -> None:
        """Send bytes that h11 would refuse to make. The connection cannot be used again."""
        try:
            await self._loop.sock_sendall(self._sock, b"".join(pieces))
        except OSError as error:
            raise ClientGone from error

    async def _send(self, *events: h11.Event) -> None:
        await self.raw(*(self._http.send(event) or b"" for event in events))

    # -- ending ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Send FIN. Unread bytes make the kernel send RST after it."""
        if self.open:
            self.open = False
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_WR)
            self._sock.close()

    def abort(self) -> None:
        """Send RST, and nothing that is still buffered."""
        if self.open:
            self.open = False
            with contextlib.suppress(OSError):
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
            self._sock.close()


def head_bytes(status: int, headers: Iterable[tuple[str, str]]) -> bytes:
    """A response head as bytes, for answers that h11 would refuse to frame."""
    lines = [f"HTTP/1.1 {status} {_reason(status)}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _mark(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _with_body(head: Request, chunks: list[bytes], *, whole: bool) -> Request:
    return Request(
        head.method, head.target, head.headers, b"".join(chunks), "whole" if whole else "cut"
    )
