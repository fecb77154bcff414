"""Certificates on Postgres: which of the stored ones a process believes, and which role may ask."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from functools import partial
from uuid import UUID, uuid4

import pytest
from psycopg import Connection
from psycopg.rows import TupleRow

from effect_broker.protocol import changes
from effect_broker.protocol.changes import Grant, GrantKind
from effect_broker.store.api import PostgresApiStore
from effect_broker.store.catalogue import Catalogue
from effect_broker.store.pool import Pool
from effect_broker.store.runs import PostgresWorkerStore
from effect_broker.unresolved import UnresolvedFilter
from effect_contracts.facts import Certified, EffectState
from effect_contracts.life import LifeEvent
from store.conformance import Both, World
from store.conformance_certificates import HOUR, TRIALS, Certifying, demanding
from store.issuer import Issuer, content_of, signing_ring
from store.samples import TARGET, advance


@pytest.fixture
def issuer(admin_pool: Pool) -> Issuer:
    return Issuer(admin_pool)


@pytest.fixture
async def certifying(
    issuer: Issuer,
    worker_pool: Pool,
    admin_pool: Pool,
    api_store: PostgresApiStore,
    tenant_id: UUID,
) -> Certifying:
    store = PostgresWorkerStore(worker_pool, trusted=issuer.public_keys)
    document = demanding()
    await Catalogue(admin_pool).apply(document)
    return Certifying(
        World(Both(api_store, store), tenant_id, lambda _: []),
        document,
        issuer.store,
        lambda target: store.release_certified(10, lambda _: target),
        issuer.revoke,
    )


async def test_a_certificate_counts_only_for_whoever_knows_the_key_that_signed_it(
    certifying: Certifying, worker_pool: Pool, admin_pool: Pool
) -> None:
    effect_id = await certifying.submit("order-1")
    stranger = Issuer(admin_pool, signing_ring("k1"))  # the same name, another key
    certifying.store_certificate = stranger.store
    said = await certifying.certify(effect_id)
    assert await certifying.certificates(effect_id) == set()
    tenant_id = certifying.world.tenant_id
    for keys, known in (({}, ()), (stranger.public_keys, (said,))):
        store = PostgresWorkerStore(worker_pool, trusted=keys)
        assert (await store.load(tenant_id, effect_id)).facts.certificates == known
        # What was read once is not read again, and is told again.
        assert (await store.load(tenant_id, effect_id)).facts.certificates == known


async def test_a_certificate_whose_signature_is_of_something_else_counts_for_nobody(
    certifying: Certifying, issuer: Issuer
) -> None:
    effect_id = await certifying.submit("order-1")
    now = (await certifying.world.load(effect_id)).now
    said = Certified(str(uuid4()), TARGET, TRIALS, now, now + HOUR)
    content = content_of(certifying.document, said)
    longer = content_of(
        certifying.document, replace(said, expires_at=now + 10 * HOUR, certificate_id=str(uuid4()))
    )
    # The signature of another content, and one of this content for another purpose: a receipt's.
    await issuer.store_as(longer, issuer.signer.sign_certificate(content))
    await issuer.store_as(content, issuer.signer.sign(content))
    assert await certifying.certificates(effect_id) == set()


async def test_a_certificate_counts_for_the_contract_that_it_speaks_of_wherever_it_is_filed(
    certifying: Certifying, issuer: Issuer
) -> None:
    effect_id = await certifying.submit("order-1")
    now = (await certifying.world.load(effect_id)).now
    said = Certified(str(uuid4()), TARGET, TRIALS, now, now + HOUR)
    content = content_of(demanding(), said)
    signature = issuer.signer.sign_certificate(content)
    await issuer.store_as(content, signature, filed_under=certifying.document)
    assert await certifying.certificates(effect_id) == set()


async def test_whoever_decides_sees_the_same_the_api_and_a_listing_included(
    certifying: Certifying, issuer: Issuer, api_pool: Pool
) -> None:
    effect_id = await certifying.submit("order-1")
    said = await certifying.certify(effect_id)
    api = PostgresApiStore(api_pool, trusted=issuer.public_keys)
    tenant_id = certifying.world.tenant_id
    assert (await api.load(tenant_id, effect_id)).facts.certificates == (said,)


@pytest.mark.parametrize("waits", [False, True], ids=["parked", "waits for its expiry"])
async def test_what_waits_for_a_certificate_is_listed_as_unresolved(
    certifying: Certifying, api_store: PostgresApiStore, waits: bool
) -> None:
    effect_id = await certifying.submit("order-1")

    await certifying.world.plan(
        effect_id,
        lambda s: (
            advance(
                LifeEvent.NOTHING_SENT,
                EffectState.PREPARED,
                s.now + timedelta(days=1) if waits else None,
                reason="awaiting_certificate",
                parked=not waits,
            ),
        ),
    )
    tenant_id = certifying.world.tenant_id
    for filters in (UnresolvedFilter(), UnresolvedFilter(reason="awaiting_certificate")):
        page = await api_store.unresolved(tenant_id, filters, None, 10)
        (listed,) = [one for one in page.effects if one.intent.effect_id == effect_id]
        assert listed.reasons == ("awaiting_certificate",)


async def test_one_that_is_revoked_while_a_limited_target_is_waited_for_counts_no_more(
    certifying: Certifying, admin_pool: Pool, superuser: Connection[TupleRow]
) -> None:
    """Others may hold the target's lock for seconds, and then nothing is sent on its word."""
    limited = demanding(limits={"concurrency_max": 5})
    await Catalogue(admin_pool).apply(limited)
    certifying.document = limited
    first, second = [await certifying.submit(key) for key in ("order-1", "order-2")]
    said = await certifying.certify(first)
    assert (await _granted(certifying, first)).kind is GrantKind.GRANTED
    with superuser.transaction():
        superuser.execute("SELECT 1 FROM effect_broker.limited_targets FOR UPDATE")
        grant = asyncio.create_task(_granted(certifying, second))
        for _ in range(250):  # less than the time after which a lock is given up
            if _is_waited_for(superuser):
                break
            await asyncio.sleep(0.005)
        await certifying.revoke(said.certificate_id)
    assert (await grant).kind is GrantKind.STALE
    assert (await certifying.world.load(second)).attempts == ()


async def _granted(certifying: Certifying, effect_id: UUID) -> Grant:
    plan = partial(
        changes.grant_attempt,
        identity=TARGET,
        expected_version=1,
        ordinal=1,
        attempt_id=uuid4(),
        executor_id="executor-1",
    )
    world = certifying.world
    return await world.store.change(world.tenant_id, effect_id, plan, lambda _: TARGET)


def _is_waited_for(superuser: Connection[TupleRow]) -> bool:
    waiters = superuser.execute(
        "SELECT 1 FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
    )
    return waiters.fetchone() is not None
