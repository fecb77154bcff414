"""The outside programs that tests need, and what becomes of a test where one is absent.

This module promises that a test that could not run is never silent: it is skipped with a reason
that names what to install, and it fails where `REQUIRE_ALL=1` says that everything is installed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

import pytest

REQUIRE_ALL_VARIABLE: Final = "REQUIRE_ALL"
NOT_FOR_THIS_PLATFORM: Final = "not for this platform: "


class ToolMissing(AssertionError):
    """A tool is absent although `REQUIRE_ALL=1` promises that all are there."""


def all_required() -> bool:
    """Whether a test that cannot run is a failure here (on CI it is)."""
    return os.environ.get(REQUIRE_ALL_VARIABLE) == "1"


def could_not_run(reason: str) -> NoReturn:
    """End the test as not run; with `REQUIRE_ALL=1`, as failed. `reason` says what to install."""
    if all_required():
        raise ToolMissing(f"{reason} ({REQUIRE_ALL_VARIABLE}=1: everything must run)")
    pytest.skip(reason)


def not_for_this_platform(reason: str) -> NoReturn:
    """End the test where it could never run; `REQUIRE_ALL` does not ask for the impossible."""
    pytest.skip(NOT_FOR_THIS_PLATFORM + reason)


def requires_tool(name: str) -> Path:
    """Where the tool lies. Where it is absent, the test does not run, or fails on CI.

    Tools with a finder of their own are in `FINDERS`; any other name is a program on PATH.
    """
    found = find_tool(name)
    if found is None:
        could_not_run(f"{name} is not installed; {INSTALL.get(name, f'install {name}')}")
    return found


def find_tool(name: str) -> Path | None:
    """Where the tool lies, if it is there."""
    return FINDERS[name]() if name in FINDERS else _on_path(name)


def _on_path(program: str) -> Path | None:
    found = shutil.which(program)
    return Path(found) if found else None


def _pg_ctl() -> Path | None:
    # Debian keeps the server's programs off PATH, by version; the newest is wanted.
    places = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"),
        key=lambda place: int(place.parts[-3]) if place.parts[-3].isdigit() else 0,
    )
    return _on_path("pg_ctl") or (places[-1] if places else None)


def _chromium() -> Path | None:
    # Under the names of Debian, Ubuntu, and Google's own package.
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := _on_path(name))), None)


def _nats_server() -> Path | None:
    # Debian puts it among the programs of an administrator.
    place = Path("/usr/sbin/nats-server")
    return _on_path("nats-server") or (place if place.exists() else None)


def _dovecot() -> Path | None:
    place = Path("/usr/sbin/dovecot")
    return _on_path("dovecot") or (place if place.exists() else None)


FINDERS: Final[dict[str, Callable[[], Path | None]]] = {
    "chromium": _chromium,
    "dovecot": _dovecot,
    "nats-server": _nats_server,
    "pg_ctl": _pg_ctl,
}
INSTALL: Final[dict[str, str]] = {
    "chromium": "Debian: apt-get install chromium",
    "dovecot": "Debian: apt-get install dovecot-imapd",
    "git": "Debian: apt-get install git",
    "nats-server": "Debian: apt-get install nats-server",
    "npm": "install Node.js 20 or newer",
    "pg_ctl": "Debian: apt-get install postgresql",
    "promtool": "Debian: apt-get install prometheus",
}
