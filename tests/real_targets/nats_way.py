"""A way to a real server of NATS that sees each publish, and does to it what it is told."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading

from peers import Arrival

_HPUB = re.compile(rb"HPUB (\S+) (\S+) (\d+) (\d+)\r\n")
_SUB = re.compile(rb"SUB (\S+) +(\S+)\r\n")

# Words of JetStream instead of an acknowledgement.
ERRORS = {
    "refuse": {"code": 400, "err_code": 10060, "description": "expected stream does not match"},
    "busy": {"code": 503, "err_code": 10023, "description": "insufficient resources"},
    "in_progress": {"code": 409, "err_code": 10158, "description": "duplicate in process"},
    "unlisted": {"code": 500, "err_code": 10999, "description": "never heard of"},
}


class NatsWay:
    """A script for `peers.peer`: carries a connection to the server, byte for byte.

    Attributes:
        fate: what becomes of a publish: `ok`, `lose` (stored, and its acknowledgement lost), `hold`
            (stored, no word), a name of `ERRORS` (not carried on), `silence` (not carried on, no
            word), else garbage.
        publishes: every publish that came, whole.
    """

    def __init__(self, port: int) -> None:
        self.fate = "ok"
        self.publishes: list[bytes] = []
        self._port = port

    def keys(self) -> list[str]:
        """Return the message id of each publish."""
        found = [re.search(rb"Nats-Msg-Id: (\S+)\r\n", publish) for publish in self.publishes]
        return [match.group(1).decode() for match in found if match is not None]

    def __call__(self, arrival: Arrival) -> None:
        with socket.create_connection(("127.0.0.1", self._port), timeout=10) as server:
            lost = threading.Event()
            back = threading.Thread(target=self._carry_back, args=(server, arrival, lost))
            back.start()
            self._carry(server, arrival, lost)
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            back.join(10)

    def _carry(self, server: socket.socket, arrival: Arrival, lost: threading.Event) -> None:
        waiting, sid = b"", b"1"
        while chunk := arrival.read_some():
            waiting += chunk
            found = _SUB.search(waiting)
            sid = sid if found is None else found.group(2)
            head = _HPUB.search(waiting)
            if head is None:
                server.sendall(waiting)
                waiting = b""
                continue
            end = head.end() + int(head.group(4)) + 2
            if len(waiting) < end:
                continue
            self.publishes.append(waiting[head.start() : end])
            if self.fate in {"ok", "lose", "hold"}:
                if self.fate == "lose":
                    lost.set()
                server.sendall(waiting)
            elif self.fate in ERRORS:
                word = json.dumps({"error": ERRORS[self.fate]}).encode()
                arrival.send(b"MSG %s %s %d\r\n%s\r\n" % (head.group(2), sid, len(word), word))
            elif self.fate != "silence":
                arrival.send(b"\x00garbage\r\n\r\n")
                arrival.reset()
                return
            waiting = b""

    def _carry_back(self, server: socket.socket, arrival: Arrival, lost: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while chunk := server.recv(65536):
                if self.fate == "hold" and b'"seq"' in chunk:
                    continue
                if lost.is_set() and b'"seq"' in chunk:
                    # The message is stored; its acknowledgement goes no further.
                    arrival.sock.shutdown(socket.SHUT_RDWR)
                    return
                arrival.send(chunk)
            with contextlib.suppress(OSError):
                arrival.sock.shutdown(socket.SHUT_RDWR)
