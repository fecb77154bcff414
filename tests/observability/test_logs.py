"""Logs for programs: one JSON object a line, a stable name for each event, nothing secret."""

from __future__ import annotations

import ast
import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from effect_broker import logs
from effect_broker.config import Environment, LogFormat, Settings
from effect_broker.log_events import event
from repository.checkout import CHECKOUT

PROGRAM = CHECKOUT / "app" / "effect_broker"
PAGE = CHECKOUT / "docs" / "observability.md"
NAME = re.compile(r"[a-z]+(_[a-z]+)*")
LEVELS = frozenset({"debug", "info", "warning", "error", "critical", "exception", "log"})
_log = logging.getLogger("effect_broker.worker")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """The logging of the test run, put back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in ("effect_broker", "effect_adapters", "effect_contracts"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def objects(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[dict[str, Any]]]:
    """Configure for JSON; what is written from now on comes out as objects."""
    logs.configure("INFO", as_json=True)
    return lambda: [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_line_is_one_object_with_the_name_of_what_happened(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = objects(capsys)
    _log.warning("step %s:\nof effect %s", "probe", "e1", extra=event("step_ended", effect_id="e1"))
    (line,) = said()
    at = line.pop("at")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", at)
    assert line == {
        "level": "warning",
        "event": "step_ended",
        "logger": "effect_broker.worker",
        "message": "step probe:\nof effect e1",
        "effect_id": "e1",
    }


def test_a_field_cannot_stand_for_a_member_of_every_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = objects(capsys)
    _log.warning("true", extra=event("this_one") | {"fields": {"event": "that", "level": "none"}})
    (line,) = said()
    assert (line["event"], line["level"]) == ("this_one", "warning")


def test_an_exception_is_its_kind_and_frames(capsys: pytest.CaptureFixture[str]) -> None:
    said = objects(capsys)
    argument = "4242" * 4
    try:
        raise ValueError(argument)
    except ValueError:
        logging.getLogger("uvicorn.error").exception("failed")
    (line,) = said()
    assert line["event"] == "log_of_uvicorn"
    assert line["exception"]["kind"] == "ValueError"
    assert "test_logs.py" in line["exception"]["frames"]
    assert argument not in json.dumps(line)


def test_a_line_inside_a_span_names_its_trace(capsys: pytest.CaptureFixture[str]) -> None:
    said = objects(capsys)
    span = NonRecordingSpan(SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=TraceFlags(1)))
    with trace.use_span(span):
        _log.warning("inside")
    _log.warning("outside")
    inside, outside = said()
    assert inside["trace_id"] == f"{0xABC:032x}"
    assert inside["span_id"] == f"{0xDEF:016x}"
    assert "trace_id" not in outside


def test_what_says_so_of_itself_is_written_once_in_a_while(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = objects(capsys)
    for turn in range(50):
        for loop in ("beat", "reap"):
            _log.warning("%s %d", loop, turn, extra=event("loop_failed", seldom=loop))
    assert [line["message"] for line in said()] == ["beat 0", "reap 0"]


def test_production_writes_objects_and_development_lines_unless_told_otherwise() -> None:
    assert Settings(env=Environment.PRODUCTION).json_logs
    assert not Settings().json_logs
    assert Settings(log_format=LogFormat.JSON).json_logs
    assert not Settings(env=Environment.PRODUCTION, log_format=LogFormat.TEXT).json_logs


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Every call of a module's logger in the program, with its place."""
    for path in sorted(PROGRAM.rglob("*.py")):
        if "proof" in path.relative_to(PROGRAM).parts:
            continue  # what demos say is read by people alone
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in LEVELS
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "_log"
            ):
                yield f"{path.relative_to(CHECKOUT)}:{node.lineno}", node


def events_of(path: Path) -> set[str]:
    """The names that a module gives to `event`."""
    return {
        node.args[0].value
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "event"
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and isinstance(node.args[0].value, str)
    }


def test_every_record_of_the_program_names_its_event() -> None:
    found = list(calls())
    assert len(found) > 20
    nameless = [place for place, call in found if "extra" not in {k.arg for k in call.keywords}]
    assert nameless == []


def test_every_event_is_listed_with_its_meaning_and_no_other() -> None:
    used = {name for path in PROGRAM.rglob("*.py") for name in events_of(path)}
    assert all(NAME.fullmatch(name) for name in used)
    _, _, section = PAGE.read_text("utf-8").partition("## Logs")
    cells = re.findall(r"^\| (`[^|]+) \|", section.partition("\n## ")[0], re.MULTILINE)
    listed = {name for cell in cells for name in re.findall(r"`([a-z_]+)`", cell)}
    assert listed == used
