"""What the values of the steps say of themselves: nothing where nothing is known, and no secret."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import fields, is_dataclass

from effect_broker import protocol
from effect_broker.protocol.ports import ReceiptSignature, Sealed

HIDDEN = {"Sealed.ciphertext", "Submission.preview"}
# Absent, none, not yet: a value that nobody has set must not claim anything.
NUMBERS_AND_FLAGS = {
    "Grant.deadline_seconds": 0.0,
    "ProbeStart.covers_through": 0,
    "Sighting.told": False,
    "Sighting.failure": False,
    "Urgency.sender_lost": False,
    "Snapshot.parked": False,
    "Submitted.enqueued": False,
}


def members() -> dict[str, tuple[object, bool]]:
    """Every member of every value, with its default and whether it is shown."""
    found: dict[str, tuple[object, bool]] = {}
    for module in pkgutil.walk_packages(protocol.__path__, "effect_broker.protocol."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and is_dataclass(value) and value.__module__ == module.name:
                found |= {f"{value.__name__}.{f.name}": (f.default, f.repr) for f in fields(value)}
    return found


def test_what_is_sealed_or_shown_to_approvers_is_in_no_log() -> None:
    hidden = {name for name, (_, shown) in members().items() if not shown}
    assert hidden >= HIDDEN
    assert "secret" not in repr(Sealed("key-1", b"secret"))


def test_a_value_that_nobody_has_set_claims_nothing() -> None:
    known = members()
    assert {name: known[name][0] for name in NUMBERS_AND_FLAGS} == NUMBERS_AND_FLAGS
    flags = {name for name, (default, _) in known.items() if default is True}
    assert flags == set()


def test_signatures_are_compared_by_what_they_say() -> None:
    made = ReceiptSignature("key-1", "ed25519", b"signature")
    assert made == ReceiptSignature("key-1", "ed25519", b"signature")
    assert made != ReceiptSignature("key-1", "ed25519", b"another")
