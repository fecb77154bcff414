"""`effect-broker receipts`: show, verify and sign the records of settled effects.

`verify` needs no database, no key ring and no network: whoever is handed a receipt and the public
keys can run it, or write ten lines of their own (`docs/receipts.md`).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from effect_broker.cli.access import Logins, logins, opened, plain, run
from effect_broker.cli.desk import EffectArgument, KeyOption, TenantOption, desk, known_effect
from effect_broker.cli.output import AsJson, complain, print_json, print_table
from effect_broker.keyring import RingSigner, key_ring, ring_signer
from effect_broker.reading import ReceiptRecord
from effect_broker.receipts import receipt_document
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.signatures import BATCH_RECEIPTS, LateSignatures
from effect_contracts.canonical import parse_strict
from effect_contracts.counting import counted
from effect_contracts.signed_receipts import (
    DOCUMENT_BYTES_MAX,
    DocumentUnreadable,
    Verdict,
    read_public_keys,
    read_signed_receipt,
    verify_signed_receipt,
)

app = typer.Typer(help="Receipts: the signed records of settled effects.", no_args_is_help=True)

_BATCH_MAX: Final = 10_000


@app.command("show")
def show(
    effect: EffectArgument = None,
    operation_key: KeyOption = None,
    tenant: TenantOption = None,
    as_json: AsJson = False,
) -> None:
    """Print a receipt; with --json the document that `receipts verify` takes. Exit 3 while the
    effect is not settled."""

    async def read(found: Logins) -> ReceiptRecord | None:
        async with desk(found, tenant) as at:
            effect_id = at.effect_id(effect, operation_key)
            return await at.store.receipt(at.tenant.tenant_id, effect_id)

    with logins() as found, known_effect():
        record = run(read(found))
    if record is None:
        complain(
            "the effect is not settled, so there is no receipt yet; `effect-broker effects "
            "inspect` shows what it waits for", 3,
        )  # fmt: skip
    if as_json:
        print_json(receipt_document(record))
        return
    content = parse_strict(record.content)
    assert isinstance(content, dict), "a receipt is an object"
    rows: list[tuple[str, object]] = [
        (f"{name}.{inner}" if inner else name, value)
        for name, member in content.items()
        for inner, value in (member.items() if isinstance(member, dict) else [("", member)])
    ]
    rows.append(("digest", record.digest.hex()))
    rows += [
        ("signed", f"by key {one.key_id} at {one.signed_at.isoformat()}")
        for one in record.signatures
    ]
    print_table("receipt", ("what", "value"), rows)
    if not record.signatures:
        print("it is not signed; `effect-broker receipts sign` does that", file=sys.stderr)


@app.command("verify")
def verify(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A receipt's document, or - for stdin.")
    ],
    public_keys: Annotated[
        Path, typer.Option("--public-keys", help="What `effect-broker keys public` has printed.")
    ],
    as_json: AsJson = False,
) -> None:
    """Check a receipt with the public keys alone: exit 0 good, 1 not."""
    try:
        keys = read_public_keys(read_bytes(str(public_keys)))
    except DocumentUnreadable as problem:
        complain(f"{plain(str(public_keys))} holds no public keys: {problem}")
    try:
        document = read_signed_receipt(read_bytes(file))
    except DocumentUnreadable as problem:
        complain(f"{plain(file)} is no receipt: {problem}")
    verdict = verify_signed_receipt(document, keys)
    if as_json:
        print_json(
            {
                "good": verdict.good,
                "failed": verdict.failed,
                "what": verdict.what,
                "verified_by": list(verdict.verified_by),
                "unknown_keys": list(verdict.unknown),
                "digest": document.digest,
            }
        )
    else:
        _say(verdict)
    raise typer.Exit(0 if verdict.good else 1)


@app.command("sign")
def sign(
    again: Annotated[
        bool,
        typer.Option("--again", help="Also those that bear signatures, but none by this key."),
    ] = False,
    batch: Annotated[
        int, typer.Option(min=1, max=_BATCH_MAX, help="Look at so many in one transaction.")
    ] = BATCH_RECEIPTS,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Sign at most so many; all by default.")
    ] = None,
    tenant: TenantOption = None,
    as_json: AsJson = False,
) -> None:
    """Sign receipts that bear no signature, with the ring's active key, in bounded batches.

    It may be stopped and run again at any time, beside workers."""

    async def work(found: Logins, signer: RingSigner) -> tuple[int, bool]:
        async with opened(found.of(DatabaseRole.WORKER)) as pool:
            tenant_id = None
            if tenant is not None:
                async with desk(found, tenant) as at:
                    tenant_id = at.tenant.tenant_id
            late = LateSignatures(pool, signer)
            count, done = 0, False
            while not done and (limit is None or count < limit):
                signed, done = await late.sign_batch(
                    by_key=signer.key_id if again else None,
                    tenant_id=tenant_id,
                    page=batch,
                    signed_max=None if limit is None else limit - count,
                )
                count += signed
            return count, done

    with logins() as found:
        signer = ring_signer(key_ring(found.settings))
        if signer is None:
            complain(
                "the key ring has no signing key; add the section `signing` of a ring that "
                "`effect-broker keys ring` prints"
            )
        count, done = run(work(found, signer))
    if as_json:
        print_json({"signed": count, "key_id": signer.key_id, "complete": done})
        return
    print(
        f"{counted(count, 'receipt')} signed with key {signer.key_id}"
        + ("" if done else "; there may be more")
    )


def _say(verdict: Verdict) -> None:
    if verdict.good:
        print(f"good: {verdict.what}")
    else:
        print(f"NOT GOOD ({verdict.failed}): {verdict.what}")
    for key_id in verdict.unknown if verdict.good else ():
        print(f"passed over: a signature by {key_id}, which is not among the public keys")


def read_bytes(name: str) -> bytes:
    """The bytes of a file, or of standard input; no more than a document may have, and one."""
    try:
        if name == "-":
            return sys.stdin.buffer.read(DOCUMENT_BYTES_MAX + 1)
        with Path(name).open("rb") as file:
            return file.read(DOCUMENT_BYTES_MAX + 1)
    except OSError as problem:
        reason = problem.strerror or type(problem).__name__
    except ValueError:
        reason = "the name cannot be that of a file"
    complain(f"{plain(name)} cannot be read: {reason}")
