"""The session: every result of every run, so that the next run goes on where the last one ended.

A file of JSON lines in a folder that is not committed, only ever appended to. A result is used
again only while what it rests on is unchanged: the text of the mutated module, and for a kill the
text of the file whose test killed; for a survivor the text of all tests that met it. So tests that
were added meet the survivors only, and a module that was changed starts anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

FOLDER: Final = ".mutation"
_FILE: Final = "session.jsonl"


class Status(StrEnum):
    """What became of a mutant."""

    KILLED = "killed"
    SURVIVED = "survived"
    TIMED_OUT = "timed_out"


@dataclass(frozen=True, slots=True)
class Result:
    """One mutant's fate.

    Attributes:
        module: the dotted name of the module.
        place: the operator and its occurrence.
        source: SHA-256 of the module's text without the bug.
        status: what became of it.
        tests: what the result rests on: SHA-256 of the killing test's file, or of the whole suite.
        killer: the test that failed; the file that could not be imported; None for a survivor.
        seconds: how long the tests took, in wall time.
    """

    module: str
    place: str
    source: str
    status: Status
    tests: str
    killer: str | None
    seconds: float


class Session:
    """The results so far; `add` makes one durable before it returns."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / _FILE
        self._found: dict[tuple[str, str, str], Result] = {}
        if self._path.exists():
            for line in self._path.read_text("utf-8").splitlines():
                if result := _parsed(line):
                    self._keep(result)

    def add(self, result: Result) -> None:
        """Remember one more."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(result)) + "\n")
        self._keep(result)

    def find(self, module: str, place: str, source: str, texts: Texts) -> Result | None:
        """Return the result of that mutant, if what it rests on has not changed."""
        found = self._found.get((module, place, source))
        return found if found is not None and texts.still(found) else None

    def baseline(self, module: str, key: str) -> dict[str, Any] | None:
        """Return what `keep_baseline` was given for the module under the same key."""
        try:
            kept = json.loads((self._folder / f"{module}.json").read_text("utf-8"))
            found: dict[str, Any] | None = kept["told"] if kept["key"] == key else None
        except (OSError, ValueError, KeyError):
            return None
        return found

    def keep_baseline(self, module: str, key: str, told: Mapping[str, Any]) -> None:
        """Keep what the tests of the module have told without a bug; `key` says of which texts."""
        self._folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"key": key, "told": told})
        (self._folder / f"{module}.json").write_text(text, "utf-8")

    def _keep(self, result: Result) -> None:
        self._found[result.module, result.place, result.source] = result


class Texts:
    """The texts of one module's tests as they are now."""

    def __init__(self, checkout: Path, tests: Iterable[str]) -> None:
        self._checkout = checkout
        self._digests: dict[str, str] = {}
        self.suite = _digest(self.of(test) for test in tests)

    def of(self, test: str) -> str:
        """Return SHA-256 of the file of that test (its id begins with the file)."""
        name = test.partition("::")[0]
        if name not in self._digests:
            path = self._checkout / name
            text = path.read_bytes() if path.is_file() else b""
            self._digests[name] = hashlib.sha256(text).hexdigest()
        return self._digests[name]

    def still(self, result: Result) -> bool:
        """Whether what the result rests on is unchanged."""
        return result.tests == self.rests_on(result.killer)

    def rests_on(self, killer: str | None) -> str:
        """Return what a result rests on: the killer's file, or without a killer the suite."""
        return self.suite if killer is None else self.of(killer)


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _parsed(line: str) -> Result | None:
    """A line that a killed run has cut off is no result; its mutant is met again."""
    try:
        fields = json.loads(line)
        return Result(**{**fields, "status": Status(fields["status"])})
    except (ValueError, TypeError, KeyError):
        return None
