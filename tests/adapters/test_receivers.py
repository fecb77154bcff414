"""The shipped contracts `webhook-post` and `ticket-create` at receivers that are scripted here.

No open receiver or tracker keeps the promises that these contracts need, so the two servers below
are ours and say so: a receiver that de-duplicates by key as the IETF draft on the Idempotency-Key
header has it, and a tracker that knows no key and whose search sees a ticket late.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from adapter_calls import dispatch_call, probe_call
from effect_adapters.base import Answer, Finding
from effect_adapters.http import HttpAdapter
from effect_broker.clock import SystemClock, new_id
from effect_broker.conformance import Judgement, Trial, drifted_arguments, examine
from effect_contracts.catalog import catalog_documents
from effect_contracts.document import ContractDocument, with_origin
from effect_contracts.facts import Outcome, Verdict
from peers import Arrival, Peer, answer, json_answer, peer

ADAPTER = HttpAdapter(lambda _reference: "token")
EVENT: dict[str, Any] = {
    "type": "order.paid",
    "timestamp": "2026-10-05T08:00:00Z",
    "data": {"order": "o-1"},
}
TICKET: dict[str, Any] = {"title": "Disk is full", "body": "On db-1:\n97 %"}


class Receiver:
    """Keeps what came, by `webhook-id`; while `losing`, it keeps and does not answer."""

    def __init__(self) -> None:
        self.events: dict[str, bytes] = {}
        self.keys: list[tuple[str, str]] = []
        self.losing = False

    def __call__(self, arrival: Arrival) -> None:
        head, _, body = arrival.read_request().partition(b"\r\n\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head.decode().split("\r\n")[1:])
        }
        key = headers["webhook-id"]
        self.keys.append((key, headers["idempotency-key"]))
        if self.events.setdefault(key, body) != body:
            return arrival.send(answer(422))
        return arrival.reset() if self.losing else arrival.send(answer(204))


class Tracker:
    """Keeps tickets; its search sees those that `index` was called after."""

    def __init__(self) -> None:
        self.tickets: list[dict[str, Any]] = []
        self.indexed = 0
        self.page = 50
        self.losing = False

    def index(self) -> None:
        self.indexed = len(self.tickets)

    def __call__(self, arrival: Arrival) -> None:
        head, _, body = arrival.read_request().partition(b"\r\n\r\n")
        if head.startswith(b"GET"):
            query = parse_qs(urlsplit(head.split(b" ")[1].decode()).query)
            # As vague as a search is: any ticket with the words before the last dash.
            words = query["key"][0].partition("-")[0]
            found = [t for t in self.tickets[: self.indexed] if words in t["body"]]
            page = {"tickets": found[: self.page], "has_more": len(found) > self.page}
            return arrival.send(json_answer(200, json.dumps(page)))
        ticket = {**json.loads(body), "id": len(self.tickets) + 1}
        self.tickets.append(ticket)
        if self.losing:
            return arrival.reset()
        return arrival.send(json_answer(201, json.dumps(ticket)))


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
def tracker() -> Tracker:
    return Tracker()


@pytest.fixture
def hooks(receiver: Receiver) -> Iterator[Peer]:
    with peer(receiver) as running:
        yield running


@pytest.fixture
def desk(tracker: Tracker) -> Iterator[Peer]:
    with peer(tracker) as running:
        yield running


def _contract(name: str, at: Peer) -> ContractDocument:
    return with_origin(catalog_documents()[name], at.url)


async def _send(document: ContractDocument, arguments: Any, key: str) -> Answer:
    wire = ADAPTER.render(document, arguments, key)
    return await ADAPTER.dispatch(dispatch_call(document, wire))


async def _look(document: ContractDocument, arguments: Any = None) -> Finding:
    return await ADAPTER.probe(probe_call(document, arguments=arguments or TICKET))


async def test_an_event_is_posted_once_under_both_names_of_the_key(
    hooks: Peer, receiver: Receiver
) -> None:
    document = _contract("webhook-post", hooks)
    receiver.losing = True
    lost = await _send(document, EVENT, "msg_1")
    receiver.losing = False
    again = await _send(document, EVENT, "msg_1")
    drifted = await _send(document, {**EVENT, "type": "order.refunded"}, "msg_1")
    assert (lost.outcome, again.outcome) == (Outcome.AMBIGUOUS, Outcome.COMMITTED)
    assert (drifted.outcome, drifted.code) == (Outcome.KEY_CONFLICT, "key_reused")
    assert receiver.keys == [("msg_1", "msg_1")] * 3
    assert json.loads(receiver.events["msg_1"]) == EVENT
    assert hooks.requests == 3, "one request for each attempt"


async def test_the_tests_of_conformance_show_what_a_receiver_keeps(hooks: Peer) -> None:
    document = _contract("webhook-post", hooks)
    drifted = drifted_arguments(document, ADAPTER, EVENT)
    results = await examine(Trial(document, ADAPTER, EVENT, drifted, SystemClock(), new_id))
    judged = {result.check: result.judgement for result in results}
    assert judged == {
        "accepts_the_request": Judgement.KEPT,
        # An acknowledgement without an id shows that the repeat was taken, not what it did.
        "same_key_same_effect": Judgement.UNPROVED,
        "drift_is_refused": Judgement.KEPT,
    }


async def test_a_ticket_is_found_by_its_marker_once_the_search_sees_it(
    desk: Peer, tracker: Tracker
) -> None:
    document = _contract("ticket-create", desk)
    key = "k_5f0c0b1e9d"
    tracker.losing = True
    assert (await _send(document, TICKET, key)).outcome is Outcome.AMBIGUOUS
    early = await _look(document)
    # Not there yet: it is the settlement bound that keeps this from counting.
    assert early.verdict is Verdict.NOT_COMMITTED
    assert document.settlement_bound_seconds == 120
    tracker.index()
    found = await _look(document)
    assert (found.verdict, found.external_ids) == (Verdict.COMMITTED, ("1",))
    [ticket] = tracker.tickets
    assert ticket["body"] == f"{TICKET['body']}\n\n--\n{key}"
    assert ticket["priority"] == "normal"


async def test_a_ticket_that_only_mentions_the_marker_is_not_ours(
    desk: Peer, tracker: Tracker
) -> None:
    document = _contract("ticket-create", desk)
    for body in ("see k_5f0c0b1e9d", "k_5f0c0b1e9dd", "K_5F0C0B1E9D", None):
        tracker.tickets.append({"id": len(tracker.tickets) + 1, "title": "x", "body": body or ""})
    tracker.index()
    assert (await _look(document)).verdict is Verdict.NOT_COMMITTED


async def test_two_tickets_with_the_marker_or_another_title_are_for_a_person(
    desk: Peer, tracker: Tracker
) -> None:
    document = _contract("ticket-create", desk)
    await _send(document, TICKET, "k_5f0c0b1e9d")
    tracker.index()
    other = await _look(document, {**TICKET, "title": "Another"})
    assert (other.verdict, other.code) == (Verdict.MISMATCH, "fields_disagree")
    await _send(document, TICKET, "k_5f0c0b1e9d")
    tracker.index()
    both = await _look(document)
    assert (both.verdict, both.external_ids) == (Verdict.MISMATCH, ("1", "2"))


async def test_a_search_with_more_results_than_a_page_denies_nothing(
    desk: Peer, tracker: Tracker
) -> None:
    document = _contract("ticket-create", desk)
    tracker.tickets += [{"id": i, "title": "t", "body": "k_5f0c0b1e9d-"} for i in (1, 2)]
    tracker.page = 1
    tracker.index()
    finding = await _look(document)
    assert (finding.verdict, finding.code) == (Verdict.UNKNOWN, "pages_unread")
