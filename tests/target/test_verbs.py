"""Every verb over a real socket: what the client sees, and what the ledger then holds."""

from __future__ import annotations

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx
import pytest

from effect_broker.proof.broker import wait_until
from effect_broker.proof.target.client import TargetClient
from effect_broker.proof.target.process import TargetProcess

# Who gives up soon waiting for an answer, and not while it connects or writes.
BRIEF = httpx.Timeout(30.0, read=0.1)


# How often a test that is about time is begun anew, since the machine may stand still.
STALLS_MAX = 5
BODY = b'{"amount":500,"currency":"eur"}'
REQUEST = (
    b"POST /charges HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
    b"Idempotency-Key: k1\r\nContent-Length: 31\r\n\r\n" + BODY
)


def post(
    http: httpx.Client, *, timeout: float | httpx.Timeout = 10, key: str = "k1"
) -> httpx.Response:
    headers = {"idempotency-key": key, "content-type": "application/json"}
    return http.post("/charges", content=BODY, headers=headers, timeout=timeout)


def counts(target: TargetClient) -> tuple[int, int]:
    """N and E: requests that the target received, and effects that it holds."""
    view = target.ledger(rows=False)
    return view.arrivals, view.effects


def all_of(connection: socket.socket) -> bytes:
    """Everything until FIN; a reset raises."""
    pieces = []
    while piece := connection.recv(65536):
        pieces.append(piece)
    return b"".join(pieces)


def test_an_unscripted_request_is_served_and_recorded(
    target: TargetClient, http: httpx.Client
) -> None:
    answer = post(http)
    assert answer.status_code == 201
    assert answer.json()["id"] == "ch_000001"
    assert answer.json()["amount"] == 500
    (row,) = target.ledger(kind="charges", key="k1").arrival_rows
    assert row.body == BODY
    assert row.body_length == len(BODY)
    assert (row.method, row.path, row.downstream_key) == ("POST", "/charges", "k1")
    assert row.plan == "ok"
    assert row.received_monotonic <= time.monotonic()


def test_commit_then_fin_leaves_an_effect_and_a_closed_connection(
    target: TargetClient, wire: socket.socket
) -> None:
    target.script("commit;FIN")
    wire.sendall(REQUEST)
    assert all_of(wire) == b""
    assert counts(target) == (1, 1)


def test_commit_then_reset_leaves_an_effect_and_a_reset(
    target: TargetClient, wire: socket.socket
) -> None:
    target.script("commit;RST")
    wire.sendall(REQUEST)
    with pytest.raises(ConnectionResetError):
        all_of(wire)
    assert counts(target) == (1, 1)


@pytest.mark.parametrize("plan", ["FIN", "RST", "hang(0.05)", "status(503)", "trunc", "empty(204)"])
def test_without_commit_a_request_arrives_and_does_nothing(
    target: TargetClient, http: httpx.Client, plan: str
) -> None:
    target.script(plan)
    try:
        post(http)
    except httpx.TransportError:
        assert plan not in ("status(503)", "empty(204)")
    assert counts(target) == (1, 0)


def test_the_first_request_of_a_connection_is_served_and_the_second_reset(
    target: TargetClient, wire: socket.socket
) -> None:
    target.script("ok", "commit;RST")
    wire.sendall(REQUEST)
    assert wire.recv(65536).startswith(b"HTTP/1.1 201 ")
    wire.sendall(REQUEST.replace(b"k1", b"k2"))
    with pytest.raises(ConnectionResetError):
        all_of(wire)
    assert counts(target) == (2, 2)


def test_a_hang_ends_after_its_time(target: TargetClient, wire: socket.socket) -> None:
    target.script("commit;hang(0.1)")
    wire.sendall(REQUEST)
    assert all_of(wire) == b""
    assert counts(target) == (1, 1)


def test_a_hang_outlasts_the_client_and_ends_by_release(
    target: TargetClient, http: httpx.Client, wire: socket.socket
) -> None:
    target.script("commit;hang(60)", "hang")
    with pytest.raises(httpx.ReadTimeout):
        post(http, timeout=BRIEF)
    wire.sendall(REQUEST)
    assert target.wait_held(2).effects == 1
    assert target.release("another") == 0
    assert target.release("hang") == 2
    assert all_of(wire) == b""
    assert target.ledger(rows=False).held == 0


def test_a_gate_keeps_the_answer_back_until_it_is_released(
    target: TargetClient, http: httpx.Client
) -> None:
    target.script("gate")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(post, http)
        assert target.wait_held(1).effects == 1
        assert not waiting.done()
        assert target.release("gate") == 1
        assert waiting.result().status_code == 201


def test_a_hold_keeps_the_effect_back_until_it_is_released(
    target: TargetClient, http: httpx.Client
) -> None:
    target.script("hold(late);commit;FIN")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(post, http)
        held = target.wait_held(1)
        assert (held.arrivals, held.effects) == (1, 0)
        target.release("late")
        with pytest.raises(httpx.RemoteProtocolError):
            waiting.result()
    assert counts(target) == (1, 1)


def test_a_gate_outlives_the_client_that_waits_at_it(
    target: TargetClient, wire: socket.socket
) -> None:
    target.script("gate")
    wire.sendall(REQUEST)
    target.wait_held(1)
    wire.close()
    assert target.release() == 1
    assert counts(target) == (1, 1)


def test_a_late_commit_comes_after_the_client_has_given_up(
    target: TargetClient, http: httpx.Client
) -> None:
    target.script("delay(0.6);commit")
    with pytest.raises(httpx.ReadTimeout):
        post(http, timeout=BRIEF)
    assert target.wait_effects(1).arrivals == 1
    ledger = target.ledger()
    (row,), (arrival,) = ledger.effect_rows, ledger.arrival_rows
    assert row.committed_at - arrival.received_at >= 0.5


def test_a_slow_answer_is_a_whole_answer(target: TargetClient, http: httpx.Client) -> None:
    target.script("slow(0.1);ok")
    begun = time.monotonic()
    assert post(http).status_code == 201
    assert time.monotonic() - begun >= 0.1


def test_a_scripted_status_carries_its_body_and_headers(
    target: TargetClient, http: httpx.Client
) -> None:
    target.script(
        'status(429,{"error":"slow_down"},{"Retry-After":"7"})',
        "commit;status(503)",
        'status(200,"")',
        'status(200,"hello")',
    )
    refused = post(http)
    assert (refused.status_code, refused.json()) == (429, {"error": "slow_down"})
    assert refused.headers["retry-after"] == "7"
    assert counts(target) == (1, 0)
    assert post(http).status_code == 503
    assert counts(target) == (2, 1)
    assert post(http).content == b""
    plain = post(http)
    assert (plain.text, plain.headers["content-type"]) == ("hello", "text/plain; charset=utf-8")


@pytest.mark.parametrize(("plan", "status"), [("commit;empty", 204), ("commit;empty(200)", 200)])
def test_an_empty_success_has_no_body(
    target: TargetClient, http: httpx.Client, plan: str, status: int
) -> None:
    target.script(plan)
    answer = post(http)
    assert (answer.status_code, answer.content) == (status, b"")
    assert counts(target) == (1, 1)


@pytest.mark.parametrize("how", ["length", "chunked", "head"])
def test_a_cut_answer_is_seen_as_cut(target: TargetClient, http: httpx.Client, how: str) -> None:
    target.script(f"commit;trunc({how})")
    with pytest.raises(httpx.RemoteProtocolError):
        post(http)
    assert counts(target) == (1, 1)


def test_an_answer_cut_at_the_close_looks_whole_to_the_client(
    target: TargetClient, http: httpx.Client
) -> None:
    target.script("commit;trunc(close)")
    answer = post(http)
    assert answer.status_code == 201
    assert answer.headers["content-type"] == "application/json"
    with pytest.raises(json.JSONDecodeError):
        answer.json()
    assert counts(target) == (1, 1)


def test_a_cut_length_declares_fifty_bytes_and_sends_ten(
    target: TargetClient, wire: socket.socket
) -> None:
    target.script("commit;trunc")
    wire.sendall(REQUEST)
    head, _, body = all_of(wire).partition(b"\r\n\r\n")
    assert b"content-length: 50" in head
    assert len(body) == 10


def test_a_drip_stays_below_the_read_timeout_and_outlasts_it_in_sum(
    target: TargetClient, http: httpx.Client
) -> None:
    read = 0.4
    for _ in range(STALLS_MAX):
        target.script("commit;drip(1,0.05,12)")
        begun = time.monotonic()
        try:
            answer = post(http, timeout=httpx.Timeout(30.0, read=read))
        except httpx.ReadTimeout:
            target.reset()  # the machine stood still: once more
            continue
        break
    assert time.monotonic() - begun >= 0.6 > read
    assert answer.json()["id"] == "ch_000001"


def test_a_client_that_leaves_in_mid_answer_is_seen_to_leave(
    target: TargetClient, http: httpx.Client, wire: socket.socket
) -> None:
    target.script("commit;drip(1,0.05,200)", "ok")
    wire.sendall(REQUEST)
    wire.recv(1)
    before = time.monotonic()
    wire.close()
    wait_until(lambda: target.ledger().arrival_rows[0].left_monotonic, "it has left")
    post(http, key="k2")
    left, stayed = (row.left_monotonic for row in target.ledger().arrival_rows)
    assert left is not None
    assert before <= left <= time.monotonic()
    assert stayed is None


def test_a_drip_of_a_short_answer_lasts_for_all_its_pieces(
    target: TargetClient, http: httpx.Client
) -> None:
    target.script("drip(100,0.01,9)")
    answer = post(http)
    assert len(answer.content) == 900
    assert answer.json()["id"] == "ch_none"
    assert counts(target) == (1, 0)


def test_an_early_answer_comes_before_the_body_is_read(
    target: TargetClient, wire: socket.socket
) -> None:
    target.script("early;status(413)")
    wire.sendall(b"POST /charges HTTP/1.1\r\nHost: t\r\nContent-Length: 8000000\r\n\r\n{")
    assert wire.recv(65536).startswith(b"HTTP/1.1 413 ")
    (row,) = target.ledger().arrival_rows
    assert (row.body_state, row.body_length) == ("early", 0)
    assert counts(target) == (1, 0)


@pytest.mark.parametrize("ending", ["RST", "FIN"])
def test_a_connection_may_be_cut_before_a_byte_is_read(
    target: TargetClient, http: httpx.Client, ending: str
) -> None:
    target.script(f"accept;{ending}")
    assert http.get("/_control/health").status_code == 200, "control connections are exempt"
    assert target.plans_left() == [f"accept;{ending}"]
    with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
        post(http)
    view = target.ledger()
    assert (view.arrivals, view.effects, view.broken) == (0, 0, 1)
    assert [row.body_state for row in view.arrival_rows] == ["unread"]
    assert post(http).status_code == 201


@pytest.mark.parametrize("code", [301, 302, 307, 308])
def test_a_redirect_names_its_location(target: TargetClient, http: httpx.Client, code: int) -> None:
    target.script(f"redirect({code},http://127.0.0.1:9/elsewhere)")
    answer = post(http)
    assert answer.status_code == code
    assert answer.headers["location"] == "http://127.0.0.1:9/elsewhere"
    assert counts(target) == (1, 0)


def test_garbage_is_no_http(target: TargetClient, http: httpx.Client) -> None:
    target.script("commit;garbage")
    with pytest.raises(httpx.RemoteProtocolError):
        post(http)
    assert counts(target) == (1, 1)


def test_a_partial_batch_makes_an_effect_for_each_delivered_item(
    target: TargetClient, http: httpx.Client
) -> None:
    target.script("commit;partial(ok,ok,fail)")
    answer = http.post("/objects/messages", json={"items": ["a", "b", "c"]})
    assert answer.status_code == 207
    assert [result["status"] for result in answer.json()["results"]] == ["ok", "ok", "fail"]
    view = target.ledger(kind="messages")
    assert (view.arrivals, [row.item for row in view.effect_rows]) == (1, [0, 1])


def test_a_batch_may_be_delivered_before_the_connection_breaks(
    target: TargetClient, http: httpx.Client
) -> None:
    target.script("commit(3);RST")
    with pytest.raises(httpx.ReadError):
        http.post("/objects/messages", json={"items": ["a", "b", "c"]})
    assert counts(target) == (1, 3)


@pytest.mark.parametrize(
    ("outcome", "effects"), [("succeeded", 1), ("failed", 0), ("404", 0), ("never", 0)]
)
def test_an_operation_runs_twice_before_it_ends(
    target: TargetClient, http: httpx.Client, outcome: str, effects: int
) -> None:
    target.script(f"operation({outcome})")
    accepted = post(http)
    assert accepted.status_code == 202
    path = accepted.headers["location"]
    assert accepted.json()["operation"] == path
    for _ in range(2):
        assert http.get(path).json()["status"] == "running"
    assert counts(target) == (1, 0)
    ended = http.get(path)
    match outcome:
        case "404":
            assert ended.status_code == 404
        case "never":
            assert ended.json()["status"] == "running"
        case _:
            assert ended.json()["status"] == outcome
    assert http.get(path).content == ended.content
    assert counts(target) == (1, effects)
    assert target.ledger().lookups == 4


def test_an_operation_may_have_its_effect_from_the_start(
    target: TargetClient, http: httpx.Client
) -> None:
    target.script("commit;operation(succeeded,0)")
    path = post(http).headers["location"]
    assert counts(target) == (1, 1)
    assert http.get(path).json()["resource_id"] == "ch_000001"
    assert counts(target) == (1, 1)


def test_an_oversize_answer_has_its_size(target: TargetClient, http: httpx.Client) -> None:
    target.script("commit;oversize(2)")
    answer = post(http)
    assert len(answer.content) == 2 * 1024 * 1024
    assert answer.json()["id"] == "ch_000001"


def test_an_answer_may_come_under_another_content_type(
    target: TargetClient, http: httpx.Client
) -> None:
    target.script("commit;type(text/html)", 'commit;type(text/html,"<p>Hello</p>")')
    first, second = post(http), post(http, key="k2")
    assert first.headers["content-type"] == "text/html"
    assert first.json()["id"] == "ch_000001"
    assert (second.status_code, second.text) == (201, "<p>Hello</p>")


def test_a_look_up_uses_no_plan_that_is_meant_for_effects(
    target: TargetClient, http: httpx.Client
) -> None:
    target.script("commit;FIN")
    target.script('status(500,{"error":"index_down"})', method="GET")
    assert http.get("/charges?key=k1").status_code == 500
    assert http.get("/charges?key=k1").json()["data"] == []
    assert target.plans_left() == ["commit;FIN"]
    with pytest.raises(httpx.RemoteProtocolError):
        post(http)
    assert len(http.get("/charges?key=k1").json()["data"]) == 1


def test_the_ugly_endings_work_for_look_ups_too(target: TargetClient, http: httpx.Client) -> None:
    post(http)
    target.script("trunc", "type(text/html)", "RST", method="GET", kind="charges")
    with pytest.raises(httpx.RemoteProtocolError):
        http.get("/charges?key=k1")
    assert http.get("/charges?key=k1").headers["content-type"] == "text/html"
    with pytest.raises(httpx.ReadError):
        http.get("/charges?key=k1")
    assert counts(target) == (1, 1)


def test_a_client_that_leaves_after_a_reset_is_no_departure_of_what_came_since(
    target: TargetClient, running: TargetProcess, http: httpx.Client, wire: socket.socket
) -> None:
    """Arrivals are numbered from 1 again."""
    parts = urlsplit(running.url)
    target.script("commit;drip(1,0.05,200)")
    wire.sendall(REQUEST)
    wire.recv(1)
    target.reset()
    post(http, key="k2")
    wire.close()
    target.script("commit;drip(1,0.05,200)")
    with socket.create_connection((parts.hostname, parts.port), 10) as other:
        other.sendall(REQUEST)
        other.recv(1)
    wait_until(lambda: target.ledger().arrival_rows[-1].left_monotonic, "the later one has left")
    assert [row.left_monotonic is None for row in target.ledger().arrival_rows] == [True, False]
