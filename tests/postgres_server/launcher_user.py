"""A process that uses an embedded server and obeys its parent, to be killed at any moment.

Run as a program with the state directory and the settings as its arguments. It takes one word per
line on its standard input, `start` or `stop`, and answers each with one line of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from effect_broker.postgres.embedded import EmbeddedPostgres


class LauncherUser:
    """The parent's side: a process that uses the server of a state directory."""

    def __init__(self, home: Path, **settings: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(home), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()

    def tell(self, word: str) -> None:
        """Give an order and do not wait."""
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        """The answer to the oldest order not yet answered."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the process ended without an answer"
        return json.loads(line)

    def ask(self, word: str) -> Any:
        """Give an order and wait for the answer."""
        self.tell(word)
        return self.hear()

    def kill(self) -> None:
        """End it as `kill -9` does."""
        self.process.kill()
        self.process.wait()


def _obey(home: str, settings: str) -> None:
    server = EmbeddedPostgres(Path(home), settings=json.loads(settings))
    for line in sys.stdin:
        answer: object = None
        if line.strip() == "start":
            answer = {"url": server.start(), "launched": server.launched}
        elif line.strip() == "stop":
            answer = server.stop()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _obey(*sys.argv[1:])
