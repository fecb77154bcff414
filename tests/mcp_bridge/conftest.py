"""One running broker for the tests of MCP, and notes servers that stand behind it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from effect_broker import AsyncBroker
from effect_broker.proof.broker import ProofBroker
from effect_contracts.document import ContractDocument
from hosting.scenes import Scene
from mcp_bridge.notes import Notes, notes_contract
from migrated import MIGRATED
from postgres import DatabaseTemplate, RunningServer, clone, drop_database

SAFETY = ("idempotent", "unsafe", "reconcilable")
SECRET = "notes-token-71b2"


@pytest.fixture(scope="session")
def database_template() -> DatabaseTemplate:
    """Migrated, without tenants."""
    return MIGRATED


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The worker's list of programs; it is read at each attempt, so a test may write it anew."""
    return tmp_path_factory.mktemp("programs") / "programs.yaml"


@pytest.fixture(scope="session")
def scene(
    running_server: RunningServer,
    template_name: str,
    programs: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Scene]:
    """The broker that these tests share; a test may kill its workers."""
    database = clone(running_server, template_name)
    environment = {
        "EFFECT_BROKER_MCP_PROGRAMS": str(programs),
        "EFFECT_BROKER_SECRET_NOTES": SECRET,
        "EFFECT_BROKER_HEARTBEAT_TTL_SECONDS": "2",
    }
    broker = ProofBroker(
        tmp_path_factory.mktemp("mcp"),
        database.superuser_url,
        environment=environment,
        migrated=True,
    )
    with broker, Scene(broker) as made:
        broker.prepare()
        broker.apply(*(ContractDocument.parse_yaml(text) for text in map(notes_contract, SAFETY)))
        broker.start_api()
        yield made
    drop_database(running_server, database.name)


@pytest.fixture
def workers(scene: Scene) -> Scene:
    """The broker, with a worker that runs."""
    scene.ensure_workers(1)
    return scene


@pytest.fixture
def notes(tmp_path: Path, programs: Path) -> Notes:
    """An empty notes server, which the worker may start."""
    made = Notes(tmp_path / "notes")
    programs.write_text(json.dumps(made.programs()))
    return made


@pytest.fixture
def access(scene: Scene) -> dict[str, str]:
    """What a caller is given, as an environment."""
    http = scene.broker.http
    key = http.headers["Authorization"].removeprefix("Bearer ")
    return {"EFFECT_BROKER_URL": str(http.base_url), "EFFECT_BROKER_API_KEY": key}


@pytest.fixture
async def broker(access: dict[str, str]) -> Any:
    """A client of the broker."""
    async with AsyncBroker.from_environment(access) as made:
        yield made
