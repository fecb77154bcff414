"""The listing on the command line: a table to be read at night, and JSON."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import UUID

import pytest

from cli.commands import Cli
from effect_broker.keyring import new_key_ring
from effect_broker.reasons import LISTED
from effect_broker.store.roles import DatabaseRole
from effect_contracts.facts import Outcome, Verdict
from postgres import Database
from unresolved.scenes import REASONS_OF, Scenes, quick, scenes_of

DOCS = Path(__file__).resolve().parents[2] / "docs"

UUID_TEXT = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"

Make = Callable[..., None]


@pytest.fixture
def broker(
    database: Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Cli:
    """The command line with a login for each role, and one tenant."""
    for name, url in {
        "API": database.url_for(DatabaseRole.API),
        "WORKER": database.url_for(DatabaseRole.WORKER),
        "MIGRATE": database.superuser_url,
    }.items():
        monkeypatch.setenv(f"EFFECT_BROKER_{name}_DATABASE_URL", url)
    monkeypatch.setenv("EFFECT_BROKER_KEY_RING", new_key_ring("k1", development=True))
    cli = Cli(monkeypatch, capsys)
    assert cli("tenants", "create", "acme").code == 0
    return cli


@pytest.fixture
def make(broker: Cli, database: Database) -> Make:
    """Make scenes of the tenant `acme`."""

    def made(work: Callable[[Scenes], Awaitable[object]], tenant: str = "acme") -> None:
        ids = {t["name"]: t["tenant_id"] for t in broker("tenants", "list", "--json").json}

        async def run() -> None:
            async with scenes_of(database, UUID(ids[tenant])) as scenes:
                await work(scenes)

        asyncio.run(run())

    return made


def test_the_table_says_what_waits_and_what_to_do(broker: Cli, make: Make) -> None:
    make(lambda scenes: scenes.everything())
    page = broker("effects", "unresolved")
    assert page.code == 0
    lines = page.out.splitlines()
    for key, reasons in REASONS_OF.items():
        (line,) = [line for line in lines if line.endswith(f" {key}")]
        assert reasons[0] in line
        below = lines[lines.index(line) + 1 :]
        assert re.match(
            rf"    effect {UUID_TEXT}  tool \S+ \(\S+ 1\)  state \S+, version \d+$", below[0]
        )
        assert below[1].startswith("    learned last: ")
    for text in (
        "unresolved effects of acme",
        "crash_window: The process that sent it was lost",
        # Of two that lost their process one goes on, and one waits for a person.
        "  do: nothing where NEXT names a step; else what its other reason says.",
        "  do: See that a worker runs",
        "`effect-broker effects resolve ID`",
        "  --as committed ",
        "absence counts only if you look after",
    ):
        assert text in page.out, text
    shown = {line.split()[-1]: line for line in lines if line.split()[-1:]}
    assert "in 1440 min" in shown["idempotent-lost"]
    # Overdue by a second on a busy machine; no worker runs here.
    assert re.search("is sent(, due| now| in) ", shown["idempotent-lost"] + " ")
    assert shown["unsafe-lost"].startswith("-")
    assert "outcome_unknown, crash_window  a person" in shown["unsafe-lost"]
    assert "when the hold ends" in shown["frozen"]
    assert "attempt is closed" in shown["stale"]
    # In the order of the listing, what expires comes first.
    assert page.out.index("idempotent-lost") < page.out.index("unsafe-ambiguous")


def test_json_is_that_of_the_api_with_the_words(broker: Cli, make: Make) -> None:
    make(lambda scenes: scenes.everything())
    body = broker("effects", "unresolved", "--json").json
    rows = {row["operation_key"]: tuple(row["reasons"]) for row in body["unresolved"]}
    assert rows == REASONS_OF
    assert body["cursor"] is None
    assert body["more"] is False
    assert body["words"]["crash_window"]["remedy"] is None
    assert "doctor" in body["words"]["stale_in_flight"]["remedy"]
    assert {row["tenant"] for row in body["unresolved"]} == {"acme"}


def test_filters_select_and_pages_follow(broker: Cli, make: Make) -> None:
    make(lambda scenes: scenes.everything())

    def listed(*options: str) -> set[str]:
        rows = broker("effects", "unresolved", *options, "--json").json["unresolved"]
        return {row["operation_key"] for row in rows}

    assert listed("--reason", "crash_window") == {"unsafe-lost", "idempotent-lost"}
    assert listed("--status", "manual_review") == {"key-conflict"}
    assert listed("--tool", "iced.tool") == {"frozen", "frozen-until"}
    assert listed("--prefix", "unsafe-l") == {"unsafe-lost"}
    assert listed("--older-than", "1h") == set()
    assert listed("--older-than", "0s") == set(REASONS_OF)

    first = broker("effects", "unresolved", "--limit", "4", "--json").json
    assert first["more"]
    second = broker("effects", "unresolved", "--cursor", first["cursor"], "--json").json
    rows = [row["operation_key"] for row in (*first["unresolved"], *second["unresolved"])]
    assert sorted(rows) == sorted(REASONS_OF)
    assert f"--cursor {first['cursor']}" in broker("effects", "unresolved", "--limit", "4").err


def test_nothing_that_waits_is_said_in_words(broker: Cli) -> None:
    assert "nothing waits" in broker("effects", "unresolved").out
    assert "nothing waits" in broker("effects", "unresolved", "--all-tenants").out
    assert broker("effects", "unresolved", "--json").json["unresolved"] == []


def test_of_every_tenant_the_most_urgent_come_first(broker: Cli, make: Make) -> None:
    assert broker("tenants", "create", "globex").code == 0
    unsafe, soon = quick("unsafe"), quick("idempotent", key_retention_seconds=3600)
    later = quick("idempotent", "later", key_retention_seconds=7200)

    async def of_acme(scenes: Scenes) -> None:
        await scenes.sent("acme-never", unsafe, Outcome.AMBIGUOUS)
        await scenes.lost("acme-later", later)

    async def of_globex(scenes: Scenes) -> None:
        await scenes.lost("globex-soon", soon)
        await scenes.sent("globex-never", unsafe, Outcome.AMBIGUOUS)

    make(of_acme)
    make(of_globex, "globex")
    assert "--tenant" in broker("effects", "unresolved").refused()
    body = broker("effects", "unresolved", "--all-tenants", "--json").json
    assert [(row["tenant"], row["operation_key"]) for row in body["unresolved"]] == [
        ("globex", "globex-soon"), ("acme", "acme-later"),
        ("acme", "acme-never"), ("globex", "globex-never"),
    ]  # fmt: skip
    cut = broker("effects", "unresolved", "--all-tenants", "--limit", "2")
    assert "there are more" in cut.err
    assert "globex" in cut.out
    own = broker("effects", "unresolved", "--tenant", "globex", "--json").json["unresolved"]
    assert {row["tenant"] for row in own} == {"globex"}


@pytest.mark.parametrize(
    ("options", "meaning"),
    [
        (("--reason", "outcome_unknwon"), "there are"),
        (("--reason", "\x1b[2J"), "no reason"),
        (("--status", "no_such_state"), "no_such_state"),
        (("--older-than", "soon"), "duration"),
        (("--limit", "0"), "greater"),
        (("--tool", "a\x00b"), "printable"),
        (("--prefix", "\x1b[2J"), "printable"),
        (("--cursor", "nonsense"), "--cursor"),
        (("--tenant", "nobody"), "acme"),
        (("--all-tenants", "--tenant", "acme"), "--all-tenants"),
        (("--all-tenants", "--cursor", "x"), "--all-tenants"),
    ],
)
def test_poisonous_options_are_refused(broker: Cli, options: tuple[str, ...], meaning: str) -> None:
    ended = broker("effects", "unresolved", *options)
    assert ended.code in {1, 2}
    assert meaning in ended.err
    assert "Traceback" not in ended.err
    assert "unexpected" not in ended.err


def test_what_the_contract_calls_sensitive_is_nowhere(broker: Cli, make: Make) -> None:
    make(lambda scenes: scenes.sent("mail:1", quick("unsafe"), Outcome.AMBIGUOUS))
    page = broker("effects", "unresolved")
    text = page.out + page.err + json.dumps(broker("effects", "unresolved", "--json").json)
    assert "sealed" not in text
    assert "amount" not in text


def test_an_alert_is_listed_and_asks_for_no_conclusion(broker: Cli, make: Make) -> None:
    async def contradicted(scenes: Scenes) -> None:
        refused = await scenes.sent("order-1", quick("reconcilable"), Outcome.REJECTED)
        await scenes.see(refused, Verdict.COMMITTED)

    make(contradicted)
    page = broker("effects", "unresolved")
    assert re.search("late_contradiction  a person  order-1$", page.out, re.MULTILINE)
    assert "effects acknowledge ID" in page.out
    assert "resolve ID" not in page.out


def test_every_reason_of_the_listing_is_explained(broker: Cli) -> None:
    # Those of `manual_review` stand once, in the table that the page of operations leads to.
    text = (DOCS / "operations.md").read_text()
    assert "state-machine.md#you-are-asked-manual_review" in text
    text += (DOCS / "state-machine.md").read_text()
    assert all(f"`{reason}`" in text for reason in LISTED)
