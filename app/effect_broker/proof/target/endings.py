"""Owns the endings on the wire: what the client sees of a request, however ugly.

Which effects exist was decided before; nothing here touches the ledger.
"""

from __future__ import annotations

import asyncio
from typing import assert_never

from effect_broker.proof.target.faults import (
    ContentType,
    Drip,
    Ending,
    Fin,
    Garbage,
    Hang,
    Ok,
    Operation,
    Oversize,
    Partial,
    Redirect,
    Reset,
    Status,
    Truncated,
)
from effect_broker.proof.target.messages import Answer
from effect_broker.proof.target.waits import Holds
from effect_broker.proof.target.wire import Connection, head_bytes

MEBIBYTE = 1024 * 1024
_CUT_LENGTH = 50
_CUT_SENT = 10
_JSON = ("content-type", "application/json")


async def end(
    ending: Ending, answer: Answer, connection: Connection, holds: Holds, *, more: bool
) -> bool:
    """Send the ending of a plan; `answer` is what an honest target would say.

    True if the connection may serve another request (`more` false forbids it); else it is closed.
    Raises `ClientGone`.
    """
    match ending:
        case Ok() | Partial() | Operation():
            return await connection.answer(answer, more=more)
        case Status(code=code, body=body, headers=headers):
            return await connection.answer(Answer(code, body, headers), more=more)
        case Redirect(code=code, location=location):
            redirect = Answer(code, b"", (("location", location),))
            return await connection.answer(redirect, more=more)
        case ContentType(media_type=media_type, body=body):
            kept = [field for field in answer.headers if field[0] != "content-type"]
            headers = (*kept, ("content-type", media_type))
            named = Answer(answer.status, answer.body if body is None else body, headers)
            return await connection.answer(named, more=more)
        case Fin():
            connection.close()
        case Reset():
            connection.abort()
        case Hang(seconds=seconds):
            await holds.wait("hang", seconds)
            connection.close()
        case Truncated(how=how):
            await _truncated(how, answer, connection)
        case Drip():
            await _drip(ending, answer, connection)
        case Garbage():
            await connection.raw(b"\x16\x03\x01 this is no HTTP\r\n\x00\xff\r\n\r\n")
            connection.close()
        case Oversize(mebibytes=mebibytes):
            await _oversize(mebibytes, answer, connection)
        case _:
            assert_never(ending)
    return False


async def _truncated(how: str, answer: Answer, connection: Connection) -> None:
    begun = answer.body[:_CUT_SENT]
    match how:
        case "head":
            await connection.raw(b"HTTP/1.1 20")
        case "length":
            length = ("content-length", str(_CUT_LENGTH))
            await connection.raw(head_bytes(answer.status, [_JSON, length]), begun)
        case "chunked":
            chunked = head_bytes(answer.status, [_JSON, ("transfer-encoding", "chunked")])
            await connection.raw(chunked, b"%x\r\n%b\r\n" % (len(begun), begun))
        case _:
            # Without a length the end of the connection is the end of the body: HTTP calls this
            # a whole answer, and only the document itself shows that it is not.
            plain = head_bytes(answer.status, [_JSON, ("connection", "close")])
            await connection.raw(plain, begun)
    connection.close()


async def _drip(drip: Drip, answer: Answer, connection: Connection) -> None:
    # Leading white space is legal JSON: it makes a short answer last for all its pieces.
    body = answer.body.rjust(drip.size * drip.pieces)
    length = ("content-length", str(len(body)))
    await connection.raw(head_bytes(answer.status, [*answer.headers, length]))
    sent = 0
    for _ in range(drip.pieces):
        await asyncio.sleep(drip.seconds)
        await connection.raw(body[sent : sent + drip.size])
        sent += drip.size
    await connection.raw(body[sent:])
    connection.close()


async def _oversize(mebibytes: int, answer: Answer, connection: Connection) -> None:
    """The honest JSON answer with a last field that fills it up to the size."""
    start = answer.body[:-1] + b',"padding":"'
    length = mebibytes * MEBIBYTE
    fill = length - len(start) - 2
    headers = [*answer.headers, ("content-length", str(length))]
    await connection.raw(head_bytes(answer.status, headers), start)
    while fill > 0:
        piece = min(fill, MEBIBYTE)
        await connection.raw(b"x" * piece)
        fill -= piece
    await connection.raw(b'"}')
    connection.close()
