"""`make audit` fails for what it finds, and says so when nobody could be asked."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

AUDIT = Path(__file__).parents[2] / ".ci" / "audit"


@pytest.mark.parametrize(
    ("program", "code", "text"),
    [
        ("exit 0", 0, "no locked release has a known vulnerability"),
        ('echo "thing 1.0 CVE-1 1.1" > "$OUT"; exit 1', 1, "CVE-1"),
        ('echo "ConnectionError: no route" >&2; exit 1', 0, "NOT DONE"),
        ('echo "no such option" >&2; exit 2', 0, "NOT DONE"),
    ],
)
def test_what_is_found_fails_and_a_service_that_is_away_does_not(
    tmp_path: Path, program: str, code: int, text: str
) -> None:
    """The auditor itself is replaced here: what it would find is not ours to decide."""
    auditor = tmp_path / "pip-audit"
    auditor.write_text(
        '#!/bin/sh\nwhile [ $# -gt 0 ]; do [ "$1" = --output ] && OUT="$2"; shift; done\n'
        f"{program}\n"
    )
    auditor.chmod(0o755)
    ended = subprocess.run([AUDIT, auditor], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, text in ended.stdout) == (code, True), ended
