"""`effect-broker drill`: lose a worker on purpose, in a running broker, and see what comes of it.

`run` arms the drill, starts the one-effect worker as a process of its own, and watches both. The
worker is started before the drill is armed, so that an effect which comes at once loses no time.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any, Final
from uuid import UUID

import typer

from effect_broker import assembly, logs
from effect_broker.api.drills import drill_body
from effect_broker.cli.access import Logins, logins, opened, plain, run
from effect_broker.cli.desk import Desk, TenantOption, desk, operator, text
from effect_broker.cli.drill_process import DrillProcess
from effect_broker.cli.drill_report import moments, print_report
from effect_broker.cli.output import AsJson, complain, print_json, print_table
from effect_broker.clock import new_id
from effect_broker.config import Role, load_settings
from effect_broker.drills import (
    DEFAULT_POINT,
    EXPIRES_SECONDS_DEFAULT,
    EXPIRES_SECONDS_MAX,
    LISTED_MAX,
    REASON_CHARS_MAX,
    SAYS_READY,
    TAKEOVER_SECONDS_DEFAULT,
    TAKEOVER_SECONDS_MAX,
    DrillOrder,
    DrillRecord,
    DrillStatus,
    checked_point,
)
from effect_broker.protocol.ports import StoreError
from effect_broker.store.drills import PostgresDrills
from effect_broker.store.roles import DatabaseRole
from effect_contracts.errors import (
    InvalidOperationKey,
    InvalidRequest,
    NotFound,
    TransitionRefused,
    UnknownTool,
)
from effect_contracts.keys import check_operation_key

app = typer.Typer(
    help="Drills: lose one worker on purpose, and see that its effect is not lost or doubled.",
    no_args_is_help=True,
)

_LOOK_SECONDS: Final = 0.1
_OVER: Final = frozenset(
    {DrillStatus.CANCELLED, DrillStatus.EXPIRED, DrillStatus.SETTLED, DrillStatus.MISSED}
)
_COLUMNS: Final = (
    "id", "status", "waits for", "fault point", "armed at", "by", "effect", "settled after", "by",
)  # fmt: skip

DrillArgument = Annotated[str, typer.Argument(metavar="ID", help="The drill's id.")]


@app.command("run")
def run_drill(
    tool: Annotated[str | None, typer.Option(help="Take the first new effect of it.")] = None,
    operation_key: Annotated[
        str | None, typer.Option(help="Take the effect of this operation key.")
    ] = None,
    fault_point: Annotated[str, typer.Option(help="Where the worker dies.")] = DEFAULT_POINT.value,
    reason: Annotated[str, typer.Option(help="Why; it is kept.")] = "run at the command line",
    expires: Annotated[
        int, typer.Option(min=1, max=EXPIRES_SECONDS_MAX, help="Seconds to wait for an effect.")
    ] = EXPIRES_SECONDS_DEFAULT,
    takeover: Annotated[
        int,
        typer.Option(
            min=1,
            max=TAKEOVER_SECONDS_MAX,
            help="After so many seconds the ordinary workers take the effect, whatever happens.",
        ),
    ] = TAKEOVER_SECONDS_DEFAULT,
    armed: Annotated[
        str | None, typer.Option(metavar="ID", help="Run a drill that was armed over HTTP.")
    ] = None,
    tenant: TenantOption = None,
    as_json: AsJson = False,
) -> None:
    """Let one effect lose its worker, and show how it is settled and how long that takes.

    Ends with 0 if the worker died at the fault point and the effect ended as its class promises, or
    waits for a person where nobody can know; else with 1.
    """
    order: DrillOrder | None = None
    if armed is None:
        order = _order(tool, operation_key, fault_point, reason, expires, takeover)
    elif tool is not None or operation_key is not None:
        complain("--armed names a drill that has its subject already", 2)
    drill_id = order.drill_id if order is not None else _id(armed or "")

    async def work(found: Logins) -> tuple[DrillRecord, bool, list[dict[str, Any]]]:
        async with _parties(found, tenant) as parties:
            record, at_point = await _Drill(parties, drill_id, order).watched()
            return record, at_point, await moments(parties.at, record)

    with logins() as found, _refusals():
        record, at_point, timeline = run(work(found))
    kept = record.status is DrillStatus.SETTLED and bool(record.promise_kept) and at_point
    if as_json:
        print_json(drill_body(record) | {"died_at_point": at_point, "timeline": timeline})
    else:
        print_report(record, timeline, at_point)
    raise typer.Exit(0 if kept else 1)


@app.command("list")
def list_drills(
    limit: Annotated[int, typer.Option(min=1, max=LISTED_MAX)] = 50,
    tenant: TenantOption = None,
    as_json: AsJson = False,
) -> None:
    """List drills, newest first."""

    async def work(found: Logins) -> list[DrillRecord]:
        async with desk(found, tenant) as at, opened(found.of(DatabaseRole.WORKER)) as pool:
            return list(await PostgresDrills(pool).listing(at.tenant.tenant_id, limit))

    with logins() as found:
        records = run(work(found))
    if as_json:
        print_json({"drills": [drill_body(record) for record in records]})
        return
    rows = [_row(record) for record in records]
    print_table("drills", _COLUMNS, rows, first_to_go=("effect",))


@app.command("show")
def show(drill: DrillArgument, tenant: TenantOption = None, as_json: AsJson = False) -> None:
    """Show how far a drill has come, with the moments of its effect."""
    drill_id = _id(drill)

    async def work(found: Logins) -> tuple[DrillRecord, list[dict[str, Any]]]:
        async with desk(found, tenant) as at, opened(found.of(DatabaseRole.WORKER)) as pool:
            record = await PostgresDrills(pool).drill(at.tenant.tenant_id, drill_id)
            return record, await moments(at, record)

    with logins() as found, _refusals():
        record, timeline = run(work(found))
    if as_json:
        print_json(drill_body(record) | {"timeline": timeline})
    else:
        print_report(record, timeline, True)


@app.command("cancel")
def cancel(drill: DrillArgument, tenant: TenantOption = None, as_json: AsJson = False) -> None:
    """Disarm a drill that no effect has met."""
    drill_id = _id(drill)

    async def work(found: Logins) -> DrillRecord:
        async with desk(found, tenant) as at, opened(found.of(DatabaseRole.API)) as pool:
            return await PostgresDrills(pool).cancel(at.tenant.tenant_id, drill_id, operator())

    with logins() as found, _refusals():
        record = run(work(found))
    if as_json:
        print_json(drill_body(record))
    else:
        print(f"drill {record.drill_id} {record.status.value}: no effect meets it any more")


@app.command("worker", hidden=True)
def worker(drill: DrillArgument, tenant_id: Annotated[str, typer.Option()]) -> None:
    """Be the worker of one drill; `drill run` starts it, and it ends when that command is gone."""
    subject = (_id(tenant_id), _id(drill))
    settings = load_settings()
    logs.configure(settings.log_level, as_json=settings.json_logs)

    async def work(login: assembly.DatabaseLogin) -> None:
        from effect_broker.cli.drill_process import end_with_parent

        async with assembly.drill_worker(settings, login, *subject) as (made, executor_id):
            end_with_parent()
            await made.run(lambda: print(f"{SAYS_READY}{executor_id}", flush=True))

    with assembly.database(settings, Role.WORKER) as login:
        asyncio.run(work(login))


# Running one ------------------------------------------------------------------------------------


class _Parties:
    """Who acts in a drill: the reader, the operator who arms, and the worker's side."""

    def __init__(self, at: Desk, arming: PostgresDrills, telling: PostgresDrills) -> None:
        self.at, self.arming, self.telling = at, arming, telling
        self.tenant_id = at.tenant.tenant_id


@asynccontextmanager
async def _parties(found: Logins, tenant: str | None) -> AsyncIterator[_Parties]:
    async with (
        desk(found, tenant) as at,
        opened(found.of(DatabaseRole.API)) as api,
        opened(found.of(DatabaseRole.WORKER)) as workers,
    ):
        yield _Parties(at, PostgresDrills(api), PostgresDrills(workers))


class _Drill:
    """One drill from its worker's start to the rest of its effect."""

    def __init__(self, parties: _Parties, drill_id: UUID, order: DrillOrder | None) -> None:
        self._parties = parties
        self._drill_id = drill_id
        self._order = order
        self._said: DrillStatus | None = None

    async def watched(self) -> tuple[DrillRecord, bool]:
        """Return the drill once it is over, and whether its worker died at the fault point."""
        parties = self._parties
        if self._order is None:
            record = await parties.telling.drill(parties.tenant_id, self._drill_id)
            if record.status not in {DrillStatus.ARMED, DrillStatus.MATCHED}:
                complain(f"the drill is {record.status.value}; arm another one")
        _say("starting the drill's worker")
        process = await DrillProcess.started(self._drill_id, parties.tenant_id)
        matched = False
        try:
            if not await process.ready():
                complain("the drill's worker did not start; see above. Nothing was armed")
            if self._order is not None:
                await parties.arming.arm(parties.tenant_id, self._order, operator())
            while True:
                record = await self._look(process)
                matched = record.effect is not None
                if record.status in _OVER:
                    return record, process.point is not None
                if process.ended and not matched:
                    complain("the drill's worker has ended before an effect came; disarmed")
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            await process.end()
            if not matched:
                await self._disarm()

    async def _look(self, process: DrillProcess) -> DrillRecord:
        parties, drill_id = self._parties, self._drill_id
        while True:
            try:
                if process.executor_id is not None and process.point is not None and process.ended:
                    await parties.telling.record_death(
                        parties.tenant_id, drill_id, process.executor_id
                    )
                record = await parties.telling.drill(parties.tenant_id, drill_id)
            except StoreError as problem:
                _say(f"the database does not answer ({type(problem).__name__}); trying on")
                await asyncio.sleep(1.0)
                continue
            if record.status is not self._said:
                self._said = record.status
                _say(_words(record))
            return record

    async def _disarm(self) -> None:
        try:
            await self._parties.arming.cancel(self._parties.tenant_id, self._drill_id, operator())
        except (NotFound, TransitionRefused):
            return
        except StoreError as problem:
            _say(f"could not disarm ({type(problem).__name__}); it expires by itself")


def _words(record: DrillRecord) -> str:
    subject = f"tool {record.tool}" if record.tool else f"operation key {record.operation_key}"
    match record.status:
        case DrillStatus.ARMED:
            until = f"{record.expires_at:%H:%M:%S}Z"
            return f"armed for {subject} until {until}: submit an effect now, as {record.drill_id}"
        case DrillStatus.MATCHED:
            assert record.effect is not None
            return f"effect {record.effect.effect_id} has met it"
        case DrillStatus.DIED:
            return "the worker is dead; the ordinary ones have the effect now"
        case _:
            return record.status.value


def _say(words: str) -> None:
    print(f"drill: {plain(words, 200)}", file=sys.stderr, flush=True)


# What was typed ---------------------------------------------------------------------------------


def _order(
    tool: str | None,
    operation_key: str | None,
    point: str,
    reason: str,
    expires: int,
    takeover: int,
) -> DrillOrder:
    if (tool is None) == (operation_key is None):
        complain("say what it waits for: --tool NAME, or --operation-key KEY", 2)
    why = reason.strip()
    if not why or not why.isprintable() or len(why) > REASON_CHARS_MAX:
        complain(f"--reason is printable text of 1 to {REASON_CHARS_MAX} characters", 2)
    try:
        if operation_key is not None:
            check_operation_key(operation_key)
        return DrillOrder(
            new_id(), operation_key, text("--tool", tool), checked_point(point), why, expires,
            takeover,
        )  # fmt: skip
    except InvalidOperationKey as refusal:
        complain(f"--operation-key: {refusal.detail}", 2)
    except InvalidRequest as refusal:
        complain(f"--fault-point: {refusal.detail}", 2)


def _id(given: str) -> UUID:
    try:
        return UUID(given)
    except ValueError:
        complain(f"'{plain(given)}' is no id, which is a UUID; `effect-broker drill list`", 2)


@contextmanager
def _refusals() -> Iterator[None]:
    """Say in words why a drill was refused."""
    try:
        yield
    except UnknownTool:
        complain("no active contract serves this tool; `effect-broker contracts list`")
    except NotFound:
        complain("there is no such drill of this tenant; `effect-broker drill list`")
    except TransitionRefused as refused:
        complain(
            f"an effect in state {refused.extras.get('state')} stands there already, and a drill "
            "is for a new one. Nothing was changed"
        )


def _row(record: DrillRecord) -> tuple[object, ...]:
    seconds = record.settlement_seconds
    return (
        record.drill_id, record.status.value,
        f"tool {record.tool}" if record.tool else record.operation_key, record.point.value,
        f"{record.armed_at:%Y-%m-%d %H:%M:%S}Z", record.armed_by,
        record.effect.effect_id if record.effect else None,
        None if seconds is None else f"{seconds:.1f} s",
        record.settled_by.value if record.settled_by else None,
    )  # fmt: skip
