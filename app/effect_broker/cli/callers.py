"""`effect-broker callers`: database roles that submit inside transactions of their own."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Annotated, Final

import typer

from effect_broker.cli.access import Logins, logins, opened, plain, run
from effect_broker.cli.output import AsJson, complain, print_json, print_table
from effect_broker.store.callers import Admission, CallerRecord, Callers
from effect_broker.store.pool import Pool
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.tenants import TenantMissing

app = typer.Typer(
    help="Database roles that submit inside transactions of their own.", no_args_is_help=True
)

# What PostgreSQL keeps of a name; a longer one would be another role.
_ROLE_BYTES_MAX: Final = 63

RoleName = Annotated[
    str, typer.Argument(metavar="ROLE", help="The database role that logs in, as it is spelt.")
]

_COMPLAINTS: Final = {
    Admission.NO_ROLE: "there is no database role {role}; make it first, with LOGIN",
    Admission.NO_LOGIN: "the role {role} cannot log in; name the one that does",
    Admission.TOO_MIGHTY: (
        "the role {role} is a superuser, passes row-level security, or acts for the broker itself; "
        "a caller needs a role that can do no more than its own work"
    ),
    Admission.OF_ANOTHER_TENANT: (
        "the role {role} submits for another tenant; `effect-broker callers remove` it first"
    ),
}


@app.command("add")
def add_caller(
    role: RoleName,
    tenant: Annotated[str, typer.Option(help="For whom it submits.")],
    as_json: AsJson = False,
) -> None:
    """Let a role submit for a tenant, by one function and nothing else; again, nothing changes."""

    async def add(found: Logins) -> Admission:
        async with _admin(found) as pool:
            return await Callers(pool).add(role, tenant)

    _check_role(role)
    with logins() as found:
        try:
            admission = run(add(found))
        except TenantMissing:
            complain(f"there is no tenant {plain(tenant)}; `effect-broker tenants list` shows all")
    if admission in _COMPLAINTS:
        complain(_COMPLAINTS[admission].format(role=plain(role)))
    if as_json:
        print_json({"role": role, "tenant": tenant, "added": admission is Admission.ADDED})
    else:
        said = "may submit now" if admission is Admission.ADDED else "could submit before"
        print(f"{plain(role)} {said} for {tenant}")


@app.command("list")
def list_callers(
    tenant: Annotated[str | None, typer.Option(help="Of this tenant only.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the roles."""

    async def read(found: Logins) -> tuple[CallerRecord, ...]:
        async with _admin(found) as pool:
            return await Callers(pool).callers(tenant)

    with logins() as found:
        records = run(read(found))
    if as_json:
        print_json(
            [
                {
                    "role": record.role,
                    "tenant": record.tenant,
                    "added_at": record.added_at.isoformat(),
                    "exists": record.exists,
                }
                for record in records
            ]
        )
        return
    rows = [
        (
            plain(record.role),
            record.tenant,
            f"{record.added_at:%Y-%m-%d %H:%M:%S}Z",
            "" if record.exists else "no such role any more",
        )
        for record in records
    ]
    print_table("callers", ("role", "tenant", "added", ""), rows)


@app.command("remove")
def remove_caller(role: RoleName, as_json: AsJson = False) -> None:
    """Take it back, at once; its effects go on."""

    async def remove(found: Logins) -> bool:
        async with _admin(found) as pool:
            return await Callers(pool).remove(role)

    _check_role(role)
    with logins() as found:
        removed = run(remove(found))
    if not removed:
        complain(f"the role {plain(role)} is no caller; `effect-broker callers list` shows them")
    if as_json:
        print_json({"role": role, "removed": True})
    else:
        print(f"{plain(role)} submits no more")


def _check_role(role: str) -> None:
    if not role or "\0" in role or len(role.encode()) > _ROLE_BYTES_MAX:
        complain(f"'{plain(role)}' is no name of a database role")


def _admin(found: Logins) -> AbstractAsyncContextManager[Pool]:
    return opened(found.of(DatabaseRole.ADMIN))
