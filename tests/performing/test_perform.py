"""What `perform` promises a caller, on a real database: who performs, and what all others get."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import pytest

from effect_adapters.base import Finding, ProbeCall
from effect_broker import (
    AsyncBroker,
    AsyncPerformance,
    Broker,
    Conflict,
    ElectionLost,
    Failed,
    NotElected,
    NotFound,
    NotYet,
    Performed,
    RequestRefused,
    Unknown,
    WaitsForPerson,
)
from effect_broker.proof.target.process import TargetProcess
from effect_contracts.facts import Verdict
from performing.conftest import LEASE, Desk, caller_contract

CHARGE = {"amount": 5}


def order() -> str:
    return f"order:{uuid4()}"


async def lost(broker: AsyncBroker, safety: str) -> tuple[str, AsyncPerformance]:
    """An election whose caller is gone, and whose lease is over, its margin too."""
    key = order()
    gone = broker.perform(f"shop.brief-{safety}", CHARGE, operation_key=key)
    await gone.__aenter__()
    assert gone.elected
    await asyncio.sleep(LEASE + 0.1)
    return key, gone


async def test_one_performs_and_everybody_else_gets_what_it_confirmed(
    desk: Desk, broker: AsyncBroker
) -> None:
    key = order()
    async with broker.perform("shop.caller-unsafe", CHARGE, operation_key=key) as effect:
        assert effect.elected
        assert effect.downstream_key
        assert 29 < effect.lease_seconds_left <= 30
        effect.check()
        await effect.confirm({"charged": True}, external_id="ch_1", fields={"fee": 3})
    assert effect.outcome == Performed(effect.effect_id, {"charged": True}, "ch_1")
    async with broker.perform("shop.caller-unsafe", CHARGE, operation_key=key) as again:
        pytest.fail(f"whoever is not elected gets no key: {again.downstream_key}")
    assert isinstance(again.outcome, Performed)
    assert again.outcome.replayed
    assert (again.outcome.result, again.outcome.external_id) == ({"charged": True}, "ch_1")
    receipt = await broker.receipt(effect.effect_id)
    assert (receipt.source, receipt.fields) == ("response", {"fee": 3})


async def test_of_many_at_once_one_is_elected(broker: AsyncBroker) -> None:
    key = order()
    performances = [
        broker.perform("shop.caller-idempotent", CHARGE, operation_key=key) for _ in range(6)
    ]
    entered = await asyncio.gather(*(one.__aenter__() for one in performances))
    assert sum(one.elected for one in entered) == 1
    (elected,) = (one for one in entered if one.elected)
    for one in entered:
        if one is not elected:
            assert isinstance(one.outcome, NotYet)
            assert one.outcome.effect.state == "dispatching"
            # The lease and its margin: then it makes sense to ask again.
            assert 25 < one.outcome.ask_again_seconds <= 30.05
            assert one.outcome.effect.version == elected.effect.version, "asking changes nothing"
    await elected.confirm()
    assert await elected.__aexit__(None, None, None) is False


async def test_other_arguments_under_the_key_are_a_conflict_that_names_the_field(
    broker: AsyncBroker,
) -> None:
    key = order()
    async with broker.perform("shop.caller-unsafe", CHARGE, operation_key=key) as effect:
        await effect.confirm()
    with pytest.raises(Conflict) as told:
        async with broker.perform("shop.caller-unsafe", {"amount": 6}, operation_key=key):
            pytest.fail("the block does not begin")
    assert told.value.field == "/arguments/amount"
    assert told.value.effect_id == effect.effect_id


async def test_a_contract_of_workers_elects_nobody(desk: Desk, broker: AsyncBroker) -> None:
    sent = caller_contract("unsafe", name="by-workers")
    document = sent.model_dump(mode="json", by_alias=True)
    document["adapter"] = {
        "kind": "http",
        "url": "https://shop.example/charges",
        "answers": {"success": [{"statuses": [200]}]},
    }
    await desk.apply(type(sent)._from_value(document))
    with pytest.raises(RequestRefused) as told:
        async with broker.perform("shop.by-workers", CHARGE, operation_key=order()):
            pytest.fail("the block does not begin")
    assert told.value.code == "not_for_callers"


async def test_an_exception_leaves_an_unknown_outcome_and_never_a_failure(
    broker: AsyncBroker,
) -> None:
    key = order()
    with pytest.raises(TimeoutError) as raised:
        async with broker.perform("shop.caller-unsafe", CHARGE, operation_key=key) as effect:
            raise TimeoutError("the target did not answer")
    assert "nobody knows whether it has happened" in raised.value.__notes__[0]
    async with broker.perform("shop.caller-unsafe", CHARGE, operation_key=key) as again:
        again.check()
        pytest.fail("an unsafe effect is performed once")
    assert isinstance(again.outcome, Unknown)
    assert again.outcome.effect.effect_id == effect.effect_id


async def test_a_block_that_says_nothing_leaves_an_unknown_outcome(broker: AsyncBroker) -> None:
    async with broker.perform("shop.caller-unsafe", CHARGE, operation_key=order()) as effect:
        pass
    assert isinstance(effect.outcome, Unknown)


async def test_what_was_not_sent_may_be_performed_again(broker: AsyncBroker) -> None:
    key = order()
    async with broker.perform("shop.caller-unsafe", CHARGE, operation_key=key) as effect:
        first = effect.downstream_key
        await effect.fail("not_sent", code="connect_refused")
    assert isinstance(effect.outcome, NotYet)
    await asyncio.sleep(effect.outcome.ask_again_seconds)
    async with broker.perform("shop.caller-unsafe", CHARGE, operation_key=key) as again:
        assert again.downstream_key == first
        await again.confirm("second")
    assert again.outcome == Performed(effect.effect_id, "second")


async def test_not_sent_is_believed_of_what_was_sent_and_that_is_the_callers_risk(
    broker: AsyncBroker, tmp_path: Path
) -> None:
    """It cannot be seen: the target has two charges, the broker knows of one."""
    key = order()
    with TargetProcess(tmp_path / "ledger.db") as target:
        target.client.set_mode("charges", "neither")

        async def charge(performance: AsyncPerformance) -> str:
            headers = {"Idempotency-Key": performance.downstream_key}
            async with httpx.AsyncClient(trust_env=False) as http:
                made = await http.post(f"{target.url}/charges", json=CHARGE, headers=headers)
            return str(made.json()["id"])

        async with broker.perform("shop.caller-unsafe", CHARGE, operation_key=key) as effect:
            await charge(effect)
            await effect.fail("not_sent")
        assert isinstance(effect.outcome, NotYet)
        await asyncio.sleep(effect.outcome.ask_again_seconds)
        async with broker.perform("shop.caller-unsafe", CHARGE, operation_key=key) as again:
            second = await charge(again)
            await again.confirm(external_id=second)
        assert again.outcome == Performed(effect.effect_id, None, second)
        assert (await broker.get(effect.effect_id)).alert is None
        ledger = target.client.ledger()
        assert (ledger.effects, len(ledger.keys)) == (2, 1)


async def test_what_the_target_refused_is_final(broker: AsyncBroker) -> None:
    key = order()
    async with broker.perform("shop.caller-idempotent", CHARGE, operation_key=key) as effect:
        await effect.fail("rejected", code="card_declined")
    assert isinstance(effect.outcome, Failed)
    async with broker.perform("shop.caller-idempotent", CHARGE, operation_key=key) as again:
        assert not again.elected
    assert isinstance(again.outcome, Failed)
    with pytest.raises(RequestRefused, match="one of these outcomes: ambiguous, ") as refused:
        async with broker.perform(
            "shop.caller-idempotent", CHARGE, operation_key=order()
        ) as effect:
            await effect.fail("partial")
    assert refused.value.code == "invalid_request"


async def test_an_idempotent_effect_is_performed_again_with_the_same_key_once_the_lease_is_over(
    desk: Desk, broker: AsyncBroker
) -> None:
    key, zombie = await lost(broker, "idempotent")
    async with broker.perform("shop.brief-idempotent", CHARGE, operation_key=key) as second:
        assert second.downstream_key == zombie.downstream_key
        # The first one comes back in the middle: its word is kept, and settles the effect as the
        # table says; the call of the second was a replay to the target.
        with pytest.raises(ElectionLost) as late:
            await zombie.confirm("first", external_id="ch_1")
        assert late.value.state == "succeeded"
        await second.confirm("second", external_id="ch_1")
    events = desk.rows(
        "SELECT kind, actor, metadata::jsonb->>'late' AS late FROM effect_broker.effect_events"
        " WHERE effect_id = %s ORDER BY sequence",
        second.effect_id,
    )
    kinds = [(row["kind"], row["late"]) for row in events]
    assert kinds == [
        ("submitted", None),
        ("attempt_started", None),
        ("attempt_started", None),
        ("outcome_recorded", "true"),
        ("late_fact", "false"),
    ]
    assert {row["actor"].partition(":")[0] for row in events} == {"caller"}


async def test_a_reconcilable_effect_that_the_probe_finds_is_performed(
    desk: Desk, broker: AsyncBroker
) -> None:
    key, _ = await lost(broker, "reconcilable")
    async with broker.perform("shop.brief-reconcilable", CHARGE, operation_key=key) as early:
        assert not early.elected, "nobody performs it before it is known"
    assert isinstance(early.outcome, NotYet)
    effect_id = early.effect_id

    async def found(call: ProbeCall) -> Finding:
        assert call.arguments == CHARGE
        return Finding(Verdict.COMMITTED, "found", ("ch_9",), result={"seen": call.downstream_key})

    desk.probes["shop"] = found
    await desk.run(effect_id)
    async with broker.perform("shop.brief-reconcilable", CHARGE, operation_key=key) as again:
        assert not again.elected
    assert isinstance(again.outcome, Performed)
    assert again.outcome.external_id == "ch_9"
    assert again.outcome.receipt is not None
    assert again.outcome.receipt.source == "probe"


async def test_a_reconcilable_effect_is_performed_again_after_the_proof_of_absence(
    desk: Desk, broker: AsyncBroker
) -> None:
    key, _ = await lost(broker, "reconcilable")
    async with broker.perform("shop.brief-reconcilable", CHARGE, operation_key=key) as early:
        assert not early.elected
    # A plain function runs in a thread.
    await asyncio.sleep(0.1)  # the settlement bound
    desk.probes["shop"] = lambda call: Finding(Verdict.NOT_COMMITTED, "absent")
    await desk.run(early.effect_id)
    stands = await broker.get(early.effect_id)
    assert (stands.state, stands.reason) == ("retryable", "awaiting_caller")
    assert stands.waits_for_person, "no worker performs it"
    async with broker.perform("shop.brief-reconcilable", CHARGE, operation_key=key) as second:
        assert second.elected
        await second.confirm()
    assert isinstance(second.outcome, Performed)


async def test_an_unsafe_effect_stays_unknown_when_its_lease_is_over(
    desk: Desk, broker: AsyncBroker
) -> None:
    key, _ = await lost(broker, "unsafe")
    async with broker.perform("shop.brief-unsafe", CHARGE, operation_key=key) as again:
        assert not again.elected
    # Written by whoever asked: it waits for no worker.
    assert isinstance(again.outcome, Unknown)


async def test_an_idempotent_effect_without_a_way_to_send_waits_for_a_caller_until_its_key_is_gone(
    desk: Desk, broker: AsyncBroker
) -> None:
    key, _ = await lost(broker, "idempotent")
    effect_id = (await broker.submit("shop.brief-idempotent", CHARGE, operation_key=key)).effect_id
    await desk.run(effect_id)
    stands = await broker.get(effect_id)
    assert (stands.state, stands.reason) == ("outcome_unknown", "awaiting_caller")
    assert not stands.waits_for_person
    assert stands.next_action_at is not None
    # The last moment at which a whole attempt fits before the target forgets the key.
    left = stands.next_action_at - stands.created_at
    assert abs(left - timedelta(seconds=86400 - LEASE - 0.05 - 0.1)) < timedelta(seconds=1)


async def test_a_submit_of_such_a_tool_waits_for_a_caller(desk: Desk, broker: AsyncBroker) -> None:
    key = order()
    effect = await broker.submit("shop.caller-unsafe", CHARGE, operation_key=key)
    await desk.run(effect.effect_id)
    stands = await broker.result(effect)
    assert isinstance(stands, WaitsForPerson)
    assert stands.effect.reason == "awaiting_caller"
    async with broker.perform("shop.caller-unsafe", CHARGE, operation_key=key) as performing:
        await performing.confirm()
    assert isinstance(performing.outcome, Performed)
    assert not performing.outcome.replayed


async def test_nobody_but_the_holder_of_the_token_confirms(desk: Desk, broker: AsyncBroker) -> None:
    async with broker.perform("shop.caller-unsafe", CHARGE, operation_key=order()) as effect:
        async with desk.broker(await desk.other_tenant()) as stranger:
            impostor = stranger.perform("shop.caller-unsafe", CHARGE, operation_key=order())
            async with impostor:
                await impostor.fail("not_sent")
            impostor._effect, impostor._token = effect.effect, effect._token
            impostor._told = False
            with pytest.raises(NotFound):
                await impostor.confirm("stolen")
        # Another election of the same tenant, which knows the id of the attempt and no token.
        other = broker.perform("shop.caller-unsafe", CHARGE, operation_key=order())
        async with other:
            await other.fail("not_sent")
        other._effect = effect.effect
        with pytest.raises(Conflict):
            await other.confirm("stolen")
        assert (await broker.get(effect.effect_id)).state == "dispatching"
        await effect.confirm("mine")
    assert effect.outcome == Performed(effect.effect_id, "mine")


async def test_telling_twice_is_a_result_and_telling_otherwise_a_conflict(
    broker: AsyncBroker,
) -> None:
    async with broker.perform("shop.caller-unsafe", CHARGE, operation_key=order()) as effect:
        await effect.confirm("once", external_id="ch_1")
        await effect.confirm("once", external_id="ch_1")
        with pytest.raises(Conflict):
            await effect.confirm("otherwise", external_id="ch_2")
        with pytest.raises(Conflict):
            await effect.fail("not_sent")
    assert (await broker.receipt(effect.effect_id)).result == "once"


async def test_a_lease_is_extended_while_the_block_runs_up_to_its_bound(
    desk: Desk, broker: AsyncBroker
) -> None:
    await desk.apply(
        caller_contract(
            "unsafe",
            name="long",
            attempt_deadline_seconds=0.6,
            adapter={"lease_seconds_max": 1.5},
        )
    )
    async with broker.perform("shop.long", CHARGE, operation_key=order()) as effect:
        await asyncio.sleep(1.0)
        effect.check()  # longer than one lease
        await asyncio.sleep(0.7)
        assert effect.lease_seconds_left == 0
        effect.check()
        pytest.fail("the bound holds")
    extended = desk.rows(
        "SELECT a.deadline_at - a.started_at AS lease,"
        " (SELECT count(*) FROM effect_broker.effect_events AS e WHERE e.effect_id = a.effect_id"
        "  AND e.kind = 'attempt_extended') AS extensions"
        " FROM effect_broker.effect_attempts AS a WHERE a.effect_id = %s",
        effect.effect_id,
    )
    assert extended[0]["lease"] == timedelta(seconds=1.5)
    assert extended[0]["extensions"] >= 2
    assert isinstance(effect.outcome, Unknown)


async def test_a_held_effect_elects_nobody(desk: Desk, broker: AsyncBroker) -> None:
    await desk.apply(caller_contract("unsafe", name="paused"))
    desk.rows(
        "INSERT INTO effect_broker.holds (hold_id, kind, tool, reason, placed_by)"
        " VALUES (gen_random_uuid(), 'paused', 'shop.paused', 'incident', 'test')"
    )
    async with broker.perform("shop.paused", CHARGE, operation_key=order()) as effect:
        assert not effect.elected
    assert isinstance(effect.outcome, WaitsForPerson)
    assert effect.outcome.effect.reason == "paused"


async def test_a_result_that_cannot_be_told_is_left_out_and_the_commit_stands(
    broker: AsyncBroker,
) -> None:
    async with broker.perform("shop.caller-unsafe", CHARGE, operation_key=order()) as effect:
        await effect.confirm({"amount": float("nan")})
    receipt = await broker.receipt(effect.effect_id)
    assert (receipt.result, receipt.fields) == (None, {"left_out": "number_not_finite"})


async def test_an_id_and_fields_that_cannot_be_told_are_left_out_and_the_commit_stands(
    broker: AsyncBroker,
) -> None:
    # Both come from a target's answer, and the charge is made whatever they look like.
    answers: list[tuple[Any, Any]] = [(4711, {"at": object()}), ("two words", {"kept": 1})]
    for external_id, fields in answers:
        async with broker.perform("shop.caller-unsafe", CHARGE, operation_key=order()) as effect:
            await effect.confirm({"charged": 5}, external_id=external_id, fields=fields)
        receipt = await broker.receipt(effect.effect_id)
        assert (receipt.result, receipt.external_id) == ({"charged": 5}, None)
        assert receipt.fields["external_id_left_out"] == "format"
        assert receipt.fields.get("kept") == fields.get("kept")
    assert isinstance(effect.outcome, Performed)
    assert effect.outcome.external_id is None


async def test_a_decorated_function_runs_for_who_is_elected(broker: AsyncBroker) -> None:
    runs: list[str] = []

    @broker.performed("shop.caller-unsafe", key=lambda amount, name: f"order:{name}")
    async def charge(effect: object, amount: int, name: str) -> dict[str, int]:
        runs.append(name)
        return {"charged": amount}

    # The contract's schema takes both arguments, by name.
    name = str(uuid4())
    first, second = await charge(7, name), await charge(7, name)
    assert isinstance(first, Performed)
    assert isinstance(second, Performed)
    assert (first.result, second.result) == ({"charged": 7}, {"charged": 7})
    assert (first.replayed, second.replayed) == (False, True)
    assert runs == [name]


def test_threads_perform_too(desk: Desk) -> None:
    with Broker.on_postgres(desk.url(), api_key=desk.api_key, key_ring=desk.ring) as broker:
        key = order()
        with broker.perform("shop.caller-unsafe", CHARGE, operation_key=key) as effect:
            effect.check()
            effect.confirm({"charged": effect.downstream_key})
        with broker.perform("shop.caller-unsafe", CHARGE, operation_key=key) as again:
            pytest.fail(again.downstream_key)
        assert isinstance(again.outcome, Performed)
        assert again.outcome.result == {"charged": effect.downstream_key}
        failing = broker.perform("shop.caller-unsafe", CHARGE, operation_key=order())
        with pytest.raises(ValueError, match="in the body"), failing:
            raise ValueError("in the body")
        assert broker.get(failing.effect_id).state == "outcome_unknown"

        @broker.performed(
            "shop.caller-unsafe",
            key=lambda a: f"order:{key}:{a}",
            arguments=lambda a: {"amount": a},
        )
        def charge(effect: object, a: int) -> int:
            return a

        assert [type(charge(1)), type(charge(1))] == [Performed, Performed]


async def test_the_veto_of_one_effect_ends_the_block_of_no_other(broker: AsyncBroker) -> None:
    key = order()
    async with broker.perform("shop.caller-unsafe", CHARGE, operation_key=key) as done:
        await done.confirm()
    async with broker.perform("shop.caller-unsafe", CHARGE, operation_key=key) as second:
        pass
    with pytest.raises(NotElected):
        async with broker.perform("shop.caller-unsafe", CHARGE, operation_key=order()) as outer:
            second.check()
    assert (await broker.get(outer.effect_id)).state == "outcome_unknown"


async def test_a_lease_that_no_event_tells_of_is_found(desk: Desk, broker: AsyncBroker) -> None:
    async with broker.perform("shop.caller-unsafe", CHARGE, operation_key=order()) as effect:
        await effect.confirm()

    def move(by: str) -> None:
        with psycopg.connect(desk.database.superuser_url, autocommit=True) as connection:
            connection.execute("SET session_replication_role = replica")
            connection.execute(
                "UPDATE effect_broker.effect_attempts SET deadline_at = deadline_at + %s::interval"
                " WHERE effect_id = %s",
                [by, effect.effect_id],
            )

    move("1 hour")
    found = await desk.violations()
    move("-1 hour")
    assert any("no event tells how long attempt 1 lasts" in one for one in found)
