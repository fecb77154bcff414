"""Running the command line in tests: in this process where it is quick, and for real."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

import warm_start
from effect_broker.cli import main

COMMAND: list[str] = [sys.executable, "-m", "effect_broker"]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as the one JSON document that it has to be."""
        return json.loads(self.out)

    def refused(self, code: int = 1) -> str:
        """The text on standard error, which is for people: short, and no traceback."""
        assert self.code == code, (self.code, self.out, self.err)
        assert "Traceback" not in self.err
        assert "unexpected" not in self.err
        assert self.err.strip()
        assert all(c.isprintable() or c == "\n" for c in self.err), self.err
        return self.err


class Cli:
    """The command line in this process, with the boundary that turns errors into sentences."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: object, stdin: bytes = b"") -> Ended:
        self._capsys.readouterr()
        with self._monkeypatch.context() as patched:
            patched.setattr(sys, "argv", ["effect-broker", *map(str, arguments)])
            patched.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
            code: object = None
            try:
                main()
            except SystemExit as ended:
                code = ended.code
        assert isinstance(code, int | None)
        said = self._capsys.readouterr()
        return Ended(code or 0, said.out, said.err)


def run_for_real(
    environment: Mapping[str, str], *arguments: str, timeout_seconds: float = 60.0
) -> Ended:
    """Run a command in a process of its own, with this environment alone."""
    ended = warm_start.run(
        ["effect_broker", *arguments], environment, timeout_seconds=timeout_seconds
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)
