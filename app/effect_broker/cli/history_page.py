"""`effects inspect --at-sequence`: how an effect stood after one of its events, for a person."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from effect_broker.cli.access import Logins, logins, opened, run
from effect_broker.cli.desk import desk, known_effect
from effect_broker.cli.output import complain, console, print_json, print_table
from effect_broker.history import PointInTime, SequenceMissing, point_in_time
from effect_broker.store.history import PostgresHistory
from effect_broker.store.roles import DatabaseRole

_DEEDS: Final = ("#", "at", "who", "did", "from", "to", "reason")
_ATTEMPTS: Final = ("attempt", "started", "by", "outcome", "code", "told", "late")
_EVIDENCE: Final = ("#", "source", "says", "code", "covers attempts", "by", "at")
_RESOLUTIONS: Final = ("#", "decision", "conclusion", "by", "at")
_CHANGES: Final = ("what", "before", "after")


def inspect_then(
    effect: str | None,
    operation_key: str | None,
    tenant: str | None,
    moments: tuple[int, int | None],
    *,
    as_json: bool,
) -> None:
    """Print the effect as it stood after an event, compared with another moment if there is one.

    Args:
        moments: the number of the event, and that of the one to compare with.
    """
    at_sequence, compare_to = moments

    async def read(found: Logins) -> tuple[UUID, PointInTime]:
        async with desk(found, tenant) as at, opened(found.of(DatabaseRole.WORKER)) as pool:
            effect_id, tenant_id = at.effect_id(effect, operation_key), at.tenant.tenant_id
            history = PostgresHistory(pool)
            return effect_id, await point_in_time(
                history, tenant_id, effect_id, at_sequence, compare_to
            )

    with logins() as found, known_effect():
        try:
            effect_id, point = run(read(found))
        except SequenceMissing:
            complain(
                "the effect has no event of this number, or it was pruned; `effect-broker effects "
                "inspect` without --at-sequence lists its events"
            )
    if as_json:
        print_json({"effect_id": str(effect_id), **point.to_json()})
    else:
        _show(point)


def _show(point: PointInTime) -> None:
    body, then = point.to_json(), point.then
    out = console()
    out.print(f"{then.state.upper()}  after event {then.sequence} of {point.version}")
    out.print(f"           {then.reason}, by {then.actor} at {body['then']['at']}")
    chain = point.chain
    if chain.intact:
        out.print(f"chain      intact, events {chain.begins_at} to {chain.ends_at}")
    else:
        where = f"at event {chain.broken_at}" if chain.broken_at else "at its end"
        out.print(f"chain      BROKEN {where}: {chain.what}")
    if then.begins_at > 1:
        out.print(f"pruned     the events before {then.begins_at}; what they told is not known")
    if then.unread:
        out.print(f"unread     events {', '.join(map(str, then.unread))}; they could not be read")
    if then.contradicted:
        out.print("ALERT      the target had contradicted the receipt")
    out.print()
    _tables(body["then"])
    if point.other is not None:
        title = f"what changed between events {then.sequence} and {point.other.sequence}"
        rows = [(one["place"], one["before"], one["after"]) for one in body["changes"]]
        print_table(title, _CHANGES, rows)


def _tables(then: dict[str, Any]) -> None:
    if then["attempts"]:
        rows = [
            (a["ordinal"], a["started_at"], a["actor"], a["outcome"] or "none told", a["code"],
             a["told_at"], "late" if a["late"] else "")
            for a in then["attempts"]
        ]  # fmt: skip
        print_table("attempts known", _ATTEMPTS, rows)
    if then["evidence"]:
        rows = [
            (e["sequence"], e["source"], e["verdict"], e["code"], e["covers_through"], e["actor"],
             e["at"])
            for e in then["evidence"]
        ]  # fmt: skip
        print_table("evidence known", _EVIDENCE, rows)
    if then["resolutions"]:
        said = [
            (r["sequence"], r["decision_id"], r["conclusion"], r["actor"], r["at"])
            for r in then["resolutions"]
        ]
        print_table("what persons had concluded", _RESOLUTIONS, said)
    deeds = [
        (d["sequence"], d["at"], d["actor"], d["kind"], d["from_state"], d["to_state"], d["reason"])
        for d in then["deeds"]
    ]
    print_table("who did what", _DEEDS, deeds)
