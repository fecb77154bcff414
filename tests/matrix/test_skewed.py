"""A process with a moved wall clock has another date, and waits as long as any other."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from effect_broker.proof.skewed import skewed_environment, why_no_skew
from tools import could_not_run

PROGRAM = """
import time
from effect_broker.proof.skewed import repair_sleep
repair_sleep()
began = time.monotonic()
time.sleep(0.2)
print(time.time(), time.monotonic() - began)
"""


@pytest.mark.parametrize("seconds", [3600, -3600])
def test_only_the_date_is_wrong(seconds: int) -> None:
    reason = why_no_skew(seconds)
    if reason is not None:
        could_not_run(reason)
    shown = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **skewed_environment(seconds)},
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    date, waited = map(float, shown.stdout.split())
    assert abs(date - time.time() - seconds) < 90
    assert 0.2 <= waited < 60
