"""Rules and dashboard ask for what the processes really tell, by name and by label."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from hosting.scenes import Scene
from observability.pages import Page, api, page_of
from observability.test_processes import module_database, scene
from repository.checkout import CHECKOUT

__all__ = ["module_database", "scene"]

RULES = CHECKOUT / "deploy" / "prometheus" / "alerts.yml"
DASHBOARD = CHECKOUT / "deploy" / "grafana" / "effect-broker.json"
SELECTOR = re.compile(r"(effect_broker_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"')
GROUPING = re.compile(r"by \(([^)]*)\)")
# Prometheus gives it to every series.
OF_THE_SCRAPER = {"instance"}


def rule_queries() -> list[str]:
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text("utf-8"))
    return found


def panel_queries() -> list[str]:
    found = [t["expr"] for panel in dashboard()["panels"] for t in panel.get("targets", ())]
    found += [
        v["query"]["query"] for v in dashboard()["templating"]["list"] if v["type"] == "query"
    ]
    return found


def selectors(queries: list[str]) -> Iterator[tuple[str, set[str]]]:
    """Each metric that is asked for, with the labels that are asked of it."""
    for query in queries:
        grouped = {label.strip() for found in GROUPING.findall(query) for label in found.split(",")}
        for name, matchers in SELECTOR.findall(query):
            yield name, {*MATCHER.findall(matchers), *grouped} - OF_THE_SCRAPER


@pytest.fixture(scope="module")
def told(scene: Scene) -> dict[str, set[str]]:
    """What an API, a worker and their ledger tell after some effects: labels by name."""
    scene.start_workers(1)
    for kind, safety, plan in (
        ("named", "idempotent", "status(429, {})"),
        ("probed", "reconcilable", "commit;RST"),
        ("lost", "unsafe", "commit;RST"),
    ):
        tool = scene.offer(kind, safety)
        scene.broker.target.client.script(plan, kind=kind)
        scene.broker.settled(scene.submit(tool, "o1"))
    scene.broker.submit("named:unknown", "no.such.tool", {})
    labels: dict[str, set[str]] = {}
    for page in (page_of(api(scene)), page_of(scene.workers[0])):
        for name, found in labels_of(page):
            labels.setdefault(name, set()).update(found)
    return labels


def labels_of(page: Page) -> Iterator[tuple[str, set[str]]]:
    for sample in page.samples:
        yield sample.name, set(sample.labels)


@pytest.mark.parametrize("queries", [rule_queries(), panel_queries()], ids=["rules", "dashboard"])
def test_what_is_asked_for_is_told(told: dict[str, set[str]], queries: list[str]) -> None:
    asked = list(selectors(queries))
    assert len(asked) >= len(queries)
    assert {name for name, _ in asked} - told.keys() == set()
    strange = [(name, sorted(labels - told[name])) for name, labels in asked]
    assert [(name, labels) for name, labels in strange if labels] == []


def test_a_name_that_nobody_tells_would_be_found() -> None:
    ((name, labels),) = selectors(['sum by (tool) (rate(effect_broker_nothing{kind="x"}[1m]))'])
    assert (name, labels) == ("effect_broker_nothing", {"tool", "kind"})


def test_what_alerts_look_at_is_on_the_dashboard_too() -> None:
    shown = {name for name, _ in selectors(panel_queries())}
    assert {name for name, _ in selectors(rule_queries())} <= shown


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in dashboard()["panels"]}) == len(dashboard()["panels"])
