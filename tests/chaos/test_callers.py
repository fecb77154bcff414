"""Callers insist until they are answered, go away if that is their manner, and miss no mistake."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from effect_chaos import records
from effect_chaos.callers import Callers
from effect_chaos.recorder import Recorder
from effect_chaos.run_clock import RunClock
from effect_chaos.workload import TENANTS, Call, Manner, Plan, Workload, make_workload


class Api(ThreadingHTTPServer):
    """Answers with the given statuses in turn, 0 for none; the last one stays."""

    def __init__(self, *statuses: int) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.statuses = list(statuses)
        self.bodies: list[dict[str, Any]] = []
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that was closed on purpose is no news."""


class _Answers(BaseHTTPRequestHandler):
    server: Api

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.bodies.append(body)
        statuses = self.server.statuses
        status = statuses.pop(0) if len(statuses) > 1 else statuses[0]
        if status == 0:
            self.close_connection = True
            return
        answer = {"effect_id": "e1", "operation_key": body["operation_key"], "state": "prepared"}
        encoded = json.dumps(answer if status < 300 else {"code": "of_this_test"}).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


Start = Callable[..., tuple[Callers, Recorder, list[Api]]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start APIs, each with its statuses, and callers at them."""
    made: list[tuple[Callers, Recorder, list[Api]]] = []

    def begin(*statuses: tuple[int, ...]) -> tuple[Callers, Recorder, list[Api]]:
        apis = [Api(*each) for each in statuses]
        recorder = Recorder(tmp_path / "evidence")
        keys = dict.fromkeys(TENANTS, "key")
        made.append((Callers(recorder, keys, [api.url for api in apis]), recorder, apis))
        return made[-1]

    yield begin
    for callers, recorder, apis in made:
        callers.hang_up()
        for api in apis:
            api.shutdown()
            api.server_close()
        recorder.__exit__(None, None, None)


@pytest.fixture
def plan() -> Plan:
    return make_workload(1, 10.0).plans[0]


def statuses(recorder: Recorder) -> list[int | None]:
    """What the submits were answered, as it stands in the history; None for no answer."""
    lines = (recorder.folder / records.HISTORY_FILE).read_text().splitlines()
    answers = [json.loads(line)["answer"] for line in lines]
    return [answer and answer["status"] for answer in answers]


def test_a_submit_is_repeated_until_it_is_answered(start: Start, plan: Plan) -> None:
    callers, recorder, (first, second) = start((0, 503), (503, 202))
    assert callers.submit(plan) == 202
    assert callers.effect_id(plan) == "e1"
    assert len(first.bodies) == len(second.bodies) == 2
    assert first.bodies[0] == second.bodies[0]
    assert statuses(recorder) == [None, 503, 503, 202]
    assert callers.surprises == []


def test_a_caller_that_goes_away_tries_once_and_never_learns(start: Start, plan: Plan) -> None:
    callers, recorder, (api,) = start((202,))
    assert callers.submit(plan, Manner.ONCE) is None
    assert callers.effect_id(plan) is None
    assert len(api.bodies) == 1
    assert statuses(recorder) == [202]


@pytest.mark.parametrize("status", [500, 401, 422])
def test_an_answer_that_no_caller_may_get_is_kept(start: Start, plan: Plan, status: int) -> None:
    callers, _, _ = start((status,))
    assert callers.submit(plan) == status
    assert callers.surprises == [f"{plan.operation.name}: a submit was answered {status}"]


def test_another_request_waits_for_the_acknowledgement_of_the_honest_one(
    start: Start, plan: Plan
) -> None:
    callers, _, (api,) = start((503, 503, 202))
    calls = (Call(0.0, Manner.DRIFT, 0), Call(0.0, Manner.SUBMIT, 0))
    workload = Workload(1, 10.0, (Plan(plan.operation, plan.tool, plan.amount, calls),))
    clock = RunClock(lambda: True)
    clock.start()
    try:
        callers.run(workload, clock)
        assert callers.wait_idle(30.0)
    finally:
        clock.stop()
    honest, drift = plan.request(Manner.SUBMIT)[1], plan.request(Manner.DRIFT)[1]
    assert [body["arguments"] for body in api.bodies] == [honest, honest, honest, drift]
