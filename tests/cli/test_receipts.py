"""Receipts on the command line: shown, verified without anything else, and signed later."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.commands import Cli, Ended, run_for_real
from effect_broker.keyring import (
    KeyRingProblem,
    RingSigner,
    new_key_ring,
    parse_key_ring,
    ring_public_keys,
    ring_signer,
)
from effect_contracts.catalog import catalog_texts
from effect_contracts.signed_receipts import Check
from repository.checkout import CHECKOUT

ARGUMENTS = '{"order": "42", "amount": 1200, "currency": "eur", "customer_email": "a@example.com"}'
PAGE = CHECKOUT / "docs" / "receipts.md"

Cancelled = Callable[[str], str]


@pytest.fixture
def acme(broker: Cli, tmp_path: Path) -> Cli:
    """A tenant, with the demo's contract."""
    assert broker("tenants", "create", "acme").code == 0
    path = tmp_path / "contract.yaml"
    path.write_text(catalog_texts()["demo-charge-idempotent"])
    assert broker("contracts", "apply", path).code == 0
    return broker


@pytest.fixture
def cancelled(acme: Cli) -> Cancelled:
    """Settle an effect in the quickest way there is, and return its id."""

    def made(key: str) -> str:
        submit = ("effects", "submit", "--tool", "demo.charge", "--key", key)
        effect_id = acme(*submit, "--arguments", ARGUMENTS, "--json").json["effect_id"]
        assert acme("effects", "cancel", effect_id).code == 0
        return str(effect_id)

    return made


@pytest.fixture
def files(acme: Cli, cancelled: Cancelled, tmp_path: Path) -> tuple[Path, Path]:
    """A receipt's document and the public keys, as the commands print them."""
    effect_id = cancelled("order-1")
    document, keys = tmp_path / "receipt.json", tmp_path / "keys.json"
    document.write_text(acme("receipts", "show", effect_id, "--json").out)
    keys.write_text(acme("keys", "public").out)
    return document, keys


def unsigned_ring(text: str) -> str:
    ring = json.loads(text)
    del ring["signing"]
    return json.dumps(ring)


# Show and verify ----------------------------------------------------------------------------------


def test_a_receipt_is_verified_with_its_file_and_the_public_keys_alone(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    """No URL, no ring, no home: the process has none of them."""
    document, keys = files
    environment = {"PATH": "/usr/bin:/bin", "EFFECT_BROKER_HOME": str(tmp_path / "nowhere")}
    ended = run_for_real(
        environment, "receipts", "verify", str(document), "--public-keys", str(keys)
    )
    assert (ended.code, ended.out) == (0, "good: signed by key k1\n"), ended.err
    assert not (tmp_path / "nowhere").exists()


def test_the_table_says_who_has_signed(acme: Cli, cancelled: Cancelled) -> None:
    effect_id = cancelled("order-1")
    assert "by key k1" in acme("receipts", "show", effect_id).out
    assert "k1" in acme("effects", "receipt", effect_id).out


def test_what_is_not_settled_has_no_receipt(acme: Cli) -> None:
    submit = ("effects", "submit", "--tool", "demo.charge", "--key", "order-1")
    acme(*submit, "--arguments", ARGUMENTS)
    assert "not settled" in acme("receipts", "show", "--key", "order-1").refused(3)


def _told(value: str) -> str:
    return value[:-1] + ("0" if value[-1] != "0" else "1")


def _changed_content(document: Any) -> None:
    document["content"] = document["content"].replace('"cancelled"', '"succeeded"')


def _changed_digest(document: Any) -> None:
    document["digest"] = _told(document["digest"])


def _changed_signature(document: Any) -> None:
    raw = bytearray(base64.b64decode(document["signatures"][0]["signature"]))
    raw[5] ^= 1
    document["signatures"][0]["signature"] = base64.b64encode(bytes(raw)).decode()


def _changed_key(document: Any) -> None:
    document["signatures"][0]["key_id"] = "k9"


def _unspaced(document: Any) -> None:
    document["content"] = document["content"].replace(":", ": ", 1)


@pytest.mark.parametrize(
    ("change", "failed"),
    [
        (_changed_content, "digest"),
        (_changed_digest, "digest"),
        (_changed_signature, "signature"),
        (_changed_key, "key"),
        (_unspaced, "content"),
    ],
)
def test_an_altered_receipt_is_refused_and_the_check_named(
    cli: Cli, files: tuple[Path, Path], change: Callable[[Any], None], failed: str
) -> None:
    document, keys = files
    value = json.loads(document.read_text())
    change(value)
    document.write_text(json.dumps(value))
    command = ("receipts", "verify", document, "--public-keys", keys)
    ended = cli(*command, "--json")
    assert (ended.code, ended.json["good"], ended.json["failed"]) == (1, False, failed)
    said = cli(*command)
    assert said.code == 1
    assert f"NOT GOOD ({failed})" in said.out


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\x00",
        b"[[[[",
        b"{}",
        b'"text"',
        b"\xff",
        b"9" * 300_000,
        b'{"a":1,"a":1}',
        b"[" * 9999,
    ],
)
def test_a_poisoned_file_is_refused_in_words(
    cli: Cli, files: tuple[Path, Path], tmp_path: Path, text: bytes
) -> None:
    document, keys = files
    poison = tmp_path / "poison.json"
    poison.write_bytes(text)
    assert "is no receipt" in cli("receipts", "verify", poison, "--public-keys", keys).refused()
    assert (
        "no public keys" in cli("receipts", "verify", document, "--public-keys", poison).refused()
    )


def test_a_file_that_is_missing_is_refused_in_words(cli: Cli, files: tuple[Path, Path]) -> None:
    document, keys = files
    verify = ("receipts", "verify")
    assert "cannot be read" in cli(*verify, "/nowhere", "--public-keys", keys).refused()
    assert "cannot be read" in cli(*verify, document, "--public-keys", "/nowhere").refused()
    assert "cannot be read" in cli(*verify, document.parent, "--public-keys", keys).refused()


def test_a_receipt_is_read_from_standard_input(cli: Cli, files: tuple[Path, Path]) -> None:
    document, keys = files
    assert (
        cli("receipts", "verify", "-", "--public-keys", keys, stdin=document.read_bytes()).code == 0
    )


# Sign later ---------------------------------------------------------------------------------------


def test_receipts_from_before_there_was_a_key_are_signed_later(
    acme: Cli, ring: str, cancelled: Cancelled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EFFECT_BROKER_KEY_RING", unsigned_ring(ring))
    effect_ids = [cancelled(f"order-{n}") for n in range(3)]
    assert "not signed" in acme("receipts", "show", effect_ids[0]).err
    assert "no signing key" in acme("receipts", "sign").refused()
    assert "no signing key" in acme("keys", "public").refused()
    monkeypatch.setenv("EFFECT_BROKER_KEY_RING", ring)
    assert acme("receipts", "sign", "--limit", 2, "--json").json["signed"] == 2
    last = acme("receipts", "sign", "--batch", 1, "--json").json
    assert last == {"signed": 1, "key_id": "k1", "complete": True}
    assert acme("receipts", "sign", "--json").json["signed"] == 0
    for effect_id in effect_ids:
        document = acme("receipts", "show", effect_id, "--json").json
        assert [one["key_id"] for one in document["signatures"]] == ["k1"]


def test_after_a_rotation_old_receipts_can_be_signed_again(
    acme: Cli, ring: str, cancelled: Cancelled, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    effect_id = cancelled("order-1")
    rotated = json.loads(ring)
    fresh = json.loads(new_key_ring("k2", development=True))["signing"]
    rotated["signing"] = {"active": "k2", "keys": rotated["signing"]["keys"] | fresh["keys"]}
    monkeypatch.setenv("EFFECT_BROKER_KEY_RING", json.dumps(rotated))
    assert acme("receipts", "sign", "--json").json["signed"] == 0
    assert acme("receipts", "sign", "--again", "--json").json["signed"] == 1
    document, keys = tmp_path / "receipt.json", tmp_path / "keys.json"
    document.write_text(acme("receipts", "show", effect_id, "--json").out)
    printed = acme("keys", "public").json
    assert (printed["active"], sorted(printed["keys"])) == ("k2", ["k1", "k2"])
    for gone in ("", "k1", "k2"):
        held = {k: v for k, v in printed["keys"].items() if k != gone}
        keys.write_text(json.dumps(printed | {"keys": held}))
        ended = acme("receipts", "verify", document, "--public-keys", keys, "--json")
        assert ended.code == 0
        assert ended.json["verified_by"] == sorted(held)
        assert ended.json["unknown_keys"] == ([gone] if gone else [])


def test_no_private_key_is_ever_printed(acme: Cli, ring: str, files: tuple[Path, Path]) -> None:
    seed = json.loads(ring)["signing"]["keys"]["k1"]
    for command in (
        ("keys", "public"),
        ("doctor", "--json"),
        ("receipts", "sign"),
        ("keys", "list"),
    ):
        ended = acme(*command)
        assert seed not in ended.out + ended.err
    assert seed not in files[0].read_text() + files[1].read_text()


def test_doctor_warns_where_receipts_are_not_signed(
    acme: Cli, ring: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finding() -> Any:
        found = acme("doctor", "--json").json["findings"]
        return next(one for one in found if one["check"] == "receipts")

    assert finding()["level"] == "ok"
    monkeypatch.setenv("EFFECT_BROKER_KEY_RING", unsigned_ring(ring))
    assert finding()["level"] == "warn"
    assert "receipts sign" in finding()["remedy"]


# The key ring -------------------------------------------------------------------------------------


def parsed(text: str) -> Any:
    return parse_key_ring(text, source="test", production=False)


def test_a_ring_from_before_there_were_signatures_still_loads() -> None:
    ring = parsed(unsigned_ring(new_key_ring("k1", development=True)))
    assert ring.signing is None
    assert ring_signer(ring) is None
    assert ring_public_keys(ring) == {}


def test_a_ring_shows_none_of_its_keys() -> None:
    text = new_key_ring("k1", development=True)
    ring = parsed(text)
    seed = ring.signing.keys["k1"]
    shown = repr(ring) + str(ring) + repr(ring.signing) + repr(ring_signer(ring))
    for form in (repr(seed), seed.hex(), base64.b64encode(seed).decode()):
        assert form not in shown


@pytest.mark.parametrize(
    ("signing", "says"),
    [
        ({"active": "k1", "keys": {"k1": base64.b64encode(bytes(31)).decode()}}, "32 bytes"),
        ({"active": "k2", "keys": {"k1": base64.b64encode(bytes(32)).decode()}}, "active key id"),
        ({"active": "k 1", "keys": {"k 1": base64.b64encode(bytes(32)).decode()}}, "printable"),
        ({"active": "k1", "keys": {"k1": "SECRET!"}}, "base64"),
        ("SECRET!", "signing"),
    ],
)
def test_a_signing_section_that_cannot_be_used_is_refused_without_its_keys(
    signing: object, says: str
) -> None:
    ring = json.loads(new_key_ring("k1", development=True)) | {"signing": signing}
    with pytest.raises(KeyRingProblem, match=says) as caught:
        parsed(json.dumps(ring))
    assert "SECRET" not in str(caught.value)


def test_a_ring_signs_with_its_active_key() -> None:
    ring = parsed(new_key_ring("k1", development=True))
    signer = ring_signer(ring)
    assert isinstance(signer, RingSigner)
    assert signer.sign(b"{}").key_id == signer.key_id == "k1"


# The page -----------------------------------------------------------------------------------------


def snippet(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def _run(command: list[str], directory: Path) -> Ended:
    ended = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=60, check=False
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


@pytest.mark.parametrize("language", ["python", "sh"])
def test_the_ten_lines_of_the_page_verify_a_receipt_and_refuse_an_altered_one(
    files: tuple[Path, Path], language: str
) -> None:
    directory = files[0].parent
    program = {"python": [sys.executable, "-c"], "sh": ["bash", "-euo", "pipefail", "-c"]}[language]
    good = _run([*program, snippet(language)], directory)
    assert good.code == 0, good
    value = json.loads(files[0].read_text())
    value["content"] = value["content"].replace("cancelled", "succeeded")
    files[0].write_text(json.dumps(value))
    assert _run([*program, snippet(language)], directory).code != 0


def test_the_page_names_every_check_that_can_fail() -> None:
    page = PAGE.read_text()
    assert all(f"`{check}`" in page for check in Check)
