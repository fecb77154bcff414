"""Effects that callers perform, in an account: their leases, and what was never said of them."""

from __future__ import annotations

import asyncio
import copy
import json
from datetime import timedelta
from functools import cache
from unittest.mock import patch
from uuid import uuid4

import pytest

from effect_contracts.trace import verify_lines
from effect_contracts.trace.findings import Rule
from protocol import test_elections as elections
from trace_check.forging import Forge, Line, end_of, parsed, rechained, sealed
from trace_check.memory_log import LoggedStore
from trace_check.test_replay import Said, both, column, event, moved, row, told


async def _extended_twice(desk: elections.Desk) -> None:
    """The second caller holds its lease for as long as the contract allows."""
    mine = uuid4()
    found = await desk.elect(mine, "caller:other")
    while not found.elected:
        assert found.view.at is not None
        desk.let_pass((found.view.at - desk.clock.now()).total_seconds())
        found = await desk.elect(mine, "caller:other")
    for _ in range(2):
        desk.let_pass(20)
        assert (await desk.extend(mine, ordinal=2)).held
    desk.let_pass(5)
    await desk.tell(mine, ordinal=2)


@cache
def _trace() -> list[Line]:
    async def played() -> list[bytes]:
        with patch.object(elections, "MemoryStore", LoggedStore):
            desk, first = await elections.elected()
        desk.let_pass(10)
        assert (await desk.extend(first)).held
        desk.let_pass(elections.LEASE + elections.MARGIN + 1)
        await _extended_twice(desk)
        assert isinstance(desk.memory, LoggedStore)
        return desk.memory.trace()

    return parsed(asyncio.run(played()))


def said(forge: Forge) -> list[Said]:
    header, contract, effect, _ = copy.deepcopy(_trace())
    forge(effect)
    rechained(effect)
    found = verify_lines(sealed([header, contract, effect, end_of(effect)])).violations
    return [(one.rule, one.what, one.sequence) for one in found]


def test_an_account_of_elections_and_extensions_is_clean() -> None:
    kinds = [one["kind"] for one in _trace()[2]["events"]]
    assert kinds.count("attempt_started") == 2
    assert kinds.count("attempt_extended") == 3
    assert said(lambda _effect: None) == []


CASES = {
    "a lease that lasts until another moment": (
        told("attempt_extended", 1, deadline_at="2026-01-01T00:02:00.000000Z"), 1,
        Rule.FACTS, "the lease lasts until another moment",
    ),
    "a lease that a stranger extends": (
        column("attempt_extended", 1, actor="caller:stranger"), 1,
        Rule.ACTOR, "only the process that sends writes this",
    ),
    "a lease that is extended for another reason": (
        column("attempt_extended", 1, reason="first_attempt"), 1,
        Rule.DECISION, "an extension changes nothing else",
    ),
    "a lease that is over": (
        told("attempt_extended", 1, ordinal=1), 1,
        Rule.ACTOR, "only the process that sends writes this",
    ),
    "a lease of nobody": (
        told("attempt_extended", 1, ordinal=3), 1, Rule.FACTS, "there is no attempt 3",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_was_never_said_of_a_lease_is_found(case: str) -> None:
    forge, nth, rule, words = CASES[case]
    forged = copy.deepcopy(_trace()[2])
    forge(forged)
    place = event(forged, "attempt_extended", nth)["sequence"]
    found = [(one[0], one[1]) for one in said(forge) if one[2] == place]
    assert (rule, words) in found, said(forge)


def test_an_extension_that_no_event_tells_is_found() -> None:
    def forge(effect: Line) -> None:
        last = event(effect, "attempt_extended", 2)
        effect["events"].remove(last)
        for one in effect["events"]:
            one["sequence"] -= one["sequence"] > last["sequence"]
        effect["intent"]["version"] -= 1

    assert (Rule.FACTS, "no event tells how long attempt 2 lasts", None) in said(forge)


def test_extensions_before_the_first_kept_event_are_taken_for_told() -> None:
    events = _trace()[2]["events"]
    for first in range(2, len(events) + 1):

        def forge(effect: Line, first: int = first) -> None:
            effect["events"] = [one for one in effect["events"] if one["sequence"] >= first]

        assert said(forge) == [], first


def test_a_callers_lease_lasts_no_shorter_than_the_contract_says() -> None:
    forge = both(moved("attempts", "deadline_at", -timedelta(seconds=60), 1), row("attempts", 1))
    start = event(_trace()[2], "attempt_started", 1)["sequence"]
    assert (Rule.FACTS, "the attempt has another deadline", start) in said(forge)


def test_the_deadline_of_an_extension_is_spelt_as_it_is_written() -> None:
    metadata = json.loads(event(_trace()[2], "attempt_extended", 0)["metadata"])
    assert metadata == {"deadline_at": "2026-01-01T00:00:40.000000Z", "ordinal": 1}
