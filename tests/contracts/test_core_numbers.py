"""What a contract leaves out: the documented numbers, in both places that hold them."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from effect_contracts.document import ContractDocument
from effect_contracts.facts import Facts, Policy, SafetyClass

# docs/contracts.md
DOCUMENTED = {
    "attempts_max": 3,
    "attempt_deadline_seconds": 30.0,
    "clock_margin_seconds": 0.5,
    "transit_seconds": 5.0,
    "key_retention_seconds": None,
    "settlement_bound_seconds": None,
    "backoff_initial_seconds": 1.0,
    "backoff_factor": 2.0,
    "backoff_cap_seconds": 300.0,
    "retry_after_cap_seconds": 3600.0,
    "in_progress_bound_seconds": 600.0,
    "replayed_errors_max": 2,
    "probes": False,
    "polls_operations": False,
    "probe_initial_seconds": 1.0,
    "probe_factor": 2.0,
    "probe_cap_seconds": 300.0,
    "probe_horizon_seconds": 86400.0,
    "approval_valid_seconds": None,
    "certificate": None,
    "limits": None,
    "awaits_caller": False,
    "lease_seconds_max": None,
}


def test_a_policy_of_nothing_but_a_class_has_the_documented_numbers() -> None:
    assert asdict(Policy(SafetyClass.UNSAFE)) == {"safety": SafetyClass.UNSAFE, **DOCUMENTED}


@pytest.mark.parametrize("safety", [SafetyClass.UNSAFE, SafetyClass.TRANSACTIONAL])
def test_a_contract_that_leaves_them_out_has_the_same(safety: SafetyClass) -> None:
    document = ContractDocument.parse_yaml(
        json.dumps(
            {
                "name": "least",
                "version": "1",
                "tool": "tool.least",
                "safety": safety.value,
                "account": "acct_1",
                "arguments": {"type": "object"},
                "adapter": {"kind": "simulated", "target": "ledger", "probes": False},
                "attempt_deadline_seconds": 30,
            }
        )
    )
    assert asdict(document.policy()) == {"safety": safety, **DOCUMENTED}


def test_an_effect_of_which_nothing_is_known_has_no_facts() -> None:
    known = {name: value for name, value in asdict(Facts()).items() if value}
    assert known == {}
