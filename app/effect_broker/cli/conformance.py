"""`effect-broker contracts conformance`: try a contract at its target before it is used."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from effect_adapters.base import RenderError
from effect_adapters.extras import ExtraMissing, require_extra
from effect_adapters.registry import adapters
from effect_broker import conformance
from effect_broker.cli.access import plain, run
from effect_broker.cli.output import (
    EXIT_COULD_NOT_RUN,
    AsJson,
    complain,
    print_json,
    print_table,
)
from effect_broker.clock import SystemClock, new_id
from effect_broker.config import load_settings
from effect_broker.conformance import CouldNotRun, Judgement, Result, Trial
from effect_broker.secretrefs import SecretReferences
from effect_contracts.canonical import BODY_BYTES_MAX, JsonValue, parse_strict
from effect_contracts.document import ContractDocument
from effect_contracts.facts import SafetyClass

_FILE_BYTES_MAX: Final = 1024 * 1024
_MARKS: Final = {Judgement.KEPT: "ok", Judgement.BROKEN: "FAIL", Judgement.UNPROVED: "?"}


class CounterSilent(Exception):
    """What was named as the counter is none."""


def register(app: typer.Typer) -> None:
    """Add the command to `contracts`."""
    app.command("conformance")(conformance_of)


def conformance_of(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The contract, as YAML.")],
    arguments: Annotated[
        Path, typer.Option(metavar="FILE", help="JSON arguments of a request that succeeds.")
    ],
    drift: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Other JSON arguments, to try under the same key."),
    ] = None,
    counter: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The `effect-broker target` that stands at the end of the route and counts.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Send real requests to the contract's target and see whether it keeps its promises.

    For a test account: one or two objects are made. Exit 1 if a promise is broken, 3 if one could
    not be proved, 4 if nothing could be sent from here: a secret, a program, the target itself is
    not to be had.
    """
    document = ContractDocument.parse_yaml(_text(file))
    if document.safety is SafetyClass.TRANSACTIONAL:
        complain("a transactional contract runs in the broker's own transaction: nothing to try")
    try:
        require_extra(document.adapter.kind)
    except ExtraMissing as missing:
        complain(f"{missing}", EXIT_COULD_NOT_RUN)
    settings = load_settings()
    secrets = SecretReferences(settings.secret_prefix, settings.secret_directory)
    arrivals = None if counter is None else counter_of(counter)
    adapter: Any = adapters(secrets)[document.adapter.kind]
    given = arguments_of(document, arguments)
    try:
        drifted = (
            arguments_of(document, drift)
            if drift is not None
            else conformance.drifted_arguments(document, adapter, given)
        )
        trial = Trial(document, adapter, given, drifted, SystemClock(), new_id, arrivals)
        results = run(conformance.examine(trial))
    except CounterSilent:
        text = "the counter does not answer; --counter is the URL that `target` prints"
        complain(text, EXIT_COULD_NOT_RUN)
    except CouldNotRun as problem:
        complain(f"nothing was learned of the target. {problem}", EXIT_COULD_NOT_RUN)
    except RenderError as problem:
        complain(f"these arguments make no request: {problem.code} at /arguments{problem.pointer}")
    _show(document, results, as_json)
    if any(result.judgement is Judgement.BROKEN for result in results):
        raise typer.Exit(1)
    if not conformance.conforms(results):
        raise typer.Exit(3)


def counter_of(url: str) -> Callable[[], Awaitable[int]]:
    """Return what counts arrivals at a target of ours that stands at the end of the route.

    It raises `CounterSilent` where nothing of the kind answers.
    """
    # Imported late: no other command needs an HTTP client.
    import httpx

    from effect_broker.proof.target.client import TargetClient, TargetRefused

    def count() -> int:
        try:
            with TargetClient(url.rstrip("/")) as target:
                return target.ledger(rows=False).arrivals
        except (httpx.HTTPError, httpx.InvalidURL, TargetRefused, ValueError):
            raise CounterSilent from None

    async def arrivals() -> int:
        return await asyncio.to_thread(count)

    return arrivals


def _show(document: ContractDocument, results: tuple[Result, ...], as_json: bool) -> None:
    if as_json:
        checks = [
            {"check": r.check, "judgement": r.judgement.value, "text": r.text} for r in results
        ]
        print_json(
            {
                "name": document.name,
                "version": document.version,
                "digest": document.digest().hex(),
                "conforms": conformance.conforms(results),
                "checks": checks,
            }
        )
        return
    rows = [(_MARKS[r.judgement], r.check, r.text) for r in results]
    print_table(f"{document.name} {document.version}", ("", "check", "what was seen"), rows)


def arguments_of(document: ContractDocument, file: Path) -> JsonValue:
    """Return the arguments in a file; they satisfy the contract, or the command ends."""
    value = parse_strict(_text(file, BODY_BYTES_MAX).encode())
    document.check_arguments(value)
    return value


def _text(file: Path, bytes_max: int = _FILE_BYTES_MAX) -> str:
    shown = plain(str(file), 200)
    try:
        with file.open("rb") as opened:
            raw = opened.read(bytes_max + 1)
    except (OSError, ValueError):
        complain(f"{shown} cannot be read")
    if len(raw) > bytes_max:
        complain(f"{shown} is larger than {bytes_max} bytes")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        complain(f"{shown} is not UTF-8 text")
