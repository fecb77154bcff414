"""What the API and the command line ask: tenants, keys, contracts, and reads of one tenant."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from psycopg import Connection
from psycopg.rows import TupleRow

from effect_broker.protocol.ports import (
    Change,
    EffectMissing,
    Sealed,
    Snapshot,
    StaleWrite,
    StorePayload,
)
from effect_broker.reading import CursorInvalid, EffectFilter
from effect_broker.store.api import PostgresApiStore
from effect_broker.store.catalogue import Catalogue
from effect_broker.store.pool import Pool
from effect_broker.store.runs import PostgresWorkerStore
from effect_broker.store.tenants import Authentication, TenantExists, TenantMissing, Tenants
from effect_contracts.errors import ContractConflict, TenantDisabled, Unauthenticated
from effect_contracts.facts import EffectState, Hold, Outcome
from effect_contracts.life import LifeEvent
from store.conformance import World
from store.samples import advance, contract, outcome, receipt, submission


@pytest.fixture
def world(worker_store: PostgresWorkerStore, tenant_id: UUID) -> World:
    """The worker's side."""
    return World(worker_store, tenant_id, lambda _: [])


@pytest.fixture
async def tenant_name(admin_pool: Pool, tenant_id: UUID) -> str:
    """The name of the test's tenant."""
    found = [t.name for t in await Tenants(admin_pool).tenants() if t.tenant_id == tenant_id]
    return found[0]


async def test_a_key_belongs_to_its_tenant_until_it_is_revoked(
    admin_pool: Pool, api_pool: Pool, tenant_id: UUID, tenant_name: str
) -> None:
    tenants, who = Tenants(admin_pool), Authentication(api_pool)
    made = await tenants.create_key(tenant_name, ["effects", "read"])
    assert made.tenant_id == tenant_id
    assert made.api_key not in repr(made)
    found = await who.tenant(made.api_key)
    assert (found.tenant_id, found.hmac_key_id) == (tenant_id, "hmac-1")
    assert found.credential == str(made.key_id)
    assert await tenants.revoke_key(made.key_id)
    with pytest.raises(Unauthenticated):
        await who.tenant(made.api_key)
    assert not await tenants.revoke_key(uuid4())
    (listed,) = await tenants.keys(tenant_name)
    assert (listed.key_id, listed.scopes) == (made.key_id, ("effects", "read"))
    assert listed.revoked_at is not None


@pytest.mark.parametrize("api_key", ["", "eb_", "eb_" + "x" * 43, "x" * 1000, "eb_\x00", "eb_ü"])
async def test_a_key_that_was_never_made_opens_nothing(api_pool: Pool, api_key: str) -> None:
    with pytest.raises(Unauthenticated):
        await Authentication(api_pool).tenant(api_key)


async def test_a_key_is_not_stored(
    admin_pool: Pool, tenant_name: str, superuser: Connection[TupleRow]
) -> None:
    made = await Tenants(admin_pool).create_key(tenant_name)
    row = superuser.execute(
        "SELECT k::text FROM effect_broker.api_keys k WHERE key_id = %s", [made.key_id]
    ).fetchone()
    assert row is not None
    assert made.api_key.removeprefix("eb_") not in row[0]
    assert made.api_key.encode().hex() not in row[0]


async def test_a_disabled_tenant_is_refused_and_nothing_is_dispatched_for_it(
    admin_pool: Pool,
    api_pool: Pool,
    api_store: PostgresApiStore,
    tenant_id: UUID,
    tenant_name: str,
) -> None:
    tenants = Tenants(admin_pool)
    key = (await tenants.create_key(tenant_name)).api_key
    effect_id = (await api_store.submit(submission(tenant_id))).intent.effect_id
    assert (await tenants.switch(tenant_name, disabled=True)).disabled_at is not None
    with pytest.raises(TenantDisabled):
        await Authentication(api_pool).tenant(key)
    snapshot = await api_store.load(tenant_id, effect_id)
    assert snapshot.facts.holds == {Hold.TENANT_DISABLED}
    await tenants.switch(tenant_name, disabled=False)
    assert (await Authentication(api_pool).tenant(key)).tenant_id == tenant_id


async def test_tenants_are_named_once(admin_pool: Pool, tenant_name: str) -> None:
    tenants = Tenants(admin_pool)
    with pytest.raises(TenantExists):
        await tenants.create(tenant_name, "hmac-1")
    with pytest.raises(StaleWrite):
        await tenants.create("Not A Name", "hmac-1")
    with pytest.raises(TenantMissing):
        await tenants.create_key("nobody")
    with pytest.raises(TenantMissing):
        await tenants.switch("nobody", disabled=True)


async def test_a_contract_is_applied_once_and_never_changes(
    admin_pool: Pool, api_store: PostgresApiStore, tenant_id: UUID
) -> None:
    catalogue = Catalogue(admin_pool)
    name = f"c{uuid4().hex[:8]}"
    first = contract("unsafe", name=name, tool=name)
    assert await catalogue.apply(first)
    assert not await catalogue.apply(first)
    with pytest.raises(ContractConflict):
        await catalogue.apply(contract("unsafe", name=name, tool=name, transit_seconds=9))
    assert await api_store.active_contract(name) == first
    assert await api_store.active_contract("no.such.tool") is None


async def test_the_active_version_moves_and_old_intents_keep_theirs(
    admin_pool: Pool, api_pool: Pool, tenant_id: UUID
) -> None:
    catalogue = Catalogue(admin_pool)
    name = f"c{uuid4().hex[:8]}"
    now = [0.0]
    store = PostgresApiStore(api_pool, lambda: now[0])
    first, second = (contract("unsafe", version=v, name=name, tool=name) for v in "12")
    await catalogue.apply(first)
    assert await store.active_contract(name) == first
    pinned = submission(
        tenant_id, safety="unsafe", tool=name, contract_name=name, contract_digest=first.digest()
    )
    await store.submit(pinned)
    await catalogue.apply(second)
    assert await store.active_contract(name) == first  # for a second at most
    now[0] = 1.1
    assert await store.active_contract(name) == second
    assert (await store.load(tenant_id, pinned.effect_id)).document == first
    listed = [c for c in await catalogue.contracts() if c.name == name]
    assert [(c.version, c.active) for c in listed] == [("1", False), ("2", True)]


async def test_a_restored_database_holds_all_but_idempotent_effects(
    api_store: PostgresApiStore, tenant_id: UUID, superuser: Connection[TupleRow]
) -> None:
    effects = {
        safety: (await api_store.submit(submission(tenant_id, safety, safety))).intent.effect_id
        for safety in ("idempotent", "unsafe")
    }
    halt = "UPDATE effect_broker.database_identity SET halted_at = %s, bounds_restart_at = %s"
    superuser.execute(halt, ["2026-01-01Z", "2026-01-01Z"])
    try:
        for safety, effect_id in effects.items():
            facts = (await api_store.load(tenant_id, effect_id)).facts
            expected = set() if safety == "idempotent" else {Hold.DATABASE_RESTORED}
            assert facts.holds == expected
            assert facts.bounds_restart_at is not None
    finally:
        superuser.execute(halt, [None, None])


async def test_a_pause_of_a_contract_holds_its_effects(
    api_store: PostgresApiStore, tenant_id: UUID, superuser: Connection[TupleRow]
) -> None:
    effect_id = (await api_store.submit(submission(tenant_id))).intent.effect_id
    superuser.execute(
        "INSERT INTO effect_broker.holds"
        " (hold_id, kind, tenant_id, contract_name, contract_version, reason, placed_by)"
        " VALUES (gen_random_uuid(), 'paused', %s, 'idempotent', '1', 'maintenance', 'operator')",
        [tenant_id],
    )
    assert (await api_store.load(tenant_id, effect_id)).facts.holds == {Hold.PAUSED}


async def test_an_effect_is_read_with_its_attempts_events_and_receipt(
    api_store: PostgresApiStore, world: World, tenant_id: UUID
) -> None:
    effect_id = (await api_store.submit(submission(tenant_id))).intent.effect_id
    assert await api_store.receipt(tenant_id, effect_id) is None
    attempt_id = await world.dispatching(effect_id)
    written = receipt(str(attempt_id))
    sealed = Sealed("k1", b"the answer")

    def plan(snapshot: Snapshot) -> Change[None]:
        recorded = outcome(attempt_id, snapshot.now, Outcome.COMMITTED)
        stored = StorePayload("result", str(attempt_id), sealed)
        move = advance(LifeEvent.COMMIT_PROVED, EffectState.SUCCEEDED, None)
        return Change(None, (recorded, stored, written, move))

    await world.store.change(tenant_id, effect_id, plan)
    detail = await api_store.effect(tenant_id, effect_id)
    assert detail.intent == await api_store.intent(tenant_id, effect_id)
    assert detail.intent.state is EffectState.SUCCEEDED
    assert (detail.requested_by, detail.trace_id) == ("caller:test", "trace-1")
    assert detail.preview == {"amount": 5}
    assert detail.receipt_digest == written.digest
    assert [a.attempt_id for a in detail.attempts] == [attempt_id]
    record = await api_store.receipt(tenant_id, effect_id)
    assert record is not None
    assert (record.content, record.digest) == (written.content, written.digest)
    assert record.result == sealed
    events = await api_store.events(tenant_id, effect_id)
    assert [e.sequence for e in events] == [1, 2, 3]
    assert [e.to_state for e in events] == ["prepared", "dispatching", "succeeded"]
    assert events[1].metadata == '{"ordinal":1,"ünï":null}'


async def test_nothing_is_read_of_an_effect_of_another_tenant(
    api_store: PostgresApiStore, tenant_id: UUID
) -> None:
    effect_id = (await api_store.submit(submission(tenant_id))).intent.effect_id
    for read in (api_store.intent, api_store.effect, api_store.receipt, api_store.events):
        with pytest.raises(EffectMissing):
            await read(uuid4(), effect_id)
    assert await api_store.payload(uuid4(), effect_id, "arguments") is None


async def test_listings_are_whole_and_newest_first_across_pages(
    api_store: PostgresApiStore, tenant_id: UUID
) -> None:
    made = [
        (await api_store.submit(submission(tenant_id, f"k{n}"))).intent.effect_id for n in range(7)
    ]
    seen: list[UUID] = []
    cursor = None
    while True:
        page = await api_store.effects(tenant_id, EffectFilter(), cursor, 3)
        seen += [e.intent.effect_id for e in page.effects]
        cursor = page.cursor
        if cursor is None:
            break
    assert seen == made[::-1]
    exact = await api_store.effects(tenant_id, EffectFilter(), None, 7)
    assert exact.cursor is None
    for bad in ("", "x", "a.b", "MTIz", "ü", "9" * 400):
        with pytest.raises(CursorInvalid):
            await api_store.effects(tenant_id, EffectFilter(), bad, 3)


async def test_filters_select(
    api_store: PostgresApiStore, world: World, tenant_id: UUID, superuser: Connection[TupleRow]
) -> None:
    keys = {}
    for key, safety in (("pay/1", "idempotent"), ("pay/2", "unsafe"), ("mail~1", "unsafe")):
        made = await api_store.submit(submission(tenant_id, key, safety))
        keys[made.intent.effect_id] = key
    by_key = {key: effect_id for effect_id, key in keys.items()}
    await world.dispatching(by_key["pay/1"])
    superuser.execute(
        "UPDATE effect_broker.effect_intents SET reason = 'frozen' WHERE effect_id = %s",
        [by_key["mail~1"]],
    )

    async def listed(**conditions: object) -> set[str]:
        filters = EffectFilter(**conditions)  # type: ignore[arg-type]
        page = await api_store.effects(tenant_id, filters, None, 50)
        return {keys[e.intent.effect_id] for e in page.effects}

    assert await listed(states=frozenset({EffectState.DISPATCHING})) == {"pay/1"}
    assert await listed(tool="tool.unsafe") == {"pay/2", "mail~1"}
    assert await listed(reason="frozen") == {"mail~1"}
    assert await listed(operation_prefix="pay/") == {"pay/1", "pay/2"}
    assert await listed(operation_prefix="mail~") == {"mail~1"}
    assert await listed(operation_prefix="pay/", tool="tool.unsafe") == {"pay/2"}
    assert await listed(unresolved=True) == set(by_key)
    assert await listed(older_than_seconds=3600.0) == set()
    assert await listed(older_than_seconds=0.0) == set(by_key)
