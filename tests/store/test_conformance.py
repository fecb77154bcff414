"""The stores that pass the suite: each joins by one class."""

from __future__ import annotations

from uuid import UUID

import pytest
from psycopg import Connection
from psycopg.rows import TupleRow

from effect_broker.store.api import PostgresApiStore
from effect_broker.store.runs import PostgresWorkerStore
from store.conformance import StoreConformance, World


class TestPostgres(StoreConformance):
    """The store of production, as the worker's role; its submit is the API's own function."""

    @pytest.fixture
    def world(
        self,
        worker_store: PostgresWorkerStore,
        api_store: PostgresApiStore,
        tenant_id: UUID,
        superuser: Connection[TupleRow],
    ) -> World:
        """A store over the test's own database."""

        def runs(effect_id: UUID) -> list[tuple[UUID, int]]:
            rows = superuser.execute(
                "SELECT workflow_uuid FROM dbos.workflow_status WHERE workflow_uuid LIKE %s"
                " ORDER BY created_at, workflow_uuid",
                [f"{effect_id}.%"],
            ).fetchall()
            parts = (str(row[0]).rpartition(".") for row in rows)
            return [(UUID(before), int(generation)) for before, _, generation in parts]

        return World(_Both(api_store, worker_store), tenant_id, runs)


class _Both:
    """Submits as the API does, and changes as a worker does."""

    def __init__(self, api: PostgresApiStore, worker: PostgresWorkerStore) -> None:
        self.submit = api.submit
        self.load = worker.load
        self.change = worker.change
        self.mutate = worker.mutate
        self.payload = worker.payload
