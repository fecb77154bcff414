"""One process of a peer: ``python -m bench.peers_of.NAME ROLE PLACE``, ended by closing its input.

It runs where the peer is installed, so that it imports only the standard library. A role is one of

* ``server``: the peer's own server, if it has one, as a child;
* ``worker``: what carries out effects, for a peer that has workers of its own;
* ``caller``: takes commands, one JSON object a line, and answers each with one line.

The protocol has the process's real standard output to itself; whatever else prints goes to stderr.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TextIO

CLIENTS_MAX = 16
POST_SECONDS = 5.0
"""How long a POST may take, for every peer alike."""
LEASE_SECONDS = 10
"""Any timeout that a peer leaves to its user and that must be longer than the longest step."""


@dataclass(frozen=True)
class Place:
    """What a process of a peer is given.

    Attributes:
        target_url: of the target; objects of a kind are posted to `/objects/KIND` there.
        database_url: of a database of the peer's own, for those that use Postgres.
        ports: free ports on loopback.
        directory: for the peer's own files.
        server: the server's program, where it is not beside the interpreter.
        api_url: of the broker.
        api_key: of the broker.
        key_ring: of the broker, for callers that serve themselves from the database.
    """

    target_url: str
    database_url: str
    ports: list[int]
    directory: str
    server: str = ""
    api_url: str = ""
    api_key: str = ""
    key_ring: str = ""


@dataclass(frozen=True)
class Order:
    """One effect that is wanted once: a key, and the kind of object at the target.

    `variant` is another documented way to use the peer; `client` tells concurrent callers apart.
    """

    key: str
    kind: str
    variant: str = ""
    client: int = 0

    @property
    def body(self) -> dict[str, Any]:
        """What is posted, whoever does it."""
        return {"order": self.key, "amount": 1200, "currency": "eur"}


class NotDone(Exception):
    """The peer has answered, and its answer is not a result; the text is what it says."""


class Peer(ABC):
    """A peer's ways; see the module about roles."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def url(self, kind: str) -> str:
        """Where objects of a kind are posted."""
        return f"{self.place.target_url}/objects/{kind}"

    @abstractmethod
    def version(self) -> str:
        """Return the versions of what runs."""

    def server(self) -> list[str]:
        """Return the command of its server."""
        raise NotImplementedError

    async def prepare(self) -> None:  # noqa: B027 - most have nothing to do
        """Make tables and the like, once, before anything else but the server."""

    async def work(self) -> None:
        """Start to carry out effects in this process."""
        raise NotImplementedError

    @abstractmethod
    async def open(self, clients: int) -> None:
        """Connect as a caller."""

    @abstractmethod
    async def call(self, order: Order) -> Any:
        """Have the effect done and return the target's answer.

        Raises:
            NotDone: the peer says otherwise; or an error of the peer's own.
        """

    @abstractmethod
    async def state(self, order: Order) -> tuple[str, bool]:
        """Return what the peer's record says, and whether it asks a person."""


class _Caller:
    def __init__(self, peer: Peer, channel: TextIO) -> None:
        self._peer, self._channel = peer, channel
        self._running: set[asyncio.Task[None]] = set()

    def take(self, line: str) -> None:
        """Begin one command; it answers when it has ended."""
        task = asyncio.create_task(self._one(json.loads(line)))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _one(self, asked: dict[str, Any]) -> None:
        number, do = asked.pop("id"), asked.pop("do")
        try:
            result: Any
            if do == "load":
                result = await self._load(**asked)
            elif do == "state":
                result = await self._peer.state(Order(**asked))
            else:
                result = await self._peer.call(Order(**asked))
            answer = {"id": number, "result": result}
        except Exception as error:  # whatever it is, it is the peer's answer
            answer = {"id": number, "error": f"{type(error).__name__}: {error}"[:300]}
        self._channel.write(json.dumps(answer) + "\n")
        self._channel.flush()

    async def _load(self, prefix: str, kind: str, clients: int, seconds: float) -> dict[str, Any]:
        """Call as so many clients, each one call at a time, for so long."""
        took: list[float] = []
        begun = perf_counter()

        async def client(number: int) -> None:
            while (before := perf_counter()) < begun + seconds:
                key = f"{prefix}-{number}-{len(took)}-{int(before * 1e6)}"
                await self._peer.call(Order(key, kind, client=number))
                took.append(perf_counter() - before)

        await asyncio.gather(*(client(number) for number in range(clients)))
        return {"begun": begun, "ended": perf_counter(), "took": took}


def _serve(command: list[str]) -> None:
    """Run the server until the benchmark closes the input, or is gone."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        sys.stdin.read()
    finally:
        child.kill()
        child.wait()


async def _play(peer: Peer, role: str, clients: int, channel: TextIO) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(CLIENTS_MAX))  # of the blocking interfaces
    if role == "prepare":
        await peer.prepare()
    elif role == "worker":
        await peer.work()
    else:
        await peer.open(clients)
    channel.write(json.dumps({"ready": peer.version()}) + "\n")
    channel.flush()
    caller = _Caller(peer, channel)
    with ThreadPoolExecutor(1) as reader:
        while line := await loop.run_in_executor(reader, sys.stdin.readline):
            caller.take(line)
    os._exit(0)  # whatever still waits is of no use to anybody


def main(make: type[Peer]) -> None:
    """Play the role that the command line names."""
    role, place = sys.argv[1], json.loads(sys.argv[2])
    clients = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the benchmark ends its processes itself
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    peer = make(Place(**place))
    if role == "server":
        channel.write(json.dumps({"ready": ""}) + "\n")
        channel.flush()
        _serve(peer.server())
    else:
        asyncio.run(_play(peer, role, clients, channel))
