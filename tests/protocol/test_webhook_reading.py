"""A delivery of a webhook: what it says by its contract, and what follows for its effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from effect_adapters.base import Finding
from effect_broker.protocol import webhook
from effect_broker.protocol.ports import AddEvidence, Change, Sealed, Snapshot, StorePayload
from effect_broker.protocol.webhook import Claim, Delivered, DeliveryStatus
from effect_contracts.document import ContractDocument
from effect_contracts.facts import CODE_FAILURE_NOTICE, EffectState, Outcome, Verdict
from effect_contracts.webhook_settings import WebhookSettings
from protocol.world import World, contract, lost_answer, not_sent

SECTION: dict[str, Any] = {
    "scheme": {"kind": "stripe"},
    "secrets": ["env:EFFECT_BROKER_WEBHOOK_KEY_ACME"],
    "delivery_id": "id",
    "committed": "type == 'done'",
    "failed": "type == 'failed' || failed",
    "key_match": {"kind": "field", "path": "key", "prefix": "k:"},
    "agree": {"/amount": "amount", "/note": "note"},
    "extraction": {"external_id": "object"},
}
KEY = "abc"
BODY: dict[str, Any] = {"id": "evt_1", "type": "done", "key": "k:abc", "amount": 5, "object": "o1"}


def of(**changes: Any) -> ContractDocument:
    section = {name: value for name, value in {**SECTION, **changes}.items() if value is not None}
    return contract("idempotent", webhook=section)


def section(**changes: Any) -> WebhookSettings:
    found = of(**changes).webhook
    assert found is not None
    return found


def body(**changes: Any) -> dict[str, Any]:
    return {**BODY, **changes}


# What it says -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "claim"),
    [
        ({}, Claim.COMMITTED),
        ({"type": "failed"}, Claim.FAILED),
        ({"failed": True}, Claim.BOTH),
        ({"type": "other"}, Claim.NOTHING),
        # A condition holds if it is true, and nothing that is only like it.
        ({"type": "other", "failed": "yes"}, Claim.NOTHING),
        ({"type": "other", "failed": 1}, Claim.NOTHING),
    ],
)
def test_a_claim_is_what_the_conditions_say(changes: Mapping[str, Any], claim: Claim) -> None:
    assert webhook.read(section(), body(**changes)).claim is claim


def test_a_condition_that_is_left_out_never_holds() -> None:
    only_commits = section(failed=None)
    assert webhook.read(only_commits, body(failed=True)).claim is Claim.COMMITTED
    assert webhook.read(only_commits, body(type="failed")).claim is Claim.NOTHING
    only_failures = section(committed=None, agree=None, key_match=SECTION["key_match"])
    assert webhook.read(only_failures, body()).claim is Claim.NOTHING


@pytest.mark.parametrize(
    ("given", "known"),
    [("evt_1", "evt_1"), ("e" * 254, "e" * 254), ("e" * 255, "e" * 255), ("e" * 256, None),
     (None, None)],
)  # fmt: skip
def test_the_senders_id_is_kept_if_it_is_one(given: str | None, known: str | None) -> None:
    assert webhook.read(section(), body(id=given)).senders_id == known
    assert webhook.read(section(delivery_id=None), body(id=given)).senders_id is None


@pytest.mark.parametrize(
    ("given", "known"),
    [
        ("k:abc", "abc"),
        ("k:a", "a"),
        ("k:", None),
        ("x:abc", None),
        ("abc", None),
        (7, None),
        (None, None),
        (["k:abc"], None),
        ("k:a\nb", None),
        ("k:" + "a" * 4096, "a" * 4096),
        ("k:" + "a" * 4097, None),
    ],
)
def test_a_key_is_the_text_behind_its_prefix(given: Any, known: str | None) -> None:
    assert webhook.read(section(), body(key=given)).key == known


def test_an_object_is_named_by_its_id() -> None:
    assert webhook.read(section(), body()).external_id == "o1"
    assert webhook.read(section(), body(object=None)).external_id is None
    assert webhook.read(section(extraction={}), body()).external_id is None


def test_a_key_is_ours_by_its_form() -> None:
    document = of()
    own = "eb_" + "a" * 21
    formed = contract("idempotent", key={"format": "base64url", "length_max": 24, "prefix": "eb_"})
    assert len(own) == 24
    assert webhook.may_be_ours(formed, own)
    for other in (own + "a", own[:-1], "xx_" + "a" * 21, "", "a" * 43):
        assert not webhook.may_be_ours(formed, other)
    assert webhook.may_be_ours(document, "a" * 43)


# What it says of an effect ------------------------------------------------------------------------


ARGUMENTS: dict[str, Any] = {"amount": 5}


def found(document: ContractDocument, /, **changes: Any) -> Finding | None:
    return webhook.find(document, KEY, ARGUMENTS, body(**changes))


@pytest.mark.parametrize(
    ("changes", "verdict", "code"),
    [
        ({"failed": True}, Verdict.UNKNOWN, "contradicting_conditions"),
        ({"type": "failed"}, Verdict.UNKNOWN, CODE_FAILURE_NOTICE),
        ({"key": None}, Verdict.UNKNOWN, "key_missing"),
        ({"key": "k:aaa"}, Verdict.UNKNOWN, "key_disagrees"),
        ({"key": "k:zzz"}, Verdict.UNKNOWN, "key_disagrees"),
        ({"amount": 6}, Verdict.MISMATCH, "fields_disagree"),
        ({"note": "more"}, Verdict.MISMATCH, "fields_disagree"),
        ({"note": None}, Verdict.COMMITTED, "told"),
        ({}, Verdict.COMMITTED, "told"),
        ({"object": None}, Verdict.UNKNOWN, "external_id_missing"),
    ],
)
def test_a_delivery_proves_a_commit_only_if_all_of_it_agrees(
    changes: Mapping[str, Any], verdict: Verdict, code: str
) -> None:
    finding = found(of(), **changes)
    assert finding is not None
    assert (finding.verdict, finding.code) == (verdict, code)
    named = verdict in {Verdict.COMMITTED, Verdict.MISMATCH}
    assert finding.external_ids == (("o1",) if named else ())


def test_what_is_no_word_of_an_effect_is_no_finding() -> None:
    assert found(of(), type="other") is None
    assert found(contract("idempotent")) is None
    erased = webhook.find(of(), KEY, None, body())
    assert erased is not None
    assert (erased.verdict, erased.code) == (Verdict.UNKNOWN, "arguments_erased")
    unnamed = found(of(), amount=6, object=None)
    assert unnamed is not None
    assert (unnamed.verdict, unnamed.external_ids) == (Verdict.MISMATCH, ())


def test_every_field_that_disagrees_is_named() -> None:
    assert webhook.disagreeing(section(), {"amount": 5}, body()) == ()
    assert webhook.disagreeing(section(), {"amount": 5, "note": "x"}, body()) == ("/note",)
    assert webhook.disagreeing(section(), {}, body(note=1)) == ("/amount", "/note")


# What follows -------------------------------------------------------------------------------------


TOLD = Finding(Verdict.COMMITTED, "told", ("sim_1",))


def delivered(
    snapshot: Snapshot, finding: Finding = TOLD, received: float = 0.0
) -> Change[Delivered]:
    return webhook.deliver(
        snapshot,
        delivery_id=UUID(int=5),
        received_at=snapshot.now + timedelta(seconds=received),
        finding=finding,
        result=Sealed("hmac", b"sealed"),
        result_digest=b"d" * 32,
        receipt_id=uuid4(),
    )


async def in_doubt(world: World) -> Snapshot:
    await world.submit()
    world.target.answers.append(lost_answer())
    await world.dispatch(1, 1)
    world.let_pass(100)
    return world.snapshot


def evidence_of(change: Change[Any]) -> AddEvidence:
    (evidence,) = [write for write in change.writes if isinstance(write, AddEvidence)]
    return evidence


async def test_a_commit_that_was_in_doubt_is_settled_with_its_result(idempotent: World) -> None:
    change = delivered(await in_doubt(idempotent))
    assert change.result == Delivered(DeliveryStatus.SETTLED, "told")
    assert evidence_of(change).result_digest == b"d" * 32
    assert evidence_of(change).evidence_id == UUID(int=5)
    assert [w.kind for w in change.writes if isinstance(w, StorePayload)] == ["result"]


@pytest.mark.parametrize("verdict", [Verdict.UNKNOWN, Verdict.MISMATCH])
async def test_what_proves_nothing_is_recorded_without_a_result(
    idempotent: World, verdict: Verdict
) -> None:
    change = delivered(await in_doubt(idempotent), Finding(verdict, "seen"))
    assert change.result == Delivered(DeliveryStatus.RECORDED, "seen")
    assert evidence_of(change).result_digest is None
    assert [write for write in change.writes if isinstance(write, StorePayload)] == []


async def test_a_second_object_settles_nothing(idempotent: World) -> None:
    """It proves a commit of another object than was proved before: a person has to look."""
    snapshot = await in_doubt(idempotent)
    two = replace(TOLD, external_ids=("sim_1", "sim_2"))
    change = delivered(snapshot, two)
    assert change.result == Delivered(DeliveryStatus.RECORDED, "told")


@pytest.mark.parametrize(("late_by", "waits"), [(-1, True), (0, False), (1, False)])
async def test_an_open_attempt_comes_first_and_no_longer_than_its_deadline(
    idempotent: World, late_by: float, waits: bool
) -> None:
    snapshot = await in_doubt(idempotent)
    row = snapshot.attempts[0]
    fact = replace(row.fact, outcome=None, recorded_at=None)
    ends_at = fact.deadline_at + timedelta(seconds=0.5)
    there = replace(
        snapshot,
        attempts=(replace(row, fact=fact),),
        facts=replace(snapshot.facts, attempts=(fact,)),
        intent=replace(snapshot.intent, state=EffectState.DISPATCHING),
        now=ends_at + timedelta(seconds=late_by),
    )
    change = delivered(there)
    if waits:
        expected = Delivered(DeliveryStatus.WAITING, "attempt_open", ends_at)
        assert change == Change(expected)
        # Of a final effect nothing is waited for.
        final = replace(there, intent=replace(there.intent, state=EffectState.FAILED_FINAL))
        assert delivered(final).result.status is DeliveryStatus.CONTRADICTS
    else:
        assert change.result.status is DeliveryStatus.SETTLED


async def test_of_what_was_never_sent_nothing_is_believed(idempotent: World) -> None:
    await idempotent.submit()
    idempotent.target.answers.append(not_sent())
    await idempotent.dispatch(1, 1)
    change = delivered(idempotent.snapshot)
    assert change.result == Delivered(DeliveryStatus.RECORDED, "nothing_sent")
    assert evidence_of(change).verdict is Verdict.UNKNOWN


async def test_a_final_effect_is_contradicted_or_confirmed(idempotent: World) -> None:
    await idempotent.submit()
    await idempotent.run()
    settled = idempotent.snapshot
    assert delivered(settled).result == Delivered(DeliveryStatus.RECORDED, "told")
    failure = Finding(Verdict.UNKNOWN, CODE_FAILURE_NOTICE)
    against = delivered(settled, failure).result
    assert against == Delivered(DeliveryStatus.CONTRADICTS, CODE_FAILURE_NOTICE)
    # Its rows were removed by retention: the receipt stands for them.
    bare = replace(settled, attempts=(), facts=replace(settled.facts, attempts=()))
    assert delivered(bare).result == Delivered(DeliveryStatus.RECORDED, "told")


@pytest.mark.parametrize(("received", "covers"), [(-1000, 0), (-100, 1), (-50, 1), (0, 1)])
async def test_a_delivery_speaks_of_the_attempts_that_had_begun(
    idempotent: World, received: float, covers: int
) -> None:
    snapshot = await in_doubt(idempotent)
    fact = replace(snapshot.attempts[0].fact, started_at=snapshot.now - timedelta(seconds=100))
    there = replace(
        snapshot,
        attempts=(replace(snapshot.attempts[0], fact=fact),),
        facts=replace(snapshot.facts, attempts=(fact,)),
    )
    change = delivered(there, received=received)
    assert evidence_of(change).covers_through == covers
    assert evidence_of(change).began_at == snapshot.now + timedelta(seconds=received)


async def test_a_delivery_never_begins_in_the_future(idempotent: World) -> None:
    snapshot = await in_doubt(idempotent)
    assert evidence_of(delivered(snapshot, received=60)).began_at == snapshot.now


async def test_an_ambiguous_outcome_is_not_open(idempotent: World) -> None:
    snapshot = await in_doubt(idempotent)
    assert snapshot.facts.attempts[0].outcome is Outcome.AMBIGUOUS
    early = replace(snapshot, now=snapshot.facts.attempts[0].started_at + timedelta(seconds=1))
    assert delivered(early).result.status is DeliveryStatus.SETTLED
