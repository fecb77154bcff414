"""What every command on effects of one tenant begins with: whose effect, and which.

Reading acts as the worker's role, which sees every tenant, so each command names one: the tenant
that is given, or the only one that exists.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Annotated, Final
from uuid import UUID

import typer

from effect_broker.cli.access import Logins, opened, plain
from effect_broker.cli.output import complain
from effect_broker.config import Settings
from effect_broker.keyring import (
    KeyRingProblem,
    RingSigner,
    key_ring,
    ring_public_keys,
    ring_signer,
)
from effect_broker.protocol.ports import EffectMissing
from effect_broker.store.api import PostgresApiStore
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.tenants import TenantRecord, Tenants
from effect_contracts import keys

_TEXT_CHARS_MAX: Final = 255

TenantOption = Annotated[
    str | None, typer.Option("--tenant", help="Whose effect; needed where there are several.")
]
EffectArgument = Annotated[
    str | None, typer.Argument(metavar="ID", help="The effect's id; or give --key.")
]
KeyOption = Annotated[
    str | None, typer.Option("--key", help="Name the effect by its operation key instead.")
]


@dataclass(frozen=True, slots=True)
class Desk:
    """The reads of one command, and the tenant that it is about."""

    store: PostgresApiStore
    tenant: TenantRecord

    def effect_id(self, given: str | None, operation_key: str | None) -> UUID:
        """The effect that the command line names."""
        if (given is None) == (operation_key is None):
            complain("name one effect: its id, or --key with its operation key", 2)
        if operation_key is not None:
            return keys.effect_id(self.tenant.tenant_id, operation_key)
        assert given is not None
        try:
            return UUID(given)
        except ValueError:
            complain(
                f"'{plain(given)}' is no effect id, which is a UUID; for an operation key use --key"
            )


@asynccontextmanager
async def desk(found: Logins, tenant: str | None) -> AsyncIterator[Desk]:
    name = text("--tenant", tenant)
    async with opened(found.of(DatabaseRole.WORKER)) as pool:
        records = await Tenants(pool).tenants()
        yield Desk(PostgresApiStore(pool, trusted=trusted(found.settings)), _chosen(records, name))


def _chosen(records: tuple[TenantRecord, ...], name: str | None) -> TenantRecord:
    by_name = {record.name: record for record in records}
    if not records:
        complain("there is no tenant yet; `effect-broker tenants create NAME` makes one")
    some = ", ".join(sorted(by_name)[:10]) + (", …" if len(by_name) > 10 else "")
    if name is not None:
        if name not in by_name:
            complain(f"there is no tenant {plain(name)}; there are {some}")
        return by_name[name]
    if len(records) > 1:
        complain(f"there are {len(records)} tenants; say which with --tenant NAME ({some})")
    return records[0]


@contextmanager
def known_effect() -> Iterator[None]:
    """Say that the effect is missing, whatever the read was."""
    try:
        yield
    except EffectMissing:
        complain("there is no such effect of this tenant; `effect-broker effects list`")


def credential() -> str:
    """The name of whoever runs the command.

    Of the account, not of `LOGNAME` or `USER`: with those anybody would be a second person.
    """
    user_id = os.getuid()
    try:
        name = pwd.getpwuid(user_id).pw_name
    except KeyError:
        name = f"uid-{user_id}"  # a container without accounts
    return plain(name, 64)


def operator() -> str:
    """The actor of what this command does."""
    return f"operator:{credential()}"


def signer(settings: Settings) -> RingSigner | None:
    """What signs the receipt that a command may write. Without a ring it stays unsigned: what a
    person has to say of an effect must not wait for a key, and `receipts sign` follows it up."""
    try:
        return ring_signer(key_ring(settings))
    except KeyRingProblem:
        return None


def trusted(settings: Settings) -> dict[str, bytes]:
    """The keys whose certificates count here. Without a ring none does: then an effect that needs
    one is shown, and left, as waiting for it, until a worker sees it."""
    try:
        return ring_public_keys(key_ring(settings))
    except KeyRingProblem:
        return {}


def text(option: str, given: str | None) -> str | None:
    if given is not None and (not given.isprintable() or len(given) > _TEXT_CHARS_MAX):
        complain(f"{option} holds printable characters only, at most {_TEXT_CHARS_MAX}", 2)
    return given
