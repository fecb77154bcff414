"""The id of an attempt keeps 122 bits of its token's digest; six say what kind of id it is."""

from __future__ import annotations

import hashlib
from uuid import UUID

from effect_broker.protocol import election

TENANT, EFFECT = UUID(int=7), UUID(int=9)


def test_every_bit_of_the_digest_is_in_the_id_but_version_and_variant() -> None:
    text = b"effect-broker/election/1" + TENANT.bytes + EFFECT.bytes
    for number in range(512):
        token = f"token-{number}"
        found = election.attempt_id_of(TENANT, EFFECT, token)
        digest = hashlib.sha256(text + token.encode()).digest()
        kept = ~(0xF << 76 | 0x3 << 62)
        assert found.int & kept == int.from_bytes(digest[:16]) & kept
        assert (found.version, found.variant) == (8, "specified in RFC 4122")
