"""Image, Compose file, workflow and `dbos` settings say what the program expects to hear."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

import compose
from repository.checkout import CHECKOUT

SCRIPTS = Path(sysconfig.get_path("scripts"))
MIGRATE_VARIABLE = "EFFECT_BROKER_MIGRATE_DATABASE_URL"
COMPOSE_VARIABLES = {
    "EFFECT_BROKER_API_PASSWORD": "api-password",
    "EFFECT_BROKER_KEY_RING_FILE": "./key-ring.json",
    "EFFECT_BROKER_MIGRATE_PASSWORD": "migrate-password",
    "EFFECT_BROKER_WORKER_PASSWORD": "worker-password",
}
PROCESSES = ("migrate", "api", "worker", "target")


@pytest.fixture(scope="module")
def services() -> dict[str, compose.Service]:
    """The services of the Compose file."""
    return compose.services(COMPOSE_VARIABLES)


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ("vendor.compose-spec", "docker-compose.yml"),
        ("vendor.github-workflows", ".github/workflows/ci.yml"),
        ("custom.github-workflows-require-timeout", ".github/workflows/ci.yml"),
    ],
)
def test_a_file_keeps_to_the_published_schema(schema: str, path: str) -> None:
    result = _check_schema(schema, CHECKOUT / path)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_schema_check_finds_a_planted_mistake(tmp_path: Path) -> None:
    broken = tmp_path / "docker-compose.yml"
    text = (CHECKOUT / "docker-compose.yml").read_text("utf-8")
    broken.write_text(text.replace("    depends_on:\n", "    depend_on:\n", 1))
    assert _check_schema("vendor.compose-spec", broken).returncode != 0


def test_compose_runs_one_api_two_workers_and_the_target(
    services: dict[str, compose.Service],
) -> None:
    assert set(services) == {"postgres", *PROCESSES}
    assert services["postgres"].image == "postgres:16"
    assert services["worker"].replicas == 2
    assert [services[name].command for name in PROCESSES] == [
        ("effect-broker", "migrate"),
        ("effect-broker", "serve", "--host", "0.0.0.0", "--port", "8080"),
        ("effect-broker", "worker"),
        ("effect-broker", "target", "--host", "0.0.0.0", "--port", "8090"),
    ]


def test_compose_gives_each_process_its_own_login(services: dict[str, compose.Service]) -> None:
    api = services["api"].environment
    worker = services["worker"].environment
    assert "EFFECT_BROKER_API_DATABASE_URL" in api
    assert "EFFECT_BROKER_WORKER_DATABASE_URL" in worker
    assert api["EFFECT_BROKER_API_DATABASE_URL"] != worker["EFFECT_BROKER_WORKER_DATABASE_URL"]
    for process in (api, worker):
        assert MIGRATE_VARIABLE not in process
        assert "migrate-password" not in json.dumps(dict(process))


def test_compose_starts_nothing_on_an_unmigrated_database(
    services: dict[str, compose.Service],
) -> None:
    assert services["migrate"].waits_for == {"postgres": "service_healthy"}
    for name in ("api", "worker"):
        assert services[name].waits_for == {"migrate": "service_completed_successfully"}


def test_compose_hands_the_key_ring_over_as_a_file(services: dict[str, compose.Service]) -> None:
    for name in ("api", "worker"):
        assert services[name].secrets == ("key_ring",)
        given = services[name].environment["EFFECT_BROKER_KEY_RING_FILE"]
        assert given == "/run/secrets/key_ring"


@pytest.mark.parametrize("missing", COMPOSE_VARIABLES)
def test_compose_has_no_secret_of_its_own(missing: str) -> None:
    given = {name: value for name, value in COMPOSE_VARIABLES.items() if name != missing}
    with pytest.raises(compose.VariableMissing, match=missing):
        compose.document(given)


def test_the_image_is_not_root_and_installs_by_hash() -> None:
    text = (CHECKOUT / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    stages = re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]
    assert len(stages) == 3
    assert re.search(r"^USER 10001:10001$", stages[-1], re.MULTILINE)
    assert re.search(r"^HEALTHCHECK ", stages[-1], re.MULTILINE)
    installs = re.findall(r"pip install.*", text)
    assert installs
    assert all("--require-hashes" in line or "--no-index" in line for line in installs)


def test_the_image_is_given_every_file_that_it_copies() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", _read("Dockerfile"), re.MULTILINE)
    sources = {name for line in copied for name in line.split()}
    kept = {line[1:] for line in _read(".dockerignore").splitlines() if line.startswith("!")}
    assert sources == kept
    assert all((CHECKOUT / name).exists() for name in sources)


def test_dbos_settings_keep_to_the_schema_of_dbos() -> None:
    """Of the settings themselves, that is: the two database entries are decided at run time."""
    import dbos

    schema = json.loads((Path(dbos.__file__).parent / "dbos-config.schema.json").read_text())
    settings = {
        key: value
        for key, value in _dbos_settings("postgresql://a/b").items()
        if key == "system_database_url" or not key.startswith("system_database_url")
    }
    Draft7Validator(schema).validate(settings)
    assert settings["database"]["migrate"] == ["effect-broker migrate"]
    assert settings["runtimeConfig"]["start"] == ["effect-broker worker"]


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://postgres@db.internal:5432/broker",
        "postgresql://u:p%40%22w@127.0.0.1/broker?sslmode=require&application_name=x",
        "postgresql://postgres@/broker?host=/var/run/postgresql",
    ],
)
def test_dbos_takes_the_database_of_the_variable(url: str) -> None:
    assert _dbos_settings(url)["system_database_url"] == url


@pytest.mark.parametrize("value", [None, ""])
def test_dbos_migrate_without_its_variable_fails_and_makes_no_file(
    tmp_path: Path, value: str | None
) -> None:
    settings = tmp_path / "dbos-config.yaml"
    settings.write_text(_read("dbos-config.yaml"))
    environment = {key: held for key, held in os.environ.items() if key != MIGRATE_VARIABLE}
    if value is not None:
        environment[MIGRATE_VARIABLE] = value
    result = subprocess.run(
        [SCRIPTS / "dbos", "migrate"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode != 0
    assert MIGRATE_VARIABLE in result.stdout
    assert "Traceback" not in result.stdout + result.stderr
    assert list(tmp_path.iterdir()) == [settings]


def _dbos_settings(url: str) -> dict[str, Any]:
    """What `dbos` makes of the file: it puts the variables in and then reads YAML."""
    text = _read("dbos-config.yaml").replace("${" + MIGRATE_VARIABLE + "}", url)
    settings: dict[str, Any] = yaml.safe_load(text)
    return settings


def _read(name: str) -> str:
    return (CHECKOUT / name).read_text("utf-8")


def _check_schema(schema: str, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPTS / "check-jsonschema", "--builtin-schema", schema, path],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
