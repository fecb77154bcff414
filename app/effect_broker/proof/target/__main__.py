"""``python -m effect_broker.proof.target``: the target as a process of its own."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import cast, get_args

from effect_broker.proof.target.modes import KIND, Mode, ModeName
from effect_broker.proof.target.server import run


def _mode(text: str) -> tuple[str, Mode]:
    kind, _, name = text.partition("=")
    if KIND.fullmatch(kind) is None or name not in get_args(ModeName):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not KIND=MODE; the modes are {', '.join(get_args(ModeName))}"
        )
    return kind, Mode(mode=cast(ModeName, name))


def main(arguments: list[str] | None = None) -> int:
    """Parse the arguments and serve; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m effect_broker.proof.target",
        description="A small HTTP service with a ledger of its own, that fails as it is told to.",
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free port")
    parser.add_argument("--ledger", type=Path, required=True, help="the SQLite file")
    parser.add_argument("--mode", type=_mode, action="append", default=[], metavar="KIND=MODE")
    given = parser.parse_args(arguments)
    return run(given.host, given.port, given.ledger, modes=dict(given.mode))


if __name__ == "__main__":
    sys.exit(main())
