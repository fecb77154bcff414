"""The stores that pass the suite: each joins by one class."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count
from typing import cast
from uuid import UUID, uuid4

import pytest
from psycopg import Connection
from psycopg.rows import TupleRow

from effect_broker.proof.memory_certificates import MemoryCertificate
from effect_broker.proof.memory_store import MemoryStore
from effect_broker.protocol.changes import GrantKind
from effect_broker.store.api import PostgresApiStore
from effect_broker.store.catalogue import Catalogue
from effect_broker.store.elections import PostgresElections
from effect_broker.store.pool import Pool
from effect_broker.store.runs import PostgresWorkerStore
from effect_broker.store.tenants import Tenants
from effect_contracts.document import ContractDocument
from effect_contracts.facts import Certified, SafetyClass
from store.conformance import Both, StoreConformance, World
from store.conformance_certificates import CertificateConformance, Certifying, demanding
from store.conformance_elections import ElectionConformance
from store.conformance_first import FirstGrantConformance
from store.conformance_limits import LimitConformance, Limited, limiting
from store.conformance_urgency import UrgencyConformance
from store.issuer import Issuer
from store.samples import contract


class TestPostgres(
    StoreConformance,
    UrgencyConformance,
    ElectionConformance,
    FirstGrantConformance,
    CertificateConformance,
    LimitConformance,
):
    """The store of production, as the worker's role; its submit is the API's own function."""

    @pytest.fixture
    def world(
        self,
        worker_store: PostgresWorkerStore,
        api_store: PostgresApiStore,
        api_pool: Pool,
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

        both = Both(api_store, worker_store, PostgresElections(api_pool))
        return World(both, tenant_id, runs)

    @pytest.fixture
    async def certifying(
        self, world: World, worker_pool: Pool, admin_pool: Pool, api_store: PostgresApiStore
    ) -> Certifying:
        """The worker trusts the key of a ring, which signs what is stored here."""
        issuer = Issuer(admin_pool)
        store = PostgresWorkerStore(worker_pool, trusted=issuer.public_keys)
        trusting = World(Both(api_store, store), world.tenant_id, world.runs)
        document = demanding()
        await Catalogue(admin_pool).apply(document)
        return Certifying(
            trusting,
            document,
            issuer.store,
            lambda target: store.release_certified(10, lambda _: target),
            issuer.revoke,
        )

    @pytest.fixture
    async def limited(
        self, world: World, admin_pool: Pool, superuser: Connection[TupleRow]
    ) -> Limited:
        """The paces of the tests before are forgotten: the database is shared."""
        superuser.execute(
            "TRUNCATE effect_broker.limited_attempts, effect_broker.limited_tenants,"
            " effect_broker.limited_targets"
        )
        documents = limiting()
        for document in documents:
            await Catalogue(admin_pool).apply(document)
        other = await Tenants(admin_pool).create(f"t-{uuid4().hex[:12]}", "hmac-1")
        return Limited(world, documents, other.tenant_id)

    async def test_a_contract_without_limits_has_no_row_to_lock(
        self, limited: Limited, superuser: Connection[TupleRow]
    ) -> None:
        count = "SELECT count(*) FROM effect_broker.limited_targets"
        assert await limited.granted(await limited.world.submit("plain")) is GrantKind.GRANTED
        assert superuser.execute(count).fetchone() == (0,)
        assert await limited.granted(await limited.submit("two", "held")) is GrantKind.GRANTED
        assert superuser.execute(count).fetchone() == (1,)


class TestMemory(
    StoreConformance,
    UrgencyConformance,
    ElectionConformance,
    FirstGrantConformance,
    CertificateConformance,
    LimitConformance,
):
    """The store of the simulator."""

    @pytest.fixture
    def world(self) -> World:
        """A store whose clock moves a millisecond whenever it is read."""
        started: list[tuple[UUID, int]] = []
        ticks = count()
        store = MemoryStore(
            lambda: datetime(2026, 1, 1, tzinfo=UTC) + next(ticks) * timedelta(milliseconds=1),
            lambda _, effect_id, generation: started.append((effect_id, generation)),
        )
        for safety in SafetyClass:
            store.apply_contract(contract(safety))

        def runs(effect_id: UUID) -> list[tuple[UUID, int]]:
            return [run for run in started if run[0] == effect_id]

        return World(store, UUID(int=1), runs)

    @pytest.fixture
    def certifying(self, world: World) -> Certifying:
        """Nothing is signed here: who stores a certificate is believed."""
        store, document = cast(MemoryStore, world.store), demanding()
        store.apply_contract(document)

        async def certify(of: ContractDocument, said: Certified) -> None:
            made = MemoryCertificate(of.digest(), said, said.ended_at)
            store.certificates.store(made)

        async def revoke(_certificate_id: str) -> None:
            store.certificates.revoke()

        return Certifying(
            world,
            document,
            certify,
            lambda target: store.release_certified(10, lambda _: target),
            revoke,
        )

    @pytest.fixture
    def limited(self, world: World) -> Limited:
        """Contracts that limit, and a second tenant."""
        documents = limiting()
        for document in documents:
            cast(MemoryStore, world.store).apply_contract(document)
        return Limited(world, documents, UUID(int=2))
