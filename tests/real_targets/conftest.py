"""The real targets for tests: installed once, started anew and empty for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from real_targets.installation import node_targets, python_targets
from real_targets.programs import Localstripe, Radicale, StripeMock
from tools import requires_tool

# The first test of a checkout installs, or waits for another worker that does.
TEST_SECONDS = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests of this folder the time that an installation takes."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


@pytest.fixture(scope="session")
def node_home() -> Path:
    """The directory with the npm targets."""
    return node_targets()


@pytest.fixture(scope="session")
def python_home() -> Path:
    """The interpreter with the PyPI targets."""
    return python_targets()


@pytest.fixture
def stripe_mock(
    node_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StripeMock]:
    """stripe-stateful-mock without a charge."""
    monkeypatch.setenv("EFFECT_BROKER_SECRET_STRIPE", StripeMock.SECRET)
    with StripeMock(tmp_path, requires_tool("node"), node_home) as target:
        yield target


@pytest.fixture
def radicale(
    python_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Radicale]:
    """Radicale with one empty calendar."""
    monkeypatch.setenv("EFFECT_BROKER_SECRET_CALDAV", Radicale.SECRET)
    with Radicale(tmp_path, python_home) as target:
        target.make_calendar()
        yield target


@pytest.fixture
def localstripe(
    python_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Localstripe]:
    """localstripe without a payout."""
    monkeypatch.setenv("EFFECT_BROKER_SECRET_LOCALSTRIPE", Localstripe.SECRET)
    with Localstripe(tmp_path, python_home) as target:
        yield target
