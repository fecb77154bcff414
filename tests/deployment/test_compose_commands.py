"""Each service of docker-compose.yml, run as the plain process that its command names."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import psycopg
import pytest

from compose import Service, services
from effect_broker.keyring import new_key_ring
from effect_broker.proof.broker import wait_until
from postgres import Database

SCRIPTS = Path(sysconfig.get_path("scripts"))
VARIABLES = {
    "EFFECT_BROKER_MIGRATE_PASSWORD": "owner",
    "EFFECT_BROKER_API_PASSWORD": "api",
    "EFFECT_BROKER_WORKER_PASSWORD": "worker",
    "EFFECT_BROKER_KEY_RING_FILE": "key-ring.json",
}


class Deployment:
    """The services, with the addresses of this machine in place of the containers'."""

    def __init__(self, database: Database, directory: Path) -> None:
        self._directory = directory
        self._services = services(VARIABLES)
        ring = directory / "key-ring.json"
        ring.write_text(new_key_ring("compose", development=False))
        self._urls = {
            "EFFECT_BROKER_MIGRATE_DATABASE_URL": database.superuser_url,
            "EFFECT_BROKER_API_DATABASE_URL": database.url_for("effect_broker_api"),
            "EFFECT_BROKER_WORKER_DATABASE_URL": database.url_for("effect_broker_worker"),
        }
        self._ring = ring

    def service(self, name: str) -> Service:
        """Return a service of the file."""
        return self._services[name]

    def environment(self, name: str) -> Mapping[str, str]:
        """Return the service's own variables, pointing here; nothing else of ours."""
        told = dict(self.service(name).environment)
        for variable in told:
            told[variable] = self._urls.get(variable, told[variable])
        if "EFFECT_BROKER_KEY_RING_FILE" in told:
            told["EFFECT_BROKER_KEY_RING_FILE"] = str(self._ring)
        ours = {k: v for k, v in os.environ.items() if not k.startswith("EFFECT_BROKER_")}
        return {**ours, "EFFECT_BROKER_HOME": str(self._directory), **told}

    def command(self, name: str, port: int | None = None) -> list[str]:
        """Return the service's command, on loopback and on a free port where it listens."""
        program, *arguments = self.service(name).command
        words = [str(SCRIPTS / program), *arguments]
        if port is not None:
            words[words.index("--host") + 1] = "127.0.0.1"
            words[words.index("--port") + 1] = str(port)
        return words

    def run(self, name: str) -> subprocess.CompletedProcess[str]:
        """Run a service that ends by itself."""
        return subprocess.run(
            self.command(name),
            env=self.environment(name),
            capture_output=True,
            text=True,
            check=False,
            timeout=90,
        )

    @contextmanager
    def running(self, name: str, ready: str, port: int | None = None) -> Iterator[str]:
        """Run a service; give what follows the words of its ready line, and end it by SIGTERM."""
        log = self._directory / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                self.command(name, port),
                env=self.environment(name),
                stdout=output,
                stderr=subprocess.STDOUT,
            )

        def line() -> str | None:
            said = [row for row in log.read_text().splitlines() if row.startswith(ready)]
            return said[0].removeprefix(ready).strip() if said else None

        try:
            yield wait_until(line, f"{name} said {ready!r}")
        finally:
            process.terminate()
            assert process.wait(90) == 0, log.read_text()


@pytest.fixture
def deployment(empty_database: Database, tmp_path: Path) -> Deployment:
    """The services on a database of their own."""
    return Deployment(empty_database, tmp_path)


@pytest.mark.timeout(240)
def test_every_service_starts_by_its_command(
    deployment: Deployment, empty_database: Database
) -> None:
    migrated = deployment.run("migrate")
    assert migrated.returncode == 0, migrated.stdout + migrated.stderr
    with (
        deployment.running("target", "target listening on ", port=0) as target,
        deployment.running("api", "api listening on ", port=0) as api,
        deployment.running("worker", "worker ready as ") as executor,
    ):
        assert httpx.get(f"{target}/_control/health").status_code == 200
        assert httpx.get(f"{api}/healthz").json()["status"] == "ok"
        ready = httpx.get(f"{api}/readyz")
        assert (ready.status_code, ready.json()["status"]) == (200, "ok")
        with psycopg.connect(empty_database.superuser_url) as connection:
            beating = connection.execute(
                "SELECT executor_id FROM effect_broker.workers WHERE stopped_at IS NULL"
            ).fetchall()
        assert beating == [(executor,)]


def test_two_workers_are_asked_for(deployment: Deployment) -> None:
    assert deployment.service("worker").replicas == 2
