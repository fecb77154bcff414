"""``python -m effect_broker.proof.cluster --home DIR``: a Postgres to be crashed, as a process.

For proofs that stand outside and import nothing of the broker: they speak to it by lines. It
prints ``cluster ready at URL`` (the superuser's), then obeys one word for each line of its input
and answers each with one line, ``done`` or ``failed: …``:

    crash     end the server as a power cut would; everything not on the disk is gone
    halt      end it in good order under all who use it
    start     start it, or find it running; the URL stays the same
    ledger    make the demo's ledger (schema effect_broker_demo) in the migrated database

When its input ends, so does the server: a proof that is killed leaves nothing running.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TextIO

from effect_broker.postgres.embedded import EmbeddedPostgres, EmbeddedPostgresError
from effect_broker.protocol.ports import StoreError
from effect_broker.store import demo_ledger


def serve(server: EmbeddedPostgres, lines: Iterable[str], out: TextIO) -> None:
    """Obey the lines until they end."""
    commands: dict[str, Callable[[], object]] = {
        "crash": lambda: server.halt("immediate"),
        "halt": lambda: server.halt("fast"),
        "start": server.start,
        "ledger": lambda: demo_ledger.create(server.url),
    }
    for line in lines:
        command = commands.get(line.strip())
        try:
            if command is None:
                raise EmbeddedPostgresError(f"the commands are {', '.join(commands)}")
            command()
        except (EmbeddedPostgresError, StoreError) as problem:
            print(f"failed: {' '.join(str(problem).split())}", file=out, flush=True)
        else:
            print("done", file=out, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Run a server until the input ends; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m effect_broker.proof.cluster")
    parser.add_argument("--home", type=Path, required=True, help="its state directory")
    home = parser.parse_args(arguments).home
    # The terminal's Ctrl-C reaches the whole group: who uses the server ends first, then the input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with EmbeddedPostgres(home) as server:
        print(f"cluster ready at {server.url}", flush=True)
        serve(server, sys.stdin, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
