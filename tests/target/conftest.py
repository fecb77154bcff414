"""One target process for all tests of this directory, empty at the start of each."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from effect_broker.proof.target.client import TargetClient
from effect_broker.proof.target.process import TargetProcess


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetProcess]:
    with TargetProcess(tmp_path_factory.mktemp("target") / "ledger.db") as process:
        yield process


@pytest.fixture
def target(running: TargetProcess) -> TargetClient:
    """The control of an empty target."""
    running.client.reset()
    return running.client


@pytest.fixture(scope="session")
def http(running: TargetProcess) -> Iterator[httpx.Client]:
    """A client that sends what it is told to: a fresh connection each time, no redirects."""
    limits = httpx.Limits(max_keepalive_connections=0)
    with httpx.Client(base_url=running.url, timeout=10, trust_env=False, limits=limits) as client:
        yield client


@pytest.fixture
def wire(running: TargetProcess) -> Iterator[socket.socket]:
    """A bare connection to the target."""
    parts = urlsplit(running.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as connection:
        yield connection
