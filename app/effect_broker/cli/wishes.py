"""`effect-broker effects reconcile` and `cancel`: what may be asked of an effect under way."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated
from uuid import UUID

import typer

from effect_broker.api.presentation import effect_body
from effect_broker.cli.access import Logins, logins, opened, run
from effect_broker.cli.desk import (
    EffectArgument,
    KeyOption,
    TenantOption,
    desk,
    known_effect,
    operator,
    signer,
    text,
    trusted,
)
from effect_broker.cli.effect_wait import next_step
from effect_broker.cli.next_commands import replaced
from effect_broker.cli.output import AsJson, complain, print_json
from effect_broker.clock import new_id
from effect_broker.protocol import acknowledgement, wishes
from effect_broker.protocol.acknowledgement import Acknowledged, Acknowledgement
from effect_broker.protocol.ports import Change, Snapshot
from effect_broker.reading import EffectDetail
from effect_broker.store.api import PostgresApiStore
from effect_broker.store.roles import DatabaseRole
from effect_contracts.facts import Alert

Wish = Callable[[Snapshot], Change[wishes.Granted | None]]


def reconcile(
    effect: EffectArgument = None,
    operation_key: KeyOption = None,
    tenant: TenantOption = None,
    as_json: AsJson = False,
) -> None:
    """Look at the target now instead of by the schedule; it never sends what may not be sent."""

    def wish(snapshot: Snapshot) -> Change[wishes.Granted | None]:
        change = wishes.reconcile(snapshot, receipt_id=new_id(), actor=operator())
        return Change(change.result, change.writes)

    granted, detail = _asked(wish, effect, operation_key, tenant)
    assert granted is not None, "to look is always permitted"
    what = "it is looked at now" if granted.changed else "nothing to look for"
    _show(detail, what, granted.changed, as_json)


def cancel(
    effect: EffectArgument = None,
    operation_key: KeyOption = None,
    tenant: TenantOption = None,
    as_json: AsJson = False,
) -> None:
    """Withdraw an effect before its first attempt; afterwards nothing can be taken back."""
    wish = partial(wishes.cancel, receipt_id=new_id(), actor=operator())
    granted, detail = _asked(wish, effect, operation_key, tenant)
    if granted is None:
        complain(
            f"effect {detail.intent.effect_id} is {detail.intent.state.value}: only what was never "
            "sent can be withdrawn. Nothing was changed"
        )
    _show(detail, "withdrawn" if granted.changed else "withdrawn already", granted.changed, as_json)


def _asked(
    wish: Wish, effect: str | None, operation_key: str | None, tenant: str | None
) -> tuple[wishes.Granted | None, EffectDetail]:
    async def work(found: Logins) -> tuple[wishes.Granted | None, EffectDetail]:
        async with desk(found, tenant) as at, opened(found.of(DatabaseRole.API)) as pool:
            tenant_id: UUID = at.tenant.tenant_id
            effect_id = at.effect_id(effect, operation_key)
            store = PostgresApiStore(
                pool, signer=signer(found.settings), trusted=trusted(found.settings)
            )
            granted = await store.change(tenant_id, effect_id, wish)
            return granted, await store.effect(tenant_id, effect_id)

    with logins() as found, known_effect():
        return run(work(found))


def _show(detail: EffectDetail, what: str, changed: bool, as_json: bool) -> None:
    if as_json:
        print_json(effect_body(detail, attempts=True) | {"changed": changed})
        return
    intent = detail.intent
    print(f"{intent.effect_id} {intent.state.value} ({intent.reason}): {what}; {next_step(detail)}")


def acknowledge(
    alert: Annotated[Alert, typer.Option(help="The alert, as `effects inspect` shows it.")],
    reason: Annotated[str, typer.Option(help="What was done about it; it is kept.")],
    effect: EffectArgument = None,
    operation_key: KeyOption = None,
    tenant: TenantOption = None,
    as_json: AsJson = False,
) -> None:
    """Say that an alert was dealt with; it no longer waits for anybody."""
    why = text("--reason", reason.strip())
    replaced("--reason", why)
    if not why:
        complain("--reason is empty; say what was done", 2)
    said = Acknowledgement(alert, why, operator())

    def wish(snapshot: Snapshot) -> Change[wishes.Granted | None]:
        change = acknowledgement.acknowledge(snapshot, said)
        if change.result is Acknowledged.ANOTHER_ALERT:
            return Change(None)
        changed = change.result is Acknowledged.NEW
        return Change(wishes.Granted(changed, snapshot.intent.state), change.writes)

    granted, detail = _asked(wish, effect, operation_key, tenant)
    if granted is None:
        present = detail.alert.value if detail.alert else "none"
        complain(f"the effect's alert is {present} by now; `effects inspect` it again")
    what = "the alert was dealt with" if granted.changed else "there was no alert"
    _show(detail, what, granted.changed, as_json)
