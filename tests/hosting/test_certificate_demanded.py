"""A contract that demands a certificate, over a running broker: no certificate, no request."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cli.commands import Cli, Ended
from effect_broker.keyring import ENV_KEY_RING_FILE
from effect_broker.proof.broker import wait_until
from effect_broker.proof.contracts import charge, tuned
from effect_contracts.certificate_settings import trials_of
from effect_contracts.document import ContractDocument
from hosting.scenes import MODES, Row, Scene

SETTLE_SECONDS = 60.0
KIND = "certified"


class Certifying:
    """An operator who certifies the contract of this module at its target."""

    def __init__(self, scene: Scene, directory: Path, cli: Cli) -> None:
        self._scene, self._directory, self._cli = scene, directory, cli
        document = tuned(
            "demo-charge-reconcilable",
            scene.broker.target.url,
            KIND,
            settlement_bound_seconds=1.5,
            probe={"initial_seconds": 0.3, "cap_seconds": 1.0, "horizon_seconds": 60.0},
            oversight={"certificate": {"trials": ["settlement_lag"]}},
        )
        self.document: ContractDocument = document
        scene.broker.apply(document)
        self.lag(0.2)

    def lag(self, seconds: float) -> None:
        """Let the target's look-ups show an object so late."""
        mode = MODES["reconcilable"]
        self._scene.broker.target.client.set_mode(KIND, mode, search_lag_seconds=seconds)

    def command(self, *words: str) -> Ended:
        """Run the command line, in this process: starting eight would take longer than the rest."""
        return self._cli(*words)

    def certify(self) -> dict[str, Any]:
        """Hold the trials; return the report."""
        contract, arguments = self._directory / "contract.yaml", self._directory / "order.json"
        contract.write_bytes(self.document.canonical())
        arguments.write_text(json.dumps(charge("on-trial")))
        ended = self.command(
            "contracts", "certify", str(contract), "--arguments", str(arguments),
            "--samples", "2", "--out", str(self._directory / "certificate.json"), "--json",
        )  # fmt: skip
        assert ended.code == 0, ended.err
        report: dict[str, Any] = ended.json
        return report

    def standing(self) -> list[bool]:
        """Whether each certificate counts, the newest first."""
        listed = self.command("contracts", "certificate", "list", "--json").json
        return [one["counts"] for one in listed]

    def doctor(self) -> str:
        """What doctor says of the contracts that demand a certificate."""
        found = {f["check"]: f for f in self.command("doctor", "--json").json["findings"]}
        return str(found["certificates_demanded"]["level"])

    def arrived(self, effect_id: str) -> int:
        """How many requests of this effect the target has seen; those of trials are not its."""
        key = self._scene.intent(effect_id)["downstream_key"]
        rows = self._scene.ledger(KIND).arrival_rows
        return sum(key in (r.downstream_key, r.correlation_key) for r in rows if r.mutating)


@pytest.fixture
def certifying(
    scene: Scene,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Certifying:
    """The administrator, who has the database's login and the key ring."""
    broker = scene.broker
    monkeypatch.setenv("EFFECT_BROKER_HOME", str(broker.directory))
    monkeypatch.setenv("EFFECT_BROKER_MIGRATE_DATABASE_URL", broker.superuser_url)
    monkeypatch.setenv(ENV_KEY_RING_FILE, str(broker.directory / "keyring.json"))
    return Certifying(scene, directory, Cli(monkeypatch, capsys))


def _is(scene: Scene, effect_id: str, state: str, reason: str) -> Row | None:
    effect = scene.broker.effect(effect_id)
    return effect if (effect["state"], effect["reason"]) == (state, reason) else None


def test_nothing_is_sent_without_a_certificate_and_a_lie_takes_it_away_again(
    scene: Scene, certifying: Certifying
) -> None:
    scene.ensure_workers(1)
    tool = certifying.document.tool

    def becomes(effect_id: str, state: str, reason: str) -> Row:
        seen = partial(_is, scene, effect_id, state, reason)
        return wait_until(seen, f"{state} ({reason})", SETTLE_SECONDS)

    first = scene.submit(tool, "1")
    held = becomes(first, "prepared", "awaiting_certificate")
    assert (held["waits_for_person"], held["attempts"]) == (True, [])
    assert scene.ledger(KIND).arrivals == 0
    listed = scene.broker.http.get("/v1/unresolved?reason=awaiting_certificate").json()
    assert [one["effect_id"] for one in listed["unresolved"]] == [first]

    assert certifying.doctor() == "warn"

    report = certifying.certify()
    assert {one["trial"] for one in report["trials"]} == trials_of(certifying.document)
    becomes(first, "succeeded", "committed")  # by itself
    assert certifying.arrived(first) == 1
    assert certifying.doctor() == "ok"

    # From now on the look-up shows an object long after the bound: a second one is made.
    certifying.lag(6.0)
    scene.broker.target.client.script("commit;FIN", kind=KIND)
    second = scene.submit(tool, "2")
    scene.wait_for(
        "the second object is counted",
        "SELECT true FROM effect_broker.effect_events"
        " WHERE effect_id = %s AND kind = 'duplicate_detected'",
        second,
    )
    assert certifying.arrived(second) == 2
    assert certifying.standing() == [False]

    third = scene.submit(tool, "3")
    becomes(third, "prepared", "frozen")
    (hold,) = certifying.command("holds", "list", "--json").json
    lift = ("holds", "lift", hold["hold_id"], "--reason", "the target was mended")
    assert certifying.command(*lift).code == 0
    becomes(third, "prepared", "awaiting_certificate")
    assert certifying.arrived(third) == 0

    # Trials that begin after the lie are another look at the target.
    certifying.lag(0.2)
    certifying.certify()
    assert certifying.standing() == [True, False]
    becomes(third, "succeeded", "committed")
    assert certifying.arrived(third) == 1
    trace = certifying.command("events", "export", "--out", str(scene.broker.directory / "trace"))
    assert trace.code == 0, trace.err
    assert certifying.command("events", "verify", str(scene.broker.directory / "trace")).code == 0
