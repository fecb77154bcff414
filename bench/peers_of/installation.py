"""The peers, installed once per checkout from their registries, at exactly the locked versions.

They lie below `.effect-broker-bench` in the checkout, which ignores itself in git, each in a
directory that is named after the lock it was made from. The locks hold hashes and name no
registry; no install script of an npm package runs.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
HOME: Final = HERE.parents[1] / ".effect-broker-bench"
PYTHON_LOCK: Final = HERE / "requirements.txt"
NPM: Final = HERE / "npm"

# A few hundred megabytes on a slow line; far more means that the registry does not answer.
INSTALL_SECONDS: Final = 600


class NotInstalled(Exception):
    """A registry cannot be reached, or an installer failed; the text holds its last line."""


def python_of_peers() -> Path:
    """Return the interpreter that sees the peers from the Python registry.

    Raises:
        NotInstalled.
    """

    def install(place: Path) -> None:
        _run([sys.executable, "-m", "venv", place], place)
        pip: list[str | Path] = [place / "bin" / "python", "-m", "pip"]
        pip += ["--disable-pip-version-check", "--no-input"]
        options = ["--require-hashes", "--only-binary=:all:", "--quiet", "--retries=1"]
        _run([*pip, "install", *options, "-r", PYTHON_LOCK], place)

    kind = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return _installed(kind, PYTHON_LOCK, install) / "bin" / "python"


def restate_server() -> Path:
    """Return the server of Restate, a program of its own in an npm package.

    Raises:
        NotInstalled.
    """

    def install(place: Path) -> None:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(NPM / name, place)
        quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        _run(["npm", "ci", *quiet, "--fetch-retries=1"], place)

    place = _installed("npm", NPM / "package-lock.json", install)
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    package = f"restate-server-{sys.platform}-{machine}"
    server = place / "node_modules" / "@restatedev" / package / "bin" / "restate-server"
    if not server.exists():
        raise NotInstalled(f"{package} is not among the packages")
    return server


def _installed(kind: str, lock: Path, install: Callable[[Path], None]) -> Path:
    HOME.mkdir(exist_ok=True)
    (HOME / ".gitignore").write_text("*\n")
    place = HOME / f"{kind}-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    complete = place / ".installed"
    if not complete.exists():
        for old in HOME.glob(f"{kind}-*"):
            shutil.rmtree(old)
        print(f"  installing {kind} packages into {HOME.name}", file=sys.stderr, flush=True)
        place.mkdir()
        install(place)
        complete.touch()
    return place


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
    except FileNotFoundError:
        raise NotInstalled(f"{program} is not on this machine") from None
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"{program} did not end in {INSTALL_SECONDS} s") from None
    if done.returncode != 0:
        said = [line for line in done.stdout.splitlines() if line.strip()] or ["no word from it"]
        raise NotInstalled(f"{program} ended with {done.returncode}: {said[-1].strip()}")
