"""The target as a process: the ledger outlives a SIGKILL, and bad starts say why."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from effect_broker.proof.target.__main__ import main
from effect_broker.proof.target.clock import TargetClock
from effect_broker.proof.target.control import Control
from effect_broker.proof.target.counting import CountOnly
from effect_broker.proof.target.ledger import Ledger
from effect_broker.proof.target.messages import Request
from effect_broker.proof.target.process import TargetNotStarted, TargetProcess
from effect_broker.proof.target.scripts import Scripts
from effect_broker.proof.target.service import TargetService
from effect_broker.proof.target.waits import Bulletin, Holds

# Who gives up soon waiting for an answer, and not while it connects or writes.
BRIEF = httpx.Timeout(30.0, read=0.1)


def test_the_ledger_outlives_a_sigkill_between_commit_and_answer(tmp_path: Path) -> None:
    target = TargetProcess(tmp_path / "ledger.db")
    with target:
        target.client.set_mode("charges", "dedupe", ttl_seconds=3600.0)
        target.client.script("gate")
        body = b'{"amount":500}'
        with socket.create_connection(("127.0.0.1", httpx.URL(target.url).port)) as client:
            client.sendall(
                b"POST /charges HTTP/1.1\r\nHost: t\r\nIdempotency-Key: k1\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
            )
            target.client.wait_effects(1)
            target.kill()
        url = target.url
        target.start()
        assert target.url == url
        view = target.client.ledger()
        assert (view.arrivals, view.effects, view.keys) == (1, 1, ["k1"])
        assert view.arrival_rows[0].body == body
        replay = httpx.post(f"{url}/charges", content=body, headers={"Idempotency-Key": "k1"})
        assert replay.headers["idempotent-replayed"] == "true"
        assert target.client.ledger().effects == 1


def test_arrivals_are_on_disk_before_anything_is_done_about_them(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with TargetProcess(path) as target:
        target.client.script("hold")
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{target.url}/charges", json={"amount": 1}, timeout=BRIEF)
        target.client.wait_held(1)
        target.kill()
        with sqlite3.connect(path) as ledger:
            assert ledger.execute("SELECT count(*) FROM arrivals").fetchone() == (1,)
            assert ledger.execute("SELECT count(*) FROM effects").fetchone() == (0,)
        ledger.close()


def test_modes_outlive_a_restart_and_scripts_do_not(tmp_path: Path) -> None:
    with TargetProcess(tmp_path / "ledger.db", modes=["bench=count_only"]) as target:
        target.client.set_mode("charges", "neither")
        target.client.script("status(500)")
        httpx.post(f"{target.url}/objects/bench", json={})
        target.restart()
        assert httpx.post(f"{target.url}/charges", json={}).status_code == 201
        assert httpx.get(f"{target.url}/charges").status_code == 404
        assert target.client.ledger(kind="bench").arrivals == 1


def test_sigterm_ends_it_cleanly_with_requests_in_hand(tmp_path: Path) -> None:
    with TargetProcess(tmp_path / "ledger.db") as target:
        target.client.script("gate", "hang")
        for _ in range(2):
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{target.url}/charges", json={}, timeout=BRIEF)
        target.client.wait_held(2)
        assert target.stop() == 0
    assert Path(f"{target.ledger_path}.log").read_bytes() == b""


def test_sigint_ends_it_without_a_traceback(tmp_path: Path) -> None:
    with TargetProcess(tmp_path / "ledger.db") as target:
        os.kill(target.pid, signal.SIGINT)
        assert target.stop() == 0
    assert Path(f"{target.ledger_path}.log").read_bytes() == b""


def test_a_busy_port_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        command = [sys.executable, "-m", "effect_broker.proof.target", "--port", str(port)]
        command += ["--ledger", str(tmp_path / "ledger.db")]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr == (
        f"target: cannot listen on 127.0.0.1:{port}:"
        " the port is in use; choose another with --port\n"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["--ledger", "{tmp}/no/such/dir/l.db"], 1, "target: cannot use the ledger"),
        (["--ledger", "{tmp}/text"], 1, "file is not a database"),
        (["--ledger", "{tmp}"], 1, "target: cannot use the ledger"),
        (["--ledger", "{tmp}/l.db", "--host", "no.such.host.invalid"], 1, "target: cannot listen"),
        (["--ledger", "{tmp}/l.db", "--port", "99999"], 1, "target: cannot listen"),
        (["--ledger", "{tmp}/l.db", "--mode", "charges=fast"], 2, "is not KIND=MODE"),
        ([], 2, "--ledger"),
    ],
)
def test_a_bad_start_says_why(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    reason: str,
) -> None:
    (tmp_path / "text").write_text("this is a text file and no ledger\n" * 100)
    given = [argument.format(tmp=tmp_path) for argument in arguments]
    try:
        ended = main(given)
    except SystemExit as error:  # how argparse refuses
        ended = error.code if isinstance(error.code, int) else 0
    assert ended == code
    assert reason in capfd.readouterr().err


def test_two_targets_do_not_share_a_ledger(tmp_path: Path) -> None:
    with TargetProcess(tmp_path / "ledger.db"):
        second = TargetProcess(tmp_path / "ledger.db")
        with pytest.raises(TargetNotStarted, match="in use by another target"):
            second.start()


async def test_the_control_api_serves_this_machine_only(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    bulletin = Bulletin()
    service = TargetService(ledger, TargetClock())
    control = Control(service, Scripts(), Holds(bulletin), bulletin, CountOnly(ledger))
    request = Request("GET", "/_control/health", (), b"")
    assert (await control.answer(request, "192.0.2.7")).status == 403
    assert (await control.answer(request, "127.0.0.1")).status == 200
    assert (await control.answer(request, "::1")).status == 200
    ledger.close()
