"""The engine's log says what has happened, and no values."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Iterator

import psycopg
import pytest

from effect_broker.engine_log import quiet_engine_log
from postgres import Database

VALUE = "MARKER-value-51c0"


@pytest.fixture
def engine() -> Iterator[logging.Logger]:
    """The engine's logger with our filter, and without what it has remembered."""
    logger = logging.getLogger("dbos")
    filters, handlers = logger.filters[:], logger.handlers[:]
    logger.filters.clear()
    quiet_engine_log()
    yield logger
    logger.filters[:], logger.handlers[:] = filters, handlers


@pytest.fixture
def said(engine: logging.Logger) -> Callable[[], list[str]]:
    """What comes out of it."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(logging.Formatter("%(message)s").format(record))

    engine.addHandler(Lines())
    return lambda: lines


def failed(url: str) -> None:
    """Fail in the database, with a value in the error's text."""
    with psycopg.connect(url) as connection:
        connection.execute("SELECT %s::text::integer", [VALUE])


@pytest.mark.parametrize("between", [" ", "\n"])
def test_a_record_that_is_a_traceback_names_the_error_and_its_place(
    engine: logging.Logger, said: Callable[[], list[str]], database: Database, between: str
) -> None:
    """As the engine's scheduler formats it."""
    try:
        failed(database.superuser_url)
    except psycopg.Error:
        engine.warning(f"Exception polling schedules:{between}{traceback.format_exc()}")
    (line,) = said()
    assert line.startswith("Exception polling schedules: psycopg.errors.InvalidText")
    assert ".py line " in line
    assert VALUE not in line
    assert "\n" not in line


def test_a_record_with_an_error_names_its_kind(
    engine: logging.Logger, said: Callable[[], list[str]], database: Database
) -> None:
    try:
        failed(database.superuser_url)
    except psycopg.Error:
        engine.error("Exception encountered in asynchronous workflow:", exc_info=sys.exc_info()[1])
    assert said() == ["Exception encountered in asynchronous workflow: (InvalidTextRepresentation)"]


def test_details_that_follow_the_first_line_are_left_out(
    engine: logging.Logger, said: Callable[[], list[str]]
) -> None:
    engine.warning("Exception in queue thread: (psycopg.Error) refused\nDETAIL: %s", VALUE)
    assert said() == ["Exception in queue thread: (psycopg.Error) refused"]


def test_one_place_is_heard_once_in_a_while(
    engine: logging.Logger, said: Callable[[], list[str]]
) -> None:
    for _ in range(5):
        engine.warning("again")
    engine.warning("another")
    assert said() == ["again", "another"]
