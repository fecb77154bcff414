"""`effect-broker holds`: stop dispatches, see what stops them, let them go on."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from effect_broker.api.holds import hold_body
from effect_broker.cli.access import Logins, logins, opened, plain, run
from effect_broker.cli.desk import operator
from effect_broker.cli.next_commands import replaced
from effect_broker.cli.output import AsJson, complain, print_json, print_table
from effect_broker.clock import new_id
from effect_broker.holding import (
    REASON_CHARS_MAX,
    HoldMissing,
    HoldRecord,
    HoldScope,
    Placed,
    SubjectUnknown,
)
from effect_broker.store.holds import Holds
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.tenants import Tenants

app = typer.Typer(
    help="What stops dispatches: pauses of yours, and freezes of the broker's own.",
    no_args_is_help=True,
)

_LISTED = 200

ReasonOption = Annotated[str, typer.Option("--reason", help="Why; it is kept with the hold.")]


@app.command("pause")
def pause(
    reason: ReasonOption,
    tenant: Annotated[str | None, typer.Option(help="Stop this tenant.")] = None,
    every_tenant: Annotated[
        bool, typer.Option("--every-tenant", help="Stop all tenants, also future ones.")
    ] = False,
    tool: Annotated[str | None, typer.Option(help="Only this tool.")] = None,
    contract: Annotated[
        str | None, typer.Option(help="Only this contract version, as NAME@VERSION.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Stop sending. Submits are accepted and wait; probes and settlements go on."""
    if (tenant is None) != every_tenant:
        complain("say whom it stops: --tenant NAME, or --every-tenant", 2)
    if tool is not None and contract is not None:
        complain("a hold is about a tool or about a contract version; give one of the two", 2)
    named = None if contract is None else _contract(contract)
    why = _reason(reason)

    async def work(found: Logins) -> Placed:
        async with opened(found.of(DatabaseRole.ADMIN)) as pool:
            scope = HoldScope(None if tenant is None else await _tenant(Tenants(pool), tenant),
                              tool, named)  # fmt: skip
            return await Holds(pool, None).place(new_id(), scope, why, operator())

    with logins() as found:
        try:
            placed = run(work(found))
        except SubjectUnknown:
            subject = (
                f"tool {plain(tool)}" if tool is not None else f"contract {plain(contract or '')}"
            )
            complain(f"there is no {subject}; `effect-broker contracts list` shows all")
    if as_json:
        print_json(
            hold_body(placed.hold) | {"replayed": not placed.created, "effective": placed.effective}
        )
        return
    stands = "" if placed.created else " (it stood already)"
    print(f"hold {placed.hold.hold_id}: nothing more is sent for {_subject(placed.hold)}{stands}")
    if not placed.effective:
        complain(
            "a process that stands still may still have been granted an attempt before the hold; "
            "run the same command again in some seconds to be sure", 3,
        )  # fmt: skip


@app.command("list")
def list_holds(
    lifted: Annotated[bool, typer.Option("--lifted", help="Those of the past too.")] = False,
    as_json: AsJson = False,
) -> None:
    """List what stops dispatches, the newest first."""

    async def work(found: Logins) -> tuple[HoldRecord, ...]:
        async with opened(found.of(DatabaseRole.ADMIN)) as pool:
            return await Holds(pool, None).listing(lifted=lifted, limit=_LISTED)

    with logins() as found:
        records = run(work(found))
    if as_json:
        print_json([hold_body(record) for record in records])
        return
    if not records:
        print("nothing is held")
        return
    rows = [
        (r.hold_id, r.kind.value, _subject(r), r.reason, r.placed_by,
         f"{r.placed_at:%Y-%m-%d %H:%M:%S}Z",
         "" if r.lifted_at is None else f"{r.lifted_at:%Y-%m-%d %H:%M:%S}Z {r.lift_reason}")
        for r in records
    ]  # fmt: skip
    columns = ("id", "kind", "stops", "why", "by", "since", "lifted")
    print_table("holds", columns, rows)


@app.command("lift")
def lift(
    hold_id: Annotated[str, typer.Argument(metavar="ID", help="As `holds list` shows it.")],
    reason: ReasonOption,
    as_json: AsJson = False,
) -> None:
    """Let go on what a hold stops: a pause, or a freeze once its cause is known and mended."""
    why = _reason(reason)
    try:
        wanted = UUID(hold_id)
    except ValueError:
        complain(f"'{plain(hold_id)}' is no hold id; `effect-broker holds list` shows them", 2)

    async def work(found: Logins) -> tuple[HoldRecord, bool]:
        async with opened(found.of(DatabaseRole.ADMIN)) as pool:
            return await Holds(pool, None).lift(wanted, why, operator())

    with logins() as found:
        try:
            record, changed = run(work(found))
        except HoldMissing:
            complain(f"there is no hold {wanted}; `effect-broker holds list` shows those there are")
    if as_json:
        print_json(hold_body(record) | {"changed": changed})
        return
    what = "goes on" if changed else f"went on already, at {record.lifted_at:%H:%M:%S}Z"
    print(f"{_subject(record)} {what}")


def _subject(record: HoldRecord) -> str:
    scope = record.scope
    what = "everything"
    if scope.tool is not None:
        what = f"tool {scope.tool}"
    elif scope.contract is not None:
        what = f"contract {'@'.join(scope.contract)}"
    return f"{what} of {record.tenant if scope.tenant_id is not None else 'every tenant'}"


async def _tenant(tenants: Tenants, name: str) -> UUID:
    for record in await tenants.tenants():
        if record.name == name:
            return record.tenant_id
    complain(f"there is no tenant {plain(name)}; `effect-broker tenants list` shows all")


def _contract(text: str) -> tuple[str, str]:
    name, at, version = text.rpartition("@")
    if not (name and at and version):
        complain(f"'{plain(text)}' names no contract version; write it as NAME@VERSION", 2)
    return name, version


def _reason(text: str) -> str:
    reason = text.strip()
    replaced("--reason", reason)
    if not reason or len(reason) > REASON_CHARS_MAX or not reason.isprintable():
        complain(f"--reason is one line of at most {REASON_CHARS_MAX} printable characters", 2)
    return reason
