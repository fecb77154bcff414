"""Answers of a server over HTTP, as large as they may be and no larger.

A limit of the bytes on the wire is none where they are compressed: some kilobytes become a gigabyte
of memory while the library reads them. So compressed answers are not asked for, and one that comes
is not read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import httpx2

_NOT_ENCODED: Final = ("", "identity")


class TooLarge(httpx2.TransportError):
    """The answer grew over its limit; the rest is not read."""


class Compressed(httpx2.TransportError):
    """The answer is compressed, which nobody has asked for; it is not read."""


def ask_plainly(request: httpx2.Request) -> None:
    """Ask for an answer that is not compressed."""
    request.headers["Accept-Encoding"] = "identity"


def bounded(response: httpx2.Response, bytes_max: int) -> httpx2.Response:
    """Let the body be read up to its limit.

    Raises:
        Compressed: the limit would not hold for what it becomes.
    """
    if response.headers.get("content-encoding", "").strip().lower() not in _NOT_ENCODED:
        raise Compressed("the answer is compressed")
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    response.stream = _Bounded(response.stream, bytes_max)
    return response


class _Bounded(httpx2.AsyncByteStream):
    """The body of an answer, up to its limit."""

    def __init__(self, stream: httpx2.AsyncByteStream, bytes_max: int) -> None:
        self._stream = stream
        self._left = bytes_max

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            self._left -= len(chunk)
            if self._left < 0:
                raise TooLarge("the answer is too large")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
