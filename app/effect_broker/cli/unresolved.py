"""`effect-broker effects unresolved`: what waits, the most urgent first, and what to do about it.

Written for somebody who is woken up: the lines say what, since when, how long the downstream key
still lives and what happens by itself; below them stands, once for each reason, what a person can
do.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from effect_broker.api.presentation import unresolved_page_body
from effect_broker.cli.access import Logins, logins, opened, plain, run
from effect_broker.cli.desk import TenantOption, desk, text, trusted
from effect_broker.cli.durations import seconds_of, span
from effect_broker.cli.output import AsJson, complain, print_json
from effect_broker.cli.reasons import LISTED, Words, words_of
from effect_broker.reading import PAGE_LIMIT_DEFAULT, PAGE_LIMIT_MAX, CursorInvalid
from effect_broker.store.api import PostgresApiStore
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.tenants import Tenants
from effect_broker.unresolved import (
    REASONS,
    Step,
    UnresolvedEffect,
    UnresolvedFilter,
    UnresolvedPage,
)
from effect_contracts.facts import Conclusion, EffectState, Hold

_HEADS: Final = ("KEY EXPIRES", "AGE", "REASON", "NEXT", "OPERATION KEY")

# Holds that somebody lifts; what they stop goes on by itself then.
_LIFTED: Final = frozenset(map(str, Hold)) - {Hold.TARGET_CHANGED}

_STEPS: Final = {
    Step.SEND: "is sent",
    Step.LOOK_UP: "target is asked",
    Step.CLOSE_ATTEMPT: "attempt is closed",
    Step.SETTLE: "settles",
    Step.ASK_A_PERSON: "asks a person",
    Step.COUNT: "target is counted",
    Step.WAIT: "is looked at",
}


@dataclass(frozen=True, slots=True)
class _Listing:
    """What was read; `of` names the tenant, None for all of them."""

    of: str | None
    page: UnresolvedPage
    more: bool


def unresolved(
    status: Annotated[
        list[EffectState] | None, typer.Option(help="In this state; may be given again.")
    ] = None,
    reason: Annotated[
        str | None, typer.Option(help="For this reason: crash_window, outcome_unknown, paused, …")
    ] = None,
    tool: Annotated[str | None, typer.Option(help="Of this tool.")] = None,
    older_than: Annotated[
        str | None, typer.Option(help="Made at least this long ago: 90s, 15m, 2h, 1d.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(help="With an operation key that begins like this.")
    ] = None,
    cursor: Annotated[str | None, typer.Option(help="Go on after an earlier page.")] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=PAGE_LIMIT_MAX, help="At most so many.")
    ] = PAGE_LIMIT_DEFAULT,
    tenant: TenantOption = None,
    all_tenants: Annotated[
        bool, typer.Option("--all-tenants", help="Of every tenant: the most urgent of all.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List what is not final and not simply on its way, the most urgent first."""
    if reason is not None and reason not in REASONS:
        complain(f"there is no reason '{plain(reason)}'; there are {', '.join(sorted(REASONS))}", 2)
    if all_tenants and (tenant is not None or cursor is not None):
        complain("--all-tenants goes with neither --tenant nor --cursor", 2)
    filters = UnresolvedFilter(
        states=frozenset(status or ()),
        reason=reason,
        tool=text("--tool", tool),
        operation_prefix=text("--prefix", prefix),
        older_than_seconds=None if older_than is None else seconds_of(older_than),
    )
    after = text("--cursor", cursor)

    async def read(found: Logins) -> _Listing:
        if all_tenants:
            return await _of_all(found, filters, limit)
        async with desk(found, tenant) as at:
            page = await at.store.unresolved(at.tenant.tenant_id, filters, after, limit)
            return _Listing(at.tenant.name, page, page.cursor is not None)

    with logins() as found:
        try:
            listing = run(read(found))
        except CursorInvalid:
            complain("--cursor was not made by this listing; begin again without it")
    if as_json:
        print_json(body(listing))
    else:
        show(listing)


async def _of_all(found: Logins, filters: UnresolvedFilter, limit: int) -> _Listing:
    """The first page of every tenant, merged and cut."""
    async with opened(found.of(DatabaseRole.WORKER)) as pool:
        store = PostgresApiStore(pool, trusted=trusted(found.settings))
        pages = [
            await store.unresolved(record.tenant_id, filters, None, limit)
            for record in await Tenants(pool).tenants()
        ]
    every = sorted((effect for page in pages for effect in page.effects), key=_urgency)
    more = len(every) > limit or any(page.cursor is not None for page in pages)
    return _Listing(None, UnresolvedPage(tuple(every[:limit]), None), more)


def _urgency(effect: UnresolvedEffect) -> tuple[datetime, datetime, str]:
    never = datetime.max.replace(tzinfo=UTC)
    intent = effect.intent
    return effect.key_expires_at or never, intent.created_at, str(intent.effect_id)


def body(listing: _Listing) -> dict[str, Any]:
    """Return the listing as the API does, with the words for each reason."""
    said = {name: _words(name) for name in _reasons(listing.page)}
    return unresolved_page_body(listing.page) | {
        "more": listing.more,
        "words": {
            name: {"meaning": words.meaning, "remedy": words.remedy} for name, words in said.items()
        },
    }


def show(listing: _Listing) -> None:
    """Print the effects, what to do for each reason, and how to go on."""
    page = listing.page
    whose = "every tenant" if listing.of is None else listing.of
    if not page.effects:
        print(f"nothing waits: no unresolved effect of {whose} fits")
        return
    print(f"unresolved effects of {whose}, the most urgent first\n")
    for line in _table(page.effects, named=listing.of is None):
        print(line)
    print()
    for name in _reasons(page):
        words = _words(name)
        print(f"{name}: {words.meaning}")
        print(f"  do: {words.remedy or _by_itself(page, name)}")
    if any(effect.permitted for effect in page.effects):
        print("What you find is recorded with `effect-broker effects resolve ID`:")
        for line in _resolutions(page):
            print(f"  {line}")
    if page.cursor is not None:
        print(f"there are more: --cursor {page.cursor}", file=sys.stderr)
    elif listing.more:
        print("there are more: raise --limit, or name a --tenant", file=sys.stderr)


def _table(effects: Sequence[UnresolvedEffect], *, named: bool) -> Iterator[str]:
    """Yield the lines: of each effect one to be skimmed, and two with its names, never folded, so
    that an id can be copied as it stands."""
    rows = [_cells(effect) for effect in effects]
    widths = [max(map(len, column)) for column in zip(_HEADS, *rows, strict=True)]
    yield _line(_HEADS, widths)
    for effect, cells in zip(effects, rows, strict=True):
        intent = effect.intent
        yield _line(cells, widths)
        contract = f"{intent.contract_name} {intent.contract_version}"
        tenant = f"tenant {effect.tenant}  " if named else ""
        yield (
            f"    effect {intent.effect_id}  {tenant}tool {plain(intent.tool)} ({contract})  "
            f"state {intent.state.value}, version {intent.version}"
        )
        yield f"    learned last: {_learned(effect)}"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return "  ".join(padded).rstrip()


def _cells(effect: UnresolvedEffect) -> tuple[str, ...]:
    """The cells under `_HEADS`."""
    return (
        _expiry(effect.key_expires_in_seconds),
        span(effect.age_seconds),
        ", ".join(plain(reason) for reason in _shown(effect)),
        _next(effect),
        plain(effect.intent.operation_key, 255),
    )


def _shown(effect: UnresolvedEffect) -> tuple[str, ...]:
    """The reasons that say more than the column `next` does."""
    if effect.parked or effect.alert is not None:
        return effect.reasons
    own = tuple(r for r in effect.reasons if r in LISTED or words_of(r).remedy is not None)
    return own or effect.reasons


def _expiry(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 0:
        return f"expired {span(-seconds)} ago"
    return f"in {seconds / 60:.0f} min"


def _learned(effect: UnresolvedEffect) -> str:
    known = effect.last_evidence
    if known is None:
        return "nothing yet"
    ago = span(max((effect.now - known.at).total_seconds(), 0.0))
    code = "" if known.code in (None, known.says) else f" ({plain(str(known.code))})"
    return f"{known.source} {known.says}{code}, {ago} ago"


def _next(effect: UnresolvedEffect) -> str:
    step = effect.next_step
    if step is None:
        if effect.alert is not None:
            return "a person"  # it is final; that somebody has looked is what is missing
        return "when the hold ends" if effect.reasons[0] in _LIFTED else "a person"
    left = (step.at - effect.now).total_seconds()
    if left < -1:
        return f"{_STEPS[step.step]}, due {span(-left)} ago"
    return f"{_STEPS[step.step]} {'now' if left < 1 else 'in ' + span(left)}"


def _reasons(page: UnresolvedPage) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for effect in page.effects for name in _shown(effect)))


def _by_itself(page: UnresolvedPage, name: str) -> str:
    """What to do for a reason that asks for nothing: nothing, unless another reason does."""
    steps = {effect.next_step is not None for effect in page.effects if name in _shown(effect)}
    if steps == {True}:
        return "nothing; the broker goes on by itself."
    if steps == {False}:
        return "what its other reason says."
    return "nothing where NEXT names a step; else what its other reason says."


def _words(name: str) -> Words:
    return LISTED.get(name) or words_of(name)


def _resolutions(page: UnresolvedPage) -> Iterator[str]:
    """One line for each conclusion that is permitted for any row, and one for what is too early."""
    permitted = [(effect, one) for effect in page.effects for one in effect.permitted]
    possible = {one.conclusion for _, one in permitted}
    for conclusion, meaning in _CONCLUSIONS.items():
        if conclusion in possible:
            yield f"--as {conclusion.value:14} {meaning}"
    for effect, one in permitted:
        after = one.observed_after
        if after is not None and after >= effect.now:
            yield (
                f"of {effect.intent.effect_id} absence counts only if you look after "
                f"{after:%Y-%m-%d %H:%M:%S}Z"
            )


_CONCLUSIONS: Final = {
    Conclusion.COMMITTED: "it exists at the target",
    Conclusion.NOT_COMMITTED: "you have looked, and it does not exist",
    Conclusion.FAILED: "it is over, whatever happened",
}
