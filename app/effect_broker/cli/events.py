"""`effect-broker events`: the broker's account of what it did, exported and checked.

An export acts as the worker's role, which sees every tenant, and locks nothing: it may run against
production. The check needs no database and no key: whoever is handed the file can run it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final
from uuid import UUID

import typer

from effect_broker.cli.access import Logins, logins, opened, plain, run
from effect_broker.cli.output import AsJson, complain, print_json, print_table
from effect_broker.store.export import Exported, TraceSelection, export_to, export_trace
from effect_broker.store.pool import Pool
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.tenants import Tenants
from effect_contracts.counting import counted
from effect_contracts.trace import TraceReport, TraceUnreadable, Violation, verify_lines

app = typer.Typer(help="The account of what happened, exported and checked.", no_args_is_help=True)

_DURATION: Final = re.compile(r"([0-9]{1,9})([smhd])")
_UNIT_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
# Far beyond any retention, and a database can still count it back.
_SINCE_SECONDS_MAX: Final = 315_360_000
_COLUMNS: Final = ("line", "effect", "event", "rule", "what")


@app.command("export")
def export(
    out: Annotated[
        Path | None,
        typer.Option(help="Write to this file, not to standard output; it appears when whole."),
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Of this tenant; all by default.")] = None,
    effect: Annotated[str | None, typer.Option(help="This effect alone, by its id.")] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Written to since: 15m, 2h, 7d, or an RFC 3339 moment."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the whole account of effects as JSON lines, without arguments, answers or secrets."""
    if as_json and out is None:
        complain("--json tells how much was written; it needs --out FILE", 2)
    changed_since, within_seconds = (None, None) if since is None else _since(since)
    effect_id = None if effect is None else _effect_id(effect)

    async def write(found: Logins) -> Exported:
        async with opened(found.of(DatabaseRole.WORKER)) as pool:
            selection = TraceSelection(
                tenant_id=None if tenant is None else await _tenant_id(pool, tenant),
                effect_id=effect_id,
                changed_since=changed_since,
                changed_within_seconds=within_seconds,
            )
            if out is None:
                return await export_trace(pool, sys.stdout.buffer.write, selection)
            return await export_to(pool, out, selection)

    with logins() as found:
        try:
            exported = run(write(found))
            if out is None:
                sys.stdout.buffer.flush()
        except OSError as problem:
            where = "standard output" if out is None else plain(str(out))
            complain(f"{where} cannot be written: {problem.strerror or type(problem).__name__}")
    if as_json:
        print_json(asdict(exported))
        return
    numbers = (
        (exported.effects, "effect"),
        (exported.events, "event"),
        (exported.contracts, "contract"),
    )
    print(", ".join(counted(*number) for number in numbers), file=sys.stderr)


@app.command("verify")
def verify(
    file: Annotated[str, typer.Argument(metavar="FILE", help="An export, or - for stdin.")],
    whole: Annotated[
        bool, typer.Option("--whole", help="Events that were pruned are violations too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check an export against the protocol: exit 0 clean, 1 a rule is broken, 2 unreadable."""
    try:
        with _opened_file(file) as lines:
            report = verify_lines(lines, whole=whole)
    except TraceUnreadable as problem:
        complain(f"{plain(file)}: {problem}", 2)
    except OSError as problem:
        complain(f"{plain(file)} cannot be read: {problem.strerror or type(problem).__name__}", 2)
    except ValueError:
        complain("the name cannot be that of a file", 2)
    if as_json:
        print_json(_body(report))
    else:
        _show(report)
    raise typer.Exit(0 if report.clean else 1)


def _show(report: TraceReport) -> None:
    if report.violations:
        print_table("broken rules", _COLUMNS, [_row(one) for one in report.violations])
    hidden = report.violation_count - len(report.violations)
    if hidden:
        print(f"and {hidden} more")
    verdict = "clean" if report.clean else counted(report.violation_count, "violation")
    effects, events = counted(report.effects, "effect"), counted(report.events, "event")
    print(f"{verdict}: {effects}, {events}")
    if report.pruned_effects:
        print(
            f"of {counted(report.pruned_effects, 'effect')} the first events were pruned; "
            "what is left of them was checked (--whole counts them as violations)"
        )


def _row(violation: Violation) -> tuple[object, ...]:
    return (
        violation.line, violation.effect_id, violation.sequence, violation.rule.value,
        violation.what,
    )  # fmt: skip


def _body(report: TraceReport) -> dict[str, Any]:
    return {"clean": report.clean, **asdict(report)}


@contextmanager
def _opened_file(name: str) -> Iterator[BinaryIO]:
    if name == "-":
        yield sys.stdin.buffer
        return
    with Path(name).open("rb") as file:
        yield file


async def _tenant_id(pool: Pool, name: str) -> UUID:
    records = {record.name: record.tenant_id for record in await Tenants(pool).tenants()}
    if name not in records:
        some = ", ".join(sorted(records)[:10]) or "none"
        complain(f"there is no tenant {plain(name)}; there are: {some}")
    return records[name]


def _effect_id(given: str) -> UUID:
    try:
        return UUID(given)
    except ValueError:
        complain(f"'{plain(given)}' is no effect id, which is a UUID", 2)


def _since(given: str) -> tuple[datetime | None, float | None]:
    """A moment, or the seconds back from the database's now; one of them."""
    if (matched := _DURATION.fullmatch(given.strip())) is not None:
        seconds = float(matched[1]) * _UNIT_SECONDS[matched[2]]
        if seconds > _SINCE_SECONDS_MAX:
            complain("--since reaches back by ten years at most", 2)
        return None, seconds
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        complain("--since is a duration (15m, 2h, 7d) or a moment (2026-11-29T12:00:00+00:00)", 2)
    if moment.tzinfo is None:
        complain("--since names no offset from UTC; add +00:00 or your own", 2)
    return moment, None
