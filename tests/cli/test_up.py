"""`up` for real: processes, a paste into a shell, an end in order, and what stands in its way."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cli.commands import COMMAND, run_for_real
from effect_broker import Broker
from effect_broker.proof.target.client import TargetClient
from effect_broker.store.roles import DatabaseRole
from postgres import Database
from repository.checkout import CHECKOUT
from tools import requires_tool

READY_SECONDS = 90.0
PATH = f"{Path(sys.executable).parent}:/usr/bin:/bin"


def _free_port() -> int:
    """A port that nobody listens at, and that the kernel gives to nobody who asks for any."""
    while True:
        port = random.randrange(15_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Up:
    """One running `up`, with all that it says."""

    def __init__(self, environment: Mapping[str, str], directory: Path, *arguments: str) -> None:
        directory.mkdir(exist_ok=True)
        self.environment = {"PATH": PATH, **environment}
        self._out, self._err = directory / "out", directory / "err"
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                [*COMMAND, "up", *arguments],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def wait_for(self, seen: Callable[[], bool], what: str) -> None:
        ends_at = time.monotonic() + READY_SECONDS
        while not seen():
            assert self.process.poll() is None, f"ended before {what}:\n{self.out}\n{self.err}"
            assert time.monotonic() < ends_at, f"no {what}:\n{self.out}\n{self.err}"
            time.sleep(0.1)

    def wait_ready(self) -> None:
        self.wait_for(lambda: "Ctrl-C ends it" in self.out, "word that it is ready")

    def interrupt_group(self) -> int:
        """Ctrl-C as a terminal does it: to the whole process group."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(150)

    @property
    def paste(self) -> str:
        """What a person copies: from `curl` to the end of its last line."""
        lines = self.out.splitlines()
        first = next(n for n, line in enumerate(lines) if line.startswith("curl"))
        last = next(n for n in range(first, len(lines)) if not lines[n].endswith("\\"))
        return "\n".join(lines[first : last + 1])

    def children(self) -> set[int]:
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return {int(word) for word in listed.split()}


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    """Starts `up`, and ends what a failed test leaves."""
    ups: list[Up] = []

    def start(environment: Mapping[str, str], *arguments: str) -> Up:
        ups.append(Up(environment, tmp_path / f"up-{len(ups)}", *arguments))
        return ups[-1]

    yield start
    for one in ups:
        if one.process.poll() is None:
            one.process.terminate()
            try:
                one.process.wait(150)
            except subprocess.TimeoutExpired:
                os.killpg(one.process.pid, signal.SIGKILL)
                one.process.wait()


def _paste(up: Up) -> dict[str, object]:
    requires_tool("curl")
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", up.paste],
        env={"PATH": PATH},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert ended.returncode == 0, ended.stderr
    body: dict[str, object] = json.loads(ended.stdout)
    return body


def _receiver() -> tuple[list[bytes], str]:
    """What is posted to a receiver on this machine, and its URL."""
    came: list[bytes] = []

    class Requests(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            came.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Requests)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return came, f"http://127.0.0.1:{server.server_port}/"


def _direct(home: Path) -> Broker:
    page = (CHECKOUT / "docs" / "sdk.md").read_text("utf-8")
    (url,) = re.findall(r"postgresql://effect_broker_api@/postgres\?host=\S+data&port=5432", page)
    return Broker.on_postgres(
        url.replace("$PWD/.effect-broker", str(home)),
        api_key=(home / "api-key").read_text().strip(),
        key_ring=home / "key-ring.json",
    )


@pytest.mark.timeout(600)
def test_the_paste_works_and_everything_is_found_again(
    started: Callable[..., Up], server_home: Path
) -> None:
    """On the embedded server: submit by paste, end by Ctrl-C, come back with the same key."""
    environment = {"EFFECT_BROKER_HOME": str(server_home)}
    ports = ("--port", str(_free_port()), "--target-port", str(_free_port()), "--workers", "1")
    first = started(environment, *ports)
    first.wait_ready()
    came, url = _receiver()
    subscribed = ("subscriptions", "create", url, "--state", "succeeded")
    assert run_for_real({"PATH": PATH, **environment}, *subscribed).code == 0
    body = _paste(first)
    assert body["state"] == "succeeded"
    first.wait_for(lambda: bool(came), "the event at a receiver on this machine")
    assert json.loads(came[0])["data"]["effect_id"] == body["effect_id"]
    assert "/console; a key for it: `effect-broker keys create --tenant local" in first.out
    assert "direct  'postgresql://effect_broker_api@/" in first.out
    with _direct(server_home) as direct:  # as docs/sdk.md says it
        assert direct.get(str(body["effect_id"])).state == "succeeded"
    assert body["replayed"] is False
    for name in ("key-ring.json", "api-key"):
        assert stat.S_IMODE((server_home / name).stat().st_mode) == 0o600, name

    # The command line finds it without any setting but the home.
    listed = run_for_real({"PATH": PATH, **environment}, "effects", "list", "--json").json
    assert [e["effect_id"] for e in listed["effects"]] == [body["effect_id"]]

    # A second one in the same directory is told so, and harms nothing.
    said = run_for_real({"PATH": PATH, **environment}, "up", *ports).refused()
    assert "runs already" in said

    children = first.children()
    assert len(children) == 3  # target, API, worker
    assert first.interrupt_group() == 0
    assert "Traceback" not in first.err + first.out
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)

    second = started(environment, *ports)
    second.wait_ready()
    assert second.paste == first.paste
    again = _paste(second)
    assert again["replayed"] is True
    assert again["effect_id"] == body["effect_id"]
    second.process.terminate()
    assert second.process.wait(150) == 0


@pytest.mark.timeout(500)
def test_a_given_database_is_used_and_a_dead_child_is_replaced(
    started: Callable[..., Up], empty_database: Database, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    environment = {
        "EFFECT_BROKER_HOME": str(home),
        "EFFECT_BROKER_DATABASE_URL": empty_database.superuser_url,
    }
    target_port = _free_port()
    up = started(
        environment, "--port", "0", "--target-port", str(target_port), "--workers", "1", "--json"
    )
    up.wait_for(lambda: up.out.rstrip().endswith("}"), "JSON")
    told = json.loads(up.out)
    assert told["url"].startswith("http://127.0.0.1:")
    assert not (home / "postgres").exists()

    api = told["url"].rpartition(":")[2]
    for number, command in enumerate((b"worker", b"serve", b"target"), start=1):
        (child,) = (pid for pid in up.children() if command in _arguments(pid))
        os.kill(child, signal.SIGKILL)
        up.wait_for(lambda n=number: up.err.count("takes its place") == n, "a new one")  # type: ignore[misc]
    assert up.err.count("has ended (exit -9)") == 3
    up.wait_for(lambda: _listens(int(api)), "the API at its address")
    up.wait_for(lambda: _listens(target_port), "the target at its address")
    ended = subprocess.run(["bash", "-c", told["curl"]], capture_output=True, text=True, timeout=60)
    assert json.loads(ended.stdout)["operation_key"] == "order:42:charge:v1"
    assert up.interrupt_group() == 0


@pytest.mark.timeout(500)
def test_ctrl_c_lets_a_send_end_before_its_target_goes(
    started: Callable[..., Up], empty_database: Database, tmp_path: Path
) -> None:
    environment = {
        "PATH": PATH,
        "EFFECT_BROKER_HOME": str(tmp_path / "home"),
        "EFFECT_BROKER_DATABASE_URL": empty_database.superuser_url,
    }
    target_port = _free_port()
    up = started(environment, "--port", "0", "--target-port", str(target_port), "--workers", "1")
    up.wait_ready()
    with TargetClient(f"http://127.0.0.1:{target_port}") as target:
        target.script("commit;delay(2.0);ok", kind="charges")
        arguments = ("--arguments", '{"order": "1", "amount": 1, "currency": "eur"}', "--json")
        submitted = run_for_real(
            environment, "effects", "submit", "--tool", "demo.charge", "--key", "o1", *arguments
        )
        assert submitted.code == 0, submitted.err
        target.wait_arrivals(1)
    assert up.interrupt_group() == 0
    effect_id = submitted.json["effect_id"]
    body = run_for_real(environment, "effects", "inspect", effect_id, "--json").json
    assert body["state"] == "succeeded"
    assert [attempt["outcome"] for attempt in body["attempts"]] == ["committed"]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _arguments(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_busy_port_is_a_line_before_anything_is_made(tmp_path: Path) -> None:
    environment = {"PATH": PATH, "EFFECT_BROKER_HOME": str(tmp_path / "home")}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        said = run_for_real(environment, "up", "--port", port).refused()
        assert f":{port}" in said
        assert "--port" in said
        free = str(_free_port())
        said = run_for_real(environment, "up", "--port", free, "--target-port", port).refused()
        assert "--target-port" in said
    assert not (tmp_path / "home").exists()


def test_up_is_not_for_production(tmp_path: Path) -> None:
    environment = {
        "PATH": PATH,
        "EFFECT_BROKER_HOME": str(tmp_path / "home"),
        "EFFECT_BROKER_ENV": "production",
    }
    assert "development" in run_for_real(environment, "up").refused()


def test_a_wrong_url_and_a_login_without_rights_are_lines(
    tmp_path: Path, empty_database: Database, database: Database
) -> None:
    ports = ("--port", str(_free_port()), "--target-port", str(_free_port()))
    base = {"PATH": PATH, "EFFECT_BROKER_HOME": str(tmp_path / "home")}
    wrong = base | {"EFFECT_BROKER_DATABASE_URL": "postgresql://u:secret-word@127.0.0.1:1/x"}
    said = run_for_real(wrong, "up", *ports).refused()
    assert "secret-word" not in said
    poor = base | {"EFFECT_BROKER_DATABASE_URL": database.url_for(DatabaseRole.API)}
    assert "superuser" in run_for_real(poor, "up", *ports).refused()


def test_a_lost_key_ring_is_a_line_and_not_a_new_ring_under_old_effects(
    tmp_path: Path, database: Database, started: Callable[..., Up]
) -> None:
    home = tmp_path / "home"
    ports = ("--port", str(_free_port()), "--target-port", str(_free_port()))
    environment = {
        "PATH": PATH,
        "EFFECT_BROKER_HOME": str(home),
        "EFFECT_BROKER_DATABASE_URL": database.superuser_url,
    }
    made = run_for_real(environment, "tenants", "create", "acme", "--hmac-key-id", "lost")
    assert made.code == 0, made.err
    said = run_for_real(environment, "up", *ports).refused()
    assert "lost" in said
    assert "key ring" in said
