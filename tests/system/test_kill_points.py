"""Six kill points times four safety classes, with real SIGKILLs, judged by the target's ledger.

    before reservation commit     the API dies; the caller submits again
    after reservation             the API dies; nobody submits again
    after attempt commit          the worker dies before the socket is written
    after target commit           the worker dies with the answer in hand
    before receipt commit         the worker dies inside transaction 2
    after receipt commit          the worker dies with everything recorded

For a transactional effect the target's commit is the receipt's commit, so its fourth point lies
inside the mutation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import psycopg
import pytest

from effect_broker.faultpoints import FaultPoint
from effect_broker.proof.broker import ProofBroker
from effect_broker.proof.contracts import charge, tuned
from effect_contracts.catalog import catalog_documents
from effect_contracts.document import ContractDocument

BOUND_SECONDS = 1.5


@dataclass(frozen=True, slots=True)
class Expected:
    """What the target's ledger and the broker must show in the end."""

    state: str
    requests: int
    effects: int


SUCCEEDED_ONCE = Expected("succeeded", 1, 1)

API_POINTS = {
    "before reservation commit": FaultPoint.BEFORE_SUBMIT_COMMIT,
    "after reservation": FaultPoint.AFTER_SUBMIT_COMMIT,
}
WORKER_POINTS = {
    "after attempt commit": FaultPoint.AFTER_ATTEMPT_COMMIT,
    "before socket write": FaultPoint.BEFORE_SOCKET_WRITE,
    "after target commit": FaultPoint.AFTER_TARGET_ANSWER,
    "before receipt commit": FaultPoint.BEFORE_OUTCOME_COMMIT,
    "after receipt commit": FaultPoint.AFTER_OUTCOME_COMMIT,
}
# The last column of design §2, cell by cell: an unsafe effect may be omitted, never doubled.
EXPECTED: Mapping[tuple[str, str], Expected] = {
    ("idempotent", "after attempt commit"): SUCCEEDED_ONCE,
    ("idempotent", "before socket write"): SUCCEEDED_ONCE,
    ("idempotent", "after target commit"): Expected("succeeded", 2, 1),
    ("idempotent", "before receipt commit"): Expected("succeeded", 2, 1),
    ("idempotent", "after receipt commit"): SUCCEEDED_ONCE,
    ("reconcilable", "after attempt commit"): SUCCEEDED_ONCE,
    ("reconcilable", "before socket write"): SUCCEEDED_ONCE,
    ("reconcilable", "after target commit"): SUCCEEDED_ONCE,
    ("reconcilable", "before receipt commit"): SUCCEEDED_ONCE,
    ("reconcilable", "after receipt commit"): SUCCEEDED_ONCE,
    ("unsafe", "after attempt commit"): Expected("outcome_unknown", 0, 0),
    ("unsafe", "before socket write"): Expected("outcome_unknown", 0, 0),
    ("unsafe", "after target commit"): Expected("outcome_unknown", 1, 1),
    ("unsafe", "before receipt commit"): Expected("outcome_unknown", 1, 1),
    ("unsafe", "after receipt commit"): SUCCEEDED_ONCE,
}
CLASSES: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "idempotent": ("demo-charge-idempotent", "dedupe", {}),
    "reconcilable": (
        "demo-charge-reconcilable",
        "lookup",
        {"settlement_bound_seconds": BOUND_SECONDS},
    ),
    "unsafe": ("demo-charge-unsafe", "neither", {}),
}


def _kind(safety: str, point: str) -> str:
    return f"{safety}_{point.replace(' ', '_')}"[:39]


def _tool(broker: ProofBroker, safety: str, point: str) -> str:
    """Prepare the target and the contract of one cell; return its tool."""
    if safety == "transactional":
        return "proof.entry"
    catalog, mode, members = CLASSES[safety]
    kind = _kind(safety, point)
    broker.target.client.set_mode(kind, mode)  # type: ignore[arg-type]
    document = tuned(catalog, broker.target.url, kind, **dict(members))
    broker.apply(document)
    return document.tool


def _arguments(safety: str, point: str) -> dict[str, Any]:
    if safety == "transactional":
        return {"debit": "a", "credit": "b", "amount": 100, "currency": "eur", "memo": point}
    return charge(point)


def _counts(broker: ProofBroker, safety: str, point: str) -> tuple[int, int]:
    """Return requests and effects, from the target's own ledger."""
    if safety == "transactional":
        with psycopg.connect(broker.superuser_url) as connection:
            row = connection.execute(
                "SELECT count(*) FROM effect_broker_demo.entries WHERE memo = %s", [point]
            ).fetchone()
        assert row is not None
        return row[0], row[0]
    ledger = broker.target.client.ledger(kind=_kind(safety, point))
    assert len(ledger.keys) <= 1, "one downstream key on every request"
    assert len(ledger.body_digests) <= 1, "the same bytes on every request"
    return ledger.arrivals, ledger.effects


@pytest.fixture(scope="module", autouse=True)
def entries(broker: ProofBroker) -> None:
    """The transactional target: a table and a function in the broker's own database."""
    with psycopg.connect(broker.superuser_url) as connection:
        connection.execute(ENTRIES_SQL)
    broker.apply(_entry_contract())


ENTRIES_SQL = """
CREATE SCHEMA effect_broker_demo;
CREATE TABLE effect_broker_demo.entries (
    entry_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    memo text NOT NULL
);
CREATE FUNCTION effect_broker_demo.post_entry(arguments jsonb, downstream_key text)
RETURNS jsonb LANGUAGE sql AS $$
    INSERT INTO effect_broker_demo.entries (memo) VALUES (arguments ->> 'memo')
    RETURNING jsonb_build_object('entry_id', entry_id::text, 'posted_at', now())
$$;
GRANT USAGE ON SCHEMA effect_broker_demo TO effect_broker_worker;
GRANT INSERT, SELECT ON effect_broker_demo.entries TO effect_broker_worker;
GRANT EXECUTE ON FUNCTION effect_broker_demo.post_entry TO effect_broker_worker;
"""


def _entry_contract() -> ContractDocument:
    document = json.loads(catalog_documents()["demo-ledger-transactional"].canonical())
    document |= {"tool": "proof.entry", "name": "proof-entry", "attempt_deadline_seconds": 1.5}
    return ContractDocument.parse_yaml(json.dumps(document))


@pytest.mark.parametrize("safety", [*CLASSES, "transactional"])
@pytest.mark.parametrize("point", WORKER_POINTS)
def test_a_killed_worker_leaves_neither_a_duplicate_nor_a_loss(
    broker: ProofBroker, safety: str, point: str
) -> None:
    fault = WORKER_POINTS[point]
    if safety == "transactional" and fault in {
        FaultPoint.BEFORE_SOCKET_WRITE,
        FaultPoint.AFTER_TARGET_ANSWER,
    }:
        fault = FaultPoint.INSIDE_MUTATION
    tool = _tool(broker, safety, point)
    broker.arm(fault)
    answer = broker.submit(
        f"kill:{safety}:{point.replace(' ', '-')}", tool, _arguments(safety, point)
    )
    assert answer.status_code == 202, answer.text
    effect_id = answer.json()["effect_id"]
    broker.wait_fired(fault)
    broker.stack.worker()
    effect = broker.settled(effect_id)
    expected = EXPECTED.get((safety, point), SUCCEEDED_ONCE)
    requests, effects = _counts(broker, safety, point)
    assert (effect["state"], requests, effects) == (
        expected.state,
        expected.requests,
        expected.effects,
    )
    assert (broker.receipt(effect_id) is not None) == (expected.state == "succeeded")
    if expected.state == "outcome_unknown":
        assert effect["waits_for_person"], "an unknown outcome waits visibly"


@pytest.mark.parametrize("safety", [*CLASSES, "transactional"])
@pytest.mark.parametrize("point", API_POINTS)
def test_a_killed_api_leaves_no_row_or_a_complete_reservation(
    broker: ProofBroker, safety: str, point: str
) -> None:
    tool = _tool(broker, safety, point)
    key = f"kill:{safety}:{point.replace(' ', '-')}"
    arguments = _arguments(safety, point)
    broker.arm(API_POINTS[point])
    with pytest.raises(httpx.TransportError):
        broker.submit(key, tool, arguments)
    broker.wait_fired(API_POINTS[point])
    broker.start_api()
    if API_POINTS[point] is FaultPoint.BEFORE_SUBMIT_COMMIT:
        assert _intents(broker, key) == 0
        assert broker.submit(key, tool, arguments).status_code == 202
    else:
        # Nobody submits again: the reservation alone must bring the effect about.
        assert _intents(broker, key) == 1
    effect_id = _effect_id(broker, key)
    effect = broker.settled(effect_id)
    assert effect["state"] == "succeeded"
    assert _counts(broker, safety, point) == (1, 1)
    replay = broker.submit(key, tool, arguments)
    assert (replay.status_code, replay.json()["effect_id"]) == (200, effect_id)


def _intents(broker: ProofBroker, key: str) -> int:
    with psycopg.connect(broker.superuser_url) as connection:
        row = connection.execute(
            "SELECT count(*) FROM effect_broker.effect_intents WHERE operation_key = %s", [key]
        ).fetchone()
    assert row is not None
    return int(row[0])


def _effect_id(broker: ProofBroker, key: str) -> str:
    answer = broker.http.get("/v1/effects", params={"operation_prefix": key})
    effects = answer.json()["effects"]
    assert len(effects) == 1
    return str(effects[0]["effect_id"])
