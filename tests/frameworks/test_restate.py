"""Restate: which ids survive a retry and a request that is sent again."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from frameworks.running import Sightings, ran


def _server(node_home: Path) -> Path:
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    package = f"restate-server-{sys.platform}-{machine}"
    return node_home / "node_modules" / "@restatedev" / package / "bin" / "restate-server"


@pytest.fixture(scope="module")
def seen(python: Path, node_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Sightings:
    return ran(python, "restate", _server(node_home), tmp_path_factory.mktemp("restate"))


def test_a_retry_keeps_the_invocation_and_its_uuid(seen: Sightings) -> None:
    tries = seen.of("retry")
    assert len(tries) == 3
    assert tries.changing() == set()
    assert tries[0].keys["invocation"] == f"restate:{tries[0].ids['invocation_id']}:charge"


def test_a_request_that_is_sent_again_is_another_invocation(seen: Sightings) -> None:
    assert seen.of("sent_again").changing() == {"invocation_id", "uuid", "invocation"}


def test_with_an_idempotency_key_it_is_the_same_invocation_also_when_that_is_forgotten(
    seen: Sightings,
) -> None:
    answers = seen.of("answers_to_the_same_key")
    runs = seen.of("sent_again_with_a_key")
    # Two answers of one run; the third request came after the server had removed what it knew.
    assert (len(answers), len(runs)) == (2, 2)
    assert answers.stable() == {"invocation_id"}
    assert runs.changing() == set()
    assert runs[0].ids["invocation_id"] == answers[0].ids["invocation_id"]
