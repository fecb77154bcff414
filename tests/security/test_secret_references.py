"""References of contracts lead to what an operator allows, and say what stands in the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from effect_adapters.base import SecretUnavailable
from effect_broker.secretrefs import SecretReferences

PREFIX = "EFFECT_BROKER_SECRET_"
VALUE = "hunter2"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory of secrets, beside a file that is none of them."""
    inside = tmp_path / "secrets"
    inside.mkdir()
    (inside / "token").write_text(f"{VALUE}\n")
    (inside / "empty").write_text("\n")
    (inside / "large").write_text(VALUE * 20_000)
    (inside / "binary").write_bytes(b"\xff" + VALUE.encode())
    (tmp_path / "ring").write_text(VALUE)
    (inside / "link").symlink_to(tmp_path / "ring")
    return inside


def test_an_allowed_reference_is_resolved(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{PREFIX}SHOP", VALUE)
    secrets = SecretReferences(PREFIX, directory)
    assert secrets(f"env:{PREFIX}SHOP") == VALUE
    assert secrets(f"file:{directory}/token") == VALUE


@pytest.mark.parametrize(
    ("reference", "obstacle"),
    [
        ("env:EFFECT_BROKER_KEY_RING", f"its name has to begin with {PREFIX}"),
        (f"env:{PREFIX}NOT_SET", "the variable is not set for this process, or empty"),
        (f"env:{PREFIX}EMPTY", "the variable is not set for this process, or empty"),
        ("file:{0}/missing", "no text file that this process can read"),
        ("file:{0}/link", "no text file that this process can read"),
        ("file:{0}/../ring", "no text file that this process can read"),
        ("file:{0}/binary", "no text file that this process can read"),
        ("file:{0}/large", "the file is larger than 65536 bytes"),
        ("file:{0}/empty", "the file is empty"),
        ("vault:token", "it begins with neither env: nor file:"),
    ],
)
def test_what_is_not_resolved_says_why_and_never_a_value(
    directory: Path, monkeypatch: pytest.MonkeyPatch, reference: str, obstacle: str
) -> None:
    monkeypatch.setenv("EFFECT_BROKER_KEY_RING", VALUE)
    monkeypatch.setenv(f"{PREFIX}EMPTY", "")
    reference = reference.replace("{0}", str(directory))
    with pytest.raises(SecretUnavailable) as refused:
        SecretReferences(PREFIX, directory)(reference)
    assert reference in str(refused.value)
    assert obstacle in str(refused.value)
    assert VALUE not in str(refused.value)


@pytest.mark.parametrize(
    ("reference", "obstacle"),
    [
        (f"env:{PREFIX}SHOP", "this process takes no secrets from its environment"),
        ("file:/run/secrets/token", "this process has no directory of secrets"),
    ],
)
def test_without_an_allow_list_nothing_is_resolved(
    monkeypatch: pytest.MonkeyPatch, reference: str, obstacle: str
) -> None:
    monkeypatch.setenv(f"{PREFIX}SHOP", VALUE)
    with pytest.raises(SecretUnavailable, match=obstacle):
        SecretReferences("", None)(reference)
