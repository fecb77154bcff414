"""`effect-broker effects`: list, inspect, wait for, prove and submit effects of one tenant.

Reading acts as the worker's role, which sees every tenant, so each command names one: the tenant
that is given, or the only one that exists. `inspect` is written for somebody who is woken up: it
says in words what is known, what happens next and when, and what a person can do.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

from effect_broker.api.presentation import effect_body, intent_body
from effect_broker.cli import approve, effect_page, fork, history_page, resolve, unresolved, wishes
from effect_broker.cli.access import Logins, logins, opened, plain, run
from effect_broker.cli.desk import (
    EffectArgument,
    KeyOption,
    TenantOption,
    credential,
    desk,
    known_effect,
    text,
)
from effect_broker.cli.durations import seconds_of
from effect_broker.cli.effect_wait import Ending, follow
from effect_broker.cli.output import AsJson, complain, print_json, print_table
from effect_broker.faultpoints import FaultPoints
from effect_broker.intake import EffectRequest, Intake, Tenant, require_object
from effect_broker.keyring import AesVault, KeyRingProblem, key_ring
from effect_broker.protocol.ports import VaultError
from effect_broker.protocol.submission import Submitted
from effect_broker.reading import (
    PAGE_LIMIT_DEFAULT,
    PAGE_LIMIT_MAX,
    CursorInvalid,
    EffectFilter,
    EffectPage,
    ReceiptRecord,
)
from effect_broker.receipts import opened_result, receipt_body
from effect_broker.secretrefs import SecretReferences
from effect_broker.store.api import PostgresApiStore
from effect_broker.store.roles import DatabaseRole
from effect_contracts import keys
from effect_contracts.canonical import BODY_BYTES_MAX, JsonValue, parse_strict
from effect_contracts.errors import PayloadConflict, UnknownTool
from effect_contracts.facts import EffectState

app = typer.Typer(help="Effects: what was asked for, and what became of it.", no_args_is_help=True)
app.command("unresolved")(unresolved.unresolved)
app.command("resolve")(resolve.resolve)
app.command("confirm")(resolve.confirm)
app.command("approve")(approve.approve)
app.command("deny")(approve.deny)
app.command("reconcile")(wishes.reconcile)
app.command("cancel")(wishes.cancel)
app.command("acknowledge")(wishes.acknowledge)
app.command("fork")(fork.fork_effect)


@app.command("list")
def list_effects(
    status: Annotated[
        list[EffectState] | None, typer.Option(help="In this state; may be given again.")
    ] = None,
    reason: Annotated[str | None, typer.Option(help="With this reason.")] = None,
    tool: Annotated[str | None, typer.Option(help="Of this tool.")] = None,
    older_than: Annotated[
        str | None, typer.Option(help="Made at least this long ago: 90s, 15m, 2h, 1d.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(help="With an operation key that begins like this.")
    ] = None,
    unresolved: Annotated[bool, typer.Option("--unresolved", help="Not final.")] = False,
    cursor: Annotated[str | None, typer.Option(help="Go on after an earlier page.")] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=PAGE_LIMIT_MAX, help="At most so many.")
    ] = PAGE_LIMIT_DEFAULT,
    tenant: TenantOption = None,
    as_json: AsJson = False,
) -> None:
    """List effects, newest first."""
    filters = EffectFilter(
        states=frozenset(status or ()),
        reason=text("--reason", reason),
        tool=text("--tool", tool),
        operation_prefix=text("--prefix", prefix),
        older_than_seconds=None if older_than is None else seconds_of(older_than),
        unresolved=unresolved,
    )
    after = text("--cursor", cursor)

    async def read(found: Logins) -> EffectPage:
        async with desk(found, tenant) as at:
            return await at.store.effects(at.tenant.tenant_id, filters, after, limit)

    with logins() as found:
        try:
            page = run(read(found))
        except CursorInvalid:
            complain("--cursor was not made by this listing; begin again without it")
    if as_json:
        effects = [effect_body(detail, attempts=False) for detail in page.effects]
        print_json({"effects": effects, "cursor": page.cursor})
        return
    rows = [effect_page.row(detail) for detail in page.effects]
    print_table("effects", effect_page.COLUMNS, rows, first_to_go=effect_page.FIRST_TO_GO)
    if page.cursor is not None:
        print(f"there are more: --cursor {page.cursor}", file=sys.stderr)


@app.command("inspect")
def inspect(
    effect: EffectArgument = None,
    operation_key: KeyOption = None,
    at_sequence: Annotated[
        int | None, typer.Option(min=1, max=2**31 - 1, help="As it stood after this event.")
    ] = None,
    compare_to: Annotated[
        int | None, typer.Option(min=1, max=2**31 - 1, help="And what changed to this event.")
    ] = None,
    tenant: TenantOption = None,
    as_json: AsJson = False,
) -> None:
    """Show all that is known of an effect, what happens next, and what a person can do.

    With --at-sequence, what was known after one of its events, folded from the stored events."""
    if at_sequence is not None:
        moments = (at_sequence, compare_to)
        history_page.inspect_then(effect, operation_key, tenant, moments, as_json=as_json)
        return
    if compare_to is not None:
        complain("--compare-to needs --at-sequence, the moment to compare", 2)

    async def read(found: Logins) -> effect_page.Inspection:
        async with desk(found, tenant) as at:
            tenant_id = at.tenant.tenant_id
            effect_id = at.effect_id(effect, operation_key)
            return effect_page.Inspection(
                tenant=at.tenant.name,
                detail=await at.store.effect(tenant_id, effect_id),
                snapshot=await at.store.load(tenant_id, effect_id),
                events=await at.store.events(tenant_id, effect_id),
                proposals=await at.store.proposals(tenant_id, effect_id),
            )

    with logins() as found, known_effect():
        inspection = run(read(found))
    if as_json:
        print_json(effect_page.body(inspection))
    else:
        effect_page.show(inspection)


@app.command("wait")
def wait(
    effect: EffectArgument = None,
    operation_key: KeyOption = None,
    timeout: Annotated[
        str | None, typer.Option(help="Give up after this long: 90s, 15m, 2h. Never by default.")
    ] = None,
    tenant: TenantOption = None,
    as_json: AsJson = False,
) -> None:
    """Wait until an effect has ended: exit 0 succeeded, 1 did not, 3 waits for a person."""
    limit = None if timeout is None else seconds_of(timeout)

    async def watch(found: Logins) -> Ending:
        async with desk(found, tenant) as at:
            effect_id = at.effect_id(effect, operation_key)
            reads = at.store
            return await follow(reads, at.tenant.tenant_id, effect_id, limit, _say)

    with logins() as found, known_effect():
        ending = run(watch(found))
    if as_json:
        body = effect_body(ending.detail, attempts=True)
        print_json(body | {"exit_code": ending.exit_code, "explanation": ending.explanation})
    else:
        intent = ending.detail.intent
        print(f"{intent.effect_id} {intent.state.value} ({intent.reason}): {ending.explanation}")
    raise typer.Exit(ending.exit_code)


@app.command("receipt")
def receipt(
    effect: EffectArgument = None,
    operation_key: KeyOption = None,
    tenant: TenantOption = None,
    as_json: AsJson = False,
) -> None:
    """Print the receipt of a settled effect; exit 3 while it is not settled."""

    async def read(found: Logins) -> tuple[UUID, UUID, ReceiptRecord | None]:
        async with desk(found, tenant) as at:
            effect_id = at.effect_id(effect, operation_key)
            tenant_id = at.tenant.tenant_id
            return tenant_id, effect_id, await at.store.receipt(tenant_id, effect_id)

    with logins() as found, known_effect():
        tenant_id, effect_id, record = run(read(found))
    if record is None:
        complain(
            f"effect {effect_id} is not settled, so there is no receipt yet; "
            "`effect-broker effects inspect` shows what it waits for",
            3,
        )
    body = _receipt_body(found, tenant_id, effect_id, record)
    if as_json:
        print_json(body)
        return
    content = body["receipt"]
    assert isinstance(content, dict)
    rows = [(name, _cell(value)) for name, value in content.items()]
    rows += [(f"field {name}", _cell(value)) for name, value in body["fields"].items()]
    rows.append(("digest", body["digest"]))
    signed = ", ".join(one["key_id"] for one in body["signatures"])
    rows.append(("signed by", signed or "nobody: `effect-broker receipts sign`"))
    print_table(f"receipt of {effect_id}", ("what", "value"), rows)


@app.command("submit")
def submit(
    tool: Annotated[str, typer.Option(help="The tool, as its contract names it.")],
    operation_key: Annotated[
        str, typer.Option("--key", help="Your stable name of the intent; never a fresh one.")
    ],
    arguments: Annotated[str, typer.Option(help="A JSON object, or @FILE, or @- for stdin.")],
    trace_id: Annotated[str | None, typer.Option(help="For the reader.")] = None,
    tenant: TenantOption = None,
    as_json: AsJson = False,
) -> None:
    """Submit an effect; the same key and arguments again is a replay, never a second effect."""
    request = EffectRequest(
        operation_key=keys.check_operation_key(operation_key),
        tool=text("--tool", tool) or "",
        arguments=require_object(_json_arguments(arguments)),
        trace_id=text("--trace-id", trace_id),
    )

    async def send(found: Logins) -> Submitted:
        ring = key_ring(found.settings)
        async with desk(found, tenant) as at, opened(found.of(DatabaseRole.API)) as pool:
            if at.tenant.disabled_at is not None:
                complain(f"tenant {at.tenant.name} is disabled; its submits are refused")
            intake = Intake(
                PostgresApiStore(pool), _adapters(found), ring, AesVault(ring),
                FaultPoints.from_environment().reach,
            )  # fmt: skip
            asker = Tenant(at.tenant.tenant_id, at.tenant.hmac_key_id, credential())
            return await intake.submit(asker, request)

    with logins() as found:
        try:
            submitted = run(send(found))
        except UnknownTool:
            complain(
                f"no active contract has the tool {plain(tool)}; `effect-broker contracts list` "
                "shows those there are, `contracts apply FILE` adds one"
            )
        except PayloadConflict as conflict:
            complain(
                f"the operation key is bound to another request (effect "
                f"{conflict.extras.get('effect_id')}); first difference at "
                f"{conflict.field or 'an unknown place'}. Nothing was sent"
            )
    intent = submitted.intent
    if as_json:
        print_json(intent_body(intent) | {"replayed": not submitted.created})
        return
    what = "submitted" if submitted.created else "exists already, nothing new was made"
    print(f"{intent.effect_id} {intent.state.value}: {what}")
    print(f"next: effect-broker effects wait {intent.effect_id}", file=sys.stderr)


def _adapters(found: Logins) -> Any:
    # Rendering needs no secret; they are resolved at dispatch only. Imported late: it loads the
    # clients of the targets, which no other command here needs.
    from effect_adapters.registry import adapters

    settings = found.settings
    return adapters(SecretReferences(settings.secret_prefix, settings.secret_directory))


def _json_arguments(given: str) -> JsonValue:
    """The value of --arguments, strictly read.

    Raises:
        InvalidPayload: it has no canonical form.
    """
    if not given.startswith("@"):
        return parse_strict(given.encode("utf-8", "surrogatepass"))
    name = given[1:]
    try:
        if name == "-":
            return parse_strict(sys.stdin.buffer.read(BODY_BYTES_MAX + 1))
        with Path(name).open("rb") as file:
            raw = file.read(BODY_BYTES_MAX + 1)
    except OSError as problem:
        complain(f"{plain(name)} cannot be read: {problem.strerror or type(problem).__name__}")
    except ValueError:
        complain("--arguments @FILE: the name cannot be that of a file")
    return parse_strict(raw)


def _receipt_body(
    found: Logins, tenant_id: UUID, effect_id: UUID, record: ReceiptRecord
) -> dict[str, Any]:
    body = receipt_body(record)
    if record.result is None:
        return body  # no key ring is needed to show it
    try:
        vault = AesVault(key_ring(found.settings))
        return body | opened_result(record, tenant_id, effect_id, vault)
    except (KeyRingProblem, VaultError) as problem:
        _say(f"the target's result stays sealed: {problem}")
        return body


def _cell(value: object) -> str:
    if isinstance(value, dict | list):
        return "; ".join(_flat(value))
    return "" if value is None else str(value)


def _flat(value: object, path: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _flat(inner, f"{path}[{index}]")
    else:
        yield f"{path}={value}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
