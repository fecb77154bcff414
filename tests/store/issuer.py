"""Who issues certificates in tests of the store: signed for real, with times of the test's own."""

from __future__ import annotations

from uuid import UUID

from effect_broker.keyring import (
    KeyRing,
    RingSigner,
    new_key_ring,
    parse_key_ring,
    ring_public_keys,
    ring_signer,
)
from effect_broker.protocol.ports import ReceiptSignature
from effect_broker.store.certificates import Certificates
from effect_broker.store.pool import Pool
from effect_contracts.certificates import Certificate, TrialVerdict, certificate_content, trial_body
from effect_contracts.document import ContractDocument
from effect_contracts.facts import Certified


def signing_ring(key_id: str = "k1") -> KeyRing:
    """A ring with a fresh signing key."""
    return parse_key_ring(
        new_key_ring(key_id, development=True), source="the test", production=False
    )


class Issuer:
    """Signs with the key of a ring and stores as the administrator does."""

    def __init__(self, admin_pool: Pool, ring: KeyRing | None = None) -> None:
        self._certificates = Certificates(admin_pool)
        made = ring or signing_ring()
        self.public_keys = ring_public_keys(made)
        signer = ring_signer(made)
        assert signer is not None
        self.signer: RingSigner = signer

    async def store(self, document: ContractDocument, said: Certified) -> None:
        """Store what is said of the contract's target; its trials took a millisecond."""
        content = content_of(document, said)
        await self.store_as(content, self.signer.sign_certificate(content))

    async def store_as(
        self,
        content: bytes,
        signature: ReceiptSignature,
        *,
        filed_under: ContractDocument | None = None,
    ) -> None:
        """Store a content with any signature, and under the digest of any contract."""
        certificate = Certificate.model_validate_json(content)
        if filed_under is not None:
            contract = certificate.contract.model_copy(
                update={"digest": filed_under.digest().hex()}
            )
            certificate = certificate.model_copy(update={"contract": contract})
        await self._certificates.store(certificate, content, signature, "test")

    async def revoke(self, certificate_id: str) -> None:
        """End one by a person's word."""
        assert await self._certificates.revoke(UUID(certificate_id), "by a test", "test")


def content_of(document: ContractDocument, said: Certified) -> bytes:
    """What a certificate of the contract holds that says this."""
    return certificate_content(
        certificate_id=said.certificate_id,
        contract={
            "name": document.name,
            "version": document.version,
            "digest": document.digest().hex(),
            "safety": document.safety.value,
        },
        target={"identity": said.target_identity, "account": document.account},
        trials=[
            trial_body(name, 1, 0, {}, TrialVerdict.HOLDS, "seen") for name in sorted(said.trials)
        ]
        + [trial_body("key_is_kept", 1, 0, {}, TrialVerdict.NOT_SHOWN, "not waited for")],
        figures={},
        begun_at=said.ended_at,
        ended_at=said.ended_at,
        expires_at=said.expires_at,
    )
