"""Each alert fires on what it is about, once for all instances, and stays quiet on its neighbour.

Prometheus's own `promtool` reads the rules and evaluates them over series that are written here.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from repository.checkout import CHECKOUT
from tools import requires_tool

RULES = CHECKOUT / "deploy" / "prometheus" / "alerts.yml"
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Case:
    """A series on which an alert fires, and its neighbour on which it does not.

    Values are in promtool's notation, one a minute; `at` is in minutes.
    """

    fires: str
    values: str
    quiet: str
    quiet_values: str
    at: int = 5
    labels: dict[str, str] = field(default_factory=dict)


DOUBT = 'effect_broker_ledger_in_doubt_effects{tool="t", safety="%s", state="%s"}'
OLDEST = 'effect_broker_ledger_in_doubt_oldest_seconds{tool="t", safety="idempotent", state="%s"}'
FENCED = 'effect_broker_fenced_total{kind="%s"}'
LEFT = 'effect_broker_key_remaining_seconds_bucket{tool="t", le="%s"}'
TOOL = {"tool": "t"}
ONCE = "0 0 1x8"  # a counter that goes up once

CASES = {
    "EffectBrokerUnsafeUnknown": Case(
        DOUBT % ("unsafe", "outcome_unknown"), "1x9",
        DOUBT % ("idempotent", "outcome_unknown"), "1x9", labels=TOOL),
    "EffectBrokerUnknownTooOld": Case(
        OLDEST % "reconciling", "3500+60x20",
        OLDEST % "manual_review", "9000x20", at=15, labels=TOOL),
    "EffectBrokerReviewWaits": Case(
        DOUBT % ("idempotent", "manual_review"), "2x30",
        DOUBT % ("idempotent", "manual_review"), "2x3 0x27", at=20, labels=TOOL),
    "EffectBrokerTargetContradicts": Case(
        'effect_broker_alerts_total{alert="duplicate_detected"}', ONCE,
        'effect_broker_alerts_total{alert="duplicate_detected"}', "4x10",
        labels={"alert": "duplicate_detected"}),
    "EffectBrokerRetryAfterKeyExpiry": Case(
        "effect_broker_retries_after_key_expiry_total", ONCE,
        "effect_broker_retries_after_key_expiry_total", "1x10"),
    "EffectBrokerKeyRunsOut": Case(LEFT % "300.0", ONCE, LEFT % "900.0", ONCE, labels=TOOL),
    "EffectBrokerPayloadDrift": Case(
        "effect_broker_payload_conflicts_total", ONCE,
        "effect_broker_payload_conflicts_total", "7x10"),
    "EffectBrokerStaleWorker": Case(FENCED % "late_outcome", ONCE, FENCED % "guard", ONCE),
    "EffectBrokerGuardRefused": Case(FENCED % "guard", ONCE, FENCED % "late_outcome", ONCE),
    "EffectBrokerContractFrozen": Case(
        'effect_broker_ledger_holds{kind="frozen"}', "1x9",
        'effect_broker_ledger_holds{kind="paused"}', "1x9"),
    "EffectBrokerDispatchHalted": Case(
        "effect_broker_ledger_dispatch_halted", "1x9",
        "effect_broker_ledger_dispatch_halted", "0x9"),
    "EffectBrokerNoWorker": Case(
        'effect_broker_ledger_workers{state="live"}', "0x9",
        'effect_broker_ledger_workers{state="live"}', "0 1 0 1 0 1 0"),
    "EffectBrokerNothingMoves": Case(
        "effect_broker_ledger_due_oldest_seconds", "60+60x9",
        "effect_broker_ledger_due_oldest_seconds", "110x9", at=6),
    "EffectBrokerEventsLag": Case(
        "effect_broker_ledger_event_oldest_seconds", "900+60x15",
        "effect_broker_ledger_event_oldest_seconds", "890x15", at=8),
    "EffectBrokerSubscriptionPaused": Case(
        'effect_broker_event_deliveries_total{outcome="paused"}', ONCE,
        'effect_broker_event_deliveries_total{outcome="refused"}', ONCE),
    "EffectBrokerLeasesRunOut": Case(
        'effect_broker_lease_expirations_total{kind="run"}', "0+1x20",
        'effect_broker_lease_expirations_total{kind="run"}', "0 0 4x18", at=15,
        labels={"kind": "run"}),
    "EffectBrokerCommitsInDoubt": Case(
        'effect_broker_store_errors_total{kind="CommitUnknown"}', "0+1x20",
        'effect_broker_store_errors_total{kind="StoreBusy"}', "0+9x20", at=15),
    "EffectBrokerLedgerSilent": Case(
        "effect_broker_ledger_up", "0x9", "effect_broker_ledger_up", "1x9"),
}  # fmt: skip


def rules() -> dict[str, dict[str, Any]]:
    """The rules by the name of their alert."""
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def instances(series: str) -> list[str]:
    """The same series from two instances."""
    if "{" in series:
        return [series.replace("}", f', instance="{n}"}}') for n in "ab"]
    return [f'{series}{{instance="{n}"}}' for n in "ab"]


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [requires_tool("promtool"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def evaluated(
    place: Path, name: str, series: list[tuple[str, str]], at: int, expected: list[dict[str, Any]]
) -> None:
    """Evaluate the rules over series; what fires under the name must be what is expected."""
    groups = yaml.safe_load(RULES.read_text("utf-8"))
    for group in groups["groups"]:
        for rule in group["rules"]:
            del rule["annotations"]  # texts are for people; labels decide who hears of it
    (place / "rules.yml").write_text(yaml.safe_dump(groups))
    test = {
        "interval": "1m",
        "input_series": [{"series": one, "values": values} for one, values in series],
        "alert_rule_test": [{"eval_time": f"{at}m", "alertname": name, "exp_alerts": expected}],
    }
    told = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [test]}
    (place / "test.yml").write_text(yaml.safe_dump(told))
    result = promtool("test", "rules", place / "test.yml")
    assert result.returncode == 0, result.stdout + result.stderr


def test_promtool_reads_the_rules() -> None:
    result = promtool("check", "rules", RULES)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_alert_has_a_case_here() -> None:
    assert set(CASES) == set(rules())


@pytest.mark.parametrize("name", CASES)
def test_an_alert_fires_once_for_all_instances(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    series = [(one, case.values) for one in instances(case.fires)]
    labels = {**rules()[name]["labels"], **case.labels}
    evaluated(tmp_path, name, series, case.at, [{"exp_labels": labels}])


@pytest.mark.parametrize("name", CASES)
def test_an_alert_is_quiet_on_its_neighbour(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    series = [(one, case.quiet_values) for one in instances(case.quiet)]
    evaluated(tmp_path, name, series, case.at, [])


def test_without_any_api_the_silence_is_heard(tmp_path: Path) -> None:
    name = "EffectBrokerLedgerSilent"
    labels = rules()[name]["labels"]
    evaluated(tmp_path, name, [("up", "1x9")], 5, [{"exp_labels": labels}])


@pytest.mark.parametrize("name", CASES)
def test_an_alert_names_a_place_in_the_documentation(name: str) -> None:
    path, _, anchor = rules()[name]["annotations"]["runbook"].partition("#")
    headings = HEADING.findall((CHECKOUT / path).read_text("utf-8"))
    assert anchor in {anchor_of(heading) for heading in headings}


def anchor_of(heading: str) -> str:
    """The anchor that a heading gets where the page is shown."""
    kept = re.sub(r"[^\w\- ]", "", heading.lower())
    return kept.replace(" ", "-")
