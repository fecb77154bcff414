"""A PostgreSQL server in a container, for machines that have a Docker engine and no binaries.

This module owns one container per state directory, made through testcontainers and shared like the
embedded server: found again by its name, ended by its last user. The promise on data: it lives in a
named volume, which is never removed by us, so the container itself may come and go.

testcontainers usually starts a second container that removes everything when the test process ends.
A ledger must outlive its users, so that is switched off here.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from effect_broker.postgres.locks import Countdown, FileLock

if TYPE_CHECKING:
    from testcontainers.core.docker_client import DockerClient

IMAGE = "postgres:16"
PORT = 5432
ENGINE_ANSWER_SECONDS = 5
START_SECONDS = 180.0  # A first start pulls the image.
DATA_DIRECTORY = "/var/lib/postgresql/data"
DEFAULT_ENGINE = "unix:///var/run/docker.sock"
PASSWORD_FILE = "container.password"
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


class ContainerPostgresError(RuntimeError):
    """The container cannot do what was asked; the text says what to do about it."""


def why_no_engine() -> str | None:
    """None if testcontainers is installed and a Docker engine answers it, else the reason."""
    try:
        from testcontainers.core.docker_client import get_docker_host
    except ImportError:
        return "testcontainers is not installed"
    address = get_docker_host() or DEFAULT_ENGINE
    try:
        if address.startswith("unix://"):
            # Asked first by ourselves: the client leaks a socket for each one it cannot connect.
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(ENGINE_ANSWER_SECONDS)
                connection.connect(address.removeprefix("unix://"))
        client = _client()
    except Exception as problem:  # the client raises its own, requests' and urllib3's errors
        return f"no Docker engine answers at {address} ({type(problem).__name__})"
    client.client.close()
    return None


class ContainerPostgres:
    """One process's use of the container that belongs to a state directory.

    `settings` are server settings by name; they count for the process that makes the container.
    """

    def __init__(
        self,
        home: Path,
        image: str = IMAGE,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.home = home.absolute()
        self.image = image
        self.settings = dict(settings)
        self.launched = False
        """Whether the last `start` began a container, rather than adopting one that ran."""
        digest = hashlib.sha256(os.fsencode(self.home.resolve())).hexdigest()[:12]
        self.name = f"effect-broker-{digest}"
        self._start_lock = FileLock(self.home / "start.lock")
        self._users_lock = FileLock(self.home / "users.lock")

    def start(self, timeout_seconds: float = START_SECONDS) -> str:
        """Make sure the container serves, become one of its users, and return the superuser's URL.

        Raises `ContainerPostgresError` when it does not serve within the time.
        """
        countdown = Countdown(timeout_seconds)
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not self._start_lock.acquire(countdown):
            raise ContainerPostgresError(f"another process is still starting {self.name}")
        joined = not self._users_lock.held
        try:
            if joined and not self._users_lock.try_acquire(shared=True):
                raise ContainerPostgresError(f"{self._users_lock.path} is locked by a stranger")
            return self._ensure_running(countdown)
        except BaseException as problem:
            if joined:
                self._users_lock.release()
            if isinstance(problem, ContainerPostgresError) or not isinstance(problem, Exception):
                raise
            # The client raises its own errors, requests' and urllib3's.
            raise ContainerPostgresError(
                f"the Docker engine did not run {self.image} as {self.name}: {problem}. Check that "
                "it can pull the image, or choose another way to get a PostgreSQL server"
            ) from problem
        finally:
            self._start_lock.release()

    def stop(self, timeout_seconds: float = 60.0) -> bool:
        """Cease to be a user; the last one removes the container, never its data.

        True if this call removed it. Raises `ContainerPostgresError` when nobody lets us at it.
        """
        if not self._users_lock.held:
            return False
        if not self._start_lock.acquire(Countdown(timeout_seconds)):
            raise ContainerPostgresError(f"another process is still starting {self.name}")
        try:
            self._users_lock.release()
            if not self._users_lock.try_acquire():
                return False
            client = _client()
            for container in self._existing(client):
                container.stop()  # a clean end; removal by force would be a crash
                container.remove(v=False)
            client.client.close()
            return True
        finally:
            self._users_lock.release()
            self._start_lock.release()

    def _existing(self, client: DockerClient) -> list[Any]:
        exactly = {"name": f"^/{self.name}$"}
        containers: list[Any] = client.client.containers.list(all=True, filters=exactly)
        return containers

    def _ensure_running(self, countdown: Countdown) -> str:
        self.launched = False
        password = self._password()
        client = _client()
        existing = self._existing(client)
        if existing and existing[0].status != "running":
            existing[0].remove(force=True, v=False)  # its data is in the volume
            existing = []
        if existing:
            container_id = str(existing[0].id)
        else:
            container_id = self._launch(client, password)
            self.launched = True
        host, port = _address(client, container_id)
        client.client.close()
        while not _serves(host, port):
            if not countdown.wait_a_little():
                raise ContainerPostgresError(
                    f"the container {self.name} did not serve on {host}:{port} within "
                    f"{countdown.total_seconds:.0f} s; see `docker logs {self.name}`"
                )
        return f"postgresql://postgres:{password}@{host}:{port}/postgres"

    def _launch(self, client: DockerClient, password: str) -> str:
        from testcontainers.core.config import ConnectionMode, testcontainers_config
        from testcontainers.core.container import DockerContainer

        testcontainers_config.ryuk_disabled = True
        container = DockerContainer(self.image).with_name(self.name)
        container.with_env("POSTGRES_PASSWORD", password)
        container.with_volume_mapping(self.name, DATA_DIRECTORY, "rw")
        # To this machine only, unless the engine is elsewhere or we are in a container ourselves.
        direct = client.get_connection_mode() is ConnectionMode.docker_host
        published: Any = ("127.0.0.1", None) if direct and client.host() in LOOPBACK_NAMES else None
        container.ports[f"{PORT}/tcp"] = published
        container.with_command(
            ["postgres", *(f"-c{name}={value}" for name, value in self.settings.items())]
        )
        container.start()
        container.get_docker_client().client.close()
        return container.get_container_id()

    def _password(self) -> str:
        """One random password per state directory: the volume remembers the first one for ever."""
        path = self.home / PASSWORD_FILE
        if not path.exists():
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(24))
        return path.read_text()


def _client() -> DockerClient:
    """A client of an engine that has answered just now."""
    from testcontainers.core.docker_client import DockerClient

    client = DockerClient(timeout=ENGINE_ANSWER_SECONDS)
    client.client.ping()
    client.client.api.timeout = START_SECONDS
    return client


def _address(client: DockerClient, container_id: str) -> tuple[str, int]:
    """Where the container's server is reached from here, which may be inside a container too."""
    from testcontainers.core.config import ConnectionMode

    mode = client.get_connection_mode()
    if mode is ConnectionMode.bridge_ip:
        return client.bridge_ip(container_id), PORT
    port = int(client.port(container_id, PORT))
    if mode is ConnectionMode.gateway_ip:
        return client.gateway_ip(container_id), port
    return client.host(), port


def _serves(host: str, port: int) -> bool:
    """Whether a PostgreSQL there is ready for sessions.

    A connection alone shows nothing: Docker's proxy accepts for a server that is not there yet. So
    the first message of the protocol (PostgreSQL manual, 55.2.1 Start-up) is sent; a server that is
    ready asks for the password ('R'), one that starts up answers with an error.
    """
    names = b"user\0postgres\0database\0postgres\0\0"
    message = struct.pack("!ii", 8 + len(names), 3 << 16) + names
    try:
        with socket.create_connection((host, port), timeout=3) as connection:
            connection.sendall(message)
            return connection.recv(1) == b"R"
    except OSError:
        return False
