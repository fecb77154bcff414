"""A worker has a descriptor for each effect that it sends, or takes fewer effects."""

from __future__ import annotations

import subprocess
import sys

from effect_broker.open_files import BESIDE

# In a process of its own: who has lowered a hard limit does not get it back.
PROGRAM = """
import resource, sys
from effect_broker.open_files import slots

soft, hard, wanted = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(slots(wanted), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def limited(soft: int, hard: int, wanted: int) -> tuple[int, int, str]:
    """Return the slots, the soft limit afterwards, and what was logged."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(soft), str(hard), str(wanted)],
        capture_output=True,
        text=True,
        check=True,
    )
    slots, files = done.stdout.split()
    return int(slots), int(files), done.stderr


def test_a_soft_limit_that_is_too_low_is_raised_to_what_the_slots_need() -> None:
    assert limited(1024, 4096, 1000) == (1000, 1000 + BESIDE, "")


def test_a_limit_that_is_high_enough_is_left_as_it_is() -> None:
    assert limited(1024, 4096, 400) == (400, 1024, "")


def test_slots_without_a_descriptor_are_not_taken_and_the_log_says_so() -> None:
    slots, files, logged = limited(512, 1024, 1000)
    assert (slots, files) == (1024 - BESIDE, 1024)
    assert "1000 effects in flight are configured" in logged
    assert limited(64, 64, 400)[0] == 1
