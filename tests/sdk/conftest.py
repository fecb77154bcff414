"""One running broker for the tests of the SDK, and clients of it as a caller would make them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

import pytest

from effect_broker import AsyncBroker, Broker
from effect_broker.proof.broker import ProofBroker
from effect_broker.store.pool import make_pool
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.tenants import Tenants
from hosting.scenes import Scene
from migrated import MIGRATED
from postgres import DatabaseTemplate, RunningServer, clone, drop_database

TENANT = "proof"


@dataclass(frozen=True, slots=True)
class Access:
    """What a caller is given."""

    url: str
    api_key: str

    @property
    def environment(self) -> dict[str, str]:
        return {"EFFECT_BROKER_URL": self.url, "EFFECT_BROKER_API_KEY": self.api_key}

    def broker(self, patience: timedelta = timedelta(seconds=60)) -> Broker:
        return Broker(self.url, self.api_key, patience=patience)

    def async_broker(self, patience: timedelta = timedelta(seconds=60)) -> AsyncBroker:
        return AsyncBroker(self.url, self.api_key, patience=patience)


def access_to(scene: Scene, scopes: Sequence[str] = ("effects",)) -> Access:
    """Make a further API key of the tenant."""

    async def work() -> str:
        url = scene.broker.url(DatabaseRole.ADMIN)
        async with make_pool(url, None, application_name="test-sdk", size_max=1) as pool:
            return (await Tenants(pool).create_key(TENANT, tuple(scopes))).api_key

    return Access(str(scene.broker.http.base_url), asyncio.run(work()))


@pytest.fixture(scope="session")
def database_template() -> DatabaseTemplate:
    """Migrated, without tenants."""
    return MIGRATED


@pytest.fixture(scope="session")
def scene(
    running_server: RunningServer, template_name: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    """The broker that these tests share; a test may kill its processes, never its database."""
    database = clone(running_server, template_name)
    broker = ProofBroker(tmp_path_factory.mktemp("sdk"), database.superuser_url, migrated=True)
    with broker, Scene(broker) as made:
        broker.prepare(TENANT)
        broker.start_api()
        yield made
    drop_database(running_server, database.name)


@pytest.fixture(scope="session")
def access(scene: Scene) -> Access:
    """A key that submits and reads."""
    return access_to(scene)


@pytest.fixture
def broker(scene: Scene, access: Access) -> Iterator[Broker]:
    """A synchronous client of a broker with a worker."""
    scene.ensure_workers(1)
    with access.broker() as made:
        yield made


@pytest.fixture
def operator(scene: Scene) -> Iterator[Broker]:
    """A client whose key may resolve."""
    with access_to(scene, ("effects", "operate")).broker() as made:
        yield made
