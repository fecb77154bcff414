"""The frameworks, installed once per checkout and lock; each runs in processes of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from frameworks.running import NPM, PYTHON_LOCK
from real_targets.installation import node_packages, python_wheels

# The first test of a checkout installs, or waits for another worker that does.
TEST_SECONDS = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests of this folder the time that an installation takes."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


@pytest.fixture(scope="session")
def python() -> Path:
    """The interpreter with the frameworks from PyPI."""
    return python_wheels("frameworks", PYTHON_LOCK)


@pytest.fixture(scope="session")
def node_home() -> Path:
    """The directory with the engine that comes from npm."""
    return node_packages("frameworks-npm", NPM)
