"""`effect-broker decisions`: conclude the same of many effects, with a record for each."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, TypeVar
from uuid import UUID

import typer
from pydantic import ValidationError

from effect_broker.api.batches import BatchBody, batch_body, unresolved_of, whole_body
from effect_broker.batches import EFFECTS_MAX, Batching, BatchRecord, Group
from effect_broker.cli.access import Logins, logins, opened, plain, run
from effect_broker.cli.desk import TenantOption, credential, desk, signer, text
from effect_broker.cli.output import AsJson, complain, print_json, print_table
from effect_broker.cli.resolve import evidence_item, what_is_wrong
from effect_broker.clock import new_id
from effect_broker.resolving import Resolving
from effect_broker.store.batches import PostgresBatches
from effect_broker.store.roles import DatabaseRole
from effect_broker.unresolved import REASONS, UnresolvedEffect
from effect_contracts.counting import counted
from effect_contracts.errors import DecisionConflict
from effect_contracts.facts import Conclusion

app = typer.Typer(help="Decisions on many effects at once.", no_args_is_help=True)

T = TypeVar("T")

_LISTED = 50
_NOTHING = "nothing of this group is unresolved"

ToolOption = Annotated[str | None, typer.Option(help="Effects of this tool.")]
ReasonOption = Annotated[str | None, typer.Option(help="Unresolved for this reason.")]
TraceOption = Annotated[str | None, typer.Option(help="Of this trace: one run of an agent.")]
PrefixOption = Annotated[str | None, typer.Option(help="Whose operation keys begin so.")]


@app.command("make")
def make(
    conclusion: Annotated[
        Conclusion, typer.Option("--as", help="What is known: they exist, they do not, it is over.")
    ],
    because: Annotated[str, typer.Option(help="Why, in words for those who read it later.")],
    cause: Annotated[list[str], typer.Option(help="What led to it; may be given again.")],
    evidence: Annotated[
        list[str], typer.Option(help="kind=WORD,ref=WHERE,observed=MOMENT; may be given again.")
    ],
    remedy: Annotated[
        list[str] | None, typer.Option(help="What was done about it; may be given again.")
    ] = None,
    tool: ToolOption = None,
    reason: ReasonOption = None,
    trace_id: TraceOption = None,
    prefix: PrefixOption = None,
    decision_id: Annotated[
        str | None, typer.Option(help="Your name of it; the same again goes on where it stopped.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=EFFECTS_MAX)] = EFFECTS_MAX,
    yes: Annotated[
        bool, typer.Option("--yes", help="Record it; without this, only show whom it is about.")
    ] = False,
    tenant: TenantOption = None,
    as_json: AsJson = False,
) -> None:
    """Conclude the same of all unresolved effects of a group, the most urgent first.

    Nothing is sent by it. Without --yes nothing is recorded either.
    """
    group = _group(tool, reason, trace_id, prefix)
    body = {
        "decision_id": decision_id or f"cli-{new_id()}",
        "group": asdict(group),
        "conclusion": conclusion.value,
        "reason": because,
        "causes": list(cause),
        "remedies": list(remedy or ()),
        "evidence": [evidence_item(one) for one in evidence],
    }
    if not yes:
        _show_whom(_asked(partial(_unresolved, group=group, limit=limit), tenant), conclusion)
        return
    decided = _asked(partial(_decide, group=group, body=body, limit=limit), tenant)
    if decided is None:
        print(_NOTHING)
    else:
        _show(decided, as_json)


async def _unresolved(
    batching: Batching, tenant_id: UUID, *, group: Group, limit: int
) -> tuple[UnresolvedEffect, ...]:
    page = await batching.store.unresolved(tenant_id, group.filter(), None, limit)
    return page.effects


async def _decide(
    batching: Batching, tenant_id: UUID, *, group: Group, body: dict[str, Any], limit: int
) -> dict[str, Any] | None:
    """Decide what is unresolved now, at the versions it has now; None where nothing is."""
    found = await _unresolved(batching, tenant_id, group=group, limit=limit)
    if not found:
        return None
    named = [
        {"effect_id": str(row.intent.effect_id), "expected_version": row.intent.version}
        for row in found
    ]
    statement = _statement(body | {"effects": named})
    record = await batching.decide(tenant_id, statement, credential())
    return await _whole(batching, tenant_id, record)


async def _whole(batching: Batching, tenant_id: UUID, record: BatchRecord) -> dict[str, Any]:
    effects = await batching.store.batch_effects(tenant_id, record.decision_id)
    waiting = await unresolved_of(batching, tenant_id, record, limit=EFFECTS_MAX)
    return whole_body(record, effects, waiting)


def _group(tool: str | None, reason: str | None, trace_id: str | None, prefix: str | None) -> Group:
    group = Group(text("--tool", tool), reason, text("--trace-id", trace_id), prefix)
    if group == Group():
        complain("say which effects: --tool, --reason, --trace-id or --prefix", 2)
    if reason is not None and reason not in REASONS:
        complain(f"'{plain(reason)}' is no reason; there are {', '.join(sorted(REASONS))}", 2)
    return group


def _show_whom(found: tuple[UnresolvedEffect, ...], conclusion: Conclusion) -> None:
    if not found:
        print(_NOTHING)
        return
    rows = [
        (r.intent.effect_id, r.intent.operation_key, r.reasons[0], r.intent.version) for r in found
    ]
    print_table("would be decided", ("effect", "operation key", "reason", "version"), rows)
    effects = counted(len(rows), "effect")
    print(f"{effects}; say it again with --yes to record it as {conclusion.value}")


@app.command("list")
def list_decisions(tenant: TenantOption = None, as_json: AsJson = False) -> None:
    """List decisions, the newest first, and whether something of their group waits."""

    async def read(batching: Batching, tenant_id: UUID) -> list[dict[str, Any]]:
        found = []
        for record in await batching.store.batches(tenant_id, _LISTED):
            waiting = await unresolved_of(batching, tenant_id, record, limit=1)
            found.append(batch_body(record) | {"open": bool(waiting)})
        return found

    found = _asked(read, tenant)
    if as_json:
        print_json(found)
        return
    rows = [
        (d["decision_id"], "open" if d["open"] else "closed", d["conclusion"], d["reason"],
         d["decided_by"], d["decided_at"])
        for d in found
    ]  # fmt: skip
    print_table("decisions", ("id", "now", "as", "because", "by", "at"), rows)


@app.command("show")
def show_decision(
    decision_id: Annotated[str, typer.Argument(metavar="ID")],
    tenant: TenantOption = None,
    as_json: AsJson = False,
) -> None:
    """Show a decision: what became of each effect, and what its group has that is unresolved."""

    async def read(batching: Batching, tenant_id: UUID) -> dict[str, Any]:
        record = await batching.store.batch(tenant_id, decision_id)
        if record is None:
            complain("there is no such decision; `effect-broker decisions list`")
        return await _whole(batching, tenant_id, record)

    text("ID", decision_id)
    _show(_asked(read, tenant), as_json)


def _asked(work: Callable[[Batching, UUID], Awaitable[T]], tenant: str | None) -> T:
    async def asked(found: Logins) -> T:
        async with desk(found, tenant) as at, opened(found.of(DatabaseRole.API)) as pool:
            store = PostgresBatches(pool, signer=signer(found.settings))
            return await work(Batching(store, Resolving(store, new_id)), at.tenant.tenant_id)

    with logins() as found:
        try:
            return run(asked(found))
        except DecisionConflict as conflict:
            complain(conflict.detail)


def _statement(body: dict[str, Any]) -> Any:
    try:
        return BatchBody.model_validate(json.loads(json.dumps(body))).statement()
    except ValidationError as problem:
        # What differs from a statement on one effect by its name.
        refusal = what_is_wrong(problem).replace("--reason", "--because")
    complain(refusal, 2)


def _show(whole: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(whole)
        return
    rows = [(e["effect_id"], e["outcome"], e["code"]) for e in whole["effects"]]
    print_table(f"decision {whole['decision_id']}", ("effect", "outcome", "why not"), rows)
    if not whole["open"]:
        print("closed: nothing of its group waits")
        return
    new = len(whole["reopened_by"])
    effects = counted(new, "effect of its group is", "effects of its group are")
    print(f"open: {effects} new; see `effect-broker effects unresolved`")
