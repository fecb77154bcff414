"""The shipped contract `caldav-event` at Radicale: nothing is de-duplicated, all can be asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from effect_contracts.facts import Outcome, Verdict
from real_targets.contracts import Effect, contract_text
from real_targets.programs import Radicale
from real_targets.relay import relay

EVENT: dict[str, Any] = {
    "calendar": Radicale.CALENDAR,
    "title": "Review of the quarter: Q3 (final) - room 1",
    "starts_at": "20261005T080000Z",
    "ends_at": "20261005T090000Z",
}


def _event(origin: str, **changes: Any) -> Effect:
    return Effect.of(contract_text("caldav-event", origin), "review:q3", {**EVENT, **changes})


async def test_an_event_is_put_once_and_found_by_its_name_and_uid(radicale: Radicale) -> None:
    event = _event(radicale.origin)
    before = await event.ask()
    assert (before.verdict, before.status) == (Verdict.NOT_COMMITTED, 404)
    put = await event.send()
    assert (put.outcome, put.status) == (Outcome.COMMITTED, 201)
    found = await event.ask()
    assert found.verdict is Verdict.COMMITTED
    [text] = radicale.events()
    assert f"UID:{event.key}" in text
    assert f"SUMMARY:{EVENT['title']}" in text


async def test_a_second_put_is_refused_and_changes_nothing(radicale: Radicale) -> None:
    event = _event(radicale.origin)
    await event.send(1)
    before = radicale.events()
    again = await event.send(2)
    assert (again.outcome, again.code, again.status) == (Outcome.REJECTED, "already_exists", 412)
    assert radicale.events() == before
    assert radicale.puts() == 2


async def test_a_lost_answer_is_settled_by_asking(radicale: Radicale) -> None:
    with relay(radicale.port) as way:
        event = _event(way.origin)
        way.losing = True
        lost = await event.send()
        assert (lost.outcome, lost.bytes_may_have_left) == (Outcome.AMBIGUOUS, True)
        unheard = await event.ask()
        assert unheard.verdict is Verdict.UNKNOWN
        way.losing = False
        found = await event.ask()
    assert found.verdict is Verdict.COMMITTED
    assert len(radicale.events()) == 1
    assert radicale.puts() == 1


async def test_an_event_of_ours_with_other_content_is_a_mismatch(radicale: Radicale) -> None:
    event = _event(radicale.origin)
    await event.send()
    other = await replace(event, arguments={**EVENT, "starts_at": "20261005T083000Z"}).ask()
    assert (other.verdict, other.code) == (Verdict.MISMATCH, "fields_disagree")


async def test_an_event_of_another_at_our_place_is_a_mismatch(radicale: Radicale) -> None:
    event = _event(radicale.origin)
    place = f"/broker/{Radicale.CALENDAR}/{event.key}.ics"
    foreign = (
        "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:-//someone//EN\r\nBEGIN:VEVENT\r\n"
        "UID:somebody-else\r\nDTSTAMP:20261005T080000Z\r\nDTSTART:20261005T080000Z\r\n"
        "SUMMARY:Theirs\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n"
    )
    put = radicale.http.put(place, content=foreign, headers={"Content-Type": "text/calendar"})
    assert put.status_code == 201
    refused = await event.send()
    assert (refused.outcome, refused.code) == (Outcome.REJECTED, "already_exists")
    assert (await event.ask()).verdict is Verdict.MISMATCH


async def test_a_calendar_that_is_not_there_is_a_refusal(radicale: Radicale) -> None:
    refused = await _event(radicale.origin, calendar="nowhere").send()
    assert (refused.outcome, refused.code, refused.status) == (Outcome.REJECTED, "refused", 409)
    assert radicale.events() == []
