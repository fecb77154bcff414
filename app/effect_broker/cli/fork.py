"""`effect-broker effects fork`: what another contract would have decided, or the effect again.

A simulation reads the account of the effect and nothing else: no network, no write. A live fork is
an ordinary submit of the same tool and arguments under a key of its own; nothing is shared with the
original but what its trace id says.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Final
from uuid import UUID

import typer

from effect_broker.api.presentation import intent_body
from effect_broker.cli.access import Logins, logins, opened, plain, run
from effect_broker.cli.desk import (
    Desk,
    EffectArgument,
    KeyOption,
    TenantOption,
    credential,
    desk,
    known_effect,
)
from effect_broker.cli.output import AsJson, complain, print_json, print_table
from effect_broker.faultpoints import FaultPoints
from effect_broker.intake import EffectRequest, Intake, Tenant, require_object
from effect_broker.keyring import AesVault, key_ring
from effect_broker.protocol.ports import Intent
from effect_broker.protocol.submission import Submitted
from effect_broker.secretrefs import SecretReferences
from effect_broker.store.api import PostgresApiStore
from effect_broker.store.export import TraceSelection, export_trace
from effect_broker.store.roles import DatabaseRole
from effect_contracts import keys
from effect_contracts.canonical import parse_strict
from effect_contracts.decide import Reason
from effect_contracts.document import ContractDocument
from effect_contracts.errors import ContractInvalid, PayloadConflict, UnknownTool
from effect_contracts.facts import EffectState
from effect_contracts.fork import Fork, Step, fork
from effect_contracts.trace.log import EffectLine, HeaderLine
from effect_contracts.trace.removed import is_removed

# A contract of the catalogue has some kilobytes.
_CONTRACT_BYTES_MAX: Final = 1_048_576
_COLUMNS: Final = ("#", "after", "pinned contract", "other contract", "")
# In these states it is certain that the original has changed nothing at the target; but for one
# that a person has given up, whatever happened.
_ABSENT: Final = frozenset({EffectState.FAILED_FINAL, EffectState.CANCELLED})


def fork_effect(
    effect: EffectArgument = None,
    key: KeyOption = None,
    contract: Annotated[
        Path | None,
        typer.Option(help="Decide under this contract too; the pinned one alone by default."),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Submit the same tool and arguments as a new effect.")
    ] = False,
    operation_key: Annotated[
        str | None, typer.Option(help="With --live: the new effect's own key, never the old one.")
    ] = None,
    tenant: TenantOption = None,
    as_json: AsJson = False,
) -> None:
    """Show what would be decided on the recorded facts; nothing is sent or written without --live.

    With --live a new effect is made, under the contract of the tool that is active now."""
    if live != (operation_key is not None):
        complain("--live and --operation-key go together: a new effect has a key of its own", 2)
    if not live:
        _simulate((effect, key, tenant), contract, as_json=as_json)
        return
    if contract is not None:
        complain(
            "--contract is for a simulation; a live effect is under the active contract of its "
            "tool, which `effect-broker contracts apply` changes", 2,
        )  # fmt: skip
    assert operation_key is not None
    _submit((effect, key, tenant), operation_key, as_json=as_json)


Named = tuple[str | None, str | None, str | None]


def _simulate(named: Named, contract: Path | None, *, as_json: bool) -> None:
    other = None if contract is None else _contract(contract)

    async def read(found: Logins) -> list[bytes]:
        lines: list[bytes] = []
        async with desk(found, named[2]) as at, opened(found.of(DatabaseRole.WORKER)) as pool:
            effect_id, tenant_id = at.effect_id(*named[:2]), at.tenant.tenant_id
            await at.store.intent(tenant_id, effect_id)  # it has to be there
            await export_trace(pool, lines.append, TraceSelection(tenant_id, effect_id))
        return lines

    with logins() as found, known_effect():
        header, pinned, line = _account(run(read(found)))
    if is_removed(line):
        complain("retention has removed the facts of the effect; nothing can be decided on them")
    if other is not None and other.tool != line.intent.tool:
        complain(
            f"{plain(str(contract))} is a contract of {plain(other.tool)}, and the effect is one "
            f"of {line.intent.tool}"
        )
    made = fork(
        line, pinned, other or pinned,
        now=header.exported_at, bounds_restart_at=header.bounds_restart_at,
    )  # fmt: skip
    if as_json:
        print_json(_body(line, pinned, other or pinned, made))
    else:
        _show(line, pinned, other, made)


def _account(lines: list[bytes]) -> tuple[HeaderLine, ContractDocument, EffectLine]:
    """Take an export of one effect apart: header, contract, effect, end."""
    bodies = [{k: v for k, v in json.loads(line).items() if k != "digest"} for line in lines]
    header, contract, effect, _ = bodies
    try:
        document = ContractDocument.from_canonical(contract["document"].encode())
    except ContractInvalid:
        complain("this release cannot read the contract that the effect has pinned")
    return (
        HeaderLine.model_validate_json(json.dumps(header)),
        document,
        EffectLine.model_validate_json(json.dumps(effect)),
    )


def _contract(path: Path) -> ContractDocument:
    try:
        with path.open("rb") as file:
            raw = file.read(_CONTRACT_BYTES_MAX + 1)
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or type(problem).__name__
        complain(f"{plain(str(path))} cannot be read: {reason}")
    if len(raw) > _CONTRACT_BYTES_MAX:
        complain(f"{plain(str(path))} is larger than {_CONTRACT_BYTES_MAX} bytes")
    try:
        return ContractDocument.parse_yaml(raw.decode())
    except UnicodeDecodeError:
        complain(f"{plain(str(path))} is not UTF-8 text")


def _named(document: ContractDocument) -> dict[str, str]:
    return {
        "name": document.name,
        "version": document.version,
        "digest": document.digest().hex(),
    }


def _body(
    line: EffectLine, pinned: ContractDocument, other: ContractDocument, made: Fork
) -> dict[str, Any]:
    first = made.first_difference
    return {
        "effect_id": str(line.intent.effect_id),
        "live": False,
        "recorded": {"state": line.intent.state.value, "reason": line.intent.reason},
        "pinned": _named(pinned),
        "other": _named(other),
        "steps": [step.to_json() for step in made.steps],
        "first_difference": None if first is None else first.to_json(),
        "broken": made.broken,
    }


def _show(
    line: EffectLine, pinned: ContractDocument, other: ContractDocument | None, made: Fork
) -> None:
    against = "" if other is None else f" and under {other.name} {other.version}"
    title = f"decided on the recorded facts, under {pinned.name} {pinned.version}{against}"
    print_table(title, _COLUMNS, [_row(step, other is not None) for step in made.steps])
    first = made.first_difference
    if made.broken is not None:
        print(f"the account could not be followed: {made.broken}")
    elif other is None:
        print(f"recorded: {line.intent.state.value} ({line.intent.reason})")
    elif first is None:
        print("the other contract decides the same at every event")
    else:
        side = "before" if first.before else "after"
        after = "now" if first.sequence is None else f"{side} event {first.sequence} ({first.kind})"
        print(
            f"first difference {after}: {_decided(first.other)} instead of "
            f"{_decided(first.pinned)}. What follows it would have met other facts"
        )


def _row(step: Step, with_other: bool) -> tuple[object, ...]:
    other = _decided(step.other) if with_other else ""
    mark = "DIFFERS" if step.differs else ""
    kind = f"before {step.kind}" if step.before else step.kind
    return step.sequence or "", kind, _decided(step.pinned), other, mark


def _decided(decision: Any) -> str:
    until = "" if decision.at is None else f" until {decision.at.isoformat()}"
    return f"{decision.action.value} ({decision.reason.value}){until}"


# Live -------------------------------------------------------------------------------------------


def _submit(named: Named, operation_key: str, *, as_json: bool) -> None:
    new_key = keys.check_operation_key(operation_key)

    async def send(found: Logins) -> tuple[Intent, Submitted]:
        async with desk(found, named[2]) as at, opened(found.of(DatabaseRole.API)) as pool:
            effect_id = at.effect_id(*named[:2])
            store = PostgresApiStore(pool)
            original = await store.intent(at.tenant.tenant_id, effect_id)
            if original.operation_key == new_key:
                complain(
                    "that is the operation key of the original, which names this effect and no "
                    "other; a new effect needs a new key. Nothing was made"
                )
            return original, await _submitted(found, at, store, original, new_key)

    with logins() as found, known_effect():
        try:
            original, submitted = run(send(found))
        except UnknownTool:
            complain("the tool has no active contract any more; `effect-broker contracts list`")
        except PayloadConflict:
            complain("the new key is bound to another request already. Nothing was made")
    intent = submitted.intent
    if as_json:
        print_json(
            intent_body(intent)
            | {
                "live": True,
                "replayed": not submitted.created,
                "forked_from": str(original.effect_id),
            }
        )
    else:
        what = "forked" if submitted.created else "exists already, nothing new was made"
        print(f"{intent.effect_id} {intent.state.value}: {what} from {original.effect_id}")
    absent = original.state in _ABSENT and original.reason != Reason.FAILED_BY_OPERATOR
    if submitted.created and not absent:
        print(
            f"the original is {original.state.value}: if it exists at the target, there will be "
            "two",
            file=sys.stderr,
        )


async def _submitted(
    found: Logins, at: Desk, store: PostgresApiStore, original: Intent, new_key: str
) -> Submitted:
    # Rendering needs no secret. Imported late: it loads the clients of the targets.
    from effect_adapters.registry import adapters

    if at.tenant.disabled_at is not None:
        complain(f"tenant {at.tenant.name} is disabled; its submits are refused")
    tenant_id: UUID = at.tenant.tenant_id
    ring = key_ring(found.settings)
    vault = AesVault(ring)
    sealed = await store.payload(tenant_id, original.effect_id, "arguments")
    if sealed is None:
        complain("the arguments of the original were erased; submit them again yourself")
    text = vault.unseal(tenant_id, original.effect_id, "arguments", sealed)
    request = EffectRequest(
        operation_key=new_key,
        tool=original.tool,
        arguments=require_object(parse_strict(text, bytes_max=len(text))),
        trace_id=f"fork:{original.effect_id}",
    )
    settings = found.settings
    renderers = adapters(SecretReferences(settings.secret_prefix, settings.secret_directory))
    intake = Intake(store, renderers, ring, vault, FaultPoints.from_environment().reach)
    asker = Tenant(tenant_id, at.tenant.hmac_key_id, credential())
    return await intake.submit(asker, request)
