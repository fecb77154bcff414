"""What persons have done, and what followed from it, is an account that is verified like any."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from api.deployment import Deployment, entry
from api.webhooks import Provider, event
from effect_broker import repair
from effect_broker.store.export import export_to
from effect_broker.store.pool import make_pool
from effect_broker.store.retention import Retention, Stage
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.runs import PostgresWorkerStore
from effect_contracts.trace import verify_lines


async def _verified(deployment: Deployment, tmp_path: Path) -> list[str]:
    """Export everything and return what is wrong with it."""
    url = deployment.database.url_for(DatabaseRole.WORKER)
    path = tmp_path / f"{uuid4()}.trace"
    async with make_pool(url, None, application_name="test-export", size_max=1) as pool:
        await export_to(pool, path)
    with path.open("rb") as lines:
        report = verify_lines(lines)
    return [f"{one.rule}: {one.what}" for one in report.violations]


async def _settle_compensations(deployment: Deployment) -> None:
    """Do what the reconcile loop of a worker does with compensations that have ended."""
    url = deployment.database.url_for(DatabaseRole.WORKER)
    async with make_pool(url, None, application_name="test-worker", size_max=2) as pool:
        store = PostgresWorkerStore(pool)
        await repair.settle_compensations(store, store, "worker:of-the-test")


async def _pruned(deployment: Deployment) -> None:
    url = deployment.database.url_for(DatabaseRole.PRUNE)
    async with make_pool(url, None, application_name="test-prune", size_max=1) as pool:
        for stage in Stage:
            await Retention(pool).prune(stage, 0, 100)


async def _posted(api: httpx.AsyncClient, deployment: Deployment, key: str, **members: Any) -> str:
    """An effect that has succeeded."""
    answer = await api.post("/v1/effects", json=entry(key) | members)
    assert answer.status_code == 202, answer.text
    effect_id = str(answer.json()["effect_id"])
    await deployment.settle(effect_id)
    return effect_id


async def _state(api: httpx.AsyncClient, effect_id: str) -> str:
    return str((await api.get(f"/v1/effects/{effect_id}")).json()["state"])


@pytest.fixture
def ledger(deployment: Deployment) -> None:
    """The function that the transactional contract calls."""
    deployment.make_ledger()


@pytest.mark.usefixtures("ledger")
async def test_a_compensated_effect_has_a_whole_account(
    api: httpx.AsyncClient, deployment: Deployment, tmp_path: Path
) -> None:
    done = await _posted(api, deployment, "done")
    await _posted(api, deployment, "undone", compensates=done)
    await _settle_compensations(deployment)
    assert await _state(api, done) == "compensated"
    assert await _verified(deployment, tmp_path) == []


@pytest.mark.usefixtures("ledger")
async def test_what_is_compensated_after_its_rows_were_removed_has_a_whole_account(
    api: httpx.AsyncClient, deployment: Deployment, tmp_path: Path
) -> None:
    done = await _posted(api, deployment, "done")
    await _pruned(deployment)
    assert await _verified(deployment, tmp_path) == []
    await _posted(api, deployment, "undone", compensates=done)
    await _settle_compensations(deployment)
    assert await _state(api, done) == "compensated"
    assert await _verified(deployment, tmp_path) == []


@pytest.mark.usefixtures("ledger")
async def test_what_undoes_and_is_undone_has_still_undone(
    api: httpx.AsyncClient, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = await _posted(api, deployment, "done")
    undo = await _posted(api, deployment, "undo", compensates=done)
    await _posted(api, deployment, "redo", compensates=undo)
    # The younger link comes first where the older one could not be settled in time.
    deployment.execute(
        "SET session_replication_role = replica; UPDATE effect_broker.effect_links"
        f" SET created_at = created_at + interval '1 hour' WHERE effect_id = '{undo}'"
    )
    monkeypatch.setattr(repair, "RECONCILE_BATCH", 1)
    await _settle_compensations(deployment)
    assert [await _state(api, one) for one in (undo, done)] == ["compensated", "succeeded"]
    await _settle_compensations(deployment)
    assert await _state(api, done) == "compensated"


@pytest.mark.parametrize("pruned", [False, True], ids=["whole", "pruned"])
async def test_a_webhook_of_a_success_is_judged_alike_after_its_rows_were_removed(
    api: httpx.AsyncClient, provider: Provider, doubted: str, pruned: bool
) -> None:
    key = provider.key_of(doubted)
    assert await provider.told(event(key)) == "settled"
    if pruned:
        await _pruned(provider.deployment)
        assert provider.deployment.count("effect_attempts") == 0
    assert await provider.told(event(key)) == "recorded"
    assert (await api.get(f"/v1/effects/{doubted}")).json()["alert"] is None
    assert await provider.told(event(key, kind="charge.failed")) == "contradicts"
    assert (await api.get(f"/v1/effects/{doubted}")).json()["alert"] == "late_contradiction"
