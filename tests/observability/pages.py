"""Reading pages of metrics: with Prometheus's own parser, so that what is read is well formed."""

from __future__ import annotations

import re
from collections.abc import Mapping

import httpx
from prometheus_client.parser import text_string_to_metric_families

from effect_broker.proof.broker import wait_until
from effect_broker.proof.stack import ManagedProcess
from hosting.scenes import Scene

LISTENS = re.compile(r"metrics on port (\d+)")


class Page:
    """One scrape."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families = list(text_string_to_metric_families(text))
        self.samples = [sample for family in self.families for sample in family.samples]

    @property
    def names(self) -> set[str]:
        """The names of all samples."""
        return {sample.name for sample in self.samples}

    def value(self, name: str, /, **labels: str) -> float:
        """The sum of the samples of a name with these labels, among others; 0 without any."""
        return sum(self.values(name, **labels))

    def values(self, name: str, /, **labels: str) -> list[float]:
        """The samples of a name with these labels, among others."""
        full = f"effect_broker_{name}"
        return [
            sample.value
            for sample in self.samples
            if sample.name == full and _within(labels, sample.labels)
        ]

    def labels(self, label: str) -> set[str]:
        """All values of a label."""
        return {sample.labels[label] for sample in self.samples if label in sample.labels}


def page_of(process: ManagedProcess) -> Page:
    """Scrape a process on the port that its log names."""
    found = wait_until(lambda: LISTENS.search(process.log.read_text()), "the port of the metrics")
    answer = httpx.get(f"http://127.0.0.1:{found[1]}/metrics", trust_env=False)
    assert answer.status_code == 200
    return Page(answer.text)


def api(scene: Scene) -> ManagedProcess:
    """The API's process."""
    return next(p for p in scene.broker.stack._processes if p.name.startswith("serve"))


def _within(wanted: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return all(labels.get(name) == value for name, value in wanted.items())
