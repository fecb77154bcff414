"""FC-17: the caller makes a fresh key for each try."""

from __future__ import annotations

from typing import Any

from effect_broker.proof.contracts import charge
from field_cases.cases import Case, Document
from field_cases.desk import new_api_key

HANG = "commit;hang(20)"
# Long enough for an answer that comes, on a busy machine too.
SHORT_SECONDS = 2.0


def takes_a_key_as_payload(document: Document) -> None:
    document["arguments"]["properties"]["idempotency_key"] = {"type": "string"}
    document["forbidden"] = []


def with_key(number: int) -> dict[str, Any]:
    return {**charge("1"), "idempotency_key": f"try-{number}"}


def test_fc_17_what_changes_with_every_try_is_no_part_of_the_identity(case: Case) -> None:
    offer = case.offer("idempotent", attempt_deadline_seconds=SHORT_SECONDS)
    offer.script(HANG)
    first = offer.post(trace_id="trace-1")
    assert first.status_code == 202, first.text
    effect_id = first.json()["effect_id"]
    body = {"operation_key": offer.key(), "tool": offer.tool, "arguments": charge("1")}
    http = case.broker.http
    tries = [
        http.post("/v1/effects", json={**body, "trace_id": f"trace-{n}"}, headers=headers)
        for n, headers in enumerate(
            ({"Idempotency-Key": "fresh-2"}, {"X-Tool-Call-Id": "call_3"}), start=2
        )
    ]
    with case.broker.client(str(http.base_url), new_api_key(case)) as colleague:
        tries.append(colleague.post("/v1/effects", json=body))
    assert [(t.status_code, t.json()["effect_id"]) for t in tries] == [(200, effect_id)] * 3
    offer.judge(effect_id, state="succeeded", requests=2, effects=1)
    assert offer.ledger().effects == 1


def test_fc_17_a_key_in_the_arguments_is_payload_and_a_new_one_is_a_conflict(case: Case) -> None:
    offer = case.offer(
        "idempotent", amend=takes_a_key_as_payload, attempt_deadline_seconds=SHORT_SECONDS
    )
    offer.script(HANG)
    effect_id = offer.submit(arguments=with_key(1))
    for number in (2, 3):
        refused = offer.post(arguments=with_key(number))
        problem = refused.json()
        assert (refused.status_code, problem["code"]) == (409, "payload_conflict")
        assert problem["field"] == "/arguments/idempotency_key"
        assert problem["effect_id"] == effect_id
    offer.judge(effect_id, state="succeeded", requests=2, effects=1)
    (key,) = offer.ledger().keys
    assert key == case.scene.intent(effect_id)["downstream_key"]
    assert "try-" not in key


def test_fc_17_a_contract_may_forbid_a_key_in_the_arguments(case: Case) -> None:
    offer = case.offer("idempotent")
    for number in (1, 2, 3):
        refused = offer.post(arguments=with_key(number))
        problem = refused.json()
        assert (refused.status_code, problem["code"]) == (422, "invalid_arguments")
        assert problem["field"] == "/arguments/idempotency_key"
        assert "try-" not in refused.text
    nothing(case, offer.tool)
    assert offer.ledger().arrivals == 0


def test_fc_17_without_an_operation_key_nothing_is_done(case: Case) -> None:
    offer = case.offer("idempotent")
    body = {"tool": offer.tool, "arguments": charge("1")}
    refused = case.broker.http.post("/v1/effects", json=body)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_operation_key")
    nothing(case, offer.tool)


def nothing(case: Case, tool: str) -> None:
    """No intent stands for the tool."""
    query = "SELECT 1 FROM effect_broker.effect_intents WHERE tool = %s"
    assert not case.scene.rows(query, tool)
