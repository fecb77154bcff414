"""Contracts on the command line: checked without a database, applied, read back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from cli.commands import Cli
from effect_contracts.catalog import catalog_texts
from effect_contracts.document import ContractDocument

NAME = "demo-charge-idempotent"
TEXT = catalog_texts()[NAME]


def _file(tmp_path: Path, text: str | bytes, name: str = "contract.yaml") -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_every_shipped_contract_is_valid_without_a_database(cli: Cli, tmp_path: Path) -> None:
    files = [_file(tmp_path, text, f"{name}.yaml") for name, text in catalog_texts().items()]
    readings = cli("contracts", "validate", *files, "--json").json
    assert [r["valid"] for r in readings] == [True] * len(files)
    assert cli("contracts", "validate", *files).out.count(": ok (") == len(files)


def test_all_problems_are_told_with_their_places(cli: Cli, tmp_path: Path) -> None:
    broken = TEXT.replace("key_retention_seconds: 3600", "key_retention_seconds: 1")
    broken = broken.replace("account: demo", "account: demo\nspelling_mistake: 1")
    broken = broken.replace("attempts_max: 8", "attempts_max: many")
    file = _file(tmp_path, broken)
    ended = cli("contracts", "validate", file)
    said = ended.refused()
    assert "/spelling_mistake" in said
    assert "/retry/attempts_max" in said
    assert all(line.startswith(str(file)) for line in said.splitlines())
    body = cli("contracts", "validate", file, "--json")
    assert body.code == 1
    assert not body.json[0]["valid"]
    assert len(body.json[0]["problems"]) == len(said.splitlines())


@pytest.mark.parametrize(
    ("content", "meaning"),
    [
        (b"name: [unclosed", "line"),
        (b"a: 1\na: 2\n", "a"),
        (b"", "contract"),
        (b"\xff\xfe\x00binary", "UTF-8"),
        (b"just a text", "object"),
        (b"!!python/object/apply:os.system [id]", ""),
        (b"name: \x00", "U+0000"),
        (b"a: &x [*x]", ""),
        (b"[" * 5000, ""),
        (b"x: " + b"y" * 400_000, "larger"),
        (b"x" * 1_100_000, "larger"),
    ],
)
def test_a_malformed_file_is_a_sentence(
    cli: Cli, tmp_path: Path, content: bytes, meaning: str
) -> None:
    said = cli("contracts", "validate", _file(tmp_path, content)).refused()
    assert meaning in said
    assert len(said) < 2000


def test_a_file_that_is_not_there_or_no_file_is_a_sentence(cli: Cli, tmp_path: Path) -> None:
    assert "No such file" in cli("contracts", "validate", tmp_path / "no.yaml").refused()
    assert "directory" in cli("contracts", "validate", tmp_path).refused()
    assert "No such file" in cli("contracts", "validate", "a\x1b[31m\nb").refused()


def test_standard_input_is_a_file(cli: Cli) -> None:
    assert cli("contracts", "validate", "-", stdin=TEXT.encode()).code == 0


def test_a_contract_is_applied_once_and_is_active(broker: Cli, tmp_path: Path) -> None:
    file = _file(tmp_path, TEXT)
    assert broker("contracts", "apply", file, "--json").json[0]["new"]
    assert not broker("contracts", "apply", file, "--json").json[0]["new"]
    (listed,) = broker("contracts", "list", "--json").json
    assert listed["active"]
    assert listed["digest"] == ContractDocument.parse_yaml(TEXT).digest().hex()
    assert NAME in broker("contracts", "list").out


def test_a_version_that_is_not_activated_leaves_the_active_one(broker: Cli, tmp_path: Path) -> None:
    assert "in place of" not in broker("contracts", "apply", _file(tmp_path, TEXT)).out
    second = _file(tmp_path, TEXT.replace('version: "1"', 'version: "2"'), "2.yaml")
    assert broker("contracts", "apply", second, "--no-activate").code == 0
    active = [c["version"] for c in broker("contracts", "list", "--json").json if c["active"]]
    assert active == ["1"]
    said = broker("contracts", "apply", second).out
    assert said.endswith(f", active for demo.charge in place of {NAME} 1\n")
    assert "in place of" not in broker("contracts", "apply", second).out
    active = [c["version"] for c in broker("contracts", "list", "--json").json if c["active"]]
    assert active == ["2"]


def test_a_published_version_never_changes(broker: Cli, tmp_path: Path) -> None:
    broker("contracts", "apply", _file(tmp_path, TEXT))
    other = _file(tmp_path, TEXT.replace("attempts_max: 8", "attempts_max: 7"))
    assert "raise the version" in broker("contracts", "apply", other).refused()
    shown = broker("contracts", "show", NAME, "1", "--json").json
    assert shown["retry"]["attempts_max"] == 8


def test_nothing_is_applied_if_one_file_is_invalid(broker: Cli, tmp_path: Path) -> None:
    good, bad = _file(tmp_path, TEXT), _file(tmp_path, "name: x", "bad.yaml")
    assert "nothing was applied" in broker("contracts", "apply", good, bad).refused()
    assert broker("contracts", "list", "--json").json == []


def test_a_shown_contract_reads_back_as_the_same_document(broker: Cli, tmp_path: Path) -> None:
    for name, text in catalog_texts().items():
        broker("contracts", "apply", _file(tmp_path, text))
        document = ContractDocument.parse_yaml(text)
        shown = broker("contracts", "show", name, document.version).out
        assert ContractDocument.parse_yaml(shown).digest() == document.digest()
    assert "contracts list" in broker("contracts", "show", "no-such", "1").refused()
    assert "printable" in broker("contracts", "show", "a\x1b[2J", "1").refused()


def test_the_schema_accepts_what_the_validator_accepts(cli: Cli) -> None:
    schema = json.loads(cli("contracts", "schema").out)
    document = cli("contracts", "catalog", NAME, "--json").json
    Draft202012Validator(schema).validate(document)


def test_the_catalog_lists_and_prints(cli: Cli) -> None:
    assert {d["name"] for d in cli("contracts", "catalog", "--json").json} == set(catalog_texts())
    assert NAME in cli("contracts", "catalog").out
    assert cli("contracts", "catalog", NAME).out == TEXT
    assert NAME in cli("contracts", "catalog", "no-such\x07").refused()
