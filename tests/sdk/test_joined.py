"""A submit inside the caller's own transaction: the business row and the intent, or neither."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg import Connection
from psycopg.rows import TupleRow

from effect_broker import (
    Broker,
    Conflict,
    Effect,
    RequestRefused,
    RunAgain,
    Succeeded,
)
from effect_broker.direct import joining
from effect_broker.proof.broker import wait_until
from effect_broker.proof.contracts import charge, tuned
from effect_broker.store.roles import DatabaseRole
from effect_contracts.canonical import JsonValue
from effect_contracts.document import ContractDocument
from hosting.scenes import Scene
from sdk.callers import Business, business
from sdk.conftest import TENANT, Access
from sdk.ways import ENDS, WAYS

PATIENT = timedelta(seconds=60)


@pytest.fixture(scope="module")
def shop(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Business]:
    """A caller of the tenant."""
    with business(scene, TENANT, tmp_path_factory.mktemp("shop")) as made:
        yield made


@pytest.fixture(scope="module")
def tool(scene: Scene) -> str:
    """A tool whose target keeps books."""
    scene.ensure_workers(1)
    return scene.offer("joined")


@pytest.fixture(scope="module")
def direct(shop: Business, access: Access) -> Iterator[Broker]:
    """A client on Postgres: no API process serves it."""
    url = shop.scene.broker.url(DatabaseRole.API)
    with Broker.on_postgres(url, api_key=access.api_key, key_ring=shop.ring) as made:
        yield made


def submit(
    broker: Broker,
    tool: str,
    name: str,
    connection: Connection[TupleRow] | None = None,
    amount: int = 1200,
) -> Effect:
    return broker.submit(
        tool, charge(name, amount), operation_key=f"{tool}:{name}", connection=connection
    )


def order(connection: Connection[TupleRow], name: str) -> None:
    connection.execute("INSERT INTO orders VALUES (%s, 5)", [name])


def test_the_row_and_the_intent_commit_together_or_not_at_all(
    scene: Scene,
    shop: Business,
    direct: Broker,
    access: Access,
    tool: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EFFECT_BROKER_KEY_RING_FILE", shop.ring)
    effects = []
    for way in WAYS:
        name = way.__name__
        for end in ENDS:
            effect = way(shop, direct, access, tool, name, end)
            committed = 1 if end == "commit" else 0
            assert (effect.replayed, effect.durable) == (False, False), (name, end)
            left = (shop.orders(name), shop.intents(f"{tool}:{name}"))
            assert left == (committed, committed), (name, end)
            assert (scene.run(str(effect.effect_id)) is not None) is (end == "commit"), name
        effects.append(effect)
    outcomes = [direct.result(effect, deadline=PATIENT) for effect in effects]
    done = [outcome for outcome in outcomes if isinstance(outcome, Succeeded)]
    assert len(done) == len(WAYS)
    assert all(outcome.effect.durable for outcome in done)
    made = [row.object_id for row in scene.ledger("joined").effect_rows]
    assert sorted(made) == sorted(outcome.external_id or "" for outcome in done)


KILLED = """
import os, signal, sys
import psycopg
import effect_broker.direct
from effect_broker import Broker

def work(url, api_key, database, tool, stage):
    name = f"killed_{stage}"
    connection = psycopg.connect(database)
    connection.execute("INSERT INTO orders VALUES (%s, 5)", [name])
    Broker(url, api_key).submit(
        tool,
        {"order": name, "amount": 1200, "currency": "eur"},
        operation_key=f"{tool}:{name}",
        connection=connection,
    )
    if stage == "after_commit":
        connection.commit()
    os.kill(os.getpid(), signal.SIGKILL)

# Forked after the imports and before any connection: real processes, in little time.
for stage in ("before_commit", "after_commit"):
    child = os.fork()
    if not child:
        work(*sys.argv[1:], stage)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
"""


def test_a_caller_that_is_killed_leaves_both_or_neither(
    scene: Scene, shop: Business, direct: Broker, access: Access, tool: str
) -> None:
    """The caller speaks HTTP, and holds its own login and a narrow ring: the least it needs."""
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, access.url, access.api_key, shop.url, tool],
        env={**os.environ, "EFFECT_BROKER_KEY_RING_FILE": shop.ring},
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0
    # The server notices a caller that is gone in its own time.
    wait_until(
        lambda: (
            scene.value(
                "SELECT NOT EXISTS (SELECT 1 FROM pg_stat_activity WHERE usename = %s)", shop.role
            )
            or None
        ),
        "the sessions of the callers have ended",
    )
    for stage, committed in (("before_commit", 0), ("after_commit", 1)):
        assert shop.orders(f"killed_{stage}") == committed
        assert shop.intents(f"{tool}:killed_{stage}") == committed
    again = submit(direct, tool, "killed_after_commit")
    assert again.replayed
    assert isinstance(direct.result(again, deadline=PATIENT), Succeeded)
    assert not submit(direct, tool, "killed_before_commit").replayed


# The same answers as over HTTP --------------------------------------------------------------------


def test_a_replay_and_a_conflict_are_told_and_the_transaction_goes_on(
    shop: Business, direct: Broker, tool: str
) -> None:
    first = submit(direct, tool, "known")
    with shop.connect() as connection:
        order(connection, "known")
        again = submit(direct, tool, "known", connection)
        assert (again.effect_id, again.replayed) == (first.effect_id, True)
        with pytest.raises(Conflict) as conflict:
            submit(direct, tool, "known", connection, amount=9900)
        assert conflict.value.field == "/arguments/amount"
        assert conflict.value.effect_id == first.effect_id
    assert shop.orders("known") == 1
    # Twice in one transaction is a replay too.
    with shop.connect() as connection:
        made = [submit(direct, tool, "twice", connection) for _ in range(2)]
        assert [effect.replayed for effect in made] == [False, True]


def test_a_caller_without_the_key_of_what_is_stored_still_meets_a_conflict(
    shop: Business, access: Access, tool: str, direct: Broker
) -> None:
    submit(direct, tool, "sealed")
    text = Path(shop.ring).read_text("utf-8")
    other = text.replace('"encryption": {"active": "proof", "keys": {"proof"',
                         '"encryption": {"active": "mine", "keys": {"mine"')  # fmt: skip
    assert other != text
    url = shop.scene.broker.url(DatabaseRole.API)
    with (
        Broker.on_postgres(url, api_key=access.api_key, key_ring=other) as broker,
        shop.connect() as connection,
    ):
        with pytest.raises(Conflict) as conflict:
            submit(broker, tool, "sealed", connection, amount=9900)
        assert conflict.value.field is None


@pytest.mark.parametrize(
    ("tool_named", "arguments", "code", "field"),
    [
        ("nobody.knows", {}, "unknown_tool", "/tool"),
        (None, {"order": "x"}, "invalid_arguments", "/arguments/amount"),
        (None, {"order": "x", "amount": float("nan"), "currency": "eur"}, "invalid_payload", ...),
        ("", {}, "invalid_request", "/tool"),
    ],
)
def test_what_breaks_a_rule_is_refused_early_as_over_http(
    shop: Business,
    direct: Broker,
    tool: str,
    tool_named: str | None,
    arguments: dict[str, object],
    code: str,
    field: object,
) -> None:
    named = tool if tool_named is None else tool_named
    told: list[RequestRefused] = []
    with shop.connect() as connection:
        order(connection, f"refused_{code}")
        for joined in (connection, None):
            with pytest.raises(RequestRefused) as refusal:
                direct.submit(named, arguments, operation_key=f"bad:{code}", connection=joined)
            told.append(refusal.value)
    assert told[0].problem.items() <= {**told[1].problem, "status": told[0].status}.items()
    assert told[0].code == code
    assert field in {..., told[0].field}
    assert shop.orders(f"refused_{code}") == 1
    assert shop.intents(f"bad:{code}") == 0


def test_links_behave_as_over_http(shop: Business, direct: Broker, tool: str) -> None:
    parent = submit(direct, tool, "parent")
    assert isinstance(direct.result(parent, deadline=PATIENT), Succeeded)
    missing = "00000000-0000-8000-8000-000000000000"
    with shop.connect() as connection:
        child = direct.submit(
            tool, charge("child"), operation_key="child", parent=parent, connection=connection
        )
        undoing = direct.submit(
            tool, charge("undo"), operation_key="undo", compensates=parent, connection=connection
        )
        with pytest.raises(RequestRefused) as nobody:
            direct.submit(
                tool, charge("c2"), operation_key="c2", parent=missing, connection=connection
            )
        assert nobody.value.field == "/parent_effect_id"
        with pytest.raises(Conflict):
            direct.submit(
                tool, charge("u2"), operation_key="u2", compensates=parent, connection=connection
            )
    links = shop.scene.rows(
        "SELECT effect_id, parent_id, compensates_id FROM effect_broker.effect_links"
        " WHERE effect_id IN (%s, %s) ORDER BY parent_id IS NULL",
        child.effect_id,
        undoing.effect_id,
    )
    assert [row["parent_id"] for row in links] == [parent.effect_id, None]
    assert [row["compensates_id"] for row in links] == [None, parent.effect_id]
    assert shop.intents("c2") == shop.intents("u2") == 0


def test_a_contract_that_is_replaced_meanwhile_is_the_one_that_binds(
    scene: Scene, shop: Business, direct: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = scene.offer("replaced")
    second = tuned("demo-charge-idempotent", scene.broker.target.url, "replaced", version="2")
    checked = joining._JoinedIntake._check

    async def replacing(
        intake: joining._JoinedIntake, document: ContractDocument, arguments: JsonValue
    ) -> None:
        await checked(intake, document, arguments)
        if document.version == "1":
            with ThreadPoolExecutor(1) as other:
                other.submit(scene.broker.apply, second).result()

    monkeypatch.setattr(joining._JoinedIntake, "_check", replacing)
    with shop.connect() as connection:
        effect = submit(direct, named, "1", connection)
    assert effect.contract_version == "2"


# Isolation, locks and durability ------------------------------------------------------------------


@pytest.mark.parametrize("level", ["REPEATABLE_READ", "SERIALIZABLE"])
def test_a_key_that_came_after_the_snapshot_asks_to_run_again(
    shop: Business, direct: Broker, tool: str, level: str
) -> None:
    name = f"late_{level}"
    with shop.connect() as connection:
        connection.isolation_level = psycopg.IsolationLevel[level]
        connection.execute("SELECT count(*) FROM orders")
        first = submit(direct, tool, name)
        with pytest.raises(RunAgain) as again:
            submit(direct, tool, name, connection)
        assert again.value.code == "serialization_failure"
        connection.rollback()
        # A worker that changes the effect meanwhile is later than the snapshot, too.
        direct.result(first, deadline=PATIENT)
        replayed = submit(direct, tool, name, connection)
    assert (replayed.effect_id, replayed.replayed) == (first.effect_id, True)
    assert shop.intents(f"{tool}:{name}") == 1


def test_an_open_transaction_holds_up_its_own_key_and_nothing_else(
    shop: Business, direct: Broker, tool: str
) -> None:
    with shop.connect() as long, shop.connect() as brief, ThreadPoolExecutor(1) as waiting:
        submit(direct, tool, "held", long)
        # Workers and other submits do not notice.
        other = submit(direct, tool, "other")
        assert isinstance(direct.result(other, deadline=PATIENT), Succeeded)
        brief.execute("SET lock_timeout = '50ms'")
        order(brief, "brief")
        with pytest.raises(RunAgain) as again:
            submit(direct, tool, "held", brief)
        assert again.value.code == "lock_not_available"
        brief.commit()
        brief.execute("RESET lock_timeout")
        second = waiting.submit(submit, direct, tool, "held", brief)
        wait_until(
            lambda: shop.scene.value(
                "SELECT count(*) FROM pg_stat_activity WHERE usename = %s"
                " AND wait_event_type = 'Lock'", shop.role) or None,
            "the second waits",
        )  # fmt: skip
        long.commit()
        assert second.result().replayed
    assert shop.orders("brief") == 1


def test_a_joined_transaction_is_durable_and_leaves_the_session_as_it_was(
    shop: Business, direct: Broker, tool: str
) -> None:
    def settings(connection: Connection[TupleRow]) -> object:
        return connection.execute(
            "SELECT current_setting('synchronous_commit'), current_setting('lock_timeout'),"
            " current_setting('effect_broker.tenant_id', true)"
        ).fetchone()

    with shop.connect(options="-c synchronous_commit=off") as connection:
        assert settings(connection) == ("off", "0", None)
        submit(direct, tool, "durable", connection)
        assert settings(connection) == ("on", "0", "")
        connection.commit()
        assert settings(connection) == ("off", "0", "")
    with shop.connect(options="-c synchronous_commit=remote_apply") as connection:
        submit(direct, tool, "applied", connection)
        assert settings(connection) == ("remote_apply", "0", "")
