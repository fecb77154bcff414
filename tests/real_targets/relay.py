"""A relay before a real target that loses answers, or requests: nobody hears of what is done."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from peers import Arrival, Peer


class Relay:
    """Passes requests to a target on loopback.

    Attributes:
        losing: the target does its work, and the relay resets instead of answering.
        holding: the target does its work, and the relay says nothing.
        dropping: the relay carries nothing and says nothing.
    """

    def __init__(self, target_port: int) -> None:
        self.losing = self.holding = self.dropping = False
        self._target_port = target_port
        self._peer = Peer(self._carry, None, 0)

    @property
    def origin(self) -> str:
        """Scheme, host and port of the relay itself."""
        return self._peer.url

    @property
    def requests(self) -> list[bytes]:
        """The requests that came, as they came, whatever became of them."""
        return [received for received in self._peer.received if received]

    def stop(self) -> None:
        """Close every connection."""
        self._peer.stop()

    def _carry(self, arrival: Arrival) -> None:
        request = arrival.read_request()
        if not request:
            return None
        if self.dropping:
            return arrival.hold()
        answer = carried(request, self._target_port)
        if self.holding:
            return arrival.hold()
        return arrival.reset() if self.losing else arrival.send(answer)


def carried(request: bytes, target_port: int) -> bytes:
    """Carry one request to the target, byte for byte, and return its answer.

    The request says `Connection: close`, so that the end of the stream is that of the answer.
    """
    answer = b""
    with socket.create_connection(("127.0.0.1", target_port), timeout=10) as target:
        target.sendall(request)
        while piece := target.recv(65536):
            answer += piece
    assert answer.startswith(b"HTTP/1."), "the target has answered, so it has done its work"
    return answer


@contextlib.contextmanager
def relay(target_port: int) -> Iterator[Relay]:
    """Run a relay to `target_port` for the length of the block."""
    carrier = Relay(target_port)
    try:
        yield carrier
    finally:
        carrier.stop()
