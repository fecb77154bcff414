"""One running broker for the tests of the demo's agent, and tools of each test's own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from effect_broker import AsyncBroker
from effect_broker.proof.agent.journal import Journal, RunLine
from effect_broker.proof.agent.toolbox import KINDS, TOOLS
from effect_broker.proof.agent.words import Tool, tools_digest
from effect_broker.proof.broker import ProofBroker
from effect_broker.proof.contracts import tuned
from effect_broker.proof.target.client import LedgerView
from hosting.scenes import Scene
from migrated import MIGRATED
from postgres import DatabaseTemplate, RunningServer, clone, drop_database

# Asking a real model costs money and needs a key: each provider is asked where its own is given.
LIVE = {
    "openai": "EFFECT_BROKER_LIVE_OPENAI_KEY",
    "grok": "EFFECT_BROKER_LIVE_GROK_KEY",
}


def asked_live(environment: Mapping[str, str]) -> list[str]:
    """The providers whose real models are asked."""
    return [provider for provider, variable in LIVE.items() if environment.get(variable)]


# Without a key there is nothing to collect.
collect_ignore = [] if asked_live(os.environ) else ["test_live.py"]


@dataclass(frozen=True, slots=True)
class Desk:
    """A run of an agent with tools of its own, and the target's count of what they did."""

    scene: Scene
    run_id: str
    directory: Path
    tools: tuple[Tool, ...]
    access: dict[str, str]

    def journal(self, kind: type[Journal] = Journal) -> Journal:
        """Open the journal of the run."""
        line = RunLine(run_id=self.run_id, task="Pay.", tools=tools_digest(self.tools))
        return kind.open(self.directory / "journal.jsonl", line)

    def lose_journal(self) -> None:
        """The disk of the agent is gone."""
        (self.directory / "journal.jsonl").unlink()

    def kind(self, tool: str) -> str:
        """The target's kind of object behind a tool."""
        return next(t.tool for t in self.tools if t.name == tool).removeprefix("proof.")

    def ledger(self, tool: str) -> LedgerView:
        """What the target has counted of a tool."""
        return self.scene.broker.target.client.ledger(kind=self.kind(tool))


@pytest.fixture(scope="session")
def database_template() -> DatabaseTemplate:
    """Migrated, without tenants."""
    return MIGRATED


@contextmanager
def running(server: RunningServer, template_name: str, directory: Path) -> Iterator[Scene]:
    """A broker with an API and a worker, in a database of its own."""
    database = clone(server, template_name)
    broker = ProofBroker(directory, database.superuser_url, migrated=True)
    with broker, Scene(broker) as made:
        broker.prepare()
        broker.start_api()
        made.ensure_workers(1)
        yield made
    drop_database(server, database.name)


@pytest.fixture(scope="session")
def scene(
    running_server: RunningServer, template_name: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    """The broker that these tests share."""
    with running(running_server, template_name, tmp_path_factory.mktemp("agent")) as made:
        yield made


@pytest.fixture
def own_scene(running_server: RunningServer, template_name: str, tmp_path: Path) -> Iterator[Scene]:
    """The broker of one whole demo, which is run once on each."""
    with running(running_server, template_name, tmp_path) as made:
        yield made


@pytest.fixture
def desk(scene: Scene, tmp_path: Path, request: pytest.FixtureRequest) -> Desk:
    """Tools with kinds of this test's own at the target."""
    scene.ensure_workers(1)
    broker = scene.broker
    name = "".join(c if c.isalnum() else "_" for c in request.node.name)[5:25]
    tools, contracts = [], []
    for tool in TOOLS:
        head, document, mode = KINDS[tool.name]
        kind = f"{head}_{name}"
        broker.target.client.set_mode(kind, mode)
        contracts.append(tuned(document, broker.target.url, kind))
        tools.append(replace(tool, tool=f"proof.{kind}"))
    broker.apply(*contracts)
    key = broker.http.headers["Authorization"].removeprefix("Bearer ")
    access = {"EFFECT_BROKER_URL": str(broker.http.base_url), "EFFECT_BROKER_API_KEY": key}
    return Desk(scene, f"run-{name}", tmp_path, tuple(tools), access)


@pytest.fixture
async def broker(desk: Desk) -> Any:
    """A client of the broker."""
    async with AsyncBroker.from_environment(desk.access) as made:
        yield made
