"""`effect-broker evidence`: deliveries of webhooks, and a look at one before it is used."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

from effect_adapters.answers import BodyInvalid, parse_answer
from effect_adapters.base import SecretUnavailable
from effect_broker.cli.access import Logins, logins, opened, plain, run
from effect_broker.cli.contracts import document_of
from effect_broker.cli.desk import TenantOption, desk, text
from effect_broker.cli.durations import moment_of
from effect_broker.cli.output import AsJson, complain, print_json, print_table
from effect_broker.config import load_settings
from effect_broker.evidence_inbox import Deliveries, DeliveryFilter, line_body
from effect_broker.protocol.webhook import Claim, DeliveryStatus, disagreeing, may_be_ours, read
from effect_broker.reading import PAGE_LIMIT_DEFAULT, PAGE_LIMIT_MAX, CursorInvalid
from effect_broker.secretrefs import SecretReferences
from effect_broker.store.inbox import PostgresInbox
from effect_broker.store.roles import DatabaseRole
from effect_contracts.canonical import BODY_BYTES_MAX, JsonValue, parse_strict
from effect_contracts.document import ContractDocument
from effect_contracts.errors import InvalidPayload
from effect_contracts.expressions import search
from effect_contracts.webhook_settings import WebhookSettings
from effect_contracts.webhook_signature import (
    HeaderFields,
    Refusal,
    SecretMalformed,
    claimed_at,
    signing_key,
    verify,
)

app = typer.Typer(
    help="What providers have told by webhook, and what became of it.", no_args_is_help=True
)

_COLUMNS = ("received", "contract", "status", "code", "effect", "sender's id", "again")


@app.command("list")
def list_deliveries(
    status: Annotated[
        list[DeliveryStatus] | None, typer.Option(help="With this status; may be given again.")
    ] = None,
    contract: Annotated[str | None, typer.Option(help="Of this contract.")] = None,
    effect: Annotated[str | None, typer.Option(help="Matched with the effect of this id.")] = None,
    cursor: Annotated[str | None, typer.Option(help="Go on after an earlier page.")] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=PAGE_LIMIT_MAX, help="At most so many.")
    ] = PAGE_LIMIT_DEFAULT,
    tenant: TenantOption = None,
    as_json: AsJson = False,
) -> None:
    """List the deliveries to a tenant's webhooks, newest first."""
    try:
        effect_id = None if effect is None else UUID(effect)
    except ValueError:
        complain(f"'{plain(effect or '')}' is no effect id, which is a UUID", 2)
    filters = DeliveryFilter(frozenset(status or ()), text("--contract", contract), effect_id)
    after = text("--cursor", cursor)

    async def work(found: Logins) -> Deliveries:
        async with (
            desk(found, tenant) as at,
            opened(found.of(DatabaseRole.WORKER)) as pool,
        ):
            inbox = PostgresInbox(pool)
            return await inbox.deliveries(at.tenant.tenant_id, filters, after, limit)

    with logins() as found:
        try:
            page = run(work(found))
        except CursorInvalid:
            complain("--cursor was not made by this listing; begin again without it")
    if as_json:
        lines = [line_body(line) for line in page.lines]
        print_json({"deliveries": lines, "cursor": page.cursor})
        return
    rows = [
        (f"{line.received_at:%Y-%m-%d %H:%M:%S}Z", f"{line.contract_name}@{line.contract_version}",
         line.status.value, line.code, line.effect_id, line.senders_id,
         "" if line.next_match_at is None else f"{line.next_match_at:%Y-%m-%d %H:%M:%S}Z")
        for line in page.lines
    ]  # fmt: skip
    print_table("deliveries", _COLUMNS, rows)
    if page.cursor is not None:
        print(f"there are more: --cursor {page.cursor}", file=sys.stderr)


@dataclass(frozen=True, slots=True)
class _Sample:
    """One delivery as somebody has kept it."""

    headers: HeaderFields
    body: bytes
    arguments: JsonValue | None


@app.command("simulate")
def simulate(
    contract: Annotated[str, typer.Option(metavar="FILE", help="The contract, as YAML.")],
    body: Annotated[
        str, typer.Option(metavar="FILE", help="The raw body, byte for byte; - is standard input.")
    ],
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="'NAME: VALUE'", help="A header of it; may be given again."),
    ] = None,
    arguments: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Arguments (JSON) that the effect would have."),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="MOMENT", help="Judge the tolerance as of this moment (RFC 3339); not without."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Try a sample delivery on a contract: is it believed, and what would it say?

    No database and no target is used. The contract's secrets are resolved as the API would.
    Exit 1 if it is not believed, cannot be read, or disagrees with the arguments.
    """
    document = document_of(contract)
    webhook = document.webhook
    if webhook is None:
        complain("the contract has no webhook section; docs/webhooks.md shows how one begins")
    sample = _Sample(
        [_header(line) for line in header or ()],
        _bytes_of(body),
        None if arguments is None else _arguments(_bytes_of(arguments)),
    )
    report = _report(document, webhook, sample, None if at is None else moment_of("--at", at))
    if as_json:
        print_json(report)
    else:
        rows = [(name, _shown(value)) for name, value in report.items()]
        print_table(f"a delivery to {document.name} {document.version}", ("what", "found"), rows)
    good = report["signature"] == "good" and report["says"] is not None
    if not good or report.get("disagrees"):
        raise typer.Exit(1)


def _report(
    document: ContractDocument, webhook: WebhookSettings, sample: _Sample, at: datetime | None
) -> dict[str, Any]:
    signature, senders_id = _signature(webhook, sample, at)
    report: dict[str, Any] = {"signature": signature, "says": None}
    try:
        value = parse_answer(sample.body)
    except BodyInvalid:
        return report | {"outcome": "it is kept as rejected: the body is no JSON"}
    reading = read(webhook, value)
    report |= {
        "says": reading.claim.value,
        "senders_id": reading.senders_id or senders_id or "the digest of the body",
        "key": reading.key,
        "key_may_be_ours": reading.key is not None and may_be_ours(document, reading.key),
        "external_id": reading.external_id,
        "agree": {
            pointer: search(expression, value) for pointer, expression in webhook.agree.items()
        },
    }
    if sample.arguments is not None:
        report["disagrees"] = list(disagreeing(webhook, sample.arguments, value))
    return report | {"outcome": _outcome(report, reading.claim)}


def _signature(
    webhook: WebhookSettings, sample: _Sample, at: datetime | None
) -> tuple[str, str | None]:
    """Return `good` or why not, and the signed id."""
    settings = load_settings()
    resolve = SecretReferences(settings.webhook_secret_prefix, settings.webhook_secret_directory)
    keys: list[bytes] = []
    for reference in webhook.secrets:
        try:
            keys.append(signing_key(webhook.scheme, resolve(reference)))
        except (SecretUnavailable, SecretMalformed) as problem:
            print(f"effect-broker: {reference}: {problem}", file=sys.stderr)
    if not keys:
        return "no_secret", None
    moment = at.timestamp() if at is not None else claimed_at(webhook.scheme, sample.headers) or 0
    judged = verify(webhook.scheme, keys, sample.headers, sample.body, moment)
    return (judged.value, None) if isinstance(judged, Refusal) else ("good", judged.signed_id)


def _outcome(report: dict[str, Any], claim: Claim) -> str:
    if report["signature"] != "good":
        return "it is not believed: answered with 404, and nothing is kept"
    if claim is Claim.NOTHING:
        return "it is ignored: neither committed nor failed is true of it"
    if claim is Claim.BOTH:
        return "it proves nothing: committed and failed are both true of it"
    if report["key"] is None and report["external_id"] is None:
        return "it is ignored: it shows neither our key nor an object's id"
    if claim is Claim.FAILED:
        return "it is linked to its effect, and clears nothing"
    if report["key"] is None:
        return "it is linked to the effect of its object, and proves nothing without our key"
    if not report["key_may_be_ours"]:
        return "it is ignored: its key has not the form of this contract's keys"
    if report.get("disagrees"):
        return "it is a mismatch, for a person: the payload is not what was sent"
    return "it proves the commit of the effect of its key, if an attempt of it may have been sent"


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not name.strip():
        complain("--header is written as 'Name: value'", 2)
    return name.strip(), value.strip(" \t")


def _bytes_of(file: str) -> bytes:
    try:
        if file == "-":
            raw = sys.stdin.buffer.read(BODY_BYTES_MAX + 1)
        else:
            with Path(file).open("rb") as opened_file:
                raw = opened_file.read(BODY_BYTES_MAX + 1)
    except (OSError, ValueError):
        complain(f"{plain(file, 200)} cannot be read")
    if len(raw) > BODY_BYTES_MAX:
        complain(f"{plain(file, 200)} is larger than {BODY_BYTES_MAX} bytes; it would be refused")
    return raw


def _arguments(raw: bytes) -> JsonValue:
    try:
        return parse_strict(raw)
    except InvalidPayload as problem:
        complain(f"--arguments: {problem.detail}")


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} = {part!r}" for name, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "nothing"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "nothing" if value is None else str(value)
