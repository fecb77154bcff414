"""`effect-broker contracts certify`: hostile trials at a sandbox, and a certificate if all held."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from effect_adapters.base import RenderError
from effect_adapters.extras import ExtraMissing, require_extra
from effect_adapters.registry import adapters
from effect_broker import certification, conformance
from effect_broker.certification import Plan, Terms, TrialRecord
from effect_broker.cli.access import Logins, logins, opened, plain, run
from effect_broker.cli.conformance import CounterSilent, arguments_of, counter_of
from effect_broker.cli.contracts import document_of
from effect_broker.cli.durations import seconds_of
from effect_broker.cli.output import (
    EXIT_COULD_NOT_RUN,
    AsJson,
    complain,
    print_json,
    print_table,
)
from effect_broker.clock import SystemClock, new_id
from effect_broker.conformance import CouldNotRun, Trial
from effect_broker.keyring import RingSigner, key_ring, ring_signer
from effect_broker.protocol.ports import StoreError
from effect_broker.secretrefs import SecretReferences
from effect_broker.store.certificates import Certificates
from effect_broker.store.documents import active_documents
from effect_broker.store.roles import DatabaseRole
from effect_contracts.certificate_settings import VALID_DAYS_MAX
from effect_contracts.certificates import (
    Certificate,
    TrialVerdict,
    certificate_content,
    signed_certificate,
)
from effect_contracts.counting import counted, span
from effect_contracts.document import ContractDocument, with_origin
from effect_contracts.expressions import origin_of
from effect_contracts.facts import SafetyClass

_MARKS: Final = {
    TrialVerdict.HOLDS: "holds",
    TrialVerdict.BROKEN: "BROKEN",
    TrialVerdict.NOT_SHOWN: "not shown",
}
_SAMPLES_MAX: Final = 100
_ACTOR: Final = "command line"

Arguments = Annotated[
    Path, typer.Option(metavar="FILE", help="JSON arguments of a request that succeeds.")
]
Target = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Origin of the sandbox; else the contract's own."),
]
Drift = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Other JSON arguments, to try under the same key."),
]
Counter = Annotated[
    str | None,
    typer.Option(metavar="URL", help="The `effect-broker target` that counts, at the end."),
]
RetentionWait = Annotated[
    str, typer.Option(help="Wait so long at most for a key to be forgotten: 90s, 15m, 2h, 1d.")
]
Samples = Annotated[
    int, typer.Option(min=1, max=_SAMPLES_MAX, help="Measure the settlement lag of so many.")
]
ValidDays = Annotated[
    int, typer.Option(min=1, max=VALID_DAYS_MAX, help="The certificate ends after so long.")
]
Out = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Where it is written; NAME-VERSION.certificate.json."),
]
IKnowThisSends = Annotated[
    bool, typer.Option("--i-know-this-sends", help="Try what may be a production target.")
]


@dataclass(frozen=True, slots=True)
class _Subject:
    """What is on trial: the contract as it stands, and as it is sent to the sandbox."""

    document: ContractDocument
    tried: ContractDocument
    adapter: Any
    identity: str


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the trials have shown, and when by the database."""

    records: tuple[TrialRecord, ...]
    figures: dict[str, float]
    begun_at: datetime
    ended_at: datetime


def register(app: typer.Typer) -> None:
    """Add the command to `contracts`."""
    app.command("certify")(certify)


def certify(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The contract, as YAML.")],
    arguments: Arguments,
    target: Target = None,
    drift: Drift = None,
    counter: Counter = None,
    retention_wait: RetentionWait = "60s",
    samples: Samples = 5,
    valid_days: ValidDays = 30,
    out: Out = None,
    i_know_this_sends: IKnowThisSends = False,
    as_json: AsJson = False,
) -> None:
    """Try hard to break a contract's promises at a sandbox, and certify what held.

    Real requests make real objects there. Exit 1 if a promise is broken, 3 if one was not shown, 4
    if nothing could be sent from here; then nothing is certified.
    """
    terms = Terms(retention_wait_seconds=seconds_of(retention_wait), lag_samples=samples)
    document = document_of(file)
    with logins() as found:
        subject = _subject(document, target, found)
        signer = ring_signer(key_ring(found.settings))
        if signer is None:
            complain("the key ring has no signing key, so that nothing could be certified")
        if not i_know_this_sends:
            _check_sandbox(subject, found)
        try:
            trial = _trial(subject, arguments, drift, counter)
            plan = certification.plan(subject.tried, terms, drifts=trial.drifted is not None)
            _announce(subject, plan)
            seen = run(_tried(found, trial, terms))
        except CounterSilent:
            text = "the counter does not answer; --counter is the URL that `target` prints"
            complain(text, EXIT_COULD_NOT_RUN)
        except CouldNotRun as problem:
            complain(f"nothing was learned of the target. {problem}", EXIT_COULD_NOT_RUN)
        except RenderError as problem:
            complain(f"these arguments make no request: {problem.code} at {problem.pointer}")
        place = None
        if certification.certifiable(seen.records):
            place = out or Path(f"{document.name}-{document.version}.certificate.json")
            run(_certified(found, subject, seen, signer, timedelta(days=valid_days), place))
            _warn_if_unfit(subject, seen)
    _show(subject, seen, place, as_json)
    if place is None:
        broken = any(record.verdict is TrialVerdict.BROKEN for record in seen.records)
        raise typer.Exit(1 if broken else 3)


def _check_sandbox(subject: _Subject, found: Logins) -> None:
    others = run(_identities(subject, found))
    own = subject.adapter.identity(subject.document)
    if not certification.is_sandbox(
        subject.identity, own, others, production=found.settings.production
    ):
        complain(
            f"{plain(subject.identity, 200)} may be a production target: a contract in use, or "
            "this one, names it, or EFFECT_BROKER_ENV=production. Name a sandbox with --target, "
            "or say --i-know-this-sends"
        )


def _subject(document: ContractDocument, target: str | None, found: Logins) -> _Subject:
    if document.safety is SafetyClass.TRANSACTIONAL or document.adapter.kind in {
        "caller",
        "simulated",
    }:
        complain("what the broker does not send over a wire itself has no target to try")
    try:
        require_extra(document.adapter.kind)
    except ExtraMissing as missing:
        complain(f"{missing}", EXIT_COULD_NOT_RUN)
    settings = found.settings
    secrets = SecretReferences(settings.secret_prefix, settings.secret_directory)
    adapter: Any = adapters(secrets)[document.adapter.kind]
    tried = document
    if target is not None:
        if document.adapter.kind != "http":
            complain("--target goes with http; name the sandbox in the contract of another kind")
        try:
            origin = origin_of(target)
        except ValueError:
            origin = ""
        if not origin or target.rstrip("/") != origin:
            complain("--target is scheme, host and port only, such as https://sandbox.example.com")
        tried = with_origin(document, origin)
    return _Subject(document, tried, adapter, adapter.identity(tried))


async def _identities(subject: _Subject, found: Logins) -> list[str]:
    """The targets of the contracts in use, of the same kind of adapter."""
    async with opened(found.of(DatabaseRole.ADMIN)) as pool:
        documents = await active_documents(pool)
    kind = subject.document.adapter.kind
    return [subject.adapter.identity(one) for one in documents if one.adapter.kind == kind]


def _trial(subject: _Subject, arguments: Path, drift: Path | None, counter: str | None) -> Trial:
    given = arguments_of(subject.tried, arguments)
    if drift is not None:
        drifted = arguments_of(subject.tried, drift)
    else:
        drifted = conformance.drifted_arguments(subject.tried, subject.adapter, given)
    arrivals = None if counter is None else counter_of(counter)
    return Trial(subject.tried, subject.adapter, given, drifted, SystemClock(), new_id, arrivals)


def _announce(subject: _Subject, plan: Plan) -> None:
    """Say what will be sent, before anything is."""
    waits = f", with a wait of up to {span(plan.wait_seconds)}" if plan.wait_seconds else ""
    print(
        f"to {plain(subject.identity, 200)}: {counted(plan.requests, 'request')} that may change "
        f"something{waits}; a target that keeps its promises makes "
        f"{counted(plan.objects, 'object')} of them",
        file=sys.stderr,
    )


async def _tried(found: Logins, trial: Trial, terms: Terms) -> _Seen:
    begun_at = await _database_now(found)
    records = await certification.certify(trial, terms)
    return _Seen(records, trial.figures, begun_at, await _database_now(found))


async def _database_now(found: Logins) -> datetime:
    """The time by the database: what is found out later is compared with it."""
    async with opened(found.of(DatabaseRole.ADMIN)) as pool:
        return await Certificates(pool).now()


async def _certified(
    found: Logins,
    subject: _Subject,
    seen: _Seen,
    signer: RingSigner,
    valid: timedelta,
    place: Path,
) -> None:
    """Sign, write and store a certificate; it counts as issued once it is stored."""
    document = subject.document
    content = certificate_content(
        certificate_id=str(new_id()),
        contract={
            "name": document.name,
            "version": document.version,
            "digest": document.digest().hex(),
            "safety": document.safety.value,
        },
        target={"identity": subject.identity, "account": document.account},
        trials=[record.body() for record in seen.records],
        figures=seen.figures,
        begun_at=seen.begun_at,
        ended_at=seen.ended_at,
        expires_at=seen.ended_at + valid,
    )
    signature = signer.sign_certificate(content)
    written = signed_certificate(content, signature.key_id, signature.signature)
    _write(place, json.dumps(written, indent=2) + "\n")
    certificate = Certificate.model_validate_json(content)
    try:
        async with opened(found.of(DatabaseRole.ADMIN)) as pool:
            await Certificates(pool).store(certificate, content, signature, _ACTOR)
    except StoreError:
        print(
            f"effect-broker: {plain(str(place))} is written, but may not be stored; "
            "`effect-broker contracts certificate list` shows whether it is",
            file=sys.stderr,
        )
        raise


def _warn_if_unfit(subject: _Subject, seen: _Seen) -> None:
    """Say so where the contract demands a certificate and this one lets nothing be sent."""
    document = subject.document
    demand, own = document.policy().certificate, subject.adapter.identity(document)
    if demand is None:
        return
    lacking: list[str] = []
    if subject.identity not in {own, demand.sandbox_identity}:
        lacking.append(
            f"trials at its own target or at oversight.certificate.sandbox, not at "
            f"{plain(subject.identity, 200)}"
        )
    held = {one.trial for one in seen.records if one.verdict is TrialVerdict.HOLDS}
    missing = sorted(demand.trials - held)
    if missing:
        lacking.append(f"{', '.join(missing)} to hold")
    if lacking:
        print(
            f"effect-broker: the contract demands {', and '.join(lacking)}; with this certificate "
            "alone nothing is sent",
            file=sys.stderr,
        )


def _write(place: Path, text: str) -> None:
    try:
        place.write_text(text, encoding="utf-8")
    except OSError as problem:
        complain(f"{plain(str(place))} cannot be written: {problem.strerror}")


def _show(subject: _Subject, seen: _Seen, place: Path | None, as_json: bool) -> None:
    document = subject.document
    if as_json:
        print_json(
            {
                "name": document.name,
                "version": document.version,
                "digest": document.digest().hex(),
                "target": subject.identity,
                "certified": place is not None,
                "certificate": None if place is None else str(place),
                "figures": seen.figures,
                "trials": [record.body() for record in seen.records],
            }
        )
        return
    print_trials(f"{document.name} {document.version} at {subject.identity}", seen.records)
    if place is None:
        print("no certificate: see what is not `holds`", file=sys.stderr)
    else:
        print(f"certified: {plain(str(place), 200)}")


def print_trials(title: str, records: Sequence[TrialRecord]) -> None:
    """Print a report: what was sent, what came back, and the verdict."""
    rows = [
        (
            _MARKS[record.verdict],
            record.trial,
            sent(record.requests, record.look_ups),
            ", ".join(f"{count} {said}" for said, count in record.answers.items()),
            record.seen,
        )
        for record in records
    ]
    print_table(plain(title, 200), ("verdict", "trial", "sent", "came back", "seen"), rows)


def sent(requests: int, look_ups: int) -> str:
    """Return what a trial has sent, for a person."""
    parts = [
        counted(count, noun)
        for count, noun in ((requests, "request"), (look_ups, "look-up"))
        if count
    ]
    return ", ".join(parts) or "nothing"
