"""The fault grammar: what a plan means, and that nothing else is taken for one."""

from __future__ import annotations

import pytest

from effect_broker.proof.target.faults import (
    Commit,
    Delay,
    Fin,
    Hang,
    Hold,
    Ok,
    Operation,
    Redirect,
    Reset,
    Status,
    Truncated,
    VerbError,
    known_verbs,
    parse_plan,
)


def test_a_plan_without_an_ending_answers_honestly() -> None:
    plan = parse_plan("slow(0.5); commit")
    assert plan.steps == (Delay(0.5), Commit())
    assert plan.ending == Ok()


def test_a_gate_commits_before_it_holds() -> None:
    assert parse_plan("gate").steps == (Commit(), Hold("gate"))
    assert parse_plan("gate(a);RST").steps == (Commit(), Hold("a"))
    assert parse_plan("hold(a);commit;FIN").steps == (Hold("a"), Commit())


def test_a_status_takes_a_json_body_and_headers() -> None:
    plan = parse_plan('status(429, {"error":"slow; down, (please)"}, {"Retry-After": 3})')
    assert plan.ending == Status(
        429,
        b'{"error":"slow; down, (please)"}',
        (("content-type", "application/json"), ("retry-after", "3")),
    )


def test_a_bare_word_is_an_error_code_and_a_quoted_one_is_text() -> None:
    bare = parse_plan("status(400,idempotency_error)").ending
    quoted = parse_plan('status(400,"idempotency_error")').ending
    assert isinstance(bare, Status)
    assert isinstance(quoted, Status)
    assert bare.body == b'{"error":"idempotency_error"}'
    assert quoted.body == b"idempotency_error"


def test_a_url_may_be_written_without_quotes() -> None:
    location = "http://127.0.0.1:81/a?b=c"
    assert parse_plan(f"redirect(307,{location})").ending == Redirect(307, location)


def test_the_words_of_the_field_cases_are_plans() -> None:
    assert parse_plan("commit;FIN").ending == Fin()
    assert parse_plan("commit;RST").ending == Reset()
    assert parse_plan("commit;hang(5)").ending == Hang(5.0)
    assert parse_plan("hang").ending == Hang(None)
    assert parse_plan("trunc(close)").ending == Truncated("close")
    assert parse_plan("operation(404)").ending == Operation("404", 2)
    assert parse_plan("operation(never, 0)").ending == Operation("never", 0)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "missing"),
        ("explode", "known: accept, early, commit"),
        ("fin", "unknown verb"),
        ("commit;", "missing"),
        ("commit FIN", "expected ';'"),
        ("ok;commit", "after the ending"),
        ("FIN;RST", "after the ending"),
        ("commit;accept;RST", "unknown verb 'accept'"),
        ("accept;status(200)", "only FIN or RST"),
        ("accept", "only FIN or RST"),
        ("early;commit;status(413)", "body is unread"),
        ("early", "body is unread"),
        ("commit(0)", "whole number"),
        ("commit(true)", "whole number"),
        ("hang(-1)", "0 to 3600"),
        ("hang(1e999)", "0 to 3600"),
        ("hang(soon)", "as a number"),
        ("delay", "takes 1 arguments"),
        ("FIN(1)", "takes 0 arguments"),
        ("status(99)", "200 to 599"),
        ("status(100)", "200 to 599"),
        ("status(204,{})", "no body"),
        ('status(200,"x",{"a b":"c"})', "no header name"),
        ('status(200,"x",{"content-length":"1"})', "use 'trunc'"),
        ('status(200,"x",{"a":"b\\r\\nc: d"})', "printable ASCII"),
        ('status(200,"x",["a"])', "JSON object"),
        ('status(200,{"a":)', "no JSON value"),
        ("status(" + "[" * 10_000, "no JSON value"),
        ("status(" + "1" * 30_000 + ")", "at most"),
        ("commit(", "missing"),
        ("trunc(middle)", "length, chunked, close or head"),
        ("partial(ok,maybe)", "ok and fail"),
        ("operation(done)", "succeeded, failed, 404 or never"),
        ("redirect(200,/x)", "300 to 399"),
        ("oversize(100000)", "1 to 256"),
        ("drip(1,0.1)", "takes 3 arguments"),
    ],
)
def test_what_is_no_plan_is_refused_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(VerbError) as refused:
        parse_plan(text)
    assert reason in str(refused.value)


def test_every_verb_is_known_by_name() -> None:
    assert len(set(known_verbs())) == len(known_verbs())
    assert {"commit", "gate", "FIN", "RST", "drip", "operation"} <= set(known_verbs())
