"""`effect-broker effects resolve`: what a person knows of an effect, recorded with its evidence."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final
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
    credential,
    desk,
    known_effect,
    signer,
    trusted,
)
from effect_broker.cli.next_commands import replaced
from effect_broker.cli.output import AsJson, complain, print_json
from effect_broker.clock import new_id
from effect_broker.reading import EffectDetail
from effect_broker.resolving import Recorded, Resolving, Statement
from effect_broker.store.api import PostgresApiStore
from effect_broker.store.roles import DatabaseRole
from effect_contracts.errors import (
    AnotherRequest,
    DecisionConflict,
    SecondPersonRequired,
    StaleVersion,
    TooEarly,
    TransitionRefused,
)
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
    for option, given in (("--reason", reason), ("--external-id", external_id)):
        replaced(option, given)
    body: dict[str, Any] = {
        "decision_id": decision_id or f"cli-{new_id()}",
        "expected_version": version,
        "conclusion": conclusion.value,
        "reason": reason,
        "external_id": external_id,
        "evidence": [evidence_item(text) for text in evidence],
    }
    statement = _statement(body)

    async def record(store: PostgresApiStore, tenant_id: UUID, effect_id: UUID) -> Recorded:
        return await Resolving(store, new_id).resolve(tenant_id, effect_id, statement, credential())

    show(*recorded(record, effect, operation_key, tenant), as_json)


def confirm(
    decision_id: Annotated[
        str, typer.Option("--decision-id", help="Of the statement (`effects inspect` shows it).")
    ],
    effect: EffectArgument = None,
    operation_key: KeyOption = None,
    tenant: TenantOption = None,
    as_json: AsJson = False,
) -> None:
    """Confirm what another person has concluded, where the contract asks for two."""

    async def record(store: PostgresApiStore, tenant_id: UUID, effect_id: UUID) -> Recorded:
        return await Resolving(store, new_id).confirm(
            tenant_id, effect_id, decision_id, credential()
        )

    show(*recorded(record, effect, operation_key, tenant), as_json)


Record = Callable[[PostgresApiStore, UUID, UUID], Awaitable[Recorded]]

_SAID: Final = {
    Recorded.NEW: "recorded",
    Recorded.STOOD: "stood already, nothing was changed",
    Recorded.PROPOSED: "waits for a second person: `effects confirm`, as somebody else",
}


def show(detail: EffectDetail, what: Recorded, as_json: bool) -> None:
    if as_json:
        said = {"replayed": what is Recorded.STOOD}
        if what is Recorded.PROPOSED:
            said["awaits_second_person"] = True
        print_json(effect_body(detail, attempts=True) | said)
        return
    intent = detail.intent
    print(f"{intent.effect_id} {intent.state.value} ({intent.reason}): {_SAID[what]}")


def recorded(
    record: Record, effect: str | None, operation_key: str | None, tenant: str | None
) -> tuple[EffectDetail, Recorded]:
    async def work(found: Logins) -> tuple[EffectDetail, Recorded]:
        async with desk(found, tenant) as at, opened(found.of(DatabaseRole.API)) as pool:
            effect_id: UUID = at.effect_id(effect, operation_key)
            store = PostgresApiStore(
                pool, signer=signer(found.settings), trusted=trusted(found.settings)
            )
            said = await record(store, at.tenant.tenant_id, effect_id)
            return await store.effect(at.tenant.tenant_id, effect_id), said

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
                "too early: this conclusion counts only if you looked from "
                f"{early.extras.get('not_before')} on. Nothing was recorded"
            )
        except TransitionRefused as refused:
            complain(
                f"an effect in state {refused.extras.get('state')} does not permit this; "
                "`effects inspect` says what is possible. Nothing was recorded"
            )
        except (DecisionConflict, SecondPersonRequired, AnotherRequest) as conflict:
            complain(conflict.detail)


def evidence_item(text: str) -> dict[str, str]:
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
        replaced(f"--evidence {name.strip()}:", value)
        item[names[name.strip()]] = value
    return item


def _statement(body: dict[str, Any]) -> Statement:
    try:
        return StatementBody.model_validate(json.loads(json.dumps(body))).statement()
    except ValidationError as problem:
        refusal = what_is_wrong(problem)
    complain(refusal, 2)


# By the member of the statement, or of one item of its evidence. What no member is at fault for is
# a rule between two of them.
_RULES: Final = {
    "decision_id": "--decision-id is 1 to 255 characters of printable ASCII without spaces",
    "reason": "--reason is 1 to 2000 characters: why you are sure, for those who read it later",
    "external_id": "--external-id is 1 to 255 printable characters",
    "statement": "--external-id goes with --as committed alone: what does not exist has no id",
    "kind": "--evidence: kind=WORD is one word of a-z, 0-9 and '_', such as kind=dashboard",
    "observed_at": "--evidence: observed=MOMENT has to be there, with a time zone, such as "
    "observed=2026-11-30T05:08:00Z: when you began to look",
    "reference": "--evidence: ref=WHERE is 1 to 2048 characters: where it can be seen again",
    "digest": "--evidence: digest is sha256: and 64 hexadecimal digits",
    "item": "--evidence: each has ref=WHERE or digest=sha256:…, and a note of 2000 bytes at most",
    "causes": "--cause is 1 to 500 characters",
    "remedies": "--remedy is 1 to 500 characters",
}


def what_is_wrong(problem: ValidationError) -> str:
    """Say which option of a statement is at fault and what it takes, without its value."""
    place = problem.errors(include_input=False, include_url=False)[0]["loc"]
    last = place[-1] if place else "statement"
    if isinstance(last, int):
        last = "item" if place[0] == "evidence" else place[0]
    rule = _RULES.get(str(last))
    where = ".".join(str(part) for part in place)
    return rule or f"the statement cannot be taken: see {plain(where)}"
