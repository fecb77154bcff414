"""What the listing reads is what the effect store reads of one effect, and what is stored."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest

from api.deployment import Deployment
from effect_broker import unresolved as listing
from effect_broker.protocol.ports import Snapshot
from effect_broker.protocol.resolution import permitted
from effect_broker.store import migrate, runs
from effect_broker.store import unresolved as store
from effect_broker.store.pool import make_pool
from effect_broker.store.roles import DatabaseRole
from effect_broker.unresolved import UnresolvedFilter, next_step_of
from effect_contracts.facts import Hold, Outcome, Verdict
from unresolved.scenes import REASONS_OF, Scenes, quick

_MIGRATIONS = Path(migrate.__file__).parent / "migrations" / "sql"
SQL = _MIGRATIONS / "0007_unresolved.sql"
INDEXES = _MIGRATIONS / "0023_certificates_demanded.sql"


async def test_a_page_sees_each_effect_as_the_store_does(
    scenes: Scenes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reads are of many effects at once; those of one effect are the authority."""
    await scenes.everything()
    looked_up = next(effect for effect, key in scenes.keys.items() if key == "looked-up")
    for verdict in (Verdict.NOT_COMMITTED, Verdict.UNKNOWN, Verdict.NOT_COMMITTED):
        await scenes.see(looked_up, verdict)
    seen = {}

    def watched(snapshot: Snapshot) -> object:
        seen[snapshot.intent.effect_id] = snapshot
        return next_step_of(snapshot)

    monkeypatch.setattr(store, "next_step_of", watched)
    page = await scenes.api.unresolved(scenes.tenant_id, UnresolvedFilter(), None, 50)
    assert len(seen) == len(REASONS_OF)
    for effect in page.effects:
        own = await scenes.api.load(scenes.tenant_id, effect.intent.effect_id)
        shown = seen[effect.intent.effect_id]
        for name in ("intent", "facts", "attempts", "evidence", "document", "parked", "urgency"):
            assert getattr(shown, name) == getattr(own, name), name
        assert {p.conclusion for p in effect.permitted} == {p.conclusion for p in permitted(own)}
    frozen = [s for s in seen.values() if s.facts.holds == {Hold.FROZEN}]
    assert len(frozen) == 2
    assert seen[looked_up].facts.probes_since_attempt == 3
    assert len(seen[looked_up].evidence) == 1  # the newest of the two says all


async def test_a_worker_may_read_the_listing_too(scenes: Scenes, deployment: Deployment) -> None:
    """The command line acts as the worker's role."""
    await scenes.sent("order-1", quick("unsafe"), Outcome.AMBIGUOUS)
    url = deployment.database.url_for(DatabaseRole.WORKER)
    async with make_pool(url, None, application_name="test-worker", size_max=1) as pool:
        reading = store.UnresolvedStore(pool)
        page = await reading.unresolved(scenes.tenant_id, UnresolvedFilter(), None, 50)
    assert [effect.intent.operation_key for effect in page.effects] == ["order-1"]


def test_the_conditions_are_those_of_the_indexes() -> None:
    text = _words(INDEXES.read_text())
    for condition in (store.UNRESOLVED[1:-1], store.ON_THEIR_WAY, store._EXPIRY):
        assert _words(condition) in text


def _words(text: str) -> str:
    plain = re.sub(r"--.*", "", text)
    return re.sub(r"\s+", " ", plain).replace("( ", "(").replace(" )", ")")


def test_a_run_is_overdue_for_the_listing_when_it_is_for_the_reconcile_loop() -> None:
    assert listing.OVERDUE_SECONDS == runs.RUN_OVERDUE_SECONDS


async def test_a_migration_fills_in_what_is_under_way(
    scenes: Scenes, deployment: Deployment
) -> None:
    """The statement of the migration makes of old rows what the store keeps for new ones."""
    await scenes.everything()
    columns = "effect_id, key_expires_at, attempt_open_until, sender_lost"
    (block,) = re.findall(r"DO \$\$.*?END \$\$;", SQL.read_text(), re.DOTALL)
    url = deployment.database.superuser_url
    with psycopg.connect(url, autocommit=True) as superuser:
        query = f"SELECT {columns} FROM effect_broker.effect_intents ORDER BY effect_id"
        kept = superuser.execute(query.encode()).fetchall()
        assert {row[3] for row in kept} == {True, False}
        assert any(row[1] for row in kept)
        assert any(row[2] for row in kept)
        superuser.execute(
            "UPDATE effect_broker.effect_intents"
            " SET key_expires_at = NULL, attempt_open_until = NULL, sender_lost = false"
        )
        # As the owner, whom row-level security binds.
        superuser.execute("SET ROLE effect_broker_owner")
        superuser.execute(block.encode())
        superuser.execute("RESET ROLE")
        assert superuser.execute(query.encode()).fetchall() == kept
