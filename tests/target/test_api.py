"""The target's own small API: keys, bodies, look-ups with pages, conditional writes, undoing."""

from __future__ import annotations

import hashlib
import socket

import httpx
import pytest

from effect_broker.proof.target.client import TargetClient


def test_a_key_is_found_wherever_a_contract_may_place_it(
    target: TargetClient, http: httpx.Client
) -> None:
    http.post("/charges", json={}, headers={"Idempotency-Key": "in-header"})
    http.post("/charges?key=in-query", json={})
    http.post("/charges", json={"correlation_key": "in-body"})
    http.post("/charges", json={"reference": "in-reference"})
    http.post("/charges", data={"reference": "in-form"})
    http.put("/objects/notes/in-path", content=b"x")
    view = target.ledger()
    assert view.keys == ["in-header", "in-query"]
    assert view.correlation_keys == ["in-body", "in-reference", "in-form", "in-path"]


def test_a_kind_may_read_its_key_from_another_field(
    target: TargetClient, http: httpx.Client
) -> None:
    target.set_mode("orders", "dedupe", key_fields=("metadata.order_key",))
    ids = {
        http.post("/objects/orders", data={"metadata[order_key]": "o1"}).json()["id"]
        for _ in range(2)
    }
    assert len(ids) == 1
    assert target.ledger(kind="orders").correlation_keys == ["o1"]


def test_a_form_nests_and_keeps_its_amount_a_number(
    target: TargetClient, http: httpx.Client
) -> None:
    form = {"amount": "500", "card[number]": "4242", "tags[]": ["a", "b"]}
    made = http.post("/charges", data=form).json()
    assert (made["amount"], made["card"], made["tags"]) == (500, {"number": "4242"}, ["a", "b"])


def test_a_body_is_kept_byte_by_byte(target: TargetClient, http: httpx.Client) -> None:
    bodies = [b"", b"\x00\xff not JSON", b'{"a": 1.0}', b"[1,2]", b"[" * 100_000, b"\xef\xbb\xbf{}"]
    for body in bodies:
        made = http.post("/objects/notes", content=body)
        assert made.status_code == 201
        assert made.json()["body_digest"] == hashlib.sha256(body).hexdigest()
    assert [row.body for row in target.ledger().arrival_rows] == bodies


def test_credentials_are_kept_as_digests_only(target: TargetClient, http: httpx.Client) -> None:
    http.post("/charges", json={}, headers={"Authorization": "Bearer hunter2", "X-Trace": "t"})
    view = target.ledger()
    digest = hashlib.sha256(b"Bearer hunter2").hexdigest()
    assert view.arrival_rows[0].header("authorization") == f"sha256:{digest}"
    assert view.arrival_rows[0].header("x-trace") == "t"
    assert "hunter2" not in view.model_dump_json()


@pytest.mark.parametrize("amount", [-1, True, "5", 1.5, None])
def test_a_wrong_amount_is_refused_and_makes_nothing(
    target: TargetClient, http: httpx.Client, amount: object
) -> None:
    refused = http.post("/charges", json={"amount": amount})
    assert (refused.status_code, refused.json()["error"]) == (422, "invalid_amount")
    assert target.ledger().effects == 0


@pytest.mark.parametrize("way", ["starting_after", "page_token"])
def test_a_list_is_read_page_by_page(target: TargetClient, http: httpx.Client, way: str) -> None:
    target.set_mode("tickets", "lookup")
    for _ in range(5):
        http.post("/objects/tickets", json={"reference": "r"})
    http.post("/objects/tickets", json={"reference": "other"})
    asked: dict[str, str] = {"key": "r", "limit": "2"}
    seen: list[str] = []
    pages = 0
    while True:
        page = http.get("/objects/tickets", params=asked).json()
        pages += 1
        seen += [each["id"] for each in page["data"]]
        if not page["has_more"]:
            break
        asked[way] = seen[-1] if way == "starting_after" else page["next_page_token"]
    assert (pages, len(seen), len(set(seen))) == (3, 5, 5)
    assert "next_page_token" not in page


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=x", "limit=101", "limit=" + "9" * 5000, "starting_after=ch_9"]
)
def test_a_bad_page_is_refused(target: TargetClient, http: httpx.Client, query: str) -> None:
    assert http.get(f"/charges?{query}").status_code == 400


def test_a_conditional_write_creates_once(target: TargetClient, http: httpx.Client) -> None:
    def put(content: bytes, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return http.put(
            "/objects/events/e1.ics",
            content=content,
            headers={"content-type": "text/calendar", **named},
        )

    made = put(b"BEGIN:1", if_none_match="*")
    assert made.status_code == 201
    again = put(b"BEGIN:1", if_none_match="*")
    assert (again.status_code, again.json()["resource_id"]) == (412, made.json()["id"])
    read = http.get("/objects/events/e1.ics")
    assert (read.content, read.headers["content-type"]) == (b"BEGIN:1", "text/calendar")
    assert read.headers["etag"] == made.headers["etag"]
    changed = put(b"BEGIN:2", if_match=made.headers["etag"])
    assert changed.status_code == 200
    assert put(b"BEGIN:3", if_match=made.headers["etag"]).status_code == 412
    assert http.get("/objects/events/e1.ics").content == b"BEGIN:2"
    assert target.ledger(kind="events").effects == 2
    assert len(http.get("/objects/events").json()["data"]) == 1


def test_a_refund_undoes_a_charge_once(target: TargetClient, http: httpx.Client) -> None:
    made = http.post("/charges", json={"amount": 500}).json()["id"]
    key = {"Idempotency-Key": "r1"}
    refund = http.post(f"/charges/{made}/refund", json={}, headers=key)
    assert (refund.status_code, refund.json()["amount"]) == (201, 500)
    replay = http.post(f"/charges/{made}/refund", json={}, headers=key)
    assert replay.headers["idempotent-replayed"] == "true"
    over = http.post(f"/charges/{made}/refund", json={}, headers={"Idempotency-Key": "r2"})
    assert (over.status_code, over.json()["error"]) == (409, "already_refunded")
    assert http.get(f"/charges/{made}").json()["status"] == "refunded"
    assert http.post("/charges/ch_9/refund", json={}).status_code == 404
    assert target.ledger(kind="refunds").effects == 1


def test_partial_refunds_stop_at_the_charge(target: TargetClient, http: httpx.Client) -> None:
    made = http.post("/charges", json={"amount": 500}).json()["id"]
    answers = [
        http.post(f"/charges/{made}/refund", json={"amount": amount}).status_code
        for amount in (300, 300, 200, 0)
    ]
    assert answers == [201, 409, 201, 409]


def test_an_object_is_cancelled_once(target: TargetClient, http: httpx.Client) -> None:
    made = http.post("/objects/deployments", json={}).json()["id"]
    assert http.delete(f"/objects/deployments/{made}").status_code == 201
    assert http.post(f"/objects/deployments/{made}/cancel").status_code == 409
    assert http.get(f"/objects/deployments/{made}").json()["status"] == "cancelled"
    assert http.delete("/objects/deployments/dp_9").status_code == 404


def test_what_the_api_does_not_know_is_refused_and_still_recorded(
    target: TargetClient, http: httpx.Client
) -> None:
    assert http.post("/nowhere").status_code == 404
    assert http.post("/objects/Bad-Kind").status_code == 400
    assert http.patch("/charges").status_code == 405
    assert http.get("/operations/op_x").status_code == 404
    view = target.ledger()
    assert (view.arrivals, view.lookups, view.effects) == (3, 1, 0)


def test_bytes_that_are_no_http_are_refused(target: TargetClient, wire: socket.socket) -> None:
    wire.sendall(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n")
    assert wire.recv(65536).startswith(b"HTTP/1.1 400 ")
    assert target.ledger().arrivals == 0


def test_a_request_that_breaks_off_is_no_arrival(target: TargetClient, wire: socket.socket) -> None:
    wire.sendall(b"POST /charges HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\n{")
    wire.shutdown(socket.SHUT_WR)
    assert wire.recv(65536) == b""
    view = target.ledger()
    assert (view.arrivals, view.effects, view.broken) == (0, 0, 1)
    assert view.arrival_rows[0].body == b"{"


def test_a_body_over_the_limit_is_refused(target: TargetClient, wire: socket.socket) -> None:
    head = b"POST /charges HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
    with pytest.raises((ConnectionResetError, BrokenPipeError)):  # noqa: PT012 - either end
        wire.sendall(head)
        for _ in range(40):
            wire.sendall(chunk)
    assert target.ledger().effects == 0
