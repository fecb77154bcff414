"""The independent auditor: judges an evidence folder, and believes callers and target only.

It imports nothing of the product. What a run was allowed to do stands in its operations; what
happened is what callers were answered and what the target's own ledger holds. Each rule counts
what it has compared, since a rule that compared nothing has proved nothing.
"""

from __future__ import annotations

from pathlib import Path

from effect_chaos.auditor.caller_rules import CALLER_RULES
from effect_chaos.auditor.case import Case
from effect_chaos.auditor.target_rules import TARGET_RULES
from effect_chaos.auditor.verdicts import Rule, Verdict, Violation, judged
from effect_chaos.records import Evidence, read

__all__ = ["RULES", "Rule", "Verdict", "Violation", "audit", "audit_folder", "idle", "violations"]

RULES: tuple[Rule, ...] = (*CALLER_RULES, *TARGET_RULES)


def audit(evidence: Evidence) -> tuple[Verdict, ...]:
    """Apply every rule, in order."""
    case = Case(evidence)
    return tuple(judged(rule, case) for rule in RULES)


def audit_folder(folder: Path) -> tuple[Verdict, ...]:
    """Read a folder and apply every rule.

    Raises:
        effect_chaos.records.RecordInvalid: the folder cannot be read.
    """
    return audit(read(folder))


def idle(verdicts: tuple[Verdict, ...]) -> tuple[str, ...]:
    """The rules that had to compare something, and did not."""
    return tuple(verdict.rule.name for verdict in verdicts if verdict.idle)


def violations(verdicts: tuple[Verdict, ...]) -> tuple[Violation, ...]:
    """Every broken promise."""
    return tuple(violation for verdict in verdicts for violation in verdict.violations)
