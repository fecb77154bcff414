"""`effect-broker effects resolve`: what a person knows of an effect, recorded with its evidence."""

from __future__ import annotations

import json
from typing import Annotated, Any
from uuid import UUID

import typer
from pydantic import ValidationError

from effect_broker.api.bodies import StatementBody
from effect_broker.api.presentation import effect_body
from effect_broker.cli.access import Logins, logins, opened, plain, run
from effect_broker.cli.desk import (
    EffectArgument,
    KeyOption,
    TenantOption,
    desk,
    known_effect,
    operator,
)
from effect_broker.cli.output import AsJson, complain, print_json
from effect_broker.clock import new_id
from effect_broker.reading import EffectDetail
from effect_broker.resolving import Resolving, Statement
from effect_broker.store.api import PostgresApiStore
from effect_broker.store.roles import DatabaseRole
from effect_contracts.errors import DecisionConflict, StaleVersion, TooEarly, TransitionRefused
from effect_contracts.facts import Conclusion


def resolve(
    conclusion: Annotated[
        Conclusion, typer.Option("--as", help="What is known: it exists, it does not, it is over.")
    ],
    reason: Annotated[str, typer.Option(help="Why, in words for those who read it later.")],
    evidence: Annotated[
        list[str],
        typer.Option(
            help="kind=WORD,ref=WHERE,observed=MOMENT: what you looked at, and when you began to "
            "(RFC 3339). May be given again."
        ),
    ],
    version: Annotated[
        int, typer.Option(min=1, help="The version that you looked at (`effects inspect`).")
    ],
    effect: EffectArgument = None,
    operation_key: KeyOption = None,
    external_id: Annotated[
        str | None, typer.Option(help="The target's id of the object, for --as committed.")
    ] = None,
    decision_id: Annotated[
        str | None, typer.Option(help="Your name of this decision; the same again changes nothing.")
    ] = None,
    tenant: TenantOption = None,
    as_json: AsJson = False,
) -> None:
    """Record what you know of an effect whose outcome the broker cannot settle.

    `committed` settles it as done. `not_committed` lets the contract decide, and counts only if you
    looked late enough. `failed` ends it. None of them sends anything by itself.
    """
    body: dict[str, Any] = {
        "decision_id": decision_id or f"cli-{new_id()}",
        "expected_version": version,
        "conclusion": conclusion.value,
        "reason": reason,
        "external_id": external_id,
        "evidence": [_item(text) for text in evidence],
    }
    statement = _statement(body)

    detail, created = _recorded(statement, effect, operation_key, tenant)
    if as_json:
        print_json(effect_body(detail, attempts=True) | {"replayed": not created})
        return
    intent = detail.intent
    what = "recorded" if created else "stood already, nothing was changed"
    print(f"{intent.effect_id} {intent.state.value} ({intent.reason}): {what}")


def _recorded(
    statement: Statement, effect: str | None, operation_key: str | None, tenant: str | None
) -> tuple[EffectDetail, bool]:
    async def work(found: Logins) -> tuple[EffectDetail, bool]:
        async with desk(found, tenant) as at, opened(found.of(DatabaseRole.API)) as pool:
            effect_id: UUID = at.effect_id(effect, operation_key)
            store = PostgresApiStore(pool)
            created = await Resolving(store, new_id).resolve(
                at.tenant.tenant_id, effect_id, statement, operator()
            )
            return await store.effect(at.tenant.tenant_id, effect_id), created

    with logins() as found, known_effect():
        try:
            return run(work(found))
        except StaleVersion as stale:
            complain(
                f"the effect has changed: it is at version {stale.extras.get('version')} now; "
                "`effects inspect` it again and decide anew. Nothing was recorded"
            )
        except TooEarly as early:
            complain(
                f"too early: absence counts only if you looked from "
                f"{early.extras.get('not_before')} on. Nothing was recorded"
            )
        except TransitionRefused as refused:
            complain(
                f"an effect in state {refused.extras.get('state')} does not permit this; "
                "`effects inspect` says what is possible. Nothing was recorded"
            )
        except DecisionConflict as conflict:
            complain(conflict.detail)


def _item(text: str) -> dict[str, str]:
    """Read one --evidence."""
    names = {"kind": "kind", "ref": "reference", "digest": "digest", "note": "note",
             "observed": "observed_at"}  # fmt: skip
    item: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or name.strip() not in names:
            complain(
                f"--evidence '{plain(text)}': write kind=WORD,ref=WHERE,observed=MOMENT"
                "[,digest=sha256:…][,note=TEXT]", 2,
            )  # fmt: skip
        item[names[name.strip()]] = value
    return item


def _statement(body: dict[str, Any]) -> Statement:
    try:
        return StatementBody.model_validate(json.loads(json.dumps(body))).statement()
    except ValidationError as problem:
        place = problem.errors(include_input=False, include_url=False)[0]["loc"]
    where = ".".join(str(part) for part in place) or "evidence"
    complain(f"the statement cannot be taken: see {plain(where)}", 2)
