"""What one HTTP exchange proves, failure by failure, against peers that really fail that way."""

from __future__ import annotations

import asyncio
import inspect
import logging
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import httpcore
import pytest

from effect_adapters.base import Budget
from effect_adapters.http.connection import verifying_tls
from effect_adapters.http.exchange import (
    CODE_BY_ERROR,
    End,
    Exchange,
    Lost,
    NotSent,
    Origin,
    OutgoingRequest,
    Reply,
    exchange,
)
from peers import (
    Arrival,
    Authority,
    Peer,
    answer,
    json_answer,
    peer,
    refused_port,
    replying,
    silent_port,
)

BODY_8_MB = b"x" * 8_000_000
SECRET = "sk_live_never_print_me"


def budget(seconds: float) -> Budget:
    return Budget(time.monotonic() + seconds, time.monotonic)


def request_to(
    port: int, body: bytes = b'{"a":1}', scheme: str = "http", host: str = "127.0.0.1"
) -> OutgoingRequest:
    return OutgoingRequest(
        "POST",
        Origin(scheme, host, port),
        b"/charges",
        ((b"Idempotency-Key", b"key-1"), (b"Authorization", SECRET.encode())),
        body,
    )


async def send(
    request: OutgoingRequest,
    seconds: float = 5.0,
    response_bytes_max: int = 65536,
    **options: Any,
) -> End:
    options.setdefault("reach", lambda name: None)
    options.setdefault("tls", verifying_tls())
    options.setdefault("budget", budget(seconds))
    return await exchange(request, response_bytes_max=response_bytes_max, **options)


def closing(arrival: Arrival) -> None:
    """Read one request and close without an answer."""
    arrival.read_request()


# Nothing was sent ------------------------------------------------------------------------------


async def test_a_refused_port_proves_that_nothing_was_sent() -> None:
    assert await send(request_to(refused_port())) == NotSent("connect_refused")


async def test_a_dropped_syn_proves_that_nothing_was_sent() -> None:
    with silent_port() as port:
        assert await send(request_to(port), seconds=0.3) == NotSent("connect_timeout")


async def test_a_name_that_does_not_resolve_proves_that_nothing_was_sent() -> None:
    end = await send(request_to(80, host="no-such-host.invalid"))
    assert end == NotSent("dns_failed")


async def test_a_name_that_cannot_be_a_name_proves_that_nothing_was_sent() -> None:
    assert await send(request_to(80, host="a" * 64 + ".invalid")) == NotSent("dns_failed")


async def test_a_handshake_that_the_peer_cuts_proves_that_nothing_was_sent() -> None:
    def script(arrival: Arrival) -> None:
        arrival.read_some()

    with peer(script) as target:
        assert await send(request_to(target.port, scheme="https")) == NotSent("tls_failed")
        target.settle()
        assert SECRET.encode() not in b"".join(target.received)


async def test_a_handshake_that_never_ends_proves_that_nothing_was_sent() -> None:
    with peer(Arrival.hold) as target:
        end = await send(request_to(target.port, scheme="https"), seconds=0.3)
        assert end == NotSent("tls_timeout")


async def test_an_unknown_authority_is_refused_before_anything_is_sent(
    authority: Authority,
) -> None:
    with peer(replying(answer(200)), tls=authority.server) as target:
        assert await send(request_to(target.port, scheme="https")) == NotSent("tls_failed")
        assert target.requests == 0


async def test_a_certificate_for_another_host_is_refused_before_anything_is_sent(
    authority: Authority,
) -> None:
    with peer(replying(answer(200)), tls=authority.server) as target:
        request = request_to(target.port, scheme="https", host="localhost")
        assert await send(request, tls=authority.client) == NotSent("tls_failed")
        assert target.requests == 0


async def test_a_spent_budget_opens_no_connection() -> None:
    with peer(replying(answer(200))) as target:
        assert await send(request_to(target.port), seconds=0) == NotSent("budget_spent")
        assert target.arrivals == []


async def test_the_last_gate_vetoes_when_the_budget_ran_out_in_front_of_it() -> None:
    now = [0.0]

    def reach(name: str) -> None:
        assert name == "before_socket_write"
        now[0] = 10.0  # the process was stopped here, and woke up too late

    with peer(closing) as target:
        end = await send(request_to(target.port), reach=reach, budget=Budget(5, lambda: now[0]))
        assert end == NotSent("budget_spent")
        target.settle()
        assert target.received == [b""]


@pytest.mark.parametrize("size", [0, 10, 65_536, 200_000])
async def test_the_last_gate_is_that_of_the_piece_that_ends_the_request(size: int) -> None:
    """Whoever was paused in front of any other piece leaves half a request at most."""
    now = [0.0]
    reached: list[str] = []

    def reach(name: str) -> None:
        reached.append(name)
        if name == "after_last_gate":
            now[0] = 10.0

    with peer(replying(answer(200))) as target:
        request = request_to(target.port, b"x" * size)
        end = await send(request, reach=reach, budget=Budget(5, lambda: now[0]))
        assert isinstance(end, Reply)
        assert reached == ["before_socket_write", "after_last_gate"]
        target.settle()
        (arrived,) = target.received
        assert arrived.count(b"x") >= size


async def test_a_header_that_our_own_library_refuses_leaves_no_byte() -> None:
    with peer(closing) as target:
        request = OutgoingRequest(
            "POST",
            Origin("http", "127.0.0.1", target.port),
            b"/",
            ((b"X-Bad", b"a\r\nX-Evil: 1"),),
            b"",
        )
        assert await send(request) == NotSent("invalid_header")
        target.settle()
        assert target.received == [b""]


async def test_a_task_cancelled_while_connecting_has_sent_nothing() -> None:
    with silent_port() as port:
        running = Exchange(request_to(port), budget(5), lambda name: None, 65536, verifying_tls())
        task = asyncio.create_task(running.run())
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert running.unfinished("cancelled") == NotSent("cancelled")


async def test_a_second_address_is_tried_when_the_first_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with peer(replying(answer(200))) as target:
        genuine = socket.getaddrinfo

        def two(host: str, *args: Any, **options: Any) -> Any:
            dead = genuine("127.0.0.1", refused_port(), type=socket.SOCK_STREAM)
            return [*dead, *genuine("127.0.0.1", target.port, type=socket.SOCK_STREAM)]

        monkeypatch.setattr(socket, "getaddrinfo", two)
        assert isinstance(await send(request_to(target.port)), Reply)


# It may have been sent -------------------------------------------------------------------------


def fin_unread(arrival: Arrival) -> None:
    arrival.sock.close()


def rst_unread(arrival: Arrival) -> None:
    # Only once a byte lies there: before that, the reset may overtake the end of the handshake,
    # and then nothing was sent.
    select.select([arrival.sock], [], [], 5.0)
    arrival.reset()


def rst_after_reading(arrival: Arrival) -> None:
    arrival.read_request()
    arrival.reset()


def rst_in_mid_body(arrival: Arrival) -> None:
    arrival.read_some()
    arrival.reset()


def early_413(arrival: Arrival) -> None:
    arrival.read_some()
    arrival.send(answer(413))
    arrival.reset()


def drip(arrival: Arrival) -> None:
    arrival.read_request()
    for byte in answer(200, b"{}"):
        arrival.send(bytes([byte]))
        if arrival.stopping.wait(0.1):
            return


def hang(arrival: Arrival) -> None:
    arrival.read_request()
    arrival.hold()


def endless(arrival: Arrival) -> None:
    arrival.read_request()
    arrival.send(b"HTTP/1.1 200 OK\r\n\r\n")
    while not arrival.stopping.is_set():
        arrival.sock.sendall(b"x" * 65536)


PARTIAL = b'HTTP/1.1 201 Created\r\nContent-Length: 50\r\n\r\n{"id":"ch_'
CHUNK_CUT = b'HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n20\r\n{"id":"ch_'
BAD_CHUNK = b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"

LOST: dict[str, tuple[Callable[[Arrival], None], bytes, set[str], int | None]] = {
    "accepted, FIN before reading": (fin_unread, b"{}", {"reset", "closed_without_answer"}, None),
    "accepted, RST before reading": (rst_unread, b"{}", {"reset"}, None),
    "RST in the middle of 8 MB": (rst_in_mid_body, BODY_8_MB, {"reset"}, None),
    "reads all and closes": (closing, b"{}", {"closed_without_answer"}, None),
    "reads all and resets": (rst_after_reading, b"{}", {"reset"}, None),
    "part of the head": (replying(b"HTTP/1.1 200 OK\r\nCont"), b"{}", {"truncated_head"}, None),
    "part of the body": (replying(PARTIAL), b"{}", {"truncated_body"}, 201),
    "part of a chunk": (replying(CHUNK_CUT), b"{}", {"truncated_body"}, 201),
    "garbage": (replying(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"), b"{}", {"garbage_answer"}, None),
    "a broken chunk": (replying(BAD_CHUNK), b"{}", {"garbage_answer"}, 201),
    "an endless head": (replying(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000), b"{}",
                        {"garbage_answer", "reset"}, None),
    "never answers": (hang, b"{}", {"deadline"}, None),
    "never reads 8 MB": (Arrival.hold, BODY_8_MB, {"deadline"}, None),
    "a drip": (drip, b"{}", {"deadline"}, None),
    "an endless body": (endless, b"{}", {"response_too_large"}, 200),
    "a body one byte too long": (replying(answer(200, b"x" * 65537)), b"{}",
                                 {"response_too_large"}, 200),
}  # fmt: skip


@pytest.mark.parametrize("case", LOST)
async def test_without_a_complete_answer_the_request_may_have_arrived(case: str) -> None:
    script, body, codes, status = LOST[case]
    with peer(script, buffer_bytes=4096 if body is BODY_8_MB else 0) as target:
        began = time.monotonic()
        end = await send(request_to(target.port, body), seconds=0.5)
        assert time.monotonic() - began < 15  # the scripts go on for as long as they are heard
        assert isinstance(end, Lost)
        assert end.code in codes
        assert end.status == status
        assert len(target.arrivals) == 1, "sent twice"


async def test_an_early_refusal_is_an_answer_or_a_loss_but_never_a_proof_of_silence() -> None:
    with peer(early_413) as target:
        end = await send(request_to(target.port, BODY_8_MB))
        assert end == Lost("reset") or (isinstance(end, Reply) and end.status == 413)
        assert len(target.arrivals) == 1


async def test_a_cut_body_keeps_its_status_and_the_digest_of_what_came() -> None:
    with peer(replying(PARTIAL)) as target:
        end = await send(request_to(target.port))
        assert isinstance(end, Lost)
        assert end.status == 201
        assert end.digest is not None


async def test_a_task_cancelled_after_sending_may_have_sent() -> None:
    with peer(hang) as target:
        running = Exchange(
            request_to(target.port), budget(5), lambda name: None, 65536, verifying_tls()
        )
        task = asyncio.create_task(running.run())
        await asyncio.to_thread(target.await_request)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert running.unfinished("cancelled") == Lost("cancelled")


async def test_tls_that_is_cut_without_its_farewell_is_no_end_of_a_body(
    authority: Authority,
) -> None:
    cut = b"HTTP/1.1 200 OK\r\n\r\n{}"  # no length: only the end of the connection ends it
    with peer(replying(cut), tls=authority.server) as target:
        end = await send(request_to(target.port, scheme="https"), tls=authority.client)
        assert isinstance(end, Lost)
        assert (end.code, end.status) == ("reset", 200)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_an_answer_and_is_not_followed(status: int) -> None:
    with peer(replying(answer(200))) as elsewhere:
        moved = answer(status, headers=(f"Location: {elsewhere.url}/",))
        with peer(replying(moved)) as target:
            end = await send(request_to(target.port))
            assert isinstance(end, Reply)
            assert end.status == status
            assert (len(target.arrivals), len(elsewhere.arrivals)) == (1, 0)


# The connection after it -----------------------------------------------------------------------


async def test_an_abandoned_connection_is_reset_and_what_is_buffered_does_not_arrive() -> None:
    """A plain close would let the kernel deliver up to its whole buffer, seconds later."""

    def late_reader(arrival: Arrival) -> None:
        go_on.wait(5)
        while arrival.read_some():
            pass

    go_on = threading.Event()
    with peer(late_reader, buffer_bytes=4096) as target:
        body = b"x" * 200_000  # more than the peer's kernel takes in, less than ours buffers
        assert await send(request_to(target.port, body), seconds=0.4) == Lost("deadline")
        go_on.set()
        target.settle()
        assert len(target.received[0]) < len(body) // 2


async def test_no_further_piece_leaves_once_the_budget_is_spent() -> None:
    now = [0.0]

    def slow(arrival: Arrival) -> None:
        while arrival.read_some():
            now[0] += 1.0

    with peer(slow, buffer_bytes=4096) as target:
        end = await send(request_to(target.port, BODY_8_MB), budget=Budget(20, lambda: now[0]))
        assert end == Lost("deadline")
        target.settle()
        assert len(target.received[0]) < len(BODY_8_MB)


# A complete answer -----------------------------------------------------------------------------


async def test_the_bytes_on_the_wire_are_the_request_and_nothing_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{refused_port()}")
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{refused_port()}")
    with peer(replying(json_answer(201, '{"id":"ch_1"}'))) as target:
        end = await send(request_to(target.port))
        assert isinstance(end, Reply)
        assert (end.status, end.body) == (201, b'{"id":"ch_1"}')
        assert end.header("content-type") == "application/json"
        assert target.received == [
            f"POST /charges HTTP/1.1\r\nHost: 127.0.0.1:{target.port}\r\n"
            f"Idempotency-Key: key-1\r\nAuthorization: {SECRET}\r\n"
            'Content-Length: 7\r\nConnection: close\r\n\r\n{"a":1}'.encode()
        ]


async def test_an_answer_over_tls_comes_in_whole(authority: Authority) -> None:
    body = b"y" * 300_000
    with peer(replying(answer(200, body)), tls=authority.server) as target:
        end = await send(
            request_to(target.port, b"x" * 300_000, scheme="https"),
            tls=authority.client,
            response_bytes_max=400_000,
        )
        assert isinstance(end, Reply)
        assert end.body == body
        assert target.received[0].endswith(b"x" * 300_000)


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("looks", [False, True])
async def test_a_hang_up_follows_the_whole_request_and_an_answer_is_still_read(
    authority: Authority, scheme: str, looks: bool
) -> None:
    """A peer that looks finds the connection broken; under TLS it can say nothing more then."""
    ends: list[bytes] = []

    def script(arrival: Arrival) -> None:
        arrival.read_request()
        if looks:
            ends.append(arrival.sock.recv(1))
        arrival.send(json_answer(201, "{}"))

    body = b"x" * 300_000
    with peer(script, tls=authority.server if scheme == "https" else None) as target:
        request = request_to(target.port, body, scheme=scheme)
        end = await send(request, tls=authority.client, hang_up=True)
        target.settle()
        assert target.received[0].endswith(body)
    assert ends == ([b""] if looks else [])
    if looks and scheme == "https":
        assert end == Lost("reset")
    else:
        assert isinstance(end, Reply)
        assert end.status == 201


async def test_an_answer_of_exactly_the_limit_is_taken() -> None:
    with peer(replying(answer(200, b"x" * 65536))) as target:
        assert isinstance(await send(request_to(target.port)), Reply)


async def test_every_exchange_has_a_connection_of_its_own() -> None:
    with peer(replying(answer(200))) as target:
        for _ in range(3):
            assert isinstance(await send(request_to(target.port)), Reply)
        assert len(target.arrivals) == 3


# No text of a library leaves -------------------------------------------------------------------


def test_every_exception_class_of_httpcore_has_a_code() -> None:
    raised = {
        value
        for _, value in inspect.getmembers(httpcore, inspect.isclass)
        if issubclass(value, Exception)
    }
    assert raised == set(CODE_BY_ERROR)


class Exploding(httpcore.AsyncHTTP11Connection):
    error: Exception = RuntimeError(SECRET)

    async def handle_async_request(self, request: httpcore.Request) -> httpcore.Response:
        raise self.error


@pytest.mark.parametrize("kind", [*CODE_BY_ERROR, RuntimeError, UnicodeEncodeError, RecursionError])
async def test_no_exception_and_none_of_its_text_escapes(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments: tuple[Any, ...] = (SECRET,)
    if kind is UnicodeEncodeError:
        arguments = ("ascii", SECRET, 0, 1, SECRET)
    monkeypatch.setattr(Exploding, "error", kind(*arguments))
    monkeypatch.setattr(httpcore, "AsyncHTTP11Connection", Exploding)
    with peer(closing) as target:
        end = await send(request_to(target.port))
        assert isinstance(end, NotSent), "the gate was never reached"
        assert SECRET not in repr(end)


async def test_secrets_stay_out_of_logs_at_the_lowest_level(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    with peer(replying(answer(200))) as target:
        await send(request_to(target.port))
        await send(request_to(refused_port()))
    assert SECRET not in caplog.text
    assert SECRET not in repr(request_to(1))


def test_peers_count_what_they_read() -> None:
    """The ledger that these tests believe is itself worth one test."""
    with peer(closing) as target, socket.create_connection(("127.0.0.1", target.port)) as sock:
        assert isinstance(target, Peer)
        sock.sendall(b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nok")
        sock.recv(1)
        target.settle()
        assert (target.requests, target.received[0][-2:]) == (1, b"ok")
