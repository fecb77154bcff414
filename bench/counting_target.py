"""``python -m bench.counting_target``: a target that counts what it is asked to bear.

It answers a charge at once, after a while, or when it is let go, and counts in memory: requests,
distinct keys, the greatest number of requests that it held at once, and when each came. It is the
cheapest target that can be judged by, so that its share of two cores is in no figure of the broker.
It keeps nothing; what must survive a crash is judged at `effect_broker.proof.target`.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

import httpx

READY = "counting target listening on "
# Held requests are sockets; with 1,000 of them the usual soft limit of 1,024 is not enough.
_FILES = 8192


@dataclass(slots=True)
class _Kind:
    """What one kind of object does, and what it has seen."""

    seconds: float = 0.0
    held: bool = False
    requests: int = 0
    now: int = 0
    greatest: int = 0
    keys: set[str] = field(default_factory=set)
    came_at: list[float] = field(default_factory=list)
    let_go: asyncio.Event = field(default_factory=asyncio.Event)

    def seen(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "keys": len(self.keys),
            "now": self.now,
            "greatest_at_once": self.greatest,
            "greatest_in_a_second": most_in_a_second(self.came_at),
        }


def most_in_a_second(came_at: list[float]) -> int:
    """Return how many came within one second at most, wherever that second begins."""
    return max(
        (n + 1 - bisect_left(came_at, at - 1.0) for n, at in enumerate(came_at)),
        default=0,
    )


class _Server:
    """The kinds, and one connection after the other."""

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}

    def _kind(self, name: str) -> _Kind:
        return self._kinds.setdefault(name, _Kind())

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request and close, as the broker asks of every target."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            target = head[0].split(" ")[1]
            lines = (line.partition(":") for line in head[1:])
            fields = {name.lower(): value.strip() for name, _, value in lines}
            body = await reader.readexactly(int(fields.get("content-length", 0)))
            path = urlsplit(target)
            if path.path.startswith("/_control"):
                status, answer = self._control(path.path, dict(parse_qsl(path.query)))
            else:
                key = fields.get("idempotency-key", "")
                status, answer = await self._charge(path.path.rpartition("/")[2], key, body)
            text = json.dumps(answer).encode()
            writer.write(
                b"HTTP/1.1 %d OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
                b"Connection: close\r\n\r\n%s" % (status, len(text), text)
            )
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # whoever has asked is gone
        finally:
            writer.close()

    async def _charge(self, kind_name: str, key: str, body: bytes) -> tuple[int, dict[str, Any]]:
        kind = self._kind(kind_name)
        kind.requests += 1
        kind.came_at.append(monotonic())
        kind.keys.add(key)
        kind.now += 1
        kind.greatest = max(kind.greatest, kind.now)
        try:
            if kind.held:
                await kind.let_go.wait()
            elif kind.seconds:
                await asyncio.sleep(kind.seconds)
        finally:
            kind.now -= 1
        asked = json.loads(body)
        same = {name: asked[name] for name in ("amount", "currency")}
        return 201, {"id": f"ch_{key}", "status": "succeeded", **same}

    def _control(self, path: str, asked: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        kind = self._kind(asked["kind"])
        if path.endswith("/set"):
            kind.seconds = float(asked["seconds"])
            kind.held = asked["held"] == "1"
            if not kind.held:
                kind.let_go.set()
                kind.let_go = asyncio.Event()
        return 200, kind.seen()


async def _main(port: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    server = await asyncio.start_server(_Server().serve, "127.0.0.1", port, backlog=2048)
    print(f"{READY}http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


@dataclass(frozen=True, slots=True)
class Seen:
    """What a target has counted of one kind; see `_Kind`."""

    requests: int
    keys: int
    now: int
    greatest_at_once: int
    greatest_in_a_second: int


class CountingTarget:
    """The target in a process of its own. After `stop` its port refuses, as in an outage."""

    def __init__(self) -> None:
        self._port = 0
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None, "the target does not run"
        return self._process.pid

    def start(self) -> None:
        """Start, on the same port as before."""
        command = [sys.executable, "-m", "bench.counting_target", str(self._port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith(READY), line
        self.url = line.removeprefix(READY).strip()
        self._port = int(self.url.rpartition(":")[2])

    def stop(self) -> None:
        """End it; what it has counted is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def behave(self, kind: str, *, seconds: float = 0.0, held: bool = False) -> Seen:
        """Answer after so many seconds, or hold every request until this is called again."""
        return self._ask("set", kind=kind, seconds=str(seconds), held=str(int(held)))

    def seen(self, kind: str) -> Seen:
        """What it has counted."""
        return self._ask("seen", kind=kind)

    def _ask(self, what: str, **parameters: str) -> Seen:
        answer = httpx.get(
            f"{self.url}/_control/{what}", params=parameters, trust_env=False, timeout=60.0
        )
        answer.raise_for_status()
        return Seen(**answer.json())


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1])))
