"""The auditor is audited: each planted bug is caught by the right rule, a sound broker by none.

Real processes, a real Postgres and the real target: one broker for the whole file, into which the
bugs come one after the other. The sound plays come first, so that one worker serves them all.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from effect_broker.proof.broker import ProofBroker
from effect_chaos.auditor import audit_folder, violations
from effect_chaos.planted.bugs import BUGS, Bug
from effect_chaos.planted.scenarios import SCENARIOS, play
from effect_chaos.planted.stage import Stage
from migrated import MIGRATED
from postgres import RunningServer, clone, drop_database, ensure_template

# Shorter than the default, so that a take-over costs less time; the ratios stay.
TTL_SECONDS = 2.0
BUG = pytest.mark.parametrize("bug", BUGS.values(), ids=lambda bug: bug.name)
# Bugs that one scenario brings to light: a sound broker has to play it once.
ALIKE = {SCENARIOS[name]: bug for name, bug in BUGS.items()}
RULES_OF = {
    scenario: {
        rule for name, bug in BUGS.items() if SCENARIOS[name] is scenario for rule in bug.rules
    }
    for scenario in ALIKE
}


@pytest.fixture(scope="module")
def stage(
    running_server: RunningServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    """A prepared broker without a worker yet."""
    database = clone(running_server, ensure_template(running_server, MIGRATED))
    environment = {"EFFECT_BROKER_HEARTBEAT_TTL_SECONDS": str(TTL_SECONDS)}
    directory = tmp_path_factory.mktemp("stage")
    with ProofBroker(
        directory, database.superuser_url, environment=environment, migrated=True
    ) as broker:
        stage = Stage(broker)
        stage.prepare()
        yield stage
    drop_database(running_server, database.name)


@pytest.mark.parametrize("bug", ALIKE.values(), ids=lambda bug: bug.name)
def test_the_sound_broker_is_not_accused(stage: Stage, bug: Bug, tmp_path: Path) -> None:
    verdicts = audit_folder(play(stage, bug, tmp_path, planted=False))
    assert [str(violation) for violation in violations(verdicts)] == []
    judging = {verdict.rule.name for verdict in verdicts if verdict.checked}
    assert judging.issuperset(RULES_OF[SCENARIOS[bug.name]]), "those that find the bugs have looked"


@BUG
def test_a_planted_bug_is_caught_by_its_rule(stage: Stage, bug: Bug, tmp_path: Path) -> None:
    found = violations(audit_folder(play(stage, bug, tmp_path, planted=True)))
    broken = {violation.rule for violation in found}
    assert broken.issuperset(bug.rules), [str(violation) for violation in found]


def _planted(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "effect_chaos.planted", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


def test_one_bug_is_planted_by_its_name() -> None:
    done = _planted("new_key", "worker", "--help")
    assert done.returncode == 0, done.stderr
    assert "worker" in done.stdout


def test_an_unknown_bug_is_refused_with_the_known_ones() -> None:
    done = _planted("new_kye", "worker")
    assert done.returncode == 1
    assert "new_key" in done.stderr
