"""Log lines carry a UTC time, and no text of an exception that might hold an argument."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator

import pytest

from effect_broker import logs
from effect_broker.config import ConfigurationProblem


@pytest.fixture
def restored() -> Iterator[None]:
    """The logging of the test run, put back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in ("effect_broker", "effect_adapters", "effect_contracts"):
        logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.mark.usefixtures("restored")
def test_a_line_has_a_utc_time_and_an_exception_only_its_type_and_frames(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure("info")
    argument = "4242" * 4
    try:
        try:
            raise KeyError(argument)
        except KeyError as inner:
            raise ValueError(argument) from inner
    except ValueError:
        logging.getLogger("uvicorn.error").exception("failed")
    logging.getLogger("effect_broker.worker").info("ready")
    out, err = capsys.readouterr()
    assert out == ""
    assert argument not in err
    assert "ValueError" in err
    assert "test_logs.py" in err
    line = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO effect_broker\.worker: ready"
    assert re.fullmatch(line, err.splitlines()[-1])


@pytest.mark.usefixtures("restored")
def test_libraries_are_heard_from_warnings_on_whatever_our_level_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """At DEBUG an HTTP library prints headers, and with them credentials."""
    logs.configure("DEBUG")
    logging.getLogger("httpcore.http11").debug("Authorization: Bearer eb_secret")
    logging.getLogger("effect_broker.api").debug("ours")
    err = capsys.readouterr().err
    assert "eb_secret" not in err
    assert "ours" in err


@pytest.mark.usefixtures("restored")
def test_what_a_stranger_can_cause_a_thousand_times_is_written_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure("INFO")
    for number in range(1000):
        logging.getLogger("asyncio").error("socket.accept() failed for %d", number)
        logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
        logging.getLogger("effect_broker.api.problems").warning("StoreBusy: %s", number % 2)
        logging.getLogger("effect_broker.worker").warning("each of these counts")
    lines = capsys.readouterr().err.splitlines()
    assert sum("socket.accept()" in line for line in lines) == 1
    assert sum("Invalid HTTP" in line for line in lines) == 1
    assert sum("StoreBusy" in line for line in lines) == 2  # another text is another thing
    assert sum("each of these counts" in line for line in lines) == 1000


@pytest.mark.usefixtures("restored")
def test_how_many_lines_were_left_out_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.configure("INFO")
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    monkeypatch.setattr(time, "time_ns", lambda: int(now[0] * 1e9), raising=False)
    for _ in range(2):
        for _ in range(10):
            logging.getLogger("asyncio").error("no descriptor for %s", "a client")
        now[0] += logs.SELDOM_SECONDS
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("asyncio: ")[2] for line in lines] == [
        "no descriptor for a client",
        "no descriptor for a client (and 9 more like this before)",
    ]


def test_an_unknown_level_is_a_sentence() -> None:
    with pytest.raises(ConfigurationProblem, match="EFFECT_BROKER_LOG_LEVEL"):
        logs.configure("loud")
