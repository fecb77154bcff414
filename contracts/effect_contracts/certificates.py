"""Certificates: what trials have shown of a contract's target, signed, with a day on which it ends.

The form is that of a signed receipt (`effect_contracts.signed_receipts`), for another purpose: the
signature is over the line `effect-broker certificate v1` and the content byte for byte, so that no
receipt's signature is a certificate's.

    {"format": "effect-broker/signed-certificate/1",
     "content": "{…}",            the certificate: canonical JSON (RFC 8785), byte for byte
     "digest": "…",               SHA-256 of the content, lower-case hex
     "signatures": [{"key_id": "…", "algorithm": "ed25519", "signature": "<base64>"}]}

A certificate speaks of one contract, by its digest, and of one target, by its identity. It says
what was seen from `begun_at` to `ended_at`, and nothing about what the target does afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from effect_contracts.canonical import JsonValue, canonical_bytes
from effect_contracts.facts import Certified
from effect_contracts.receipts import receipt_digest, receipt_time
from effect_contracts.signed_receipts import (
    Check,
    SignedContent,
    content_fault,
    parsed_document,
    signed_document,
    validated_document,
    verify_signatures,
)

CERTIFICATE_FORMAT: Final = "effect-broker/certificate/1"
SIGNED_CERTIFICATE_FORMAT: Final = "effect-broker/signed-certificate/1"
CERTIFICATE_DOMAIN: Final = b"effect-broker certificate v1\n"

_TIME: Final = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$"
_DIGEST: Final = r"^[0-9a-f]{64}$"


class TrialVerdict(StrEnum):
    """What one trial has shown of a promise."""

    HOLDS = "holds"
    BROKEN = "broken"
    NOT_SHOWN = "not_shown"


class Flaw(StrEnum):
    """Why a certificate does not count, in the order in which it is looked at."""

    CONTENT = "content"  # no certificate, or not in its one canonical spelling
    DIGEST = "digest"  # the digest is not that of the content
    SIGNATURE = "signature"  # there is none, or one by a known key is bad
    KEY = "key"  # none is by a known key
    CONTRACT = "contract"  # it speaks of another contract
    EXPIRY = "expiry"  # its time is over


@dataclass(frozen=True, slots=True)
class CertificateVerdict:
    """What a verification has found.

    Attributes:
        flaw: the first that was found; None for a certificate that counts.
        what: in words, for a person.
        verified_by: the keys whose signatures are good.
        unknown: key ids that the public keys do not hold.
    """

    flaw: Flaw | None
    what: str
    verified_by: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """Whether the certificate counts."""
        return self.flaw is None


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", hide_input_in_errors=True)


class ContractPart(_Part):
    """The contract that was on trial."""

    name: str
    version: str
    digest: str = Field(pattern=_DIGEST)
    safety: str


class TargetPart(_Part):
    """The target that was tried; `identity` is the origin with the account, as effects bind it."""

    identity: str
    account: str


class TrialPart(_Part):
    """One trial: what was sent, what came back, and what it shows."""

    trial: str
    requests: int = Field(ge=0)
    look_ups: int = Field(ge=0)
    answers: dict[str, int]
    verdict: Literal["holds", "broken", "not_shown"]
    seen: str


class Certificate(_Part):
    """The content; `figures` are what was measured, in seconds unless their names say otherwise."""

    format: Literal["effect-broker/certificate/1"]
    certificate_id: str
    contract: ContractPart
    target: TargetPart
    trials: tuple[TrialPart, ...] = Field(min_length=1)
    figures: dict[str, float | int]
    begun_at: str = Field(pattern=_TIME)
    ended_at: str = Field(pattern=_TIME)
    expires_at: str = Field(pattern=_TIME)


class SignedCertificate(SignedContent):
    """A certificate with its signatures, complete in itself."""

    format: Literal["effect-broker/signed-certificate/1"]


def certified_bytes(content: bytes) -> bytes:
    """Return what a signature of a certificate is made over."""
    return CERTIFICATE_DOMAIN + content


def certificate_content(
    *,
    certificate_id: str,
    contract: Mapping[str, JsonValue],
    target: Mapping[str, JsonValue],
    trials: Sequence[Mapping[str, JsonValue]],
    figures: Mapping[str, float],
    begun_at: datetime,
    ended_at: datetime,
    expires_at: datetime,
) -> bytes:
    """Return the canonical bytes of a certificate's content.

    Raises:
        effect_contracts.errors.EffectError: a value has no canonical form.
    """
    return canonical_bytes(
        {
            "format": CERTIFICATE_FORMAT,
            "certificate_id": certificate_id,
            "contract": dict(contract),
            "target": dict(target),
            "trials": [dict(trial) for trial in trials],
            "figures": dict(figures),
            "begun_at": receipt_time(begun_at),
            "ended_at": receipt_time(ended_at),
            "expires_at": receipt_time(expires_at),
        }
    )


def signed_certificate(content: bytes, key_id: str, signature: bytes) -> dict[str, JsonValue]:
    """Return the document of a certificate."""
    digest = receipt_digest(content)
    return signed_document(SIGNED_CERTIFICATE_FORMAT, content, digest, [(key_id, signature)])


def read_signed_certificate(text: bytes) -> SignedCertificate:
    """Return the document.

    Raises:
        effect_contracts.signed_receipts.DocumentUnreadable: it is none.
    """
    return validated_document(SignedCertificate, parsed_document(text))


def certificate_of(document: SignedCertificate) -> Certificate | None:
    """Return what a document says, whether it is signed or not; None where it says nothing."""
    try:
        return Certificate.model_validate_json(document.content)
    except ValidationError:
        return None


def verify_certificate(
    document: SignedCertificate,
    keys: Mapping[str, bytes],
    now: datetime,
    contract_digest: bytes | None = None,
) -> CertificateVerdict:
    """Check a certificate against public keys (raw, by key id), and whether it still counts.

    Args:
        now: the moment at which it has to count.
        contract_digest: that of the contract which it has to speak of; None for any.
    """
    content = document.content.encode("utf-8", "surrogatepass")
    wrong = content_fault(content, CERTIFICATE_FORMAT, "certificate")
    certificate = certificate_of(document)
    if wrong is not None or certificate is None:
        what = wrong or "the content lacks what a certificate says, or says something else"
        return CertificateVerdict(Flaw.CONTENT, what)
    signed = verify_signatures(
        content, document.digest, document.signatures, keys, CERTIFICATE_DOMAIN, "certificate"
    )
    if signed.failed is not None:
        return CertificateVerdict(_FLAWS[signed.failed], signed.what, unknown=signed.unknown)

    def flawed(flaw: Flaw, what: str) -> CertificateVerdict:
        return CertificateVerdict(flaw, what, signed.verified_by, signed.unknown)

    if contract_digest is not None and certificate.contract.digest != contract_digest.hex():
        return flawed(Flaw.CONTRACT, "it speaks of another contract, or of another text of it")
    # Both are of one spelling, in which a later moment is a greater text.
    if certificate.expires_at <= receipt_time(now):
        return flawed(Flaw.EXPIRY, f"it has expired: its time ended at {certificate.expires_at}")
    what = f"{signed.what}, good until {certificate.expires_at}"
    return CertificateVerdict(None, what, signed.verified_by, signed.unknown)


def certified(
    content: bytes,
    key_id: str,
    signature: bytes,
    keys: Mapping[str, bytes],
    contract_digest: bytes,
) -> Certified | None:
    """Return what a stored certificate says to `decide`; None where it is not to be believed.

    It is where it is signed by one of the keys (raw, by key id) and speaks of this contract.
    Whether it has expired, or fits what the contract demands, is judged where it is used
    (`effect_contracts.certified`); whether it was revoked, only its store knows.
    """
    try:
        document = SignedCertificate.model_validate(signed_certificate(content, key_id, signature))
    except (ValidationError, UnicodeDecodeError):
        return None
    certificate = certificate_of(document)
    if certificate is None:
        return None
    ended_at, expires_at = map(_time_of, (certificate.ended_at, certificate.expires_at))
    # Asked of the moment at which its time began.
    if not verify_certificate(document, keys, ended_at, contract_digest).good:
        return None
    return Certified(
        certificate_id=certificate.certificate_id,
        target_identity=certificate.target.identity,
        trials=frozenset(
            one.trial for one in certificate.trials if one.verdict == TrialVerdict.HOLDS.value
        ),
        ended_at=ended_at,
        expires_at=expires_at,
    )


def _time_of(text: str) -> datetime:
    return datetime.fromisoformat(text)


_FLAWS: Final[Mapping[Check, Flaw]] = {check: Flaw(check.value) for check in Check}


def trial_body(
    trial: str,
    requests: int,
    look_ups: int,
    answers: Mapping[str, int],
    verdict: TrialVerdict,
    seen: str,
) -> dict[str, Any]:
    """Return one trial as certificates and reports have it."""
    return {
        "trial": trial,
        "requests": requests,
        "look_ups": look_ups,
        "answers": dict(answers),
        "verdict": verdict.value,
        "seen": seen,
    }
