"""The golden vectors, and what this tree makes of their inputs.

The expected sides were computed by other programs (V8's number printer, Node's and OpenSSL's
hashes), not by the code under test. Run as a program it exits 0 only if every vector holds, so
that a test can repeat them in a process with another hash seed and another locale.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from effect_contracts.canonical import canonical_bytes, digest, parse_strict, request_hash
from effect_contracts.keys import KeyFormat, downstream_key, effect_id

GOLDEN: Final = Path(__file__).parent / "golden"

# A file that lost its vectors would otherwise pass.
VECTORS_MIN: Final = 80


def read(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text(encoding="utf-8"))


def pairs() -> list[tuple[str, str, str]]:
    """(what, expected, computed) of every vector."""
    found: list[tuple[str, str, str]] = []
    for vector in read("canonical.json"):
        value = parse_strict(vector["raw"].encode("utf-8"))
        text = canonical_bytes(value).decode("utf-8")
        found.append((f"text of {vector['name']}", vector["canonical"], text))
        found.append((f"digest of {vector['name']}", vector["sha256"], digest(value).hex()))
    for vector in read("requests.json"):
        arguments = parse_strict(vector["arguments_raw"].encode("utf-8"))
        computed = request_hash(
            vector["tool"], arguments, vector["contract_name"], vector["contract_version"]
        )
        found.append((f"request {vector['tool']}", vector["request_hash"], computed.hex()))
    keys = read("keys.json")
    secret = bytes.fromhex(keys["secret_hex"])
    for vector in keys["effects"]:
        tenant_id, operation_key = UUID(vector["tenant_id"]), vector["operation_key"]
        computed_id = str(effect_id(tenant_id, operation_key))
        found.append((f"effect id of {operation_key}", vector["effect_id"], computed_id))
        for wanted in vector["downstream_keys"]:
            key = downstream_key(secret, tenant_id, operation_key, KeyFormat(**wanted["format"]))
            found.append((f"{wanted['format']} of {operation_key}", wanted["key"], key))
    return found


if __name__ == "__main__":
    vectors = pairs()
    wrong = [what for what, expected, computed in vectors if expected != computed]
    sys.exit(f"differ: {wrong}" if wrong or len(vectors) < VECTORS_MIN else 0)
