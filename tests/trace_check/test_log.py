"""The lines of a trace: how they are written, each chained to the one before, and how strictly they
are read."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from pydantic import ValidationError

from effect_contracts.trace.findings import Broken, Rule, require
from effect_contracts.trace.log import (
    EndLine,
    HeaderLine,
    MutationRecord,
    Selection,
    TraceWriter,
    line_digest,
    parted_line,
)

AT = datetime(2026, 11, 30, 4, 5, 6, 789012, tzinfo=UTC)
ELSEWHERE = AT.astimezone(timezone(timedelta(hours=9)))
TENANT, EFFECT = UUID(int=1), UUID(int=2)


def written() -> list[bytes]:
    writer = TraceWriter()
    return [
        writer.header(exported_at=ELSEWHERE, tenant_id=TENANT),
        writer.contract(b"\x01\xab", '{"name":"é"}'),
        writer.effect({"effect_id": EFFECT, "events": [1, 2], "at": AT}),
        writer.effect({"effect_id": EFFECT, "events": []}),
        writer.end(),
    ]


def test_every_line_is_written_byte_for_byte_as_ever() -> None:
    bodies = [
        '{"type":"header","format":"effect-broker/trace/1","exported_at":'
        '"2026-11-30T04:05:06.789012Z","bounds_restart_at":null,"selection":{"tenant_id":'
        '"00000000-0000-0000-0000-000000000001","effect_id":null,"changed_since":null}}',
        '{"type":"contract","contract_digest":"01ab","document":"{\\"name\\":\\"é\\"}"}',
        '{"type":"effect","effect_id":"00000000-0000-0000-0000-000000000002","events":[1,2],'
        '"at":"2026-11-30T04:05:06.789012Z"}',
        '{"type":"effect","effect_id":"00000000-0000-0000-0000-000000000002","events":[]}',
        '{"type":"end","contracts":1,"effects":2,"events":2}',
    ]
    previous = ""
    for line, body in zip(written(), bodies, strict=True):
        previous = hashlib.sha256((previous + body).encode()).hexdigest()
        assert line == f'{{"digest":"{previous}",{body[1:]}\n'.encode()


def test_the_selection_and_the_restart_of_the_bounds_stand_in_the_header() -> None:
    line = TraceWriter().header(
        exported_at=AT, bounds_restart_at=AT, effect_id=EFFECT, changed_since=ELSEWHERE
    )
    told = json.loads(line)
    assert told.pop("digest")
    header = HeaderLine.model_validate_json(json.dumps(told))
    assert header.exported_at == header.bounds_restart_at == AT
    assert header.selection == Selection(tenant_id=None, effect_id=EFFECT, changed_since=AT)


def test_a_trace_of_nothing_counts_nothing() -> None:
    told = json.loads(TraceWriter().end())
    assert (told["contracts"], told["effects"], told["events"]) == (0, 0, 0)


def test_a_text_that_no_encoding_holds_is_written_all_the_same() -> None:
    """An export of rows that break a rule is what the check has to see."""
    assert b"\xed\xa0\x80" in TraceWriter().contract(b"", "\ud800")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1}, 1j])
def test_what_a_trace_has_no_spelling_for_is_an_error(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        TraceWriter().effect({"events": [], "value": value})


def test_a_value_without_a_spelling_is_named_by_its_type_alone() -> None:
    with pytest.raises(TypeError, match=r"^a trace has no spelling for set$"):
        TraceWriter().effect({"events": [], "value": {"hunter2"}})


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
def test_a_line_is_parted_into_its_digest_and_its_body(end: bytes) -> None:
    previous = b""
    for line in written():
        parted = parted_line(line[:-1] + end)
        assert parted is not None
        digest, body = parted
        assert digest == line_digest(previous, body)
        assert "digest" not in json.loads(body)
        previous = digest


@pytest.mark.parametrize(
    "line",
    [
        b"", b"{}", b'{"digest":"' + b"0" * 63 + b'","a":1}', b' {"digest":"' + b"0" * 64 + b'",}',
        b'{"digest":"' + b"A" * 64 + b'","a":1}', b'{"digest": "' + b"0" * 64 + b'","a":1}',
    ],
)  # fmt: skip
def test_a_line_that_does_not_begin_with_a_digest_has_no_parts(line: bytes) -> None:
    assert parted_line(line) is None


# Reading ------------------------------------------------------------------------------------------

END = {"type": "end", "contracts": 1, "effects": 2, "events": 3}


@pytest.mark.parametrize(
    "change",
    [
        {"type": "effect"}, {"contracts": "1"}, {"contracts": 1.0}, {"effects": True},
        {"events": None}, {"more": 1},
    ],
)  # fmt: skip
def test_a_line_is_read_strictly_and_without_repeating_a_value(change: dict[str, Any]) -> None:
    assert EndLine.model_validate_json(json.dumps(END)).events == 3
    with pytest.raises(ValidationError) as refused:
        EndLine.model_validate_json(json.dumps(END | change))
    assert "input_value" not in str(refused.value)


def test_a_record_cannot_be_changed_once_it_is_read() -> None:
    record: Any = MutationRecord(ordinal=1, kind="fence")
    with pytest.raises(ValidationError, match="frozen"):
        record.ordinal = 2


# What the check stops at --------------------------------------------------------------------------


def test_what_holds_stops_nothing_and_what_does_not_names_its_rule() -> None:
    require(True, Rule.FACTS, "never said")
    with pytest.raises(Broken) as broken:
        require(False, Rule.HEAD, "said")
    assert (broken.value.rule, broken.value.what, str(broken.value)) == (Rule.HEAD, "said", "said")
