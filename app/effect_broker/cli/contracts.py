"""`effect-broker contracts`: check documents, apply them, and read what is applied.

Checking needs no database: an author, an editor and a CI job ask the same validator as `apply`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import yaml

from effect_broker.cli import checks
from effect_broker.cli.access import Logins, logins, opened, plain, run
from effect_broker.cli.checks import Finding, Level
from effect_broker.cli.output import AsJson, complain, print_json, print_table
from effect_broker.store.catalogue import Catalogue, ContractRecord
from effect_broker.store.documents import applied_document
from effect_broker.store.roles import DatabaseRole
from effect_contracts.canonical import parse_strict
from effect_contracts.catalog import SCHEMA_NAME, catalog_documents, catalog_path, catalog_texts
from effect_contracts.document import ContractDocument
from effect_contracts.errors import ContractConflict, ContractInvalid, ContractProblem

app = typer.Typer(help="Contracts: what may be done with a tool, and how.", no_args_is_help=True)

# A contract is a page or two; what is larger is another file by mistake.
_FILE_BYTES_MAX: Final = 1024 * 1024

Files = Annotated[
    list[str], typer.Argument(metavar="FILE…", help="YAML files; - is standard input.")
]


@dataclass(frozen=True, slots=True)
class _Reading:
    """One file: its document, or what is wrong with it."""

    file: str
    document: ContractDocument | None
    problems: tuple[ContractProblem, ...] = ()


@app.command("validate")
def validate(files: Files, as_json: AsJson = False) -> None:
    """Check contract files without a database; exit 1 if any has a problem.

    What is allowed and still dangerous is a warning: exit 0.
    """
    readings = [_read(file) for file in files]
    if as_json:
        print_json([_reading_body(reading) for reading in readings])
    else:
        _print_readings(readings)
    if any(reading.document is None for reading in readings):
        raise typer.Exit(1)


@app.command("apply")
def apply(
    files: Files,
    activate: Annotated[
        bool, typer.Option(help="Submit new effects of the tool under this version from now on.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Store contract versions; none is stored unless all files are valid."""
    readings = [_read(file) for file in files]
    documents = [r.document for r in readings if r.document is not None]
    if len(documents) < len(readings):
        if as_json:
            print_json([_reading_body(reading) for reading in readings])
        else:
            _print_readings(readings)
        complain("nothing was applied: mend the problems above first")

    async def store(found: Logins) -> list[tuple[bool, str | None]]:
        """Whether each document was new, and what it took the place of; ends before the first
        that conflicts."""
        stored: list[tuple[bool, str | None]] = []
        async with opened(found.of(DatabaseRole.ADMIN)) as pool:
            catalogue = Catalogue(pool)
            known = await catalogue.contracts()
            active = {r.tool: f"{r.name} {r.version}" for r in known if r.active}
            for document in documents:
                named, before = f"{document.name} {document.version}", active.get(document.tool)
                try:
                    new = await catalogue.apply(document, activate=activate)
                except ContractConflict:
                    break
                stored.append((new, before if activate and before != named else None))
                if activate:
                    active[document.tool] = named
        return stored

    with logins() as found:
        stored = run(store(found))
    bodies = [
        _document_line(document) | {"new": new, "activated": activate, "in_place_of": before}
        for document, (new, before) in zip(documents, stored, strict=False)
    ]
    if as_json:
        print_json(bodies)
    else:
        for body in bodies:
            what = "applied" if body["new"] else "unchanged"
            active = f", active for {body['tool']}" if activate else ", not activated"
            before = body["in_place_of"]
            instead = "" if before is None else f" in place of {before}"
            print(f"{body['name']} {body['version']}: {what}{active}{instead}")
    if len(stored) < len(documents):
        refused = documents[len(stored)]
        complain(
            f"{refused.name} {refused.version} is stored with other content, and a published "
            "version never changes: raise the version. It and what follows it was not applied"
        )


@app.command("list")
def list_contracts(as_json: AsJson = False) -> None:
    """List the applied contracts; one version of each tool is active."""

    async def read(found: Logins) -> tuple[ContractRecord, ...]:
        async with opened(found.of(DatabaseRole.ADMIN)) as pool:
            return await Catalogue(pool).contracts()

    with logins() as found:
        records = run(read(found))
    if as_json:
        print_json([_record_body(record) for record in records])
        return
    rows = [
        (r.tool, r.name, r.version, r.safety, "active" if r.active else "", _digest(r.digest))
        for r in records
    ]
    print_table("contracts", ("tool", "name", "version", "safety", "", "digest"), rows)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="Name of the contract.")],
    version: Annotated[str, typer.Argument(help="Its version.")],
    as_json: AsJson = False,
) -> None:
    """Print an applied contract with all its defaults."""

    async def read(found: Logins) -> ContractDocument | None:
        async with opened(found.of(DatabaseRole.ADMIN)) as pool:
            return await applied_document(pool, name, version)

    if not (name.isprintable() and version.isprintable()):
        complain("a contract's name and version hold printable characters only")
    with logins() as found:
        document = run(read(found))
    if document is None:
        complain(
            f"no contract {plain(name)} {plain(version)} is applied; "
            "`effect-broker contracts list` shows those that are"
        )
    if as_json:
        print_json(parse_strict(document.canonical(), bytes_max=_FILE_BYTES_MAX))
    else:
        body = document.model_dump(mode="json", by_alias=True)
        sys.stdout.write(yaml.safe_dump(body, sort_keys=False, allow_unicode=True))


@app.command("schema")
def schema() -> None:
    """Print the JSON Schema of contract documents, for editors and CI."""
    sys.stdout.write(catalog_path().joinpath(SCHEMA_NAME).read_text(encoding="utf-8"))


@app.command("catalog")
def catalog(
    name: Annotated[str | None, typer.Argument(help="Print this one.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the contracts that ship as examples, or print one to begin with."""
    if name is None:
        documents = catalog_documents()
        if as_json:
            print_json([_document_line(document) for document in documents.values()])
            return
        rows = [(d.name, d.tool, d.safety.value, d.description) for d in documents.values()]
        print_table("shipped contracts", ("name", "tool", "safety", "what it does"), rows)
        return
    texts = catalog_texts()
    if name not in texts:
        complain(f"no contract {plain(name)} ships; there are {', '.join(texts)}")
    if as_json:
        print_json(ContractDocument.parse_yaml(texts[name]).model_dump(mode="json", by_alias=True))
    else:
        sys.stdout.write(texts[name])


def document_of(file: str) -> ContractDocument:
    """Return the document of a file, or print its problems and end with 1."""
    reading = _read(file)
    if reading.document is None:
        _print_readings([reading])
        raise typer.Exit(1)
    return reading.document


def _read(file: str) -> _Reading:
    name = plain(file, 200)
    try:
        raw = _bytes_of(file)
    except OSError as problem:
        return _bad(name, f"cannot be read: {problem.strerror or type(problem).__name__}")
    except ValueError:
        return _bad(name, "its name cannot be that of a file")
    if len(raw) > _FILE_BYTES_MAX:
        return _bad(name, f"is larger than {_FILE_BYTES_MAX} bytes, which no contract is")
    try:
        return _Reading(name, ContractDocument.parse_yaml(raw.decode("utf-8")))
    except UnicodeDecodeError:
        return _bad(name, "is not UTF-8 text")
    except ContractInvalid as invalid:
        problems = invalid.extras["problems"]
        assert isinstance(problems, list)
        return _Reading(
            name, None, tuple(ContractProblem(p["field"], p["message"]) for p in problems)
        )


def _bytes_of(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read(_FILE_BYTES_MAX + 1)
    with Path(file).open("rb") as opened_file:
        return opened_file.read(_FILE_BYTES_MAX + 1)


def _bad(name: str, message: str) -> _Reading:
    return _Reading(name, None, (ContractProblem("", message),))


def _print_readings(readings: list[_Reading]) -> None:
    for reading in readings:
        if reading.document is not None:
            d = reading.document
            print(f"{reading.file}: ok ({d.name} {d.version}, {d.tool}, {d.safety.value})")
            for warning in _warnings(d):
                said = f"{warning.text}: {warning.remedy}"
                print(f"{reading.file}: warning: {plain(said, 1024)}", file=sys.stderr)
            continue
        for problem in reading.problems:
            place = problem.field or "the document"
            print(f"{reading.file}: {plain(place, 512)}: {problem.message}", file=sys.stderr)


def _reading_body(reading: _Reading) -> dict[str, Any]:
    body: dict[str, Any] = {"file": reading.file, "valid": reading.document is not None}
    if reading.document is not None:
        body |= _document_line(reading.document)
    body["problems"] = [{"field": p.field, "message": p.message} for p in reading.problems]
    warnings = [] if reading.document is None else _warnings(reading.document)
    body["warnings"] = [{"text": w.text, "remedy": w.remedy} for w in warnings]
    return body


def _warnings(document: ContractDocument) -> list[Finding]:
    """What `doctor` would say of the contract; whether secrets resolve is the workers' affair."""
    findings = checks.contract_findings([document], lambda _reference: True)
    return [finding for finding in findings if finding.level is Level.WARN]


def _document_line(document: ContractDocument) -> dict[str, Any]:
    return {
        "name": document.name,
        "version": document.version,
        "tool": document.tool,
        "safety": document.safety.value,
        "digest": document.digest().hex(),
    }


def _record_body(record: ContractRecord) -> dict[str, Any]:
    return {
        "name": record.name,
        "version": record.version,
        "tool": record.tool,
        "safety": record.safety,
        "active": record.active,
        "applied_at": record.applied_at.isoformat(),
        "digest": record.digest.hex(),
    }


def _digest(digest: bytes) -> str:
    return digest.hex()[:12]
