"""`effect-broker decisions`: whom it is about is shown first, and recorded only when it is said."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from api.deployment import Deployment, deployed, in_doubt, just_now
from cli.commands import Cli
from postgres import Database

SEEN = "kind=export,ref=s3://x,observed="
SAID = (
    "decisions", "make", "--tenant", "acme", "--as", "committed", "--because", "in the export",
    "--cause", "a 504 that charged", "--evidence", SEEN + "2026-01-01T00:00:00Z",
)  # fmt: skip


@pytest.fixture
async def deployment(database: Database, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[
    Deployment
]:  # fmt: skip
    async with deployed(database, tmp_path_factory.mktemp("deployment")) as made:
        yield made


async def _doubt(deployment: Deployment, *orders: str) -> list[str]:
    async with deployment.application() as app, deployment.client(app) as api:
        client: httpx.AsyncClient = api
        return [await in_doubt(client, deployment, order) for order in orders]


async def test_a_decision_is_shown_then_recorded_then_opened_again(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in deployment.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("EFFECT_BROKER_MIGRATE_DATABASE_URL", deployment.database.superuser_url)
    cli = Cli(monkeypatch, capsys)

    async def said(*arguments: str) -> str:
        ended = await asyncio.to_thread(cli, *arguments)
        assert ended.code == 0, ended.err
        return ended.out

    effects = await _doubt(deployment, "order-1", "order-2")
    group = ("--reason", "outcome_unknown", "--tool", "demo.charge", "--decision-id", "d-1")
    seen = (*SAID[:-1], SEEN + just_now())
    shown = await said(*seen, *group)
    assert all(effect_id in shown for effect_id in effects)
    preview = json.loads(await said(*seen, *group, "--json"))
    assert (preview["recorded"], preview["conclusion"]) == (False, "committed")
    assert sorted(row["effect_id"] for row in preview["effects"]) == sorted(effects)
    assert deployment.count("effect_resolutions") == 0
    recorded = await said(*seen, *group, "--yes")
    assert recorded.count("settled") == 2
    assert "closed" in recorded
    assert deployment.count("effect_resolutions") == 2
    assert "nothing of this group" in await said(*seen, *group, "--yes")
    assert json.loads(await said(*seen, *group, "--yes", "--json"))["effects"] == []
    assert "closed" in await said("decisions", "list", "--tenant", "acme")
    effect_id = (await _doubt(deployment, "later"))[0]
    shown = await said("decisions", "show", "d-1", "--tenant", "acme")
    assert "open: 1 effect of its group is new" in shown
    assert effect_id in await said("decisions", "show", "d-1", "--tenant", "acme", "--json")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--trace-id"),
        (("--reason", "no_such"), "no reason"),
        (("--tool", "t", "--evidence", "kind"), "--evidence"),
    ],
)
def test_a_decision_about_nothing_is_refused(
    cli: Cli, arguments: tuple[str, ...], said: str
) -> None:
    assert said in cli(*SAID, *arguments).refused(2)
