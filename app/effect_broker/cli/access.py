"""Where commands find the database, and as whom they act there.

A command takes the role that its work needs and no more: administration acts as
`effect_broker_admin`, which sees no effect; reading acts as the worker's role; only a submit acts
as the API's. Without a URL in the environment the embedded server of the state directory is used,
which this module starts if it must and leaves when the command ends.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit, urlunsplit

from effect_broker.config import ConfigurationProblem, Role, Settings, load_settings
from effect_broker.postgres.choice import (
    HOME_NAME,
    HOME_VARIABLE,
    ServerSource,
    holds_database,
    home_directory,
    resolve_server,
)
from effect_broker.postgres.container import ContainerPostgresError
from effect_broker.postgres.embedded import EmbeddedPostgresError
from effect_broker.store.pool import Pool, make_pool
from effect_broker.store.reachability import connection_trouble
from effect_broker.store.roles import DatabaseRole

T = TypeVar("T")

_OWN_SERVERS: Final[tuple[ServerSource, ...]] = ("wheel", "local", "container")
_APPLICATION_NAME: Final = "effect-broker-cli"
# A command asks one thing at a time; a submit reads while it writes.
_POOL_SIZE: Final = 2

# Whose URL serves a role; the first that is set. A login of `migrate` may act as every role.
_VARIABLES: Final = {
    DatabaseRole.ADMIN: (Role.MIGRATE,),
    DatabaseRole.PRUNE: (Role.MIGRATE,),
    DatabaseRole.WORKER: (Role.WORKER, Role.MIGRATE),
    DatabaseRole.API: (Role.API, Role.MIGRATE),
}


@dataclass(frozen=True, slots=True)
class Login:
    """A URL with the role to take there; `variable` names the setting for error texts."""

    url: str = field(repr=False)
    role: DatabaseRole
    variable: str


@dataclass(frozen=True, slots=True)
class Logins:
    """The logins of one command: those of the environment, or those of the embedded server.

    Attributes:
        embedded_url: the superuser's URL of the embedded server, None where URLs are given.
        swaps_users: the embedded server lets every role in under its own name.
    """

    settings: Settings
    embedded_url: str | None = field(repr=False)
    swaps_users: bool = False

    def of(self, role: DatabaseRole) -> Login:
        """Return the login for a role.

        Raises:
            ConfigurationProblem: no URL in the environment serves this role.
        """
        if self.embedded_url is not None:
            url = as_user(self.embedded_url, role.value) if self.swaps_users else self.embedded_url
            return Login(url, role, "the embedded database")
        for owner in _VARIABLES[role]:
            url = self.settings.url(owner) or ""
            if url:
                return Login(url, role, variable_of(self.settings, owner))
        wanted = variable_name(_VARIABLES[role][0])
        raise ConfigurationProblem(
            f"this command acts as {role.value}: set {wanted}, or EFFECT_BROKER_DATABASE_URL"
        )


def variable_name(owner: Role) -> str:
    """Return the name of the variable that holds the URL of one role alone."""
    return f"EFFECT_BROKER_{owner.value.upper()}_DATABASE_URL"


def variable_of(settings: Settings, owner: Role) -> str:
    """Return the name of the variable that the URL of a role really comes from."""
    own = {
        Role.API: settings.api_database_url,
        Role.WORKER: settings.worker_database_url,
        Role.MIGRATE: settings.migrate_database_url,
    }[owner]
    return variable_name(owner) if own else "EFFECT_BROKER_DATABASE_URL"


def as_user(url: str, user: str) -> str:
    """Return the URL for another user of a server that asks for no password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{user}@{parts.netloc.rpartition('@')[2]}"))


def any_url(settings: Settings) -> bool:
    """Whether the environment names a database at all."""
    return any(settings.url(owner) for owner in Role)


def _no_database(place: Path) -> str:
    """Say where none was found, and what names another."""
    if holds_database(place / HOME_NAME):
        return f"there is no database in {place}: set {HOME_VARIABLE} to {place / HOME_NAME}"
    return (
        "no database: set EFFECT_BROKER_DATABASE_URL, or run `effect-broker up`, which makes one "
        f"in {place}. The state directory of another project is named by {HOME_VARIABLE}"
    )


@contextmanager
def logins() -> Iterator[Logins]:
    """Give the logins of this command; an embedded server runs at least as long as the block.

    Raises:
        ConfigurationProblem: there is no database to use; the text says what to do.
        PostgresNotFound: none of the ways to run a server of our own is open.
    """
    settings = load_settings()
    if any_url(settings):
        yield Logins(settings, None)
        return
    if settings.production:
        raise ConfigurationProblem(
            "no database: EFFECT_BROKER_ENV=production needs EFFECT_BROKER_API_DATABASE_URL, "
            "…_WORKER_… and …_MIGRATE_… (the embedded server is for development)"
        )
    place = home_directory()
    if not holds_database(place):
        # To look is not to make one: an empty database would answer that there is nothing.
        raise ConfigurationProblem(_no_database(place))
    choice = resolve_server(place, os.environ, sources=_OWN_SERVERS)
    try:
        url = choice.server.start()
    except (EmbeddedPostgresError, ContainerPostgresError) as problem:
        raise ConfigurationProblem(str(problem)) from None
    try:
        yield Logins(settings, url, swaps_users=choice.source != "container")
    finally:
        choice.server.stop()


@asynccontextmanager
async def opened(login: Login) -> AsyncIterator[Pool]:
    """Give a pool for a login that was tried first, so that a failure has a reason.

    Raises:
        ConfigurationProblem: the database cannot be used; the text says why and what to do.
    """
    trouble = await asyncio.to_thread(
        connection_trouble, login.url, login.role, variable=login.variable
    )
    if trouble is not None:
        raise ConfigurationProblem(trouble)
    pool = make_pool(login.url, login.role, application_name=_APPLICATION_NAME, size_max=_POOL_SIZE)
    async with pool:
        yield pool


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's work to its end."""
    return asyncio.run(work)


def plain(text: str, chars_max: int = 80) -> str:
    """Return what a user typed, fit to be shown back: printable, and not endless."""
    shown = "".join(c if c.isprintable() else "?" for c in text)
    return shown if len(shown) <= chars_max else shown[:chars_max] + "…"
