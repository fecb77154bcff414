"""Numbers agree with what they count: nothing prints "1 requests", and there is one way to it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from repository.checkout import Module, modules

# What is counted somewhere in a printed text.
NOUNS = (
    "arrivals", "attempts", "cells", "connections", "contracts", "deliveries", "effects", "events",
    "executors", "faults", "keys", "look-ups", "mutants", "objects", "operations", "payloads",
    "processes", "receipts", "requests", "runs", "schedules", "secrets", "states", "subscriptions",
    "tenants", "tests", "tools", "violations", "workers",
)  # fmt: skip
PLURAL = re.compile(rf" (?:(?!where)[a-z]+ )?(?:{'|'.join(NOUNS)})\b")
# Where it is said, there are two at least, or what stands before it is no number.
RIGHT = {
    "effect_broker.cli.checks: keys",
    "effect_broker.cli.desk: tenants",
    "effect_broker.cli.evidence_checks: secrets",
    "effect_broker.conformance: arrivals",
    "effect_chaos.auditor.caller_rules: different requests",
    "effect_chaos.auditor.caller_rules: operations",
    "effect_chaos.auditor.caller_rules: receipts",
    "effect_chaos.auditor.target_rules: effects",
    "effect_chaos.auditor.target_rules: keys",
    "effect_chaos.auditor.target_rules: requests",
}


def _plurals(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.JoinedStr):
            continue
        for number, text in zip(node.values, node.values[1:], strict=False):
            if not isinstance(number, ast.FormattedValue) or not isinstance(text, ast.Constant):
                continue
            constant = isinstance(number.value, ast.Name) and number.value.id.isupper()
            found = PLURAL.match(str(text.value))
            if found and not constant:
                yield f"{module.name}:{found[0]}"


def test_a_number_agrees_with_what_it_counts() -> None:
    shipped = [m for m in modules() if m.name.split(".")[0] in {"effect_broker", "effect_chaos"}]
    assert len(shipped) > 100
    assert {place for module in shipped for place in _plurals(module)} == RIGHT
