"""Real callers, killed by SIGKILL at every boundary; the target's own ledger counts.

All stories run at once, over one worker, one target and one database; the tests read what came of
them. A caller that is killed says nothing any more: what it leaves is its lease.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from effect_broker.proof.broker import ProofBroker, wait_until
from effect_broker.proof.contracts import charge, tuned
from effect_broker.store.roles import DatabaseRole
from effect_contracts.document import ContractDocument
from effect_contracts.keys import effect_id
from hosting.scenes import MODES, Scene
from performing.conftest import checked_log
from postgres import RunningServer, clone, drop_database

HERE = Path(__file__).parent
ENDS = ("elected", "called", "confirmed")
SAFETIES = ("idempotent", "reconcilable", "unsafe")
# How callers reach the broker: directly on Postgres, or an API process over HTTP.
WAYS = ("direct", "http")
# Long enough for a caller on a busy machine to get from its election to its end.
LEASE_SECONDS = 5.0


def contract(origin: str, kind: str, safety: str, **adapter: Any) -> ContractDocument:
    """The demo's charge, performed by its caller; with `http` a worker may send it as well."""
    base = json.loads(tuned(f"demo-charge-{safety}", origin, kind).canonical())
    base["attempt_deadline_seconds"] = LEASE_SECONDS
    if safety == "reconcilable":
        base["settlement_bound_seconds"] = 0.5
        adapter = {"probe": "charge_by_key", **adapter}
    http = base["adapter"]
    if adapter.pop("by_workers", False):
        adapter["http"] = http
    base["adapter"] = {"kind": "caller", "target": "demo.target", **adapter}
    return ContractDocument.parse_yaml(json.dumps(base))


@dataclass
class Stories:
    """What callers have done, and what became of it."""

    scene: Scene
    api_key: str
    directory: Path

    @property
    def broker(self) -> ProofBroker:
        return self.scene.broker

    def job(
        self, name: str, *kinds: str, end: str | None = None, way: str = "direct"
    ) -> dict[str, Any]:
        """The job of one caller on the effects of these kinds."""
        return {
            "api": str(self.broker.http.base_url) if way == "http" else None,
            "url": self.broker.url(DatabaseRole.API),
            "api_key": self.api_key,
            "key_ring": str(self.directory / "keyring.json"),
            "end": end,
            "pid": str(self.directory / f"{name}.{way}.pid"),
            "performs": [
                {
                    "tool": f"proof.{kind}",
                    "key": f"charge:{kind}",
                    "arguments": charge(kind),
                    "target": f"{self.broker.target.url}/objects/{kind}",
                    "seen": str(self.directory / f"{kind}.{name}"),
                }
                for kind in kinds
            ],
        }

    def run(self, *jobs: dict[str, Any]) -> None:
        """Let the callers run, one after the other, until the last one has ended or stopped."""
        environment = os.environ | {"PYTHONPATH": str(HERE.parent)}
        command = [sys.executable, str(HERE / "caller.py"), json.dumps(jobs)]
        subprocess.run(command, check=True, env=environment)

    def second(self, safety: str, end: str, reason: str) -> list[str]:
        """Let another caller come, by each way, once the first one's effect stands for a reason."""
        ways = {way: kind_of(safety, end, way) for way in WAYS}
        for kind in ways.values():
            self.standing(kind, reason)
        self.run(*(self.job("second", kind, way=way) for way, kind in ways.items()))
        return list(ways.values())

    def seen(self, kind: str, name: str) -> dict[str, Any]:
        """What a caller has written before it ended."""
        return dict(json.loads((self.directory / f"{kind}.{name}").read_text()))

    def effect(self, kind: str) -> dict[str, Any]:
        """The effect's row."""
        key = effect_id_of(self, kind)
        (row,) = self.scene.rows(
            "SELECT i.*, r.content::json->>'source' AS source,"
            " (SELECT count(*) FROM effect_broker.effect_attempts AS a"
            "  WHERE a.effect_id = i.effect_id) AS attempts"
            " FROM effect_broker.effect_intents AS i"
            " LEFT JOIN effect_broker.effect_receipts AS r USING (effect_id)"
            " WHERE i.effect_id = %s",
            [key],
        )
        return row

    def standing(self, kind: str, *reasons: str) -> dict[str, Any]:
        """Wait until the effect stands for one of these reasons."""

        def seen() -> dict[str, Any] | None:
            row = self.effect(kind)
            return row if row["reason"] in reasons else None

        return wait_until(seen, f"{kind} stands as {reasons}", 30.0)


def kind_of(safety: str, end: str, way: str) -> str:
    return f"{safety}_{end}" if way == "direct" else f"{safety}_{end}_{way}"


def effect_id_of(stories: Stories, kind: str) -> str:
    from uuid import UUID

    return str(effect_id(UUID(stories.broker.tenant_id), f"charge:{kind}"))


@pytest.fixture(scope="module")
def stories(
    running_server: RunningServer, template_name: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stories]:
    """Every story up to where a second caller would come."""
    database = clone(running_server, template_name)
    directory = tmp_path_factory.mktemp("callers")
    broker = ProofBroker(directory, database.superuser_url, migrated=True)
    with broker, Scene(broker) as scene:
        broker.prepare()
        made = Stories(scene, broker.add_tenant("callers"), directory)
        broker.start_api()
        documents = []
        for safety, end, way in product(SAFETIES, ENDS, WAYS):
            kind = kind_of(safety, end, way)
            broker.target.client.set_mode(kind, MODES[safety])
            by_workers = safety == "idempotent"
            documents.append(contract(broker.target.url, kind, safety, by_workers=by_workers))
        broker.target.client.set_mode("zombie", MODES["idempotent"])
        documents.append(contract(broker.target.url, "zombie", "idempotent"))
        broker.apply(*documents)
        scene.start_workers(
            1,
            PYTHONPATH=str(HERE),
            EFFECT_BROKER_PROBES="target_probes:PROBES",
            PROBED_TARGET=broker.target.url,
        )
        made.run(
            made.job("first", "zombie", end="stopped"),
            *(
                made.job(end, *(kind_of(one, end, way) for one in SAFETIES), end=end, way=way)
                for end, way in product(ENDS, WAYS)
            ),
        )
        yield made
        if not (directory / "zombie.first").exists():
            os.kill(int((directory / "first.direct.pid").read_text()), signal.SIGKILL)
        assert checked_log(broker.url(DatabaseRole.WORKER)) == []
    drop_database(running_server, database.name)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("safety", SAFETIES)
def test_a_caller_killed_after_its_confirm_has_performed_it_once(
    stories: Stories, safety: str, way: str
) -> None:
    kind = kind_of(safety, "confirmed", way)
    effect = stories.standing(kind, "committed")
    assert (effect["state"], effect["source"], effect["attempts"]) == ("succeeded", "response", 1)
    counts = stories.scene.ledger(kind)
    assert (counts.arrivals, counts.effects) == (1, 1)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("end", "arrivals"), [("elected", 1), ("called", 2)])
def test_a_worker_sends_an_idempotent_effect_again_with_the_callers_key(
    stories: Stories, end: str, arrivals: int, way: str
) -> None:
    kind = kind_of("idempotent", end, way)
    effect = stories.standing(kind, "committed")
    assert (effect["state"], effect["attempts"]) == ("succeeded", 2)
    counts = stories.scene.ledger(kind)
    assert (counts.arrivals, counts.effects) == (arrivals, 1)
    assert {row.downstream_key for row in counts.arrival_rows} == {effect["downstream_key"]}


def test_a_probe_finds_what_a_killed_caller_has_done(stories: Stories) -> None:
    for kind in stories.second("reconcilable", "called", "committed"):
        effect = stories.effect(kind)
        assert (effect["state"], effect["source"], effect["attempts"]) == ("succeeded", "probe", 1)
        assert stories.seen(kind, "second") == {
            "elected": False, "outcome": "Performed", "replayed": True,
        }  # fmt: skip
        counts = stories.scene.ledger(kind)
        assert (counts.arrivals, counts.effects) == (1, 1)


def test_after_the_proof_of_absence_the_next_caller_performs_it(stories: Stories) -> None:
    kinds = [kind_of("reconcilable", "elected", way) for way in WAYS]
    for kind in kinds:
        effect = stories.standing(kind, "awaiting_caller")
        assert effect["state"] == "retryable"
        assert stories.scene.ledger(kind).effects == 0
    stories.second("reconcilable", "elected", "awaiting_caller")
    for kind in kinds:
        assert stories.seen(kind, "second")["elected"] is True
        assert stories.effect(kind)["state"] == "succeeded"
        counts = stories.scene.ledger(kind)
        assert (counts.arrivals, counts.effects) == (1, 1)


@pytest.mark.parametrize(("end", "effects"), [("elected", 0), ("called", 1)])
def test_an_unsafe_effect_is_never_performed_again(
    stories: Stories, end: str, effects: int
) -> None:
    for kind in stories.second("unsafe", end, "outcome_unknown"):
        effect = stories.effect(kind)
        assert (effect["state"], effect["parked"]) == ("outcome_unknown", True)
        assert stories.seen(kind, "second") == {
            "elected": False, "outcome": "Unknown", "replayed": None,
        }  # fmt: skip
        counts = stories.scene.ledger(kind)
        assert (counts.arrivals, counts.effects) == (effects, effects)


def test_a_paused_caller_that_comes_back_settles_nothing_and_is_recorded(
    stories: Stories,
) -> None:
    stories.standing("zombie", "awaiting_caller")
    stories.run(stories.job("second", "zombie"))
    assert stories.seen("zombie", "second")["elected"] is True
    os.kill(int((stories.directory / "first.direct.pid").read_text()), signal.SIGCONT)
    wait_until(
        lambda: True if (stories.directory / "zombie.first").exists() else None, "zombie ended"
    )
    first = stories.seen("zombie", "first")
    assert first == {"error": "ElectionLost", "state": "succeeded"}
    events = stories.scene.rows(
        "SELECT kind FROM effect_broker.effect_events WHERE effect_id = %s ORDER BY sequence",
        [effect_id_of(stories, "zombie")],
    )
    assert [row["kind"] for row in events][-2:] == ["outcome_recorded", "late_fact"]
    counts = stories.scene.ledger("zombie")
    assert (counts.arrivals, counts.effects) == (2, 1)
