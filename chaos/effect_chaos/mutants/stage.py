"""Copies of the checkout, and a fork server in each: what the mutants are planted into.

The checkout is read once and never written. Each lane has a copy of its own, so two mutants never
meet, and what others do to the checkout meanwhile changes nothing.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

SOURCE_ROOTS: Final = ("app", "contracts", "adapters", "chaos")
_COPIED: Final = (*SOURCE_ROOTS, "tests", "bench", "docs", ".github", ".ci")
# Packages whose modules may be imported before the fork; what tests share is read by pytest.
_PACKAGES: Final = frozenset({"effect_contracts", "effect_adapters", "effect_broker"})
_BASELINE_WALL_SECONDS: Final = 1800.0


class StageFailed(Exception):
    """The tests cannot be run as they are, or a lane has gone; the message says what it said."""


class Stage:
    """A folder with the copies. Leaving the context ends the lanes and removes it."""

    def __init__(self, checkout: Path, lanes: int) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="effect-broker-mutants-"))
        try:
            places = [self._folder / f"lane-{number}" for number in range(1, lanes + 1)]
            _copy(checkout, places[0])
            for place in places[1:]:
                _copy(places[0], place)  # of the copy: all lanes see the same moment
            self.lanes = [Lane(place) for place in places]
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    @property
    def tree(self) -> Path:
        """The first copy: the checkout as it was at the start. Read it before anything is tried."""
        return self.lanes[0].tree

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        for lane in self.lanes:
            lane.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class Lane:
    """One copy and its fork server."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        # Before the environment's own entries, which lead to the checkout.
        path = [str(tree / root) for root in SOURCE_ROOTS if (tree / root).is_dir()]
        if "effect_chaos" not in {p.name for p in (tree / "chaos").glob("*")}:
            path.append(str(Path(__file__).parents[2]))
        self._path = os.pathsep.join(path)
        self._process = self._served()

    def _served(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "effect_chaos.mutants.lane"],
            cwd=self.tree,
            env={**os.environ, "PYTHONPATH": self._path, "PYTHONHASHSEED": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def baseline(self, files: Sequence[str], traced: str) -> dict[str, Any]:
        """Run all tests of the files over the unchanged module.

        Raises:
            StageFailed: they do not all pass, so that no mutant could be judged.
        """
        told = self._ask(
            do="baseline",
            files=list(files),
            traced=str(self.tree / traced),
            wall_seconds=_BASELINE_WALL_SECONDS,
        )
        if told.get("code") != 0:
            what = told.get("failed") or f"ended by signal {told.get('ended_by')}"
            raise StageFailed(f"without any bug: {what}\n{self.output()}")
        top = f"{self.tree}{os.sep}"
        imported = {name: file.removeprefix(top) for name, file in told["imported"].items()}
        return {**told, "imported": imported}

    def prepare(self, path: str, imported: Mapping[str, str]) -> None:
        """Begin a module: from now on every child has imported what the mutants do not touch.

        Args:
            path: the file that will be mutated, from the top.
            imported: the modules that a baseline has imported, each with its file from the top;
                files elsewhere are absolute.

        Raises:
            StageFailed: the module itself would be there already, so that no child would read it.
        """
        self.close()
        self._process = self._served()
        mutated = next((name for name, file in imported.items() if file == path), None)
        if mutated is None:
            raise StageFailed(f"no test of its suite imports {path}")
        touched = affected(self.tree, mutated)
        modules = [
            name
            for name, file in imported.items()
            if name != "__main__" and (_is_library(file) or name.split(".")[0] in _PACKAGES)
        ]
        told = self._ask(do="import", modules=[m for m in modules if m not in touched])
        if mutated in told["modules"]:
            raise StageFailed(f"{mutated} is imported by a module that does not say so")

    def compile(self, files: Sequence[str], tests: Sequence[str]) -> None:
        """Let the copy have bytecode of everything: collect all those tests and run none."""
        self._ask(
            do="compile",
            files=list(files),
            seconds={},
            skipped=list(tests),
            wall_seconds=_BASELINE_WALL_SECONDS,
        )

    def attempt(
        self,
        path: str,
        code: str,
        files: Sequence[str],
        seconds: Mapping[str, float],
        skipped: Sequence[str],
    ) -> dict[str, Any]:
        """Plant `code` as the module at `path`, and run the tests until one fails.

        Args:
            path: the module's file, from the top of the checkout.
            code: its text with the bug.
            files: where the tests are.
            seconds: the tests in their order, each with the time that it usually takes.
            skipped: the other tests of these files.
        """
        file = self.tree / path
        original = file.read_bytes()
        for stale in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            stale.unlink()
        file.write_text(code, "utf-8")
        try:
            return self._ask(
                do="try",
                files=list(files),
                seconds=dict(seconds),
                skipped=list(skipped),
                wall_seconds=60 + 12 * sum(seconds.values()),
            )
        finally:
            file.write_bytes(original)

    def output(self) -> str:
        """The end of what the last run has printed."""
        with suppress(OSError):
            return (self.tree / "output.txt").read_text("utf-8", "replace")[-4000:]
        return ""

    def close(self) -> None:
        """End the server and what it has started."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.terminate()
        with suppress(OSError):
            self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ask(self, **order: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            told = self._process.stdout.readline()
        except OSError as problem:
            raise StageFailed(f"the lane has gone: {problem}") from problem
        if not told:
            raise StageFailed("the lane has gone")
        answer: dict[str, Any] = json.loads(told)
        return answer


def affected(tree: Path, module: str) -> set[str]:
    """Return the module and every module of the project that imports it, directly or not.

    Imports inside functions count too; a package counts as imported by all that lies below it.
    """
    importers: dict[str, set[str]] = {}
    for root in SOURCE_ROOTS:
        for path in (tree / root).rglob("*.py"):
            parts = path.relative_to(tree / root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            for imported in _imports(path, name):
                importers.setdefault(imported, set()).add(name)
    found, due = {module}, [module]
    while due:
        for importer in importers.get(due.pop(), set()) - found:
            found.add(importer)
            due.append(importer)
    return found


def _imports(path: Path, name: str) -> Iterator[str]:
    """Every name that the module may import as a module, its own packages included."""
    parts = name.split(".")
    yield from (".".join(parts[:end]) for end in range(1, len(parts)))
    # A relative import starts at the package: the module itself, where it is one.
    package = parts if path.name == "__init__.py" else parts[:-1]
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            yield source
            yield from (f"{source}.{alias.name}" for alias in node.names)


def _is_library(file: str) -> bool:
    """Whether a file of the baseline lies outside of the copy."""
    return Path(file).is_absolute()


def _copy(source: Path, place: Path) -> None:
    """Copy what tests read: the roots, the docs, and the files at the top."""
    place.mkdir()
    ignored = shutil.ignore_patterns("__pycache__", ".hypothesis", "node_modules")
    for name in _COPIED:
        if (source / name).is_dir():
            shutil.copytree(source / name, place / name, ignore=ignored, symlinks=True)
    for path in source.iterdir():
        if path.is_file():
            shutil.copy2(path, place / path.name)
