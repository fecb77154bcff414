"""The control API: scripts reach whom they are for, waits need no sleep, nonsense is refused."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from effect_broker.proof.target.client import TargetClient, TargetRefused, WaitOver


def post(http: httpx.Client, kind: str, key: str = "k") -> int:
    return http.post(f"/objects/{kind}", json={}, headers={"Idempotency-Key": key}).status_code


def test_one_plan_serves_one_request_and_then_all_is_honest(
    target: TargetClient, http: httpx.Client
) -> None:
    target.script("status(500)", "status(502)")
    assert [post(http, "tickets") for _ in range(3)] == [500, 502, 201]


def test_a_last_plan_may_stay(target: TargetClient, http: httpx.Client) -> None:
    target.script("status(500)", "status(502)", repeat_last=True)
    assert [post(http, "tickets") for _ in range(4)] == [500, 502, 502, 502]


def test_a_script_is_for_its_kind_method_and_key(target: TargetClient, http: httpx.Client) -> None:
    target.script("status(501)", kind="emails")
    target.script("status(502)", key="special")
    target.script("status(503)", method="get")
    target.script("status(504)", method="*", kind="tickets")
    assert post(http, "charges") == 201
    assert post(http, "charges", "special") == 502
    assert post(http, "emails") == 501
    assert http.get("/objects/emails").status_code == 503
    assert http.get("/objects/tickets").status_code == 504
    assert target.plans_left() == []


def test_control_requests_are_no_arrivals(target: TargetClient, http: httpx.Client) -> None:
    target.script("ok")
    assert http.get("/_control/health").status_code == 200
    view = target.ledger()
    assert (view.arrivals, view.lookups, view.arrival_rows) == (0, 0, [])


def test_a_wait_returns_as_soon_as_the_request_is_there(
    target: TargetClient, http: httpx.Client
) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(target.wait_arrivals, 2, kind="tickets", key="k", timeout_seconds=30)
        begun = time.monotonic()
        post(http, "tickets")
        post(http, "emails")
        post(http, "tickets", "other")
        assert not waiting.done()
        post(http, "tickets")
        assert waiting.result().arrivals == 2
    assert time.monotonic() - begun < 10


def test_a_wait_for_what_does_not_come_says_what_there_is(
    target: TargetClient, http: httpx.Client
) -> None:
    post(http, "tickets")
    with pytest.raises(WaitOver, match='"arrivals":1'):
        target.wait_arrivals(2, timeout_seconds=0.05)


def test_a_reset_empties_everything_and_lets_everyone_go(
    target: TargetClient, http: httpx.Client
) -> None:
    target.set_mode("tickets", "neither")
    target.script("hang", "status(500)")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(post, http, "tickets")
        target.wait_held(1)
        target.reset()
        with pytest.raises(httpx.RemoteProtocolError):
            waiting.result()
    assert target.plans_left() == []
    assert target.ledger(rows=False).arrivals == 0
    assert (post(http, "tickets"), post(http, "tickets")) == (201, 201)
    assert target.ledger().effects == 1, "the mode is the default again"
    assert target.ledger().arrival_rows[0].n == 1


def test_a_plan_that_cannot_be_read_is_refused_and_queues_nothing(target: TargetClient) -> None:
    with pytest.raises(TargetRefused, match="unknown verb 'explode'; known: accept"):
        target.script("ok", "explode")
    with pytest.raises(TargetRefused, match="give no kind, method or key"):
        target.script("accept;RST", kind="charges")
    assert target.plans_left() == []


@pytest.mark.parametrize(
    ("method", "path", "body", "reason"),
    [
        ("POST", "faults", b"{}", "script: Field required"),
        ("POST", "faults", b"not JSON", "script: Field required"),
        ("POST", "faults", b'{"script":[]}', "script: List should have at least 1 item"),
        ("POST", "faults", b'{"script":["ok"],"kinds":"x"}', "kinds: Extra inputs"),
        ("POST", "faults", b'{"script":"ok"}', "script: Input should be a valid list"),
        ("POST", "modes", b'{"mode":"dedupe"}', "kind: a lower-case word"),
        ("POST", "modes", b'{"kind":"Charges","mode":"dedupe"}', "kind: a lower-case word"),
        ("POST", "modes", b'{"kind":"charges","mode":"dedup"}', "mode: Input should be 'dedupe'"),
        ("POST", "modes", b'{"kind":"charges","ttl_seconds":0}', "ttl_seconds: Input should be"),
        ("POST", "modes", b'{"kind":"charges","in_flight":1}', "in_flight: Input should be"),
        ("POST", "clock", b'{"advance_seconds":-1}', "advance_seconds: Input should be"),
        ("POST", "release", b'{"name":5}', "name: Input should be"),
        ("POST", "reset", b'{"all":true}', "all: Extra inputs"),
        ("GET", "wait", b"", "name at least one"),
        ("GET", "wait?arrivals=many", b"", "arrivals: not a number"),
        ("GET", "wait?arrivals=1&timeout=1e9", b"", "timeout: 0 to 120"),
        ("GET", "wait?arrivals=nan", b"", "arrivals: 0 or more"),
    ],
)
def test_a_control_request_that_makes_no_sense_is_refused_with_the_field(
    target: TargetClient, http: httpx.Client, method: str, path: str, body: bytes, reason: str
) -> None:
    refused = http.request(method, f"/_control/{path}", content=body)
    assert refused.status_code == 400
    assert refused.json()["message"].startswith(reason)


def test_an_unknown_control_path_is_not_found(target: TargetClient, http: httpx.Client) -> None:
    assert http.get("/_control/nowhere").status_code == 404
    assert target.ledger().lookups == 0
