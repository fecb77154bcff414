"""`python -m effect_chaos.planted BUG worker|serve …`: the command line, with one bug in it.

With `chosen` for BUG every bug is there, and the file that EFFECT_CHAOS_BUG_FILE names says which
one is on; an empty file is none.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from effect_broker.cli import main as command_line
from effect_chaos.planted.bugs import BUGS
from effect_chaos.planted.patching import CHOSEN, ENV_BUG_FILE, only_while_chosen


def main() -> None:
    """Plant what the first argument names, then run the rest as `effect-broker` does."""
    if len(sys.argv) < 3 or sys.argv[1] not in (CHOSEN, *BUGS):
        known = ", ".join((CHOSEN, *BUGS))
        sys.exit(f"usage: python -m effect_chaos.planted BUG COMMAND …; bugs: {known}")
    if sys.argv[1] == CHOSEN:
        for bug in BUGS.values():
            with only_while_chosen(bug.name, Path(os.environ[ENV_BUG_FILE])):
                bug.plant()
    else:
        BUGS[sys.argv[1]].plant()
    sys.argv = ["effect-broker", *sys.argv[2:]]
    command_line()


if __name__ == "__main__":
    main()
