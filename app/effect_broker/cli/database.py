"""`effect-broker database`: what a person says after a restore or a failover."""

from __future__ import annotations

from typing import Annotated

import typer

from effect_broker.cli.access import Logins, logins, opened, run
from effect_broker.cli.desk import operator
from effect_broker.cli.durations import moment_of
from effect_broker.cli.next_commands import replaced
from effect_broker.cli.output import AsJson, complain, print_json
from effect_broker.store.restores import halt as halt_dispatch
from effect_broker.store.restores import resume as resume_dispatch
from effect_broker.store.roles import DatabaseRole

app = typer.Typer(help="The database after a restore or a failover.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """The database after a restore or a failover."""


@app.command()
def halt(as_json: AsJson = False) -> None:
    """Halt dispatch, before processes are started on data files that came from a snapshot.

    A restored dump, a promoted standby and a recovery to a point in time are noticed by themselves.
    """

    async def work(found: Logins) -> bool:
        async with opened(found.of(DatabaseRole.ADMIN)) as pool:
            return await halt_dispatch(pool)

    with logins() as found:
        halted = run(work(found))
    if as_json:
        print_json({"halted": halted})
        return
    typer.echo(
        "only idempotent effects are dispatched until `database resume`"
        if halted
        else "dispatch was halted already"
    )


@app.command()
def resume(
    lost_from: Annotated[
        str, typer.Option(help="Commits from this moment on may be lost (RFC 3339).")
    ],
    lost_to: Annotated[str, typer.Option(help="Commits up to this moment may be lost.")],
    reason: Annotated[str, typer.Option(help="What happened; it is recorded.")],
    as_json: AsJson = False,
) -> None:
    """Record the lost interval, and let effects of every class be dispatched again."""
    begin, end = moment_of("--lost-from", lost_from), moment_of("--lost-to", lost_to)
    if end < begin:
        complain("--lost-to lies before --lost-from")
    replaced("--reason", reason)
    if not reason.strip():
        complain("--reason is empty; say what happened")

    async def work(found: Logins) -> bool:
        async with opened(found.of(DatabaseRole.ADMIN)) as pool:
            return await resume_dispatch(
                pool, lost_from=begin, lost_to=end, reason=reason, actor=operator()
            )

    with logins() as found:
        resumed = run(work(found))
    if as_json:
        print_json({"resumed": resumed})
    else:
        typer.echo(
            "dispatch goes on" if resumed else "dispatch was not halted; nothing was changed"
        )
