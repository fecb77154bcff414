"""`effect-broker effects approve` and `deny`: a person's yes or no before the first attempt."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from effect_broker.approving import Approving
from effect_broker.cli.desk import EffectArgument, KeyOption, TenantOption, credential, text
from effect_broker.cli.next_commands import replaced
from effect_broker.cli.output import AsJson, complain
from effect_broker.cli.resolve import recorded, show
from effect_broker.clock import new_id
from effect_broker.resolving import Recorded
from effect_broker.store.api import PostgresApiStore

ReasonOption = Annotated[str, typer.Option("--reason", help="Why; it is kept.")]
HashOption = Annotated[
    str,
    typer.Option(help="The request hash that you have read (`effects inspect --json` shows it)."),
]
DecisionOption = Annotated[
    str | None, typer.Option(help="Your name of this decision; the same again changes nothing.")
]


def approve(
    reason: ReasonOption,
    request_hash: HashOption,
    effect: EffectArgument = None,
    operation_key: KeyOption = None,
    decision_id: DecisionOption = None,
    tenant: TenantOption = None,
    as_json: AsJson = False,
) -> None:
    """Let the first attempt of an effect begin that waits for an approval."""
    _judge(True, reason, request_hash, effect, operation_key, decision_id, tenant, as_json)


def deny(
    reason: ReasonOption,
    request_hash: HashOption,
    effect: EffectArgument = None,
    operation_key: KeyOption = None,
    decision_id: DecisionOption = None,
    tenant: TenantOption = None,
    as_json: AsJson = False,
) -> None:
    """Withdraw an effect that waits for an approval, for good."""
    _judge(False, reason, request_hash, effect, operation_key, decision_id, tenant, as_json)


def _judge(
    approved: bool,
    reason: str,
    request_hash: str,
    effect: str | None,
    operation_key: str | None,
    decision_id: str | None,
    tenant: str | None,
    as_json: bool,
) -> None:
    why = text("--reason", reason.strip())
    name = text("--decision-id", decision_id) or f"cli-{new_id()}"
    replaced("--reason", why)
    if not why:
        complain("--reason is empty; say why", 2)
    try:
        read = bytes.fromhex(request_hash)
    except ValueError:
        read = b""
    if len(read) != 32:
        complain("--request-hash is the 64 hex digits that `effects inspect --json` shows", 2)

    async def record(store: PostgresApiStore, tenant_id: UUID, effect_id: UUID) -> Recorded:
        created = await Approving(store, new_id).decide(
            tenant_id,
            effect_id,
            approved=approved,
            decision_id=name,
            request_hash=read,
            reason=why,
            credential=credential(),
        )
        return Recorded.NEW if created else Recorded.STOOD

    show(*recorded(record, effect, operation_key, tenant), as_json)
