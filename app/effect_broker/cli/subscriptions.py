"""`effect-broker subscriptions`: who is told of events, how that goes, and dead letters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Final, NoReturn
from uuid import UUID

import typer

from effect_broker.assembly import subscribing
from effect_broker.cli.access import Logins, logins, opened, plain, run
from effect_broker.cli.desk import TenantOption, desk, operator
from effect_broker.cli.durations import seconds_of
from effect_broker.cli.output import AsJson, complain, print_json, print_table
from effect_broker.keyring import AesVault, key_ring
from effect_broker.reading import PAGE_LIMIT_DEFAULT, PAGE_LIMIT_MAX, CursorInvalid
from effect_broker.store.roles import DatabaseRole
from effect_broker.subscriptions import (
    DESCRIPTION_CHARS_MAX,
    OVERLAP_SECONDS_MAX,
    DeadLetters,
    Subscribing,
    SubscriptionOrder,
    SubscriptionRecord,
)
from effect_contracts.counting import counted
from effect_contracts.errors import InvalidRequest, LimitReached, NotFound, RequestMalformed
from effect_contracts.event_stream import EventFilter
from effect_contracts.facts import EffectState
from effect_contracts.trace.kinds import EventKind

app = typer.Typer(
    help="Who is told of events by signed webhooks, and how that goes.", no_args_is_help=True
)

_COLUMNS: Final = ("id", "status", "url", "of", "waiting", "dead", "delivered", "last code")
_FIRST_TO_GO: Final = ("of", "delivered", "dead", "waiting")
_LETTER_COLUMNS: Final = ("event", "type", "tries", "given up", "code", "http")

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="As `subscriptions list` shows it.")]


@dataclass(frozen=True, slots=True)
class _Counter:
    """The subscriptions of one tenant, as a command gets at them."""

    subscribing: Subscribing
    tenant_id: UUID


@asynccontextmanager
async def _counter(found: Logins, tenant: str | None) -> AsyncIterator[_Counter]:
    vault = AesVault(key_ring(found.settings))
    settings = found.settings
    if not settings.production:
        # This machine's own receivers, as the workers of `effect-broker up` reach them. Whether
        # another worker does is for its own settings to say, when it connects.
        settings = settings.with_loopback()
    async with desk(found, tenant) as at, opened(found.of(DatabaseRole.API)) as pool:
        yield _Counter(subscribing(settings, pool, vault), at.tenant.tenant_id)


@app.command("create")
def create(
    url: Annotated[str, typer.Argument(help="Where events are posted to; https.")],
    type_: Annotated[
        list[EventKind] | None, typer.Option("--type", help="Of this type; may be given again.")
    ] = None,
    state: Annotated[
        list[EffectState] | None,
        typer.Option("--state", help="That came to this state; may be given again."),
    ] = None,
    description: Annotated[str, typer.Option(help="For people.")] = "",
    after: Annotated[
        str | None, typer.Option(help="From this cursor on; by default from now on.")
    ] = None,
    tenant: TenantOption = None,
    as_json: AsJson = False,
) -> None:
    """Deliver a tenant's events to a URL. The secret that signs them is shown this once."""
    if len(description) > DESCRIPTION_CHARS_MAX or not (description + " ").isprintable():
        complain(f"--description is at most {DESCRIPTION_CHARS_MAX} printable characters", 2)
    wanted = EventFilter(
        frozenset(t.value for t in type_ or ()), frozenset(s.value for s in state or ())
    )
    order = SubscriptionOrder(url, wanted, description, after)

    async def work(found: Logins) -> tuple[SubscriptionRecord, str]:
        async with _counter(found, tenant) as at:
            return await at.subscribing.create(at.tenant_id, order, operator())

    with logins() as found:
        try:
            record, secret = run(work(found))
        except InvalidRequest:
            complain(
                "nothing may be posted to this URL: it has to be https with a host whose address "
                "is public, or in EFFECT_BROKER_EVENT_NETWORKS of this command, of the API and of "
                "the workers; no user and no fragment", 2,
            )  # fmt: skip
        except RequestMalformed:
            complain("--after is no cursor of this tenant's events", 2)
    if as_json:
        print_json(record.to_json() | {"secret": secret})
        return
    print(f"subscription {record.subscription_id}")
    print(f"secret       {secret}   (it is not shown again)")


@app.command("list")
def list_subscriptions(tenant: TenantOption = None, as_json: AsJson = False) -> None:
    """List the subscriptions of a tenant and how they go."""

    async def work(found: Logins) -> tuple[SubscriptionRecord, ...]:
        async with _counter(found, tenant) as at:
            return await at.subscribing.store.listing(at.tenant_id)

    with logins() as found:
        records = run(work(found))
    if as_json:
        print_json([record.to_json() for record in records])
        return
    if not records:
        print("there is no subscription; `effect-broker subscriptions create URL` makes one")
        return
    rows = [
        (r.subscription_id, _status(r), r.url, _of(r.wanted), r.waiting, r.dead,
         "" if r.delivered_at is None else f"{r.delivered_at:%Y-%m-%d %H:%M:%S}Z",
         r.last_code or "")
        for r in records
    ]  # fmt: skip
    print_table("subscriptions", _COLUMNS, rows, first_to_go=_FIRST_TO_GO)


def _told(
    change: Callable[[Subscribing, UUID, UUID], Awaitable[object]],
    subscription: str,
    tenant: str | None,
) -> UUID:
    """Change one subscription and return its id; one that is not there is a line."""
    known = _known(subscription)

    async def work(found: Logins) -> None:
        async with _counter(found, tenant) as at:
            await change(at.subscribing, at.tenant_id, known)

    with logins() as found:
        try:
            run(work(found))
        except NotFound:
            _missing(known)
    return known


@app.command("delete")
def delete(subscription: IdArgument, tenant: TenantOption = None) -> None:
    """End a subscription at once; its dead letters go with it."""
    known = _told(Subscribing.remove, subscription, tenant)
    print(f"subscription {known} is gone")


@app.command("pause")
def pause(subscription: IdArgument, tenant: TenantOption = None) -> None:
    """Deliver nothing until it is resumed; what happens meanwhile is delivered then."""
    known = _told(Subscribing.pause, subscription, tenant)
    print(f"subscription {known} is paused")


@app.command("resume")
def resume(subscription: IdArgument, tenant: TenantOption = None) -> None:
    """Let a subscription go on where it stands, also one that was paused for failing."""
    known = _told(Subscribing.resume, subscription, tenant)
    print(f"subscription {known} goes on")


@app.command("replace-secret")
def replace_secret(
    subscription: IdArgument,
    overlap: Annotated[
        str, typer.Option(help="How long the old one signs too; 0 ends it at once.")
    ] = "1d",
    tenant: TenantOption = None,
    as_json: AsJson = False,
) -> None:
    """Make a new secret, which is shown this once; for a time deliveries are signed with both."""
    known, seconds = _known(subscription), seconds_of(overlap)
    if seconds > OVERLAP_SECONDS_MAX:
        complain(f"--overlap is at most {OVERLAP_SECONDS_MAX / 86_400:.0f}d", 2)

    async def work(found: Logins) -> tuple[SubscriptionRecord, str]:
        async with _counter(found, tenant) as at:
            return await at.subscribing.replace_secret(at.tenant_id, known, seconds)

    with logins() as found:
        try:
            record, secret = run(work(found))
        except NotFound:
            _missing(known)
        except LimitReached:
            complain(
                "as many old secrets as may be sign still: wait until one has ended, or "
                "end all of them with --overlap 0"
            )
    if as_json:
        print_json(record.to_json() | {"secret": secret})
        return
    print(f"secret       {secret}   (it is not shown again)")
    until = record.old_secret_until
    if until is None:
        print("the old one signs nothing any more")
    else:
        print(f"give it to the receiver before {until:%Y-%m-%d %H:%M:%S}Z; until then both sign")


@app.command("dead-letters")
def dead_letters(
    subscription: IdArgument,
    cursor: Annotated[str | None, typer.Option(help="Go on after an earlier page.")] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=PAGE_LIMIT_MAX, help="At most so many.")
    ] = PAGE_LIMIT_DEFAULT,
    tenant: TenantOption = None,
    as_json: AsJson = False,
) -> None:
    """List the events that were given up, the oldest first."""
    known = _known(subscription)

    async def work(found: Logins) -> DeadLetters:
        async with _counter(found, tenant) as at:
            await at.subscribing.one(at.tenant_id, known)
            return await at.subscribing.store.dead_letters(at.tenant_id, known, cursor, limit)

    with logins() as found:
        try:
            page = run(work(found))
        except NotFound:
            _missing(known)
        except CursorInvalid:
            complain("--cursor is none of this listing", 2)
    if as_json:
        print_json(page.to_json())
        return
    if not page.letters:
        print("there are no dead letters")
        return
    rows = [
        (letter.to_json()["event_id"] or f"{letter.effect_id}.{letter.sequence} (pruned)",
         letter.kind or "", letter.tries, f"{letter.dead_at:%Y-%m-%d %H:%M:%S}Z", letter.code,
         letter.status or "")
        for letter in page.letters
    ]  # fmt: skip
    print_table("dead letters", _LETTER_COLUMNS, rows)
    if page.cursor is not None:
        print(f"more: --cursor {page.cursor}")


@app.command("redeliver")
def redeliver(
    subscription: IdArgument,
    event: Annotated[str | None, typer.Option(help="This event, by its id.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All dead letters.")] = False,
    tenant: TenantOption = None,
    as_json: AsJson = False,
) -> None:
    """Try dead letters again from the start; later events may have been delivered before."""
    if (event is None) != every:
        complain("say which: --event ID, or --all", 2)
    known, wanted = _known(subscription), None if event is None else _event(event)

    async def work(found: Logins) -> int:
        async with _counter(found, tenant) as at:
            return await at.subscribing.redeliver(at.tenant_id, known, wanted)

    with logins() as found:
        try:
            again = run(work(found))
        except NotFound:
            complain("there is no such subscription, or no such dead letter of it")
    if as_json:
        print_json({"redelivered": again})
        return
    print(f"{counted(again, 'event waits for its', 'events wait for their')} delivery again")


def _status(record: SubscriptionRecord) -> str:
    return record.status if record.pause_code is None else f"paused ({record.pause_code})"


def _of(wanted: EventFilter) -> str:
    return ", ".join([*sorted(wanted.types), *sorted(wanted.states)]) or "everything"


def _event(text: str) -> tuple[UUID, int]:
    effect_id, _, rest = text.partition(".")
    sequence = rest.partition(".")[0]
    try:
        found = UUID(effect_id), int(sequence)
    except ValueError:
        complain(f"'{plain(text)}' is no event id; `subscriptions dead-letters` shows them", 2)
    if not 1 <= found[1] < 2**31:
        complain(f"'{plain(text)}' is no event id; `subscriptions dead-letters` shows them", 2)
    return found


def _known(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        complain(f"'{plain(text)}' is no subscription id; `subscriptions list` shows them", 2)


def _missing(known: UUID) -> NoReturn:
    complain(f"there is no subscription {known}; `effect-broker subscriptions list` shows all")
