"""What a look-up proves: one exact item commits, a whole list can deny, the rest is unknown."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from adapter_calls import KEY, budget, http_contract, probe_call, secrets
from effect_adapters.base import Finding
from effect_adapters.http import HttpAdapter
from effect_adapters.http.probing import Prober
from effect_contracts.facts import Verdict
from peers import Arrival, answer, json_answer, peer, refused_port, replying

OURS = {"id": "ch_1", "idempotency_key": KEY, "amount": 700, "currency": "eur"}
OTHER = {"id": "ch_9", "idempotency_key": KEY.upper(), "amount": 700, "currency": "eur"}


def by_path(answers: Callable[[str], bytes]) -> Callable[[Arrival], None]:
    """Return a script that answers by the path of the request."""

    def script(arrival: Arrival) -> None:
        arrival.send(answers(arrival.read_request().split(b" ")[1].decode()))

    return script


def listing(*items: Any, **more: Any) -> bytes:
    return json_answer(200, json.dumps({"data": list(items), **more}))


async def found(script: Any, seconds: float = 3, **changes: Any) -> Finding:
    operation = changes.pop("operation", None)
    arguments = changes.pop("arguments", None)
    with peer(script) as target:
        document = http_contract(target.url, **changes)
        call = probe_call(
            document, operation=operation, arguments=arguments, within=budget(seconds)
        )
        finding = await HttpAdapter(secrets).probe(call)
        assert all(r.split(b" ")[0] in {b"GET", b"HEAD"} for r in target.received if r)
    return finding


def verdict(finding: Finding) -> tuple[Verdict, str]:
    return finding.verdict, finding.code


async def test_one_exact_item_whose_fields_agree_is_committed() -> None:
    finding = await found(replying(listing(OTHER, OURS)))
    assert verdict(finding) == (Verdict.COMMITTED, "found")
    assert finding.external_ids == ("ch_1",)
    assert finding.result == OURS
    assert finding.status == 200


async def test_the_question_carries_the_key_and_the_credentials() -> None:
    seen: list[bytes] = []

    def script(arrival: Arrival) -> None:
        seen.append(arrival.read_request())
        arrival.send(listing())

    await found(script)
    assert seen[0].startswith(f"GET /charges?key={KEY} HTTP/1.1\r\n".encode())
    assert b"Authorization: Bearer sk_live" in seen[0]
    assert b"Content-Length" not in seen[0]


async def test_a_search_that_is_vaguer_than_equality_finds_nothing() -> None:
    vague = [{**OURS, "idempotency_key": k} for k in (KEY + "x", KEY[:-1], f" {KEY}", 7, None)]
    finding = await found(replying(listing(OTHER, *vague)))
    assert verdict(finding) == (Verdict.NOT_COMMITTED, "absent_from_list")


async def test_an_empty_list_denies_only_where_the_contract_says_so() -> None:
    assert (await found(replying(listing()))).verdict is Verdict.NOT_COMMITTED
    finding = await found(replying(listing()), safety="idempotent", probe={"absent": None})
    assert verdict(finding) == (Verdict.UNKNOWN, "not_found")


@pytest.mark.parametrize(
    "change", [{"amount": 701}, {"amount": "700"}, {"amount": True}, {"currency": "EUR"}]
)
async def test_an_item_under_our_key_with_other_content_is_a_mismatch(
    change: dict[str, Any],
) -> None:
    finding = await found(replying(listing({**OURS, **change})))
    assert verdict(finding) == (Verdict.MISMATCH, "fields_disagree")
    assert finding.external_ids == ("ch_1",)


@pytest.mark.parametrize(
    ("guard", "strange"), [("_has_key", OTHER), ("_agrees", {**OURS, "amount": 701})]
)
async def test_without_the_match_of_key_or_payload_anothers_object_is_taken_for_ours(
    guard: str, strange: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Success would then be told of an effect that does not exist."""
    assert (await found(replying(listing(strange)))).verdict is not Verdict.COMMITTED
    monkeypatch.setattr(Prober, guard, lambda *_: True)
    finding = await found(replying(listing(strange)))
    assert verdict(finding) == (Verdict.COMMITTED, "found")
    assert finding.external_ids == (strange["id"],)


async def test_numbers_agree_by_value_and_absent_agrees_with_null() -> None:
    arguments = {"order": "o", "amount": 700}
    item = {"id": "ch_1", "idempotency_key": KEY, "amount": 700.0, "currency": None}
    assert (await found(replying(listing(item)), arguments=arguments)).verdict is Verdict.COMMITTED


async def test_several_matches_are_a_mismatch_with_all_their_ids() -> None:
    finding = await found(replying(listing(OURS, {**OURS, "id": "ch_2"})))
    assert verdict(finding) == (Verdict.MISMATCH, "several_matches")
    assert finding.external_ids == ("ch_1", "ch_2")


async def test_a_match_without_an_id_is_unknown() -> None:
    finding = await found(replying(listing({**OURS, "id": None})))
    assert verdict(finding) == (Verdict.UNKNOWN, "external_id_missing")


UNKNOWN: dict[str, tuple[bytes, str]] = {
    "error": (json_answer(500, "{}"), "unmatched_status_500"),
    "unavailable": (json_answer(503, "{}", "Retry-After: 9"), "unmatched_status_503"),
    "unauthorised": (json_answer(401, "{}"), "unmatched_status_401"),
    "redirect": (answer(302, headers=("Location: /elsewhere",)), "unexpected_redirect"),
    "html": (answer(200, b'{"data":[]}', headers=("Content-Type: text/html",)),
             "unmatched_status_200"),
    "no type": (answer(200, b'{"data":[]}'), "unmatched_status_200"),
    "cut": (answer(200, b'{"data":[', headers=("Content-Type: application/json",), length=90),
            "truncated_body"),
    "half": (answer(200, b'{"data":[', headers=("Content-Type: application/json",), length=None),
             "body_invalid"),
    "twice": (json_answer(200, '{"data":[{}],"data":[]}'), "body_invalid"),
    "empty": (json_answer(200, ""), "body_invalid"),
    "no list": (json_answer(200, '{"error":"x"}'), "items_missing"),
    "a text": (json_answer(200, '{"data":"none"}'), "items_missing"),
    "garbage": (b"\x00\x01\x02\r\n\r\n", "garbage_answer"),
    "gone": (b"", "closed_without_answer"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNKNOWN)
async def test_everything_unproved_is_unknown(case: str) -> None:
    reply, code = UNKNOWN[case]
    finding = await found(replying(reply))
    assert verdict(finding) == (Verdict.UNKNOWN, code)
    assert finding.external_ids == ()
    assert finding.retry_after_seconds == (9.0 if case == "unavailable" else None)


async def test_no_connection_no_time_and_no_secret_are_unknown() -> None:
    document = http_contract(f"http://127.0.0.1:{refused_port()}")
    adapter = HttpAdapter(secrets)
    assert verdict(await adapter.probe(probe_call(document))) == (
        Verdict.UNKNOWN, "connect_refused",
    )  # fmt: skip
    late = probe_call(document, within=budget(0))
    assert verdict(await adapter.probe(late)) == (Verdict.UNKNOWN, "budget_spent")

    def broken(_reference: str) -> str:
        raise OSError("sk_live_never_print_me")

    finding = await HttpAdapter(broken).probe(probe_call(document))
    assert verdict(finding) == (Verdict.UNKNOWN, "secret_unavailable")


async def test_a_probe_does_not_follow_a_redirect() -> None:
    with peer(replying(listing(OURS))) as elsewhere:
        moved = answer(307, headers=(f"Location: {elsewhere.url}/charges",))
        assert (await found(replying(moved))).code == "unexpected_redirect"
        assert elsewhere.arrivals == []


# Pages -----------------------------------------------------------------------------------------


def pages(*texts: bytes, parameter: str = "page") -> Callable[[Arrival], None]:
    def of(path: str) -> bytes:
        _, _, number = path.partition(f"{parameter}=")
        return texts[int(number) if number else 0]

    return by_path(of)


async def test_an_item_on_a_later_page_is_found() -> None:
    script = pages(listing(OTHER, next=1, has_more=True), listing(OURS, has_more=False))
    assert (await found(script)).verdict is Verdict.COMMITTED


async def test_absence_needs_every_page_to_its_end() -> None:
    whole = pages(listing(next=1, has_more=True), listing(OTHER, has_more=False))
    assert (await found(whole)).verdict is Verdict.NOT_COMMITTED


INCOMPLETE: dict[str, tuple[bytes, ...]] = {
    "pages_unread": tuple(listing(next=n + 1, has_more=True) for n in range(9)),
    "pages_repeat": (listing(next=1, has_more=True), listing(next=1, has_more=True)),
    "cursor_missing": (listing(has_more=True),),
    "cursor_invalid": (listing(next={"a": 1}, has_more=True),),
    "unmatched_status_500": (listing(next=1, has_more=True), json_answer(500, "{}")),
    "truncated_body": (listing(next=1, has_more=True), answer(
        200, b'{"data":[]', headers=("Content-Type: application/json",), length=99)),
    "unmatched_status_404": (listing(next=1, has_more=True), json_answer(404, "{}")),
}  # fmt: skip


@pytest.mark.parametrize("code", INCOMPLETE)
async def test_a_list_that_was_not_read_to_its_end_denies_nothing(code: str) -> None:
    absent = [
        {"statuses": [200], "content_type": "application/json", "empty_list": True},
        {"statuses": [404]},
    ]
    finding = await found(pages(*INCOMPLETE[code]), probe={"absent": absent})
    assert verdict(finding) == (Verdict.UNKNOWN, code)


async def test_a_match_stays_found_although_a_later_page_fails() -> None:
    script = pages(listing(OURS, next=1, has_more=True), json_answer(500, "{}"))
    assert (await found(script)).verdict is Verdict.COMMITTED


async def test_the_same_object_on_two_pages_is_one() -> None:
    script = pages(listing(OURS, next=1, has_more=True), listing(OURS, has_more=False))
    assert (await found(script)).verdict is Verdict.COMMITTED


async def test_two_objects_on_two_pages_are_two() -> None:
    script = pages(
        listing(OURS, next=1, has_more=True), listing({**OURS, "id": "ch_2"}, has_more=False)
    )
    assert (await found(script)).code == "several_matches"


async def test_numbered_pages_end_with_an_empty_one() -> None:
    paging = {"kind": "page", "parameter": "p", "pages_max": 4}
    texts = (listing(), listing(OTHER), listing(OTHER), listing())
    finding = await found(pages(*texts, parameter="&p="), probe={"paging": paging})
    assert finding.verdict is Verdict.NOT_COMMITTED
    endless = (listing(OTHER),) * 9
    finding = await found(pages(*endless, parameter="&p="), probe={"paging": paging})
    assert verdict(finding) == (Verdict.UNKNOWN, "pages_unread")


async def test_a_single_answer_that_has_more_denies_nothing() -> None:
    paging = {"kind": "none", "has_more": "more"}
    finding = await found(replying(listing(more=True)), probe={"paging": paging})
    assert verdict(finding) == (Verdict.UNKNOWN, "pages_unread")
    finding = await found(replying(listing(more=False)), probe={"paging": paging})
    assert finding.verdict is Verdict.NOT_COMMITTED


async def test_links_are_followed_at_the_same_origin_only() -> None:
    paging = {"kind": "link", "pages_max": 3}

    def linked(target: str) -> Callable[[str], bytes]:
        def of(path: str) -> bytes:
            if path.endswith("page=2"):
                return listing(OURS)
            link = f'Link: </charges?page=1>; rel="prev", <{target}>; rel="first next"'
            return json_answer(200, '{"data":[]}', link)

        return of

    for target in ("/charges?page=2", "charges?page=2", "?page=2"):
        assert (await found(by_path(linked(target)), probe={"paging": paging})).verdict is (
            Verdict.COMMITTED
        )
    with peer(replying(listing(OURS))) as elsewhere:
        target = f"{elsewhere.url}/charges?page=2"
        finding = await found(by_path(linked(target)), probe={"paging": paging})
        assert verdict(finding) == (Verdict.UNKNOWN, "link_refused")
        assert elsewhere.arrivals == []


async def test_all_pages_share_one_budget() -> None:
    asked = []

    def slow(path: str) -> bytes:
        asked.append(path)
        time.sleep(0.2)
        _, _, number = path.partition("page=")
        return listing(next=int(number or 0) + 1, has_more=True)

    finding = await found(
        by_path(slow),
        seconds=0.5,
        probe={"paging": {"kind": "cursor", "next": "next", "parameter": "page"}},
    )
    assert 1 <= len(asked) <= 3  # as many as fit into the budget of one
    assert finding.verdict is Verdict.UNKNOWN


# Single objects --------------------------------------------------------------------------------

BODY = b'{"amount":700,"currency":"eur","order":"o-1"}'
BY_ETAG: dict[str, Any] = {
    "url": "https://example.com/charges/{key}",
    "key_match": {"kind": "etag"},
    "agree": None,
    "items": None,
    "paging": {"kind": "none"},
    "absent": [{"statuses": [404]}],
    "extraction": None,
}


async def test_an_etag_over_the_body_proves_the_object() -> None:
    # The test contract's target takes the MD5 of the stored body for its ETag.
    good = hashlib.md5(BODY, usedforsecurity=False).hexdigest()
    for etag, expected in (
        (f'"{good}"', Verdict.COMMITTED),
        (f'W/"{good}"', Verdict.UNKNOWN),
        ('"' + "0" * 32 + '"', Verdict.MISMATCH),
        ("", Verdict.UNKNOWN),
    ):
        headers = (f"ETag: {etag}",) if etag else ()
        finding = await found(replying(json_answer(200, "{}", *headers)), probe=BY_ETAG)
        assert finding.verdict is expected, etag


async def test_a_missing_object_denies_where_the_contract_says_so() -> None:
    finding = await found(replying(json_answer(404, "{}")), probe=BY_ETAG)
    assert verdict(finding) == (Verdict.NOT_COMMITTED, "absent_status_404")
    finding = await found(replying(json_answer(410, "{}")), probe=BY_ETAG)
    assert finding.verdict is Verdict.UNKNOWN


async def test_an_object_in_our_place_that_is_not_ours_is_a_mismatch() -> None:
    probe = {"url": "https://example.com/charges/{key}", "items": None, "paging": {"kind": "none"},
             "absent": [{"statuses": [404]}]}  # fmt: skip
    finding = await found(replying(json_answer(200, json.dumps(OTHER))), probe=probe)
    assert verdict(finding) == (Verdict.MISMATCH, "found_other")
    assert finding.external_ids == ("ch_9",)
    assert (await found(replying(json_answer(200, json.dumps(OURS))), probe=probe)).verdict is (
        Verdict.COMMITTED
    )


async def test_a_digest_of_the_key_is_compared() -> None:
    match = {"kind": "digest", "path": "ref", "of": "key"}
    item = {**OURS, "ref": hashlib.sha256(KEY.encode()).hexdigest().upper()}
    finding = await found(replying(listing(item)), probe={"key_match": match})
    assert finding.verdict is Verdict.COMMITTED


async def test_a_text_is_read_line_by_line() -> None:
    probe: dict[str, Any] = {
        "url": "https://example.com/cal/{key}.ics",
        "found": {"statuses": [200], "content_type": "text/calendar"},
        "key_match": {"kind": "text", "prefix": "UID:"},
        "agree": None,
        "agree_lines": {"/order": {"prefix": "SUMMARY:"}},
        "items": None,
        "paging": {"kind": "none"},
        "absent": [{"statuses": [404]}],
        "extraction": None,
    }

    def text(*lines: str) -> Any:
        body = "\r\n".join(["BEGIN:VEVENT", *lines, "END:VEVENT"]).encode()
        return replying(answer(200, body, headers=("Content-Type: text/calendar; charset=utf-8",)))

    assert (await found(text(f"UID:{KEY}", "SUMMARY:o-1"), probe=probe)).verdict is (
        Verdict.COMMITTED
    )
    assert (await found(text(f"UID:{KEY}", "SUMMARY:o-2"), probe=probe)).code == "fields_disagree"
    assert (await found(text(f"UID:{KEY}x", "SUMMARY:o-1"), probe=probe)).code == "found_other"
    assert (await found(text(f"X-UID:{KEY}", "SUMMARY:o-1"), probe=probe)).code == "found_other"


async def test_an_answer_that_denies_and_shows_is_unknown() -> None:
    absent = [{"statuses": [200], "body_schema": {"properties": {"none": {"const": True}},
                                                  "required": ["none"]}}]  # fmt: skip
    shows = replying(listing(OURS, none=True))
    assert (await found(shows, probe={"absent": absent})).code == "contradicting_rules"
    denies = replying(listing(none=True))
    assert (await found(denies, probe={"absent": absent})).verdict is Verdict.NOT_COMMITTED


# Operations ------------------------------------------------------------------------------------


def state(value: str) -> dict[str, Any]:
    return {"properties": {"s": {"const": value}}, "required": ["s"]}


ACCEPTED: dict[str, Any] = {
    "statuses": [202],
    "reference": {"in": "body", "path": "op"},
    "succeeded": [{"statuses": [200], "body_schema": state("done")}],
    "failed": [{"statuses": [200], "body_schema": state("failed"), "code": "operation_failed"}],
    "running": [{"statuses": [200], "body_schema": state("running")}],
    "extraction": {"external_id": "id"},
}


@pytest.mark.parametrize(
    ("reply", "expected", "code"),
    [
        (json_answer(200, '{"s":"running"}', "Retry-After: 4"), Verdict.UNKNOWN,
         "operation_running"),
        (json_answer(200, '{"s":"done","id":"x1"}'), Verdict.COMMITTED, "operation_succeeded"),
        (json_answer(200, '{"s":"done"}'), Verdict.UNKNOWN, "external_id_missing"),
        (json_answer(200, '{"s":"failed"}'), Verdict.REJECTED, "operation_failed"),
        (json_answer(200, '{"s":"odd"}'), Verdict.UNKNOWN, "unmatched_status_200"),
        (json_answer(404, "{}"), Verdict.UNKNOWN, "operation_gone"),
        (json_answer(410, "{}"), Verdict.UNKNOWN, "operation_gone"),
        (json_answer(500, "{}"), Verdict.UNKNOWN, "unmatched_status_500"),
        (answer(302, headers=("Location: /x",)), Verdict.UNKNOWN, "unexpected_redirect"),
        (b"", Verdict.UNKNOWN, "closed_without_answer"),
    ],
)  # fmt: skip
async def test_an_accepted_operation_is_followed(
    reply: bytes, expected: Verdict, code: str
) -> None:
    def of(path: str) -> bytes:
        return reply if path == "/ops/1" else listing()

    finding = await found(by_path(of), operation="/ops/1", answers={"accepted": ACCEPTED})
    assert verdict(finding) == (expected, code)
    assert finding.retry_after_seconds == (4.0 if code == "operation_running" else None)


async def test_an_operation_that_is_gone_is_looked_up_by_key_but_never_denied() -> None:
    def of(path: str) -> bytes:
        return listing(OURS) if path.startswith("/charges") else json_answer(404, "{}")

    finding = await found(by_path(of), operation="/ops/1", answers={"accepted": ACCEPTED})
    assert verdict(finding) == (Verdict.COMMITTED, "found")


async def test_an_operation_at_another_origin_is_not_asked() -> None:
    with peer(replying(json_answer(200, '{"s":"done","id":"x1"}'))) as elsewhere:
        finding = await found(
            replying(json_answer(404, "{}")),
            operation=f"{elsewhere.url}/ops/1",
            answers={"accepted": ACCEPTED},
        )
        assert verdict(finding) == (Verdict.UNKNOWN, "origin_changed")
        assert elsewhere.arrivals == []


async def test_a_poll_url_takes_the_reference_as_one_segment() -> None:
    paths: list[str] = []

    def of(path: str) -> bytes:
        paths.append(path)
        return json_answer(200, '{"s":"running"}')

    accepted = {**ACCEPTED, "poll_url": "https://example.com/ops/{operation}"}
    await found(by_path(of), operation="a/../b?x", answers={"accepted": accepted})
    assert paths == ["/ops/a%2F..%2Fb%3Fx"]


async def test_conditions_of_the_write_do_not_reach_the_read() -> None:
    seen: list[bytes] = []

    def script(arrival: Arrival) -> None:
        seen.append(arrival.read_request())
        arrival.send(listing(OURS))

    of_the_write = {"If-None-Match": "*", "Idempotency-Key": {"template": "{key}"}}
    key = {"in": "body", "pointer": "/key"}
    await found(script, headers={**of_the_write, "X-Api-Version": "2"}, key=key)
    assert b"If-None-Match" not in seen[0]
    assert b"Idempotency-Key" not in seen[0], "the target may answer with what it keeps for the key"
    assert b"X-Api-Version: 2" in seen[0]


async def test_an_answer_that_would_take_for_ever_to_judge_is_unknown() -> None:
    node = [{"properties": {"below": {"$ref": "#/$defs/n"}, "k": {"const": k}}} for k in (1, 2)]
    costly = {"$ref": "#/$defs/n", "$defs": {"n": {"anyOf": node}}}
    body = '{"k":3,"below":' * 45 + "{}" + "}" * 45
    finding = await found(
        replying(json_answer(200, body)),
        seconds=30,
        probe={"found": {"statuses": [200], "body_schema": costly}},
    )
    assert verdict(finding) == (Verdict.UNKNOWN, "body_check_limit")
