"""What every adapter promises, as one suite; a new adapter joins by one line in `STANDS`."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, get_args

import psycopg
import pytest

from adapter_calls import (
    ARGUMENTS,
    KEY,
    SECRET,
    budget,
    contract,
    dispatch_call,
    http_contract,
    probe_call,
    secrets,
)
from adapters.mcp_target import McpTarget, mcp_settings
from effect_adapters.base import Answer, Budget, Finding
from effect_adapters.caller import CallerAdapter
from effect_adapters.http import HttpAdapter
from effect_adapters.mcp import McpAdapter
from effect_adapters.postgres import PostgresFunctionAdapter
from effect_adapters.registry import adapters
from effect_adapters.simulated import Fate, LedgerTarget, SimulatedAdapter
from effect_contracts.canonical import JsonValue
from effect_contracts.document import ContractDocument
from effect_contracts.facts import Outcome, Verdict
from peers import Arrival, json_answer, peer
from postgres import Database

Attempt = Callable[..., Any]


@dataclass
class Stand:
    """One adapter before one target of its own.

    Attributes:
        fate: tells the target what to do with the next requests: `ok`, `lose` (do it and lose
            the answer), `refuse`, `busy`; unknown words break it in some way of its own.
        arrived: the keys of the requests that reached the target.
        held: the number of effects that the target holds.
    """

    adapter: Any
    document: ContractDocument
    dispatch: Attempt
    fate: Callable[[str], None]
    arrived: Callable[[], list[str]]
    held: Callable[[], int]
    wires: list[bytes] = field(default_factory=list)
    transactional: bool = False

    def wire(self, arguments: JsonValue = None, key: str = KEY) -> bytes:
        wire: bytes = self.adapter.render(self.document, arguments or ARGUMENTS, key)
        return wire

    async def attempt(
        self,
        ordinal: int = 1,
        wire: bytes | None = None,
        within: Budget | None = None,
        reach: Callable[[str], None] = lambda _point: None,
    ) -> Answer:
        call = dispatch_call(
            self.document, wire or self.wire(), ordinal=ordinal, within=within, reach=reach
        )
        answer: Answer = await self.dispatch(call)
        return answer

    async def look(self, **options: Any) -> Finding:
        finding: Finding = await self.adapter.probe(probe_call(self.document, **options))
        return finding


# Stands ----------------------------------------------------------------------------------------


class HttpTarget:
    """A small API over a ledger in memory, on a real socket."""

    def __init__(self) -> None:
        self.fate = "ok"
        self.entries: dict[str, dict[str, Any]] = {}
        self.arrived: list[str] = []
        self.bodies: list[bytes] = []

    def __call__(self, arrival: Arrival) -> None:
        request = arrival.read_request()
        head, _, body = request.partition(b"\r\n\r\n")
        if head.startswith(b"GET"):
            return arrival.send(self._look_up(head.split(b" ")[1].decode()))
        found = re.search(rb"(?i)idempotency-key: (\S+)", head)
        if found is None:
            return None
        key = found.group(1).decode()
        self.arrived.append(key)
        self.bodies.append(request)
        if self.fate == "refuse":
            return arrival.send(json_answer(422, '{"error":"no"}'))
        if self.fate == "busy":
            return arrival.send(json_answer(429, "{}"))
        if self.fate not in {"ok", "lose"}:
            return arrival.send(b"\x00garbage\r\n\r\n")
        arguments = json.loads(body)
        entry = self.entries.setdefault(
            key, {"id": f"ch_{len(self.entries)}", "idempotency_key": key, **arguments}
        )
        if any(entry[name] != arguments[name] for name in arguments):
            return arrival.send(json_answer(409, '{"error":"idempotency_error"}'))
        if self.fate == "ok":
            arrival.send(json_answer(201, json.dumps(entry)))
        return None

    def _look_up(self, path: str) -> bytes:
        if self.fate != "ok":
            return json_answer(503, "{}")
        entry = self.entries.get(path.partition("key=")[2])
        return json_answer(200, json.dumps({"data": [entry] if entry else []}))


@asynccontextmanager
async def http(_database: Database) -> AsyncIterator[Stand]:
    target = HttpTarget()
    with peer(target) as running:
        adapter = HttpAdapter(secrets)
        yield Stand(
            adapter,
            http_contract(running.url),
            adapter.dispatch,
            lambda fate: setattr(target, "fate", fate),
            lambda: target.arrived,
            lambda: len(target.entries),
            target.bodies,
        )


@asynccontextmanager
async def caller(_database: Database) -> AsyncIterator[Stand]:
    """What a worker does for an effect that its caller performs: it sends and looks by `http`."""
    target = HttpTarget()
    with peer(target) as running:
        adapter = CallerAdapter(HttpAdapter(secrets))
        http = json.loads(http_contract(running.url).canonical())["adapter"]
        settings = {"kind": "caller", "target": "shop", "http": http}
        yield Stand(
            adapter,
            contract(settings, "reconcilable"),
            adapter.dispatch,
            lambda fate: setattr(target, "fate", fate),
            lambda: target.arrived,
            lambda: len(target.entries),
            target.bodies,
        )


@asynccontextmanager
async def mcp(_database: Database) -> AsyncIterator[Stand]:
    # Loading the SDK takes seconds, which are no attempt's.
    await asyncio.to_thread(import_module, "effect_adapters.mcp.conversation")
    target = McpTarget()
    with peer(target) as running:
        adapter = McpAdapter(secrets)
        yield Stand(
            adapter,
            contract(mcp_settings(f"{running.url}/mcp"), "reconcilable"),
            adapter.dispatch,
            lambda fate: setattr(target, "fate", fate),
            lambda: target.arrived,
            lambda: len(target.entries),
            target.calls,
        )


@asynccontextmanager
async def simulated(_database: Database) -> AsyncIterator[Stand]:
    target = LedgerTarget(deduplicates=True)
    fates = {"ok": Fate.OK, "lose": Fate.COMMIT_AND_LOSE, "refuse": Fate.REFUSE, "busy": Fate.BUSY}
    settings = {"kind": "simulated", "target": "ledger", "probes": True}
    adapter = SimulatedAdapter({"ledger": target})
    yield Stand(
        adapter,
        contract(settings, "reconcilable"),
        adapter.dispatch,
        lambda fate: target.add_fates(*([fates.get(fate, Fate.LOSE)] * 5)),
        lambda: target.arrivals,
        lambda: len(target.entries),
    )


POSTGRES_TARGET = """
CREATE SCHEMA shop;
CREATE TABLE shop.fate (word text);
CREATE TABLE shop.entries (key text PRIMARY KEY);
CREATE SEQUENCE shop.calls;
CREATE FUNCTION shop.post(arguments jsonb, downstream_key text) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE fate text := (SELECT word FROM shop.fate);
BEGIN
    PERFORM nextval('shop.calls');  -- a sequence keeps what a rollback takes away
    INSERT INTO shop.entries VALUES (downstream_key);
    IF fate = 'refuse' THEN RAISE EXCEPTION 'no'; END IF;
    IF fate = 'busy' THEN RAISE EXCEPTION 'busy' USING ERRCODE = '40001'; END IF;
    IF fate <> 'ok' THEN RAISE EXCEPTION 'broken' USING ERRCODE = '22012'; END IF;
    RETURN jsonb_build_object('id', downstream_key);
END $$;
"""


@asynccontextmanager
async def postgres(database: Database) -> AsyncIterator[Stand]:
    settings = {"kind": "postgres", "function": "shop.post", "extraction": {"external_id": "id"}}
    adapter = PostgresFunctionAdapter()
    with psycopg.connect(database.superuser_url, autocommit=True) as aside:
        aside.execute(POSTGRES_TARGET)
        aside.execute("INSERT INTO shop.fate VALUES ('ok')")
        connection = await psycopg.AsyncConnection.connect(database.superuser_url)

        async def dispatch(call: Any) -> Answer:
            async with connection.transaction():
                return await adapter.mutate(connection, call)

        def decree(fate: str) -> None:
            aside.execute("UPDATE shop.fate SET word = %s", [fate])

        def calls() -> list[str]:
            row = aside.execute("SELECT last_value, is_called FROM shop.calls").fetchone()
            assert row is not None
            return [KEY] * (row[0] if row[1] else 0)

        def held() -> int:
            row = aside.execute("SELECT count(*) FROM shop.entries").fetchone()
            assert row is not None
            return int(row[0])

        yield Stand(
            adapter,
            contract(settings, "transactional"),
            dispatch,
            decree,
            calls,
            held,
            transactional=True,
        )
        await connection.close()


# One line for each adapter, by its kind; those whose targets are programs are in
# `real_targets.test_client_conformance`.
STANDS: dict[str, Callable[[Any], AbstractAsyncContextManager[Stand]]] = {
    "caller": caller,
    "http": http,
    "mcp": mcp,
    "postgres": postgres,
    "simulated": simulated,
}


def kind_of(name: str) -> str:
    """Return the kind of a stand's adapter; a second stand of a kind has more words."""
    return name.partition("_")[0]


@asynccontextmanager
async def opened(request: pytest.FixtureRequest) -> AsyncIterator[Stand]:
    # A database costs time, so only the stand that needs one asks for it.
    database = request.getfixturevalue("shop_database") if request.param == "postgres" else None
    async with STANDS[request.param](database) as stand:
        assert stand.document.adapter.kind == kind_of(request.param)
        yield stand


@pytest.fixture(params=sorted(STANDS))
async def stand(request: pytest.FixtureRequest) -> AsyncIterator[Stand]:
    async with opened(request) as one:
        yield one


@pytest.fixture(params=sorted(STANDS.keys() - {"postgres"}))
async def wired(request: pytest.FixtureRequest) -> AsyncIterator[Stand]:
    """The stands of targets behind a wire; a transactional one is asked by its fence instead."""
    async with opened(request) as one:
        yield one


# The suite -------------------------------------------------------------------------------------

CODE = re.compile(r"[a-z][a-z0-9_]{0,63}")
FATES = ("ok", "lose", "refuse", "busy", "garbage")


async def test_identity_is_stable_and_no_argument_chooses_it(stand: Stand) -> None:
    first = stand.adapter.identity(stand.document)
    assert first == stand.adapter.identity(stand.document)
    assert first.endswith("#acct_1")


async def test_render_is_pure_and_binds_key_and_arguments(stand: Stand) -> None:
    wire = stand.wire()
    assert stand.wire() == wire
    assert stand.wire(dict(reversed(ARGUMENTS.items()))) == wire
    assert stand.wire({**ARGUMENTS, "amount": 701}) != wire
    assert stand.wire(key=KEY + "2") != wire
    assert SECRET.encode() not in wire


async def test_a_request_that_is_carried_out_is_committed_once(stand: Stand) -> None:
    answer = await stand.attempt()
    assert answer.outcome is Outcome.COMMITTED
    assert answer.external_id
    assert stand.held() == 1
    assert stand.arrived() == [KEY]


@pytest.mark.parametrize("fate", FATES)
async def test_one_permission_is_one_arrival_whatever_happens(stand: Stand, fate: str) -> None:
    stand.fate(fate)
    answer = await stand.attempt()
    assert stand.arrived() == [KEY], "a retry below the broker"
    assert CODE.fullmatch(answer.code)
    assert SECRET not in repr(answer)
    assert answer.bytes_may_have_left
    assert answer.outcome is not Outcome.NOT_SENT


async def test_every_attempt_sends_the_same_key_and_the_same_bytes(stand: Stand) -> None:
    wire = stand.wire()
    for ordinal in (1, 2, 3):
        stand.fate("refuse")
        await stand.attempt(ordinal, wire)
    assert stand.arrived() == [KEY] * 3
    assert len(set(stand.wires)) <= 1


@pytest.mark.parametrize(
    ("fate", "outcome"), [("refuse", Outcome.REJECTED), ("busy", Outcome.RETRYABLE)]
)
async def test_a_listed_refusal_is_a_proof(stand: Stand, fate: str, outcome: Outcome) -> None:
    stand.fate(fate)
    assert (await stand.attempt()).outcome is outcome
    assert stand.held() == 0


async def test_a_lost_answer_is_ambiguous_and_a_rolled_back_one_is_not(stand: Stand) -> None:
    stand.fate("lose")
    answer = await stand.attempt()
    if stand.transactional:
        assert answer.outcome is Outcome.REJECTED
        assert stand.held() == 0
    else:
        assert answer.outcome is Outcome.AMBIGUOUS
        assert stand.held() == 1
    assert answer.external_id is None


async def test_a_spent_budget_sends_nothing(stand: Stand) -> None:
    answer = await stand.attempt(within=budget(0))
    assert (answer.outcome, answer.code) == (Outcome.NOT_SENT, "budget_spent")
    assert not answer.bytes_may_have_left
    assert (stand.arrived(), stand.held()) == ([], 0)


async def test_the_last_gate_stops_a_process_that_was_paused_in_front_of_it(stand: Stand) -> None:
    now = [0.0]
    reached: list[str] = []

    def pause(point: str) -> None:
        reached.append(point)
        now[0] = 60.0

    answer = await stand.attempt(within=Budget(5.0, lambda: now[0]), reach=pause)
    assert (answer.outcome, answer.code) == (Outcome.NOT_SENT, "budget_spent")
    assert reached == ["before_socket_write"]
    assert (stand.arrived(), stand.held()) == ([], 0)


async def test_the_last_gate_is_reached_before_anything_arrives(stand: Stand) -> None:
    seen: list[tuple[str, int]] = []
    answer = await stand.attempt(reach=lambda point: seen.append((point, len(stand.arrived()))))
    assert answer.outcome is Outcome.COMMITTED
    assert seen == [("before_socket_write", 0), ("after_last_gate", 0)]


async def test_a_process_that_is_paused_behind_the_last_gate_sends(stand: Stand) -> None:
    """What remains: nothing reads the budget any more, and nothing may claim that it was read."""
    now = [0.0]

    def pause(point: str) -> None:
        if point == "after_last_gate":
            now[0] = 60.0

    answer = await stand.attempt(within=Budget(5.0, lambda: now[0]), reach=pause)
    assert answer.outcome is not Outcome.NOT_SENT
    assert answer.bytes_may_have_left
    assert (len(stand.arrived()), stand.held()) == (1, 1)


# Adapters with a key that the target knows -----------------------------------------------------


async def test_the_same_key_again_is_the_same_effect(wired: Stand) -> None:
    first = await wired.attempt(1)
    again = await wired.attempt(2)
    assert (first.external_id, wired.held()) == (again.external_id, 1)


async def test_drift_under_one_key_is_a_key_conflict(wired: Stand) -> None:
    await wired.attempt(1)
    answer = await wired.attempt(2, wired.wire({**ARGUMENTS, "amount": 701}))
    assert answer.outcome is Outcome.KEY_CONFLICT
    assert wired.held() == 1


async def test_a_probe_finds_what_is_there_and_changes_nothing(wired: Stand) -> None:
    answer = await wired.attempt()
    finding = await wired.look()
    assert finding.verdict is Verdict.COMMITTED
    assert finding.external_ids == (answer.external_id,)
    assert (len(wired.arrived()), wired.held()) == (1, 1)


async def test_a_probe_denies_what_is_not_there(wired: Stand) -> None:
    finding = await wired.look()
    assert finding.verdict is Verdict.NOT_COMMITTED
    assert wired.arrived() == []


async def test_a_probe_with_other_arguments_is_a_mismatch(wired: Stand) -> None:
    await wired.attempt()
    finding = await wired.look(arguments={**ARGUMENTS, "amount": 1})
    assert finding.verdict is Verdict.MISMATCH


async def test_a_probe_that_fails_proves_nothing(wired: Stand) -> None:
    await wired.attempt()
    wired.fate("refuse")
    finding = await wired.look()
    assert finding.verdict is Verdict.UNKNOWN
    assert CODE.fullmatch(finding.code)
    spent = await wired.look(within=budget(0))
    assert (spent.verdict, spent.code) == (Verdict.UNKNOWN, "budget_spent")


# The registry ----------------------------------------------------------------------------------


def test_every_kind_that_a_contract_may_name_is_served_and_stands_here() -> None:
    # It imports this file in turn.
    from real_targets.test_client_conformance import STANDS as WITH_PROGRAMS

    standing = {kind_of(name) for name in STANDS.keys() | WITH_PROGRAMS.keys()}
    kinds = get_args(ContractDocument.model_fields["adapter"].annotation)
    named = {get_args(settings.model_fields["kind"].annotation)[0] for settings in kinds}
    assert standing == set(adapters(secrets)) | {"simulated"} == named


def test_the_registry_makes_one_adapter_of_a_kind() -> None:
    served = adapters(secrets)
    assert isinstance(served["http"], HttpAdapter)
    assert served["http"] is served["http"]
    with pytest.raises(KeyError):
        served["fax"]
