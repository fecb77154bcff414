"""The suite of `adapters.test_conformance` for the adapters whose targets are real programs.

Each stand is a real target behind a way that is ours: it counts what arrives, and loses, refuses or
breaks what it is told to. A new adapter joins by one line in `STANDS`.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import nats
import pytest
import yaml

from adapter_calls import ARGUMENTS, ARGUMENTS_SCHEMA, KEY, SECRET, budget
from adapters import test_conformance as suite
from adapters.test_conformance import CODE, FATES, Stand, kind_of
from effect_adapters.nats import NatsAdapter
from effect_adapters.s3 import KEY_HEADER, S3Adapter
from effect_adapters.smtp import SmtpAdapter
from effect_adapters.sqs import SqsAdapter
from effect_broker.clock import SystemClock, new_id
from effect_broker.conformance import Trial, conforms, drifted_arguments, examine
from effect_contracts.document import ContractDocument
from effect_contracts.facts import CODE_ALREADY_EXISTS, Outcome, Verdict
from peers import Arrival, answer, peer
from real_targets.nats_way import NatsWay
from real_targets.programs import Dovecot, MailServer, Moto, NatsServer
from real_targets.relay import carried

Targets = Callable[[str], Any]


def _document(safety: str, account: str, adapter: dict[str, Any]) -> ContractDocument:
    document: dict[str, Any] = {
        "name": "test",
        "version": "1",
        "tool": "test.send",
        "safety": safety,
        "account": account,
        "arguments": yaml.safe_load(ARGUMENTS_SCHEMA),
        "attempt_deadline_seconds": 5,
        "transit_seconds": 0.1,
        "adapter": adapter,
    }
    document |= {
        "idempotent": {"key_retention_seconds": 120},
        "reconcilable": {"settlement_bound_seconds": 2},
        "unsafe": {},
    }[safety]
    return ContractDocument.parse_yaml(yaml.safe_dump(document, sort_keys=False))


AWS = {
    "region": Moto.REGION,
    "credentials": {
        "access_key_id": "env:EFFECT_BROKER_SECRET_ID",
        "secret_access_key": "env:EFFECT_BROKER_SECRET_X",
    },
}


@dataclass
class HttpWay:
    """A way to an HTTP target that keeps every write, and does to it what `fate` says."""

    port: int
    key: re.Pattern[bytes]
    refusals: dict[str, bytes]
    fate: str = "ok"

    def __post_init__(self) -> None:
        self.writes: list[bytes] = []

    def __call__(self, arrival: Arrival) -> None:
        request = arrival.read_request()
        if not request:
            return None  # the gate was shut: a connection, and nothing on it
        if request.startswith(b"GET"):
            return arrival.send(
                carried(request, self.port) if self.fate == "ok" else answer(503, b"<busy/>")
            )
        self.writes.append(request)
        if self.fate in self.refusals:
            return arrival.send(self.refusals[self.fate])
        if self.fate not in {"ok", "lose"}:
            return arrival.send(b"\x00garbage\r\n\r\n")
        reply = carried(request, self.port)
        return arrival.reset() if self.fate == "lose" else arrival.send(reply)

    def arrived(self) -> list[str]:
        found = [self.key.search(request) for request in self.writes]
        return [match.group(1).decode() for match in found if match is not None]


@asynccontextmanager
async def _http_stand(
    adapter: Any, way: HttpWay, made: Callable[[str], ContractDocument], held: Callable[[], int]
) -> AsyncIterator[Stand]:
    with peer(way) as running:
        yield Stand(
            adapter,
            made(running.url),
            adapter.dispatch,
            lambda fate: setattr(way, "fate", fate),
            way.arrived,
            held,
        )


@asynccontextmanager
async def sqs(target: Targets) -> AsyncIterator[Stand]:
    moto: Moto = target("moto")
    moto.reset()
    sdk = moto.sdk("sqs")
    url = sdk.create_queue(QueueName="q.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    refused = {
        "refuse": answer(400, b'{"__type":"com.amazonaws.sqs#InvalidMessageContents"}'),
        "busy": answer(400, b'{"__type":"com.amazonaws.sqs#RequestThrottled"}'),
    }
    way = HttpWay(moto.port, re.compile(rb'"MessageDeduplicationId":"([^"]+)"'), refused)

    def made(origin: str) -> ContractDocument:
        place = {"queue_url": f"{origin}/{Moto.ACCOUNT}/q.fifo", "group": "all"}
        return _document("idempotent", Moto.ACCOUNT, {"kind": "sqs", **place, **AWS})

    def held() -> int:
        attributes = sdk.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        return int(attributes["ApproximateNumberOfMessages"])

    async with _http_stand(SqsAdapter(lambda _: SECRET), way, made, held) as stand:
        yield stand
    sdk.close()


@asynccontextmanager
async def s3(target: Targets) -> AsyncIterator[Stand]:
    moto: Moto = target("moto")
    moto.reset()
    sdk = moto.sdk("s3")
    where = {"LocationConstraint": Moto.REGION}
    sdk.create_bucket(Bucket="bucket", CreateBucketConfiguration=where)
    refused = {
        "refuse": answer(400, b"<Error><Code>EntityTooLarge</Code></Error>"),
        "busy": answer(503, b"<Error><Code>SlowDown</Code></Error>"),
    }
    way = HttpWay(moto.port, re.compile(rb"(?i)" + KEY_HEADER.encode() + rb": (\S+)"), refused)

    def made(origin: str) -> ContractDocument:
        place = {"bucket": "bucket", "endpoint": origin, "object": "charges/{order}/{key}.json"}
        return _document("reconcilable", Moto.ACCOUNT, {"kind": "s3", **place, **AWS})

    def held() -> int:
        return int(sdk.list_objects_v2(Bucket="bucket")["KeyCount"])

    async with _http_stand(S3Adapter(lambda _: SECRET), way, made, held) as stand:
        yield stand
    sdk.close()


@asynccontextmanager
async def jetstream(target: Targets) -> AsyncIterator[Stand]:
    server: NatsServer = target("nats_server")
    client = await nats.connect(server.server)
    access = client.jetstream()
    await access.add_stream(name="TESTS", subjects=["tests.>"], duplicate_window=120)
    way = NatsWay(server.port)
    adapter = NatsAdapter(lambda _: SECRET)
    with peer(way) as running:
        settings = {"server": f"nats://127.0.0.1:{running.port}", "stream": "TESTS"}
        settings |= {"kind": "nats", "subject": "tests.one"}
        yield Stand(
            adapter,
            _document("idempotent", "acct_1", settings),
            adapter.dispatch,
            lambda fate: setattr(way, "fate", fate),
            way.keys,
            lambda: server.stored("TESTS"),
        )
    await access.delete_stream("TESTS")
    await client.close()


SMTP_WORDS = {"refuse": "554 no", "busy": "451 later", "garbage": "garbage"}


def _mail(server: MailServer, safety: str, **mailbox: Any) -> ContractDocument:
    settings = {
        "kind": "smtp",
        "host": "127.0.0.1",
        "port": server.port,
        "security": "none",
        "sender": "notices@example.com",
        "to": "ada@example.com",
        "subject": {"$concat": ["Order ", {"$arg": "/order"}]},
        "text": {"$concat": [{"$arg": "/amount"}, " ", {"$arg": "/currency"}]},
    }
    return _document(safety, "acct_1", {**settings, **mailbox})


def _mail_keys(server: MailServer) -> list[str]:
    return [found.strip("<>").partition("@")[0] for found in server.arrivals()]


@asynccontextmanager
async def smtp(target: Targets) -> AsyncIterator[Stand]:
    server: MailServer = target("mail_server")
    server.reset()
    adapter = SmtpAdapter(lambda _: SECRET)
    yield Stand(
        adapter,
        _mail(server, "unsafe"),
        adapter.dispatch,
        lambda fate: server.decree(SMTP_WORDS.get(fate, fate)),
        lambda: _mail_keys(server),
        lambda: len(server.mails("ada@example.com")),
    )


@asynccontextmanager
async def smtp_archived(target: Targets) -> AsyncIterator[Stand]:
    server: MailServer = target("mail_server")
    dovecot: Dovecot = target("dovecot")
    server.reset()
    password = [Dovecot.SECRET]
    adapter = SmtpAdapter(lambda _: password[0])

    def decree(fate: str) -> None:
        server.decree(SMTP_WORDS.get(fate, fate))
        # Of the mailbox alone: this server takes mail from everybody.
        password[0] = Dovecot.SECRET if fate in {"ok", "lose"} else SECRET

    login = {"username": "archive", "password": "env:EFFECT_BROKER_SECRET_X"}
    mailbox = {"host": "127.0.0.1", "port": dovecot.port, "security": "none", "login": login}
    yield Stand(
        adapter,
        _mail(server, "reconcilable", mailbox={**mailbox, "copy_to": "archive@example.com"}),
        adapter.dispatch,
        decree,
        lambda: _mail_keys(server),
        lambda: len(server.mails("ada@example.com")),
    )


# One line for each adapter, by its kind; a second stand of a kind has more words.
STANDS: dict[str, Callable[[Targets], AbstractAsyncContextManager[Stand]]] = {
    "nats": jetstream,
    "s3": s3,
    "smtp": smtp,
    "smtp_archived": smtp_archived,
    "sqs": sqs,
}


@asynccontextmanager
async def _opened(name: str, request: pytest.FixtureRequest) -> AsyncIterator[Stand]:
    # A target costs time, so only the stand that needs one asks for it.
    async with STANDS[name](request.getfixturevalue) as stand:
        assert stand.document.adapter.kind == kind_of(name)
        yield stand


@pytest.fixture(params=sorted(STANDS))
async def stand(request: pytest.FixtureRequest) -> AsyncIterator[Stand]:
    async with _opened(request.param, request) as one:
        yield one


@pytest.fixture(params=["nats", "sqs"])
async def keeping(request: pytest.FixtureRequest) -> AsyncIterator[Stand]:
    """The stands of targets that know a key again."""
    async with _opened(request.param, request) as one:
        yield one


@pytest.fixture(params=["s3", "smtp_archived"])
async def asked(request: pytest.FixtureRequest) -> AsyncIterator[Stand]:
    """The stands of targets that are looked up."""
    async with _opened(request.param, request) as one:
        yield one


test_a_listed_refusal_is_a_proof = suite.test_a_listed_refusal_is_a_proof
test_a_lost_answer_is_ambiguous = suite.test_a_lost_answer_is_ambiguous_and_a_rolled_back_one_is_not
test_a_spent_budget_sends_nothing = suite.test_a_spent_budget_sends_nothing
test_every_attempt_is_the_same = suite.test_every_attempt_sends_the_same_key_and_the_same_bytes
test_one_permission_is_one_arrival = suite.test_one_permission_is_one_arrival_whatever_happens
test_render_is_pure = suite.test_render_is_pure_and_binds_key_and_arguments
test_the_gate_is_before_any_arrival = suite.test_the_last_gate_is_reached_before_anything_arrives
test_the_gate_stops = suite.test_the_last_gate_stops_a_process_that_was_paused_in_front_of_it
test_what_is_carried_out_is_committed = suite.test_a_request_that_is_carried_out_is_committed_once


def test_the_suite_is_whole() -> None:
    """Every fate and every stand is met by the tests that are taken over."""
    assert set(FATES) == {"ok", "lose", "refuse", "busy", "garbage"}
    assert CODE.fullmatch("extra_missing_aws")


async def test_identity_is_stable_and_names_the_account(stand: Stand) -> None:
    first = stand.adapter.identity(stand.document)
    assert first == stand.adapter.identity(stand.document)
    assert first.endswith(f"#{stand.document.account}")


async def test_the_trial_that_operators_run_finds_every_promise_kept(stand: Stand) -> None:
    async def arrivals() -> int:
        return len(stand.arrived())

    document, adapter = stand.document, stand.adapter
    drifted = drifted_arguments(document, adapter, ARGUMENTS)
    trial = Trial(document, adapter, ARGUMENTS, drifted, SystemClock(), new_id, arrivals)
    results = await examine(trial)
    assert conforms(results), results
    asked = {"found_once_by_key", "absence_is_shown"} <= {result.check for result in results}
    assert asked is document.policy().probes


async def test_the_same_key_again_is_the_same_effect(keeping: Stand) -> None:
    keeping.fate("lose")
    await keeping.attempt(1)
    keeping.fate("ok")
    first, again = await keeping.attempt(2), await keeping.attempt(3)
    assert (first.outcome, again.outcome) == (Outcome.COMMITTED, Outcome.COMMITTED)
    assert (first.external_id, keeping.held()) == (again.external_id, 1)


async def test_a_target_that_compares_no_arguments_still_holds_one_effect(keeping: Stand) -> None:
    await keeping.attempt(1)
    drifted = await keeping.attempt(2, keeping.wire({**ARGUMENTS, "amount": 701}))
    assert (drifted.outcome, keeping.held()) == (Outcome.COMMITTED, 1)


async def test_a_look_up_finds_denies_and_disagrees_and_changes_nothing(asked: Stand) -> None:
    assert (await asked.look()).verdict is Verdict.NOT_COMMITTED
    made = await asked.attempt()
    found = await asked.look()
    assert (found.verdict, found.external_ids) == (Verdict.COMMITTED, (made.external_id,))
    other = await asked.look(arguments={**ARGUMENTS, "amount": 1})
    assert other.verdict is Verdict.MISMATCH
    assert (asked.arrived(), asked.held()) == ([KEY], 1)


async def test_a_look_up_that_fails_proves_nothing(asked: Stand) -> None:
    await asked.attempt()
    asked.fate("refuse")
    finding = await asked.look()
    assert finding.verdict is Verdict.UNKNOWN
    assert CODE.fullmatch(finding.code)
    spent = await asked.look(within=budget(0))
    assert (spent.verdict, spent.code) == (Verdict.UNKNOWN, "budget_spent")


async def test_a_name_that_is_taken_is_a_refusal(request: pytest.FixtureRequest) -> None:
    async with _opened("s3", request) as named:
        await named.attempt(1)
        again = await named.attempt(2)
        assert (again.outcome, again.code) == (Outcome.REJECTED, CODE_ALREADY_EXISTS)
        assert named.held() == 1


def test_a_stored_request_holds_no_secret_and_no_date() -> None:
    """It is stored once and sent on every attempt, days later if need be."""
    for make in (SqsAdapter, S3Adapter):
        adapter: Any = make(lambda _: SECRET)
        kind = "sqs" if make is SqsAdapter else "s3"
        place: dict[str, Any] = (
            {"queue_url": f"https://sqs.example.com/{Moto.ACCOUNT}/q.fifo", "group": "all"}
            if kind == "sqs"
            else {"bucket": "bucket", "object": "x"}
        )
        safety = "idempotent" if kind == "sqs" else "reconcilable"
        document = _document(safety, Moto.ACCOUNT, {"kind": kind, **place, **AWS})
        stored = json.loads(adapter.render(document, ARGUMENTS, KEY))
        names = {name.lower() for name, _ in stored["headers"]}
        assert not names & {"authorization", "date", "x-amz-date", "x-amz-security-token"}
