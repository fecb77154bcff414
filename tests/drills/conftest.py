"""One broker for all live drills: the commands are started before any ordinary worker is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from drills.live import Live, LiveBroker
from effect_broker.keyring import new_key_ring
from effect_broker.proof.broker import KEY_ID, ProofBroker
from hosting.scenes import Scene
from migrated import MIGRATED
from postgres import DatabaseTemplate, RunningServer, clone, drop_database

TTL_SECONDS = 1.5


@pytest.fixture(scope="session")
def database_template() -> DatabaseTemplate:
    """Migrated, without tenants."""
    return MIGRATED


@pytest.fixture(scope="session")
def live_broker(
    running_server: RunningServer, template_name: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveBroker]:
    """A broker with an API and a target, and no worker."""
    database = clone(running_server, template_name)
    broker = ProofBroker(
        tmp_path_factory.mktemp("drills"),
        database.superuser_url,
        environment={"EFFECT_BROKER_HEARTBEAT_TTL_SECONDS": str(TTL_SECONDS)},
        migrated=True,
    )
    # The drills are run as in production, where no development ring is taken.
    (broker.directory / "keyring.json").write_text(new_key_ring(KEY_ID, development=False))
    with broker, Scene(broker) as scene:
        broker.prepare()
        broker.start_api()
        with LiveBroker(scene) as made:
            yield made
    drop_database(running_server, database.name)


@pytest.fixture(scope="session")
def live(live_broker: LiveBroker) -> Live:
    """What four drills, one for each class, have shown."""
    return live_broker.run()
