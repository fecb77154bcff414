"""Which certificates of a contract are in force, read in the transaction that needs to know.

Only contracts that demand a certificate pay for this: one statement more. A row says what it says
by its signature and by nothing else, so it counts where one of this process's keys has signed it.
What a row says never changes; it is read and verified once in a process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from effect_broker.store.pool import Connection
from effect_contracts.certificates import certified
from effect_contracts.facts import Certified

NO_KEYS: Final[Mapping[str, bytes]] = {}

# Revoked as `effect_broker.store.certificates` says: by name, or by a lie that was found later than
# the trials had begun.
_IN_FORCE: Final = """
SELECT c.digest, c.key_id, c.signature,
       CASE WHEN c.digest = ANY (%(known)s::bytea[]) THEN NULL ELSE c.content END AS content
FROM effect_broker.certificates AS c
WHERE c.contract_digest = %(contract_digest)s AND c.expires_at > clock_timestamp()
  AND NOT EXISTS (
      SELECT 1 FROM effect_broker.certificate_revocations AS v
      WHERE v.certificate_id = c.certificate_id
         OR (v.certificate_id IS NULL AND v.contract_digest = c.contract_digest
             AND v.revoked_at >= c.begun_at))
"""


class CertificatesInForce:
    """The certificates that are signed by these keys (raw public keys, by key id)."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys = keys
        self._read: dict[bytes, dict[bytes, Certified | None]] = {}

    async def of_contract(
        self, connection: Connection, contract_digest: bytes
    ) -> tuple[Certified, ...]:
        """Return those of a contract that neither have expired nor were revoked."""
        known = self._read.get(contract_digest, {})
        told = {"contract_digest": contract_digest, "known": list(known)}
        rows = await (await connection.execute(_IN_FORCE, told)).fetchall()
        read: dict[bytes, Certified | None] = {}
        for row in rows:
            digest, content = bytes(row["digest"]), row["content"]
            read[digest] = (
                known[digest]
                if content is None
                else certified(
                    content.encode(),
                    row["key_id"],
                    bytes(row["signature"]),
                    self._keys,
                    contract_digest,
                )
            )
        # What is over is forgotten, so that only what is in force takes room.
        self._read[contract_digest] = read
        return tuple(one for one in read.values() if one is not None)
