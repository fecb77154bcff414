"""What a complete answer proves: only what the contract's rules say, and only of whole bodies."""

from __future__ import annotations

from typing import Any

import pytest

from adapter_calls import http_contract
from effect_adapters.answers import (
    EXTERNAL_ID_CHARS_MAX,
    BodyInvalid,
    extract,
    id_text,
    parse_answer,
    portable,
)
from effect_adapters.base import Answer
from effect_adapters.http.classify import answer_of, retry_after_seconds
from effect_adapters.http.exchange import Lost, NotSent, Reply
from effect_contracts.facts import Outcome
from effect_contracts.http_settings import Extraction, HttpSettings


def reply(status: int, body: str | bytes = b"", **headers: str) -> Reply:
    raw = body.encode() if isinstance(body, str) else body
    listed = {"content_type": "application/json", **headers}
    named = tuple((n.replace("_", "-"), v) for n, v in listed.items() if v)
    return Reply(status, named, raw)


def classified(end: Reply | Lost | NotSent, **changes: Any) -> Answer:
    settings = http_contract(**changes).adapter
    assert isinstance(settings, HttpSettings)
    return answer_of(settings, end)


ONE = '{"id":"ch_1","amount":700}'


def test_a_success_that_the_contract_describes_is_committed() -> None:
    answer = classified(reply(201, ONE))
    assert (answer.outcome, answer.external_id) == (Outcome.COMMITTED, "ch_1")
    assert answer.result == {"id": "ch_1", "amount": 700}
    assert answer.receipt_fields == {"amount": 700}
    assert answer.status == 201
    assert answer.response_digest is not None
    assert "ch_1" not in repr(answer.result) or "700" not in repr(answer)


AMBIGUOUS: list[tuple[Reply, str]] = [
    (reply(201, '{"id":"ch_'), "success_body_invalid"),
    (reply(201, '{"id":"ch_1","id":"ch_2"}'), "success_body_invalid"),
    (reply(201, '{"id":"ch_1","\\u0069d":"ch_2"}'), "success_body_invalid"),
    (reply(201, '{"id":"ch_1","x":NaN}'), "success_body_invalid"),
    (reply(201, '{"id":"ch_1","x":1e999}'), "success_body_invalid"),
    (reply(201, '{"id":"ch_1","x":"\\u0000"}'), "success_body_invalid"),
    (reply(201, '{"id":"ch_1","x":"\\ud800"}'), "success_body_invalid"),
    (reply(201, '{"id":"ch_1"} {"id":"ch_2"}'), "success_body_invalid"),
    (reply(201, b"\xff{}"), "success_body_invalid"),
    (reply(201, "[" * 100_000), "success_body_invalid"),
    (reply(201, '{"id":' + "9" * 5000 + "}"), "success_body_invalid"),
    (reply(201, '{"amount":700}'), "success_body_invalid"),
    (reply(200, "", content_type=""), "success_body_missing"),
    (reply(200, ""), "success_body_missing"),
    (reply(200, ONE, content_type="text/html"), "success_content_type"),
    (reply(201, '{"id":null}'), "external_id_missing"),
    (reply(201, '{"id":true}'), "external_id_missing"),
    (reply(201, '{"id":""}'), "external_id_missing"),
    (reply(201, '{"id":{"a":1}}'), "external_id_missing"),
    (reply(204, "", content_type=""), "unmatched_status_204"),
    (reply(503, "{}"), "unmatched_status_503"),
    (reply(500, "{}"), "unmatched_status_500"),
    (reply(404, "{}"), "unmatched_status_404"),
    (reply(408, "{}"), "unmatched_status_408"),
    (reply(307, "", location="https://evil.example"), "unexpected_redirect"),
    (reply(409, '{"error":"other"}'), "unmatched_status_409"),
    (reply(402, "<html>", content_type="text/html"), "unmatched_status_402"),
    (reply(402, '{"a":1}', idempotent_replayed="true"), "replayed_error"),
    (reply(500, "{}", idempotent_replayed="TRUE"), "replayed_error"),
    (reply(429, "{}", idempotent_replayed="true"), "replayed_error"),
]


@pytest.mark.parametrize(("end", "code"), AMBIGUOUS)
def test_what_no_rule_explains_is_ambiguous(end: Reply, code: str) -> None:
    answer = classified(end)
    assert (answer.outcome, answer.code) == (Outcome.AMBIGUOUS, code)
    assert answer.bytes_may_have_left
    assert answer.external_id is None


DECIDED: list[tuple[Reply, Outcome, str]] = [
    (reply(402, '{"error":"declined"}'), Outcome.REJECTED, "refused"),
    (reply(429, ""), Outcome.RETRYABLE, "rate_limited"),
    (reply(425, ""), Outcome.IN_PROGRESS, "still_running"),
    (reply(409, '{"error":"idempotency_error"}'), Outcome.KEY_CONFLICT, "idempotency_error"),
    (reply(409, '{"error":"exists","id":"x1"}'), Outcome.REJECTED, "already_exists"),
    (reply(207, '[{"ok":1}]'), Outcome.PARTIAL, "batch"),
    (reply(201, ONE, idempotent_replayed="true"), Outcome.COMMITTED, "committed"),
]


@pytest.mark.parametrize(("end", "outcome", "code"), DECIDED)
def test_rules_decide_in_their_order(end: Reply, outcome: Outcome, code: str) -> None:
    answer = classified(end)
    assert (answer.outcome, answer.code) == (outcome, code)


def test_an_object_that_exists_already_is_named() -> None:
    assert classified(reply(409, '{"error":"exists","id":"x1"}')).external_id == "x1"


def test_the_items_of_a_batch_are_kept_for_the_person_who_decides() -> None:
    assert classified(reply(207, '[{"ok":1},{"ok":0}]')).result == [{"ok": 1}, {"ok": 0}]


def test_an_answer_that_two_rules_explain_in_opposite_ways_is_ambiguous() -> None:
    both = {"answers": {"rejected": [
        {"statuses": [200], "body_schema": {"required": ["error"]}, "code": "soft_error"}
    ]}}  # fmt: skip
    good = classified(reply(200, '{"id":"1"}'), **both)
    assert good.outcome is Outcome.COMMITTED
    answer = classified(reply(200, '{"id":"1","error":"x"}'), **both)
    assert (answer.outcome, answer.code) == (Outcome.AMBIGUOUS, "contradicting_rules")


def test_a_contract_may_take_a_success_without_a_body() -> None:
    plain = {
        "answers": {"success": [{"statuses": [204, 200]}]},
        "extraction": {"external_id": None, "receipt_fields": None},
    }
    answer = classified(reply(204, "", content_type=""), **plain)
    assert (answer.outcome, answer.external_id, answer.result) == (Outcome.COMMITTED, None, None)
    cut = classified(reply(200, '{"id":"ch_'), **plain)
    assert (cut.outcome, cut.code) == (Outcome.AMBIGUOUS, "success_body_invalid")
    needs_id = classified(reply(204, "", content_type=""), answers=plain["answers"])
    assert needs_id.code == "success_body_missing"


def test_a_redirect_is_a_refusal_only_where_the_contract_says_so() -> None:
    rule = {"statuses": [307, 308], "code": "moved"}
    answer = classified(reply(307), answers={"rejected": [rule]})
    assert (answer.outcome, answer.code) == (Outcome.REJECTED, "moved")


ACCEPTED = {
    "statuses": [202],
    "reference": {"in": "body", "path": "op"},
    "succeeded": [{"statuses": [200], "body_schema": {"properties": {"s": {"const": "done"}}}}],
}


def test_accepted_is_not_done() -> None:
    answer = classified(reply(202, '{"op":"/ops/1"}'), answers={"accepted": ACCEPTED})
    assert (answer.outcome, answer.operation) == (Outcome.IN_PROGRESS, "/ops/1")
    assert "/ops/1" not in repr(answer)
    lost = classified(reply(202, "{}"), answers={"accepted": ACCEPTED})
    assert (lost.outcome, lost.code) == (Outcome.AMBIGUOUS, "operation_reference_missing")
    header = {**ACCEPTED, "reference": {"in": "header"}}
    answer = classified(reply(202, "", location="/ops/2"), answers={"accepted": header})
    assert answer.operation == "/ops/2"


def test_ids_of_any_size_come_out_digit_by_digit() -> None:
    answer = classified(reply(201, '{"id":12345678901234567890,"amount":1e300}'))
    assert answer.external_id == "12345678901234567890"
    assert answer.result == {"id": "12345678901234567890", "amount": "1e+300"}
    assert portable(True) is True


def test_an_expression_that_does_not_fit_extracts_nothing() -> None:
    odd = {"extraction": {"external_id": "join('-', id)"}}
    answer = classified(reply(201, '{"id":7}'), **odd)
    assert (answer.outcome, answer.code) == (Outcome.AMBIGUOUS, "external_id_missing")


@pytest.mark.parametrize(
    ("header", "date", "seconds"),
    [
        ("120", "", 120.0),
        ("0", "", 0.0),
        ("Wed, 21 Oct 2015 07:28:30 GMT", "Wed, 21 Oct 2015 07:28:00 GMT", 30.0),
        ("Wed, 21 Oct 2015 07:27:00 GMT", "Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("Wed, 21 Oct 2015 07:28:30 GMT", "", None),
        ("soon", "Wed, 21 Oct 2015 07:28:00 GMT", None),
        ("-5", "", None),
        ("9" * 400, "", None),
        ("\u0661", "", None),
        ("", "", None),
    ],
)
def test_retry_after_is_read_on_the_targets_own_clock(
    header: str, date: str, seconds: float | None
) -> None:
    assert retry_after_seconds(reply(429, retry_after=header, date=date), "Retry-After") == seconds


def test_what_never_left_and_what_got_lost_keep_their_codes() -> None:
    unsent = classified(NotSent("dns_failed"))
    assert (unsent.outcome, unsent.bytes_may_have_left) == (Outcome.NOT_SENT, False)
    lost = classified(Lost("truncated_body", 201, "ab"))
    assert (lost.outcome, lost.code, lost.status) == (Outcome.AMBIGUOUS, "truncated_body", 201)


def test_a_bodys_error_does_not_carry_the_body() -> None:
    with pytest.raises(BodyInvalid) as caught:
        parse_answer(b'{"secret":"x"')
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7, "7"),
        ("ch_1", "ch_1"),
        (10**1023, "1" + "0" * 1023),
        ("x" * EXTERNAL_ID_CHARS_MAX, "x" * EXTERNAL_ID_CHARS_MAX),
        ("x" * (EXTERNAL_ID_CHARS_MAX + 1), None),
        (10**1024, None),
        (-(10**1023), None),
        (10**4200, None),
        (10**9000, None),
        ("", None),
        ("ch\n1", None),
        ("ch\x1b[2J", None),
        ("\u202ech_1", None),
        (True, None),
        (1.0, None),
        (["ch_1"], None),
    ],
    ids=lambda value: type(value).__name__,  # pytest cannot write out the longest ones
)
def test_an_id_is_short_and_can_be_printed(value: Any, text: str | None) -> None:
    assert id_text(value) == text


def test_an_answer_with_an_id_of_thousands_of_digits_is_not_believed() -> None:
    answer = classified(reply(201, '{"id":' + "9" * 4200 + "}"))
    assert (answer.outcome, answer.code) == (Outcome.AMBIGUOUS, "external_id_missing")
    assert answer.external_id is None


@pytest.mark.parametrize("reference", ["/op/" + "1" * 5000, "/op/\x7f1"])
def test_a_reference_of_an_operation_is_short_and_can_be_printed(reference: str) -> None:
    accepted = {
        "statuses": [202],
        "reference": {"in": "header", "name": "Location"},
        "succeeded": [{"statuses": [200]}],
    }
    answer = classified(reply(202, location=reference), answers={"accepted": accepted})
    assert (answer.outcome, answer.code) == (Outcome.AMBIGUOUS, "operation_reference_missing")


def test_an_expression_that_multiplies_the_body_yields_nothing() -> None:
    doubled = "|".join(["[@, @]"] * 60)
    extracted = extract(Extraction(external_id="id", result=doubled), {"id": "ch_1"})
    assert extracted is not None
    assert (extracted.external_id, extracted.result) == ("ch_1", None)


_NODE = {"anyOf": [{"properties": {"below": {"$ref": "#/$defs/node"}, "kind": {"const": kind}}}
                   for kind in (1, 2)]}  # fmt: skip
_TREE = {"$ref": "#/$defs/node", "$defs": {"node": _NODE}}


def _deep(levels: int) -> str:
    return '{"kind":3,"below":' * levels + "{}" + "}" * levels


@pytest.mark.parametrize("kind", ["rejected", "success"])
def test_an_answer_that_would_take_for_ever_to_judge_is_ambiguous(kind: str) -> None:
    """Also where another rule matches: the one that was not judged may say the opposite."""
    costly = {"statuses": [200], "body_schema": _TREE}
    cheap = {"statuses": [200]}
    rules = {"rejected": (costly | {"code": "refused"}, cheap), "success": (cheap | {
        "code": "refused", "body_schema": {"required": ["kind"]}}, costly)}  # fmt: skip
    rejected, success = rules[kind]
    answers = {"rejected": [rejected], "success": [success], "retryable": [], "already_exists": []}
    answer = classified(reply(200, _deep(45)), answers=answers)
    assert (answer.outcome, answer.code) == (Outcome.AMBIGUOUS, "body_check_limit")


def test_a_final_newline_is_a_character_like_any_other() -> None:
    schema = {"properties": {"currency": {"pattern": "^[a-z]{3}$"}}}
    success = [{"statuses": [200], "body_schema": schema}]
    good = classified(reply(200, '{"id":"ch_1","currency":"eur"}'), answers={"success": success})
    bad = classified(reply(200, '{"id":"ch_1","currency":"eur\\n"}'), answers={"success": success})
    assert (good.outcome, bad.outcome) == (Outcome.COMMITTED, Outcome.AMBIGUOUS)


def test_a_pattern_of_a_body_schema_cannot_hold_up_the_worker() -> None:
    schema = {"properties": {"note": {"pattern": "^(a+)+$"}}}
    success = [{"statuses": [200], "body_schema": schema}]
    body = '{"id":"ch_1","note":"' + "a" * 100_000 + '!"}'
    answer = classified(reply(200, body), answers={"success": success})
    assert answer.code == "success_body_invalid"
