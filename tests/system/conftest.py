"""One running broker for each test module: processes, a migrated database and a target."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from effect_broker.proof.broker import ProofBroker
from migrated import MIGRATED
from postgres import RunningServer, clone, drop_database, ensure_template

# Shorter than the default, so that a take-over costs less time; the ratios stay.
TTL_SECONDS = 2.0


@pytest.fixture(scope="module")
def broker(
    running_server: RunningServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProofBroker]:
    """A prepared broker with an API and two workers."""
    database = clone(running_server, ensure_template(running_server, MIGRATED))
    environment = {"EFFECT_BROKER_HEARTBEAT_TTL_SECONDS": str(TTL_SECONDS)}
    directory = tmp_path_factory.mktemp("broker")
    with ProofBroker(
        directory, database.superuser_url, environment=environment, migrated=True
    ) as proof:
        proof.prepare()
        workers = [proof.stack.worker() for _ in range(2)]
        proof.start_api()
        for worker in workers:
            worker.wait_ready()
        yield proof
    drop_database(running_server, database.name)
