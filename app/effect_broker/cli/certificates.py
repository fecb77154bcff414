"""`effect-broker contracts certificate`: show, verify, list and revoke certificates of targets.

`show` and `verify` need no database, no key ring and no network.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Final
from uuid import UUID

import typer

from effect_broker.certification import TrialRecord
from effect_broker.cli.access import Logins, logins, opened, plain, run
from effect_broker.cli.certification import print_trials
from effect_broker.cli.contracts import document_of
from effect_broker.cli.output import AsJson, complain, print_json, print_table
from effect_broker.cli.receipts import read_bytes
from effect_broker.clock import utc_now
from effect_broker.store.certificates import CertificateRecord, Certificates
from effect_broker.store.roles import DatabaseRole
from effect_contracts.certificates import (
    Certificate,
    SignedCertificate,
    TrialVerdict,
    certificate_of,
    read_signed_certificate,
    signed_certificate,
    verify_certificate,
)
from effect_contracts.signed_receipts import DocumentUnreadable, read_public_keys

app = typer.Typer(help="Certificates: what trials have shown of a target.", no_args_is_help=True)

_LISTED_MAX: Final = 1000
_REASON_CHARS_MAX: Final = 500

CertificateFile = Annotated[
    str, typer.Argument(metavar="FILE", help="A certificate, or - for standard input.")
]
CertificateId = Annotated[str, typer.Argument(metavar="ID", help="As `list` shows it.")]


@app.command("show")
def show(file: CertificateFile, as_json: AsJson = False) -> None:
    """Print what a certificate says, without judging whether it is good: `verify` does that."""
    certificate = certificate_of(_read(file))
    if certificate is None:
        complain(f"{plain(file)} says nothing that a certificate says")
    if as_json:
        print_json(certificate.model_dump(mode="json"))
        return
    _print(certificate)


@app.command("verify")
def verify(
    file: CertificateFile,
    public_keys: Annotated[
        Path, typer.Option("--public-keys", help="What `effect-broker keys public` has printed.")
    ],
    contract: Annotated[
        str | None, typer.Option(metavar="FILE", help="It has to speak of this contract.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a certificate with the public keys alone: exit 0 good, 1 not.

    Whether it was revoked meanwhile, only its broker knows: `certificate list` says so there.
    """
    try:
        keys = read_public_keys(read_bytes(str(public_keys)))
    except DocumentUnreadable as problem:
        complain(f"{plain(str(public_keys))} holds no public keys: {problem}")
    wanted = None if contract is None else document_of(contract).digest()
    verdict = verify_certificate(_read(file), keys, utc_now(), wanted)
    if as_json:
        print_json(
            {
                "good": verdict.good,
                "failed": verdict.flaw,
                "what": verdict.what,
                "verified_by": list(verdict.verified_by),
                "unknown_keys": list(verdict.unknown),
            }
        )
    elif verdict.good:
        print(f"good: {plain(verdict.what, 300)}")
    else:
        print(f"NOT GOOD ({verdict.flaw}): {plain(verdict.what, 300)}")
    raise typer.Exit(0 if verdict.good else 1)


@app.command("list")
def list_certificates(
    limit: Annotated[int, typer.Option(min=1, max=_LISTED_MAX, help="So many, newest first.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List the stored certificates, and which of them count."""

    async def read(found: Logins) -> tuple[CertificateRecord, ...]:
        async with opened(found.of(DatabaseRole.ADMIN)) as pool:
            return await Certificates(pool).listing(limit=limit)

    with logins() as found:
        records = run(read(found))
    if as_json:
        print_json([_body(record) for record in records])
        return
    rows = [
        (
            record.certificate_id,
            f"{record.contract_name} {record.contract_version}",
            plain(record.target_identity, 100),
            f"{record.expires_at:%Y-%m-%d %H:%M:%S}Z",
            _standing(record),
        )
        for record in records
    ]
    print_table("certificates", ("id", "contract", "target", "ends", ""), rows)


@app.command("fetch")
def fetch(certificate: CertificateId) -> None:
    """Print the document of a stored certificate, as `verify` takes it."""
    wanted = _id(certificate)

    async def read(found: Logins) -> tuple[CertificateRecord, ...]:
        async with opened(found.of(DatabaseRole.ADMIN)) as pool:
            return await Certificates(pool).listing(limit=1, certificate_id=wanted)

    with logins() as found:
        records = run(read(found))
    if not records:
        complain(f"there is no certificate {wanted}")
    one = records[0]
    print_json(signed_certificate(one.content, one.signature.key_id, one.signature.signature))


@app.command("revoke")
def revoke(
    certificate: CertificateId,
    reason: Annotated[str, typer.Option(help="Why, for those who read `list` later.")],
    actor: Annotated[str, typer.Option(help="Who says so.")] = "command line",
    as_json: AsJson = False,
) -> None:
    """End a certificate before its time; what is revoked stays so."""
    wanted = _id(certificate)
    for said in (reason, actor):
        if not (said.strip() and said.isprintable() and len(said) <= _REASON_CHARS_MAX):
            complain(f"a reason and an actor are 1 to {_REASON_CHARS_MAX} printable characters", 2)

    async def write(found: Logins) -> bool:
        async with opened(found.of(DatabaseRole.ADMIN)) as pool:
            return await Certificates(pool).revoke(wanted, reason, actor)

    with logins() as found:
        there = run(write(found))
    if not there:
        complain(f"there is no certificate {wanted}")
    if as_json:
        print_json({"certificate_id": str(wanted), "revoked": True})
    else:
        print(f"{wanted} counts no more")


def _print(certificate: Certificate) -> None:
    target = certificate.target
    rows: list[tuple[str, object]] = [
        ("certificate", certificate.certificate_id),
        ("contract", f"{certificate.contract.name} {certificate.contract.version}"),
        ("contract digest", certificate.contract.digest),
        ("safety", certificate.contract.safety),
        ("target", target.identity),
        ("begun", certificate.begun_at),
        ("ended", certificate.ended_at),
        ("expires", certificate.expires_at),
        *certificate.figures.items(),
    ]
    print_table("certificate", ("what", "value"), rows)
    print_trials(
        "trials",
        [
            TrialRecord(t.trial, t.requests, t.look_ups, t.answers, TrialVerdict(t.verdict), t.seen)
            for t in certificate.trials
        ],
    )
    print("not verified; `effect-broker contracts certificate verify` does that", file=sys.stderr)


def _body(record: CertificateRecord) -> dict[str, Any]:
    return {
        "certificate_id": str(record.certificate_id),
        "contract": record.contract_name,
        "version": record.contract_version,
        "contract_digest": record.contract_digest.hex(),
        "target": record.target_identity,
        "ended_at": record.ended_at.isoformat(),
        "expires_at": record.expires_at.isoformat(),
        "counts": record.counts,
        "expired": record.expired,
        "revoked_at": record.revoked_at and record.revoked_at.isoformat(),
        "revoked_reason": record.revoked_reason,
    }


def _standing(record: CertificateRecord) -> str:
    if record.revoked_at is not None:
        at = f"{record.revoked_at:%Y-%m-%d %H:%M:%S}Z"
        return f"REVOKED at {at}: {plain(record.revoked_reason or '', 200)}"
    return "expired" if record.expired else "counts"


def _id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        complain(f"'{plain(text)}' is no id of a certificate", 2)


def _read(file: str) -> SignedCertificate:
    try:
        return read_signed_certificate(read_bytes(file))
    except DocumentUnreadable as problem:
        complain(f"{plain(file)} is no certificate: {problem}")
