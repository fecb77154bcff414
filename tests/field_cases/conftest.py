"""One running broker for all field cases of a test process, and a case of its own for each test.

`case` is what most tests take. `own_scene` is a broker for one module alone, for tests that stop
its database or need other settings (the module defines `environment` anew); it starts no workers.

What a target promises is checked before use by `effect_broker.conformance` (the command
`effect-broker contracts conformance`): one arrival for an attempt, one object for a key.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest

from effect_broker.proof.broker import ProofBroker
from effect_broker.proof.stack import ManagedProcess
from field_cases.cases import PATIENT_SECONDS, Case
from field_cases.commands import Operator
from field_cases.desk import Desk
from field_cases.provider import SECRET, SECRET_VARIABLE
from hosting.scenes import Scene
from migrated import MIGRATED
from postgres import DatabaseTemplate, RunningServer, clone, drop_database

# Shorter than the default, so that a take-over costs less time; the ratios stay.
TTL_SECONDS = 2.0
WORKERS = 2

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def database_template() -> DatabaseTemplate:
    """Migrated, without tenants."""
    return MIGRATED


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """Further settings of the processes of `own_scene`; a module may define it anew."""
    return {}


def _scene(
    server: RunningServer,
    template_name: str,
    paths: pytest.TempPathFactory,
    environment: dict[str, str],
) -> Iterator[Scene]:
    database = clone(server, template_name)
    settings = {"EFFECT_BROKER_HEARTBEAT_TTL_SECONDS": str(TTL_SECONDS), **environment}
    broker = ProofBroker(
        paths.mktemp("broker"), database.superuser_url, environment=settings, migrated=True
    )
    with broker, Scene(broker) as scene:
        broker.prepare()
        broker.start_api()
        yield scene
    drop_database(server, database.name)


@pytest.fixture(scope="session")
def scene(
    running_server: RunningServer, template_name: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    """The broker that the field cases share; a test may kill its workers, never its database.

    Each of its processes serves its numbers on a port of its own.
    """
    telling = {"EFFECT_BROKER_METRICS_PORT": "0"}
    yield from _scene(running_server, template_name, tmp_path_factory, telling)


@pytest.fixture(scope="module")
def evidence_api(scene: Scene) -> Iterator[ManagedProcess]:
    """An API process of the shared broker that knows the secret of `provider`."""
    process = scene.broker.stack.api(environment={SECRET_VARIABLE: SECRET})
    process.wait_ready()
    yield process
    process.kill()


@pytest.fixture(scope="module")
def own_scene(
    running_server: RunningServer,
    template_name: str,
    tmp_path_factory: pytest.TempPathFactory,
    environment: dict[str, str],
) -> Iterator[Scene]:
    """A broker for this module alone, without workers."""
    yield from _scene(running_server, template_name, tmp_path_factory, environment)


@pytest.fixture
def case(scene: Scene, request: pytest.FixtureRequest) -> Iterator[Case]:
    """A case on the shared broker, with all of its workers.

    A module most of whose attempts do not end by themselves says its own `DEADLINE_SECONDS`.
    """
    scene.ensure_workers(WORKERS)
    deadline_seconds = getattr(request.module, "DEADLINE_SECONDS", PATIENT_SECONDS)
    made = Case(scene, case_name(request), deadline_seconds)
    yield made
    made.close()


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Operator:
    """Who runs commands on a broker."""
    return Operator(monkeypatch, capsys)


@pytest.fixture
def desk(case: Case) -> Iterator[Desk]:
    """An operator at the case's broker."""
    with Desk(case) as made:
        yield made


def case_name(request: pytest.FixtureRequest) -> str:
    """A name for kinds and keys that no other test of this process has: `fc05_17`."""
    number = re.match(r"test_fc_(\d\d)_", request.node.name)
    assert number is not None, "a field case says its number: test_fc_05_…"
    return f"fc{number.group(1)}_{next(_numbers)}"
