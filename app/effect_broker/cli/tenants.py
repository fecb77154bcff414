"""`effect-broker tenants` and `effect-broker keys`: who may use the broker, and with what.

An API key is shown once, on standard output and alone on its line, so that a script can take it;
what is said about it goes to standard error.
"""

from __future__ import annotations

import re
import sys
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Annotated, Final, NoReturn
from uuid import UUID

import typer

from effect_broker.cli.access import Logins, logins, opened, plain, run
from effect_broker.cli.durations import seconds_of
from effect_broker.cli.output import AsJson, complain, print_json, print_table
from effect_broker.clock import new_id
from effect_broker.config import load_settings
from effect_broker.intake import Scope
from effect_broker.keyring import caller_ring, key_ring, new_key_ring, ring_public_keys
from effect_broker.store.pool import Pool
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.tenants import (
    DEFAULT_SCOPES,
    KeyRecord,
    NewApiKey,
    TenantExists,
    TenantMissing,
    TenantRecord,
    Tenants,
)
from effect_contracts.signed_receipts import public_keys

tenants_app = typer.Typer(help="Tenants: who may submit effects.", no_args_is_help=True)
keys_app = typer.Typer(help="API keys of tenants, and the broker's own key ring.",
                       no_args_is_help=True)  # fmt: skip

# As the CHECK of `effect_broker.tenants` says it; refused here with a sentence.
_TENANT_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_KEY_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SCOPES: Final = frozenset(scope.value for scope in Scope)
# A key that ends sooner than it is handed over is a mistake.
_EXPIRES_SECONDS_MIN: Final = 60.0

TenantName = Annotated[str, typer.Argument(metavar="NAME", help="The tenant's name.")]


@tenants_app.command("create")
def create_tenant(
    name: TenantName,
    hmac_key_id: Annotated[
        str | None,
        typer.Option(help="HMAC key of its downstream keys; the ring's active one by default."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a tenant."""
    _check_name(name)
    key_id = _checked_key_id(hmac_key_id)

    async def create(found: Logins) -> TenantRecord:
        async with _admin(found) as pool:
            return await Tenants(pool).create(name, key_id)

    with logins() as found:
        try:
            record = run(create(found))
        except TenantExists:
            complain(f"there is a tenant {plain(name)} already; `effect-broker tenants list`")
    if as_json:
        print_json(_tenant_body(record))
    else:
        print(f"tenant {record.name} ({record.tenant_id})")
        _note(f"next: effect-broker keys create --tenant {record.name}")


@tenants_app.command("list")
def list_tenants(as_json: AsJson = False) -> None:
    """List all tenants."""

    async def read(found: Logins) -> tuple[TenantRecord, ...]:
        async with _admin(found) as pool:
            return await Tenants(pool).tenants()

    with logins() as found:
        records = run(read(found))
    if as_json:
        print_json([_tenant_body(record) for record in records])
        return
    rows = [
        (r.name, r.tenant_id, _moment(r.created_at), _moment(r.disabled_at), r.hmac_key_id)
        for r in records
    ]
    print_table("tenants", ("name", "id", "created", "disabled", "hmac key"), rows)


@tenants_app.command("disable")
def disable_tenant(name: TenantName, as_json: AsJson = False) -> None:
    """Stop a tenant: its submits are refused, and nothing more is sent for it."""
    _switch(name, disabled=True, as_json=as_json)


@tenants_app.command("enable")
def enable_tenant(name: TenantName, as_json: AsJson = False) -> None:
    """Let a disabled tenant go on."""
    _switch(name, disabled=False, as_json=as_json)


def _switch(name: str, *, disabled: bool, as_json: bool) -> None:
    async def switch(found: Logins) -> TenantRecord:
        async with _admin(found) as pool:
            return await Tenants(pool).switch(name, disabled=disabled)

    _check_name(name)
    with logins() as found:
        try:
            record = run(switch(found))
        except TenantMissing:
            _no_tenant(name)
    if as_json:
        print_json(_tenant_body(record))
    else:
        print(f"tenant {record.name} is {'disabled' if record.disabled_at else 'enabled'}")


@keys_app.command("create")
def create_key(
    tenant: Annotated[str, typer.Option(help="Whose key it is.")],
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="What it may do: submit, read, operate, admin, or effects (submit and read, the "
            "default); may be given again."
        ),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(help="Its end: 90d, 12h; without it, it ends when revoked.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make an API key and print it; it is shown this once and stored nowhere."""
    _check_name(tenant)
    scopes = tuple(scope) if scope else DEFAULT_SCOPES
    for one in scopes:
        if one not in _SCOPES:
            complain(f"'{plain(one)}' is no scope; there are {', '.join(Scope)}")
    seconds = None if expires is None else seconds_of(expires)
    if seconds is not None and seconds < _EXPIRES_SECONDS_MIN:
        complain("a key lasts a minute at least; write --expires 90d")

    async def create(found: Logins) -> NewApiKey:
        async with _admin(found) as pool:
            return await Tenants(pool).create_key(tenant, scopes, seconds)

    with logins() as found:
        try:
            made = run(create(found))
        except TenantMissing:
            _no_tenant(tenant)
    if as_json:
        body = {"key_id": str(made.key_id), "tenant": tenant, "scopes": list(scopes)}
        print_json(body | {"expires_at": _iso(made.expires_at), "api_key": made.api_key})
    else:
        print(made.api_key)
        end = f", expires {_moment(made.expires_at)}" if made.expires_at else ""
        _note(f"key {made.key_id} of {tenant}{end}; keep it now, it is not shown again")


@keys_app.command("list")
def list_keys(
    tenant: Annotated[str | None, typer.Option(help="Of this tenant only.")] = None,
    as_json: AsJson = False,
) -> None:
    """List API keys, without the keys themselves."""
    if tenant is not None:
        _check_name(tenant)

    async def read(found: Logins) -> tuple[bool, tuple[KeyRecord, ...]]:
        async with _admin(found) as pool:
            tenants = Tenants(pool)
            known = tenant is None or tenant in {t.name for t in await tenants.tenants()}
            return known, await tenants.keys(tenant)

    with logins() as found:
        known, records = run(read(found))
    if not known:
        _no_tenant(tenant or "")
    if as_json:
        print_json([_key_body(record) for record in records])
        return
    rows = [
        (
            r.key_id, r.tenant, ", ".join(r.scopes), _moment(r.created_at),
            _moment(r.expires_at), _moment(r.revoked_at),
        )
        for r in records
    ]  # fmt: skip
    columns = ("id", "tenant", "scopes", "created", "expires", "revoked")
    print_table("API keys", columns, rows, first_to_go=("created", "scopes"))


@keys_app.command("revoke")
def revoke_key(
    key_id: Annotated[str, typer.Argument(metavar="KEY_ID", help="As `keys list` shows it.")],
    as_json: AsJson = False,
) -> None:
    """Revoke an API key at once."""
    try:
        wanted = UUID(key_id)
    except ValueError:
        complain(
            f"'{plain(key_id)}' is no key id: it is the UUID that `effect-broker keys list` shows, "
            "not the key itself"
            if not key_id.startswith("eb_")
            else "that is an API key; give its id, which `effect-broker keys list` shows"
        )

    async def revoke(found: Logins) -> bool:
        async with _admin(found) as pool:
            return await Tenants(pool).revoke_key(wanted)

    with logins() as found:
        revoked = run(revoke(found))
    if not revoked:
        complain(f"there is no API key {wanted}; `effect-broker keys list` shows those there are")
    if as_json:
        print_json({"key_id": str(wanted), "revoked": True})
    else:
        print(f"key {wanted} is revoked")


@keys_app.command("ring")
def print_ring(
    development: Annotated[
        bool, typer.Option("--development", help="Mark it so that production refuses it.")
    ] = False,
    key_id: Annotated[
        str | None, typer.Option("--id", help="Name of the keys, such as 2026-11.")
    ] = None,
    for_caller: Annotated[
        str | None,
        typer.Option(
            metavar="TENANT",
            help="Instead, the part of the present ring that submits in this tenant's own "
            "transactions: its HMAC key and one encryption key, and no signing key.",
        ),
    ] = None,
    encryption_key: Annotated[
        str | None,
        typer.Option(metavar="ID", help="With --for-caller: this one, not the active one."),
    ] = None,
) -> None:
    """Print a fresh key ring document; keep it where EFFECT_BROKER_KEY_RING_FILE points."""
    if for_caller is not None:
        if development or key_id is not None:
            complain("--for-caller takes keys that are there; it goes without --id, --development")
        _print_caller_ring(for_caller, encryption_key)
        return
    if encryption_key is not None:
        complain("--encryption-key goes with --for-caller TENANT")
    name = key_id or f"key-{new_id().hex[:8]}"
    if not _KEY_ID.fullmatch(name):
        complain(f"'{plain(name)}' is no key id; use letters, digits, '.', '_' and '-'")
    sys.stdout.write(new_key_ring(name, development=development))


def _print_caller_ring(tenant: str, encryption_key: str | None) -> None:
    async def read(found: Logins) -> tuple[TenantRecord, ...]:
        async with _admin(found) as pool:
            return await Tenants(pool).tenants()

    _check_name(tenant)
    with logins() as found:
        records = {record.name: record for record in run(read(found))}
    if tenant not in records:
        _no_tenant(tenant)
    ring = key_ring(load_settings())
    sys.stdout.write(caller_ring(ring, records[tenant].hmac_key_id, encryption_key))


@keys_app.command("public")
def print_public() -> None:
    """Print the public keys that verify receipts, as JSON; give them to whoever has to verify."""
    ring = key_ring(load_settings())
    if ring.signing is None:
        complain(
            "the key ring has no signing key; add the section `signing` of a ring that "
            "`effect-broker keys ring` prints"
        )
    print_json(public_keys(ring_public_keys(ring), ring.signing.active))


def _admin(found: Logins) -> AbstractAsyncContextManager[Pool]:
    return opened(found.of(DatabaseRole.ADMIN))


def _check_name(name: str) -> None:
    if not _TENANT_NAME.fullmatch(name):
        complain(
            f"'{plain(name)}' is no tenant name; it has 1 to 63 of a-z, 0-9, '.', '_' and '-', "
            "and begins with a letter or digit"
        )


def _checked_key_id(given: str | None) -> str:
    """The HMAC key of a new tenant: one that the ring holds, where there is a ring."""
    if given is None:
        return key_ring(load_settings()).hmac.active
    if not _KEY_ID.fullmatch(given):
        complain(f"'{plain(given)}' is no key id; use letters, digits, '.', '_' and '-'")
    return given


def _no_tenant(name: str) -> NoReturn:
    complain(f"there is no tenant {plain(name)}; `effect-broker tenants list` shows all")


def _tenant_body(record: TenantRecord) -> dict[str, str | None]:
    return {
        "tenant_id": str(record.tenant_id),
        "name": record.name,
        "created_at": record.created_at.isoformat(),
        "disabled_at": record.disabled_at.isoformat() if record.disabled_at else None,
        "hmac_key_id": record.hmac_key_id,
    }


def _key_body(record: KeyRecord) -> dict[str, object]:
    return {
        "key_id": str(record.key_id),
        "tenant": record.tenant,
        "scopes": list(record.scopes),
        "created_at": record.created_at.isoformat(),
        "expires_at": _iso(record.expires_at),
        "revoked_at": _iso(record.revoked_at),
    }


def _iso(at: datetime | None) -> str | None:
    return at.isoformat() if at else None


def _moment(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}Z" if at else ""


def _note(text: str) -> None:
    print(text, file=sys.stderr)
