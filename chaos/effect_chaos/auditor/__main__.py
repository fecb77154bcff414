"""`python -m effect_chaos.auditor FOLDER`: a table of rules, and every violation.

Exit codes: 0 nothing is broken; 1 something is, or a rule has compared nothing although the
workload was sure to bring something for it; 2 the folder cannot be read.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from effect_chaos.auditor import audit_folder, idle, violations
from effect_chaos.auditor.verdicts import Verdict
from effect_chaos.records import RecordInvalid
from effect_contracts.counting import counted

SHOWN_PER_RULE = 10
"""The first ones tell what is wrong; a broken rule may be broken thousands of times."""


def table(verdicts: tuple[Verdict, ...]) -> str:
    """Return the rules with what they compared and what they found."""
    width = max(len(verdict.rule.name) for verdict in verdicts)
    lines = [f"{'rule':<{width}}  checked  broken  promise"]
    for verdict in verdicts:
        said = verdict.rule.promise if verdict.checked else "NOTHING CHECKED"
        lines.append(
            f"{verdict.rule.name:<{width}}  {verdict.checked:>7}  "
            f"{len(verdict.violations):>6}  {said}"
        )
    for verdict in verdicts:
        lines += [str(violation) for violation in verdict.violations[:SHOWN_PER_RULE]]
        more = len(verdict.violations) - SHOWN_PER_RULE
        if more > 0:
            lines.append(f"{verdict.rule.name}: … and {more} more")
    return "\n".join(lines)


def main() -> int:
    """Judge the folder that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m effect_chaos.auditor", description=__doc__)
    parser.add_argument("folder", type=Path, help="an evidence folder")
    folder: Path = parser.parse_args().folder
    try:
        verdicts = audit_folder(folder)
    except RecordInvalid as problem:
        print(f"cannot read the evidence: {problem}", file=sys.stderr)
        return 2
    broken = violations(verdicts)
    print(table(verdicts))
    if blind := [verdict.rule.name for verdict in verdicts if not verdict.checked]:
        print(f"nothing was checked by: {', '.join(blind)}")
    if owing := idle(verdicts):
        print(f"there was to be something for: {', '.join(owing)}")
    print(counted(len(broken), "violation") if broken else "no violation")
    return 1 if broken or owing else 0


if __name__ == "__main__":
    sys.exit(main())
