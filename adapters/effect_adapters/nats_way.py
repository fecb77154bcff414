"""The socket under the client library of NATS: what one attempt may put on it.

One publish passes, once it is armed and while the budget lasts; nothing passes in plain text where
the contract asks for TLS, credentials least of all; and unless an answer came, the end of the
connection is a reset, so that the kernel sends nothing that it still holds.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any

from nats.aio.transport import TcpTransport

from effect_adapters.base import Budget
from effect_adapters.http.connection import PLAIN_CLOSE, RESET_ON_CLOSE

# Of one attempt: what the server says of itself and of the stream, and one acknowledgement.
_READ_BYTES_MAX = 4 << 20


class WayRefused(OSError):
    """Nothing was handed to the socket; `code` says why."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Way(TcpTransport):
    """A transport of the library's for one attempt.

    Attributes:
        armed: the last gate was passed; the publish may come.
        connected: a TCP connection stood at some time.
        published: the publish was handed to the socket, at least in part.
        refusal: why something was not handed to it, the first time.
        flood: the server has said more than there is to say, and is not heard any more.
        flooded: is called when that is seen.
        past_last_gate: is called behind the last reading of the budget, in front of the publish.
    """

    def __init__(self, budget: Budget, *, private: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._budget = budget
        self._private = private
        self._secured = False
        self._bytes_left = _READ_BYTES_MAX
        self.armed = False
        self.connected = False
        self.published = False
        self.refusal: str | None = None
        self.flood: str | None = None
        self.flooded: Callable[[], None] = lambda: None
        self.past_last_gate: Callable[[], None] = lambda: None

    def __bool__(self) -> bool:
        return True  # the library would make one of its own

    async def connect(self, *arguments: Any, **options: Any) -> None:
        """Connect, with a reset as the end of it."""
        await super().connect(*arguments, **options)
        self._linger(RESET_ON_CLOSE)
        self.connected = True

    async def connect_tls(self, *arguments: Any, **options: Any) -> None:
        """Make TLS.

        Raises:
            WayRefused: it failed, by the peer's certificate or otherwise.
        """
        try:
            await super().connect_tls(*arguments, **options)
        except (ssl.SSLError, OSError):
            raise self._refused("tls_failed") from None
        self._secured = True

    def write(self, payload: bytes) -> None:
        """Write, if it may be written.

        Raises:
            WayRefused: it may not.
        """
        self._check([payload])
        super().write(payload)  # type: ignore[no-untyped-call]

    def writelines(self, payload: Sequence[bytes]) -> None:
        """Do the same for several pieces."""
        self._check(payload)
        super().writelines(payload)  # type: ignore[no-untyped-call]

    async def read(self, buffer_size: int) -> bytes:
        """Read what is there.

        Raises:
            WayRefused: the server has said more than there is to say.
        """
        return self._counted(await super().read(buffer_size))

    async def readline(self) -> bytes:
        """Read a line; raises as `read`."""
        return self._counted(await super().readline())  # type: ignore[no-untyped-call]

    def _counted(self, piece: bytes) -> bytes:
        self._bytes_left -= len(piece)
        if self._bytes_left < 0:
            self.flood = "answer_too_large"
            self.flooded()
            raise self._refused(self.flood)
        return piece

    def close(self) -> None:
        """End the connection, by a reset unless `release` came first."""
        self.abort()

    def abort(self) -> None:
        """Do the same, and drop what was not sent yet. May be called again."""
        if self._io_writer is not None:
            self._io_writer.transport.abort()

    def release(self) -> None:
        """An answer is in: the end is a plain close."""
        self._linger(PLAIN_CLOSE)

    def _linger(self, value: bytes) -> None:
        assert self._io_writer is not None, "connected"
        sock = self._io_writer.transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, value)

    def _check(self, pieces: Sequence[bytes]) -> None:
        if self._private and not self._secured:
            raise self._refused("tls_missing")
        publishes = sum(bytes(piece[:5]) == b"HPUB " for piece in pieces)
        if not publishes:
            return
        if publishes > 1 or self.published or not self.armed:
            raise self._refused("publish_refused")
        if self._budget.remaining_seconds() <= 0:
            raise self._refused("budget_spent")
        self.published = True
        self.past_last_gate()

    def _refused(self, code: str) -> WayRefused:
        self.refusal = self.refusal or code
        self.abort()
        return WayRefused(code)
