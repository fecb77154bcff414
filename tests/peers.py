"""Scripted peers: raw socket servers that do exactly one wrong thing, and count what arrived.

A peer binds a free loopback port, runs its script on every connection and keeps what each
connection had read. Scripts use blocking sockets in threads, since what is under test is the
other side's event loop.
"""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

Script = Callable[["Arrival"], None]


@dataclass(frozen=True)
class Authority:
    """TLS for a peer on 127.0.0.1, and the context of a client that trusts it."""

    server: ssl.SSLContext
    client: ssl.SSLContext


@dataclass(slots=True)
class Arrival:
    """One connection that reached a peer."""

    sock: socket.socket
    received: bytearray = field(default_factory=bytearray)
    stopping: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    def read_request(self) -> bytes:
        """Read one whole request: its head, and as much body as it declares."""
        while b"\r\n\r\n" not in self.received and self.read_some():
            pass
        head, _, body = bytes(self.received).partition(b"\r\n\r\n")
        length = 0
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        while len(body) < length and (more := self.read_some()):
            body += more
        return bytes(self.received)

    def read_some(self) -> bytes:
        """Read what is there next, empty at the end or after a reset."""
        try:
            chunk = self.sock.recv(65536)
        except OSError:
            chunk = b""
        self.received += chunk
        return chunk

    def send(self, data: bytes) -> None:
        """Send all of `data`; a peer that is gone is no failure of the script."""
        with contextlib.suppress(OSError):
            self.sock.sendall(data)

    def reset(self) -> None:
        """Close with RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def hold(self) -> None:
        """Keep the connection open, unread, until the peer is stopped."""
        self.stopping.wait()


class Peer:
    """One scripted server; `arrivals` is its ledger."""

    def __init__(self, script: Script, tls: ssl.SSLContext | None, buffer_bytes: int) -> None:
        self.arrivals: list[Arrival] = []
        self._script = script
        self._tls = tls
        self._stopping = threading.Event()
        self._server = socket.socket()
        if buffer_bytes:
            # Inherited by accepted sockets: how much the kernel takes in for us unread.
            self._server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        self._server.bind(("127.0.0.1", 0))
        self._server.listen(64)
        self._threads = [threading.Thread(target=self._serve, daemon=True)]
        self._threads[0].start()

    @property
    def port(self) -> int:
        return int(self._server.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}"

    @property
    def received(self) -> list[bytes]:
        """What each connection had read, in the order of their arrival."""
        return [bytes(arrival.received) for arrival in self.arrivals]

    @property
    def requests(self) -> int:
        """Connections on which at least one byte of a request was read."""
        return sum(bool(arrival.received) for arrival in self.arrivals)

    def settle(self, arrivals: int = 1) -> None:
        """Wait until so many connections have arrived and the scripts of all have ended."""
        until = time.monotonic() + 10
        while len(self.arrivals) < arrivals:
            assert time.monotonic() < until, "a connection never arrived"
            time.sleep(0.002)
        for arrival in self.arrivals:
            assert arrival.over.wait(10), "a peer's script hangs"

    def await_request(self) -> None:
        """Wait until some of a request was read."""
        until = time.monotonic() + 10
        while not self.requests:
            assert time.monotonic() < until, "a request never arrived"
            time.sleep(0.002)

    def stop(self) -> None:
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for thread in self._threads:
            thread.join(10)

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._server.accept()
            except OSError:
                return
            arrival = Arrival(sock, stopping=self._stopping)
            self.arrivals.append(arrival)
            thread = threading.Thread(target=self._run, args=(arrival,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self, arrival: Arrival) -> None:
        try:
            if self._tls is not None:
                arrival.sock = self._tls.wrap_socket(arrival.sock, server_side=True)
            self._script(arrival)
        except OSError:
            pass  # the other side went away, which is what most tests are about
        finally:
            arrival.sock.close()
            arrival.over.set()


@contextlib.contextmanager
def peer(
    script: Script, *, tls: ssl.SSLContext | None = None, buffer_bytes: int = 0
) -> Iterator[Peer]:
    """Run `script` on every connection to a free port for the length of the block."""
    running = Peer(script, tls, buffer_bytes)
    try:
        yield running
    finally:
        running.stop()


def answer(
    status: int, body: bytes = b"", *, headers: tuple[str, ...] = (), length: int | None = -1
) -> bytes:
    """Return a whole HTTP answer; `length=None` leaves the length out."""
    lines = [f"HTTP/1.1 {status} X", *headers]
    if length is not None:
        lines.append(f"Content-Length: {len(body) if length == -1 else length}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def replying(data: bytes) -> Script:
    """Return a script that reads one request and answers with `data`."""

    def script(arrival: Arrival) -> None:
        arrival.read_request()
        arrival.send(data)

    return script


def json_answer(status: int, body: str, *headers: str) -> bytes:
    """Return a whole JSON answer."""
    return answer(status, body.encode(), headers=("Content-Type: application/json", *headers))


@contextlib.contextmanager
def silent_port() -> Iterator[int]:
    """Yield a port whose accept queue is full, so that SYNs to it are dropped."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(server.getsockname())
        yield int(server.getsockname()[1])


def refused_port() -> int:
    """Return a port on which nothing listens, and that the kernel gives to nobody meanwhile."""
    while True:
        port = random.randrange(10_000, 15_000)
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port
