"""Signed receipts: what is signed, the document that carries it, and how it is verified.

A signature is Ed25519 (RFC 8032) over the line `effect-broker receipt v1` and the receipt's content
byte for byte, so that no signature of a receipt is one of anything else. The document holds the
content as a text, since that is what was signed; a verifier needs no canonical form, no database
and no key ring, only the public keys.

    {"format": "effect-broker/signed-receipt/1",
     "content": "{…}",            the receipt: canonical JSON, byte for byte
     "digest": "…",               SHA-256 of the content, lower-case hex
     "signatures": [{"key_id": "…", "algorithm": "ed25519", "signature": "<base64>"}]}

    {"format": "effect-broker/public-keys/1",
     "active": "2026-11",         signs now; null where nothing does
     "keys": {"2026-11": {"algorithm": "ed25519", "public_key": "<base64, 32 bytes>",
                          "jwk": {"kty": "OKP", "crv": "Ed25519", "x": "…", "kid": "2026-11"}}}}

Both are read strictly: a member too many, or another spelling of the same bytes, is refused, so
that nothing a document says can be changed and the document still be found good.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal, TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from effect_contracts.canonical import JsonValue, canonical_bytes, parse_strict
from effect_contracts.errors import InvalidPayload
from effect_contracts.receipts import RECEIPT_FORMAT, receipt_digest

SIGNED_RECEIPT_FORMAT: Final = "effect-broker/signed-receipt/1"
PUBLIC_KEYS_FORMAT: Final = "effect-broker/public-keys/1"
ALGORITHM: Final = "ed25519"

# The name of what is signed stands before it: a signature for one purpose is good for no other.
SIGNING_DOMAIN: Final = b"effect-broker receipt v1\n"

# A receipt holds identities, codes and digests: some kilobytes, with the longest names of all.
DOCUMENT_BYTES_MAX: Final = 262_144

KEY_ID_PATTERN: Final = r"^[!-~]{1,64}$"
_PUBLIC_KEY_BYTES: Final = 32
_SIGNATURE_BYTES: Final = 64

M = TypeVar("M", bound=BaseModel)


class DocumentUnreadable(Exception):
    """The text is no such document; says where and why, and nothing of a value."""


class Check(StrEnum):
    """What a verification looks at, in this order."""

    CONTENT = "content"  # it is a receipt, in its one canonical spelling
    DIGEST = "digest"  # the digest is that of the content
    SIGNATURE = "signature"  # there is one, and each one by a known key is good
    KEY = "key"  # at least one is by a known key


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verification has found.

    Attributes:
        failed: the first check that failed; None for a good receipt.
        what: in words, for a person.
        verified_by: the keys whose signatures are good; empty unless all is.
        unknown: key ids that the public keys do not hold.
    """

    failed: Check | None
    what: str
    verified_by: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """Whether the receipt is what a holder of the signing key has signed."""
        return self.failed is None


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", hide_input_in_errors=True)


class SignaturePart(_Part):
    """One signature of a document."""

    key_id: str = Field(pattern=KEY_ID_PATTERN)
    algorithm: Literal["ed25519"]
    signature: str


class SignedContent(_Part):
    """What was signed with its signatures; a kind of it adds its format."""

    content: str
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    signatures: tuple[SignaturePart, ...] = Field(strict=False)


class SignedReceipt(SignedContent):
    """A receipt with its signatures, complete in itself."""

    format: Literal["effect-broker/signed-receipt/1"]


class _PublicKeyPart(_Part):
    algorithm: Literal["ed25519"]
    public_key: str
    jwk: dict[str, Any]


class _PublicKeysPart(_Part):
    format: Literal["effect-broker/public-keys/1"]
    active: str | None
    keys: dict[str, _PublicKeyPart]


def signed_bytes(content: bytes) -> bytes:
    """Return what a signature of a receipt is made over."""
    return SIGNING_DOMAIN + content


def signed_receipt(
    content: bytes, digest: bytes, signatures: Iterable[tuple[str, bytes]]
) -> dict[str, JsonValue]:
    """Return the document of a receipt; `signatures` are key ids with raw signatures."""
    return signed_document(SIGNED_RECEIPT_FORMAT, content, digest, signatures)


def signed_document(
    format_name: str, content: bytes, digest: bytes, signatures: Iterable[tuple[str, bytes]]
) -> dict[str, JsonValue]:
    """Return the document of a signed content of any kind."""
    return {
        "format": format_name,
        "content": content.decode(),
        "digest": digest.hex(),
        "signatures": [
            {"key_id": key_id, "algorithm": ALGORITHM, "signature": _base64(signature)}
            for key_id, signature in signatures
        ],
    }


def public_keys(keys: Mapping[str, bytes], active: str | None) -> dict[str, JsonValue]:
    """Return the document of public keys; `keys` are raw, 32 bytes each, by key id."""
    return {
        "format": PUBLIC_KEYS_FORMAT,
        "active": active,
        "keys": {
            key_id: {
                "algorithm": ALGORITHM,
                "public_key": _base64(raw),
                "jwk": _jwk(key_id, raw),
            }
            for key_id, raw in keys.items()
        },
    }


def read_signed_receipt(text: bytes) -> SignedReceipt:
    """Return the document.

    Raises:
        DocumentUnreadable: it is none.
    """
    value = parsed_document(text)
    if isinstance(value, dict) and "format" not in value and "document" in value:
        raise DocumentUnreadable("this is an answer of the API; its member `document` is wanted")
    return validated_document(SignedReceipt, value)


def read_public_keys(text: bytes) -> dict[str, bytes]:
    """Return the raw public keys of a document, by key id.

    Raises:
        DocumentUnreadable: it is none, or holds what is no key.
    """
    document = validated_document(_PublicKeysPart, parsed_document(text))
    keys: dict[str, bytes] = {}
    for number, (key_id, part) in enumerate(document.keys.items(), start=1):
        raw = _bytes(part.public_key, _PUBLIC_KEY_BYTES)
        if raw is None:
            raise DocumentUnreadable(f"key {number}: public_key is not base64 of 32 bytes")
        if part.jwk != _jwk(key_id, raw):
            raise DocumentUnreadable(f"key {number}: its JWK is not that of its public_key and id")
        keys[key_id] = raw
    return keys


def verify_signed_receipt(document: SignedReceipt, keys: Mapping[str, bytes]) -> Verdict:
    """Check a receipt against public keys (raw, by key id).

    A signature by a key that is not among them is passed over, as after a rotation, but one that
    is known has to be there, and a bad one by a known key spoils the receipt.
    """
    content = document.content.encode("utf-8", "surrogatepass")
    if (wrong := content_fault(content, RECEIPT_FORMAT, "receipt")) is not None:
        return Verdict(Check.CONTENT, wrong)
    return verify_signatures(
        content, document.digest, document.signatures, keys, SIGNING_DOMAIN, "receipt"
    )


def verify_signatures(
    content: bytes,
    digest: str,
    signatures: tuple[SignaturePart, ...],
    keys: Mapping[str, bytes],
    domain: bytes,
    noun: str,
) -> Verdict:
    """Check the digest (hex) and the signatures of a content that was signed for one purpose.

    Args:
        domain: what stands before the content where it is signed.
        noun: what the content is, in words.
    """
    if not hmac.compare_digest(receipt_digest(content).hex(), digest):
        what = "the digest is not that of the content: one of them was altered"
        return Verdict(Check.DIGEST, what)
    if not signatures:
        return Verdict(Check.SIGNATURE, f"the {noun} bears no signature")
    if len({part.key_id for part in signatures}) != len(signatures):
        return Verdict(Check.SIGNATURE, "two signatures name the same key")
    unknown = tuple(part.key_id for part in signatures if part.key_id not in keys)
    known = [part for part in signatures if part.key_id in keys]
    for part in known:
        if not _is_good(part, domain + content, keys[part.key_id]):
            what = f"the signature by key {part.key_id} is not over this content"
            return Verdict(Check.SIGNATURE, what, unknown=unknown)
    if not known:
        what = f"signed by keys that are not among the public keys: {', '.join(unknown[:5])}"
        return Verdict(Check.KEY, what, unknown=unknown)
    by = tuple(part.key_id for part in known)
    return Verdict(None, f"signed by key {', '.join(by)}", by, unknown)


def content_fault(content: bytes, format_name: str, noun: str) -> str | None:
    """Return what is wrong with a content: it is no JSON, of another format, or not canonical."""
    try:
        value = parse_strict(content)
        canonical = canonical_bytes(value)
    except InvalidPayload:
        return "the content is not JSON"
    if not isinstance(value, dict) or value.get("format") != format_name:
        return f"the content is no {noun} of the format {format_name}"
    return None if canonical == content else "the content is not in its canonical spelling"


def _is_good(part: SignaturePart, signed: bytes, public_key: bytes) -> bool:
    raw = _bytes(part.signature, _SIGNATURE_BYTES)
    if raw is None:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(raw, signed)
    except (InvalidSignature, ValueError):
        return False
    return True


def _jwk(key_id: str, raw: bytes) -> dict[str, JsonValue]:
    """The key as RFC 8037 has it; Base64url without padding."""
    x = base64.urlsafe_b64encode(raw).decode().rstrip("=")
    return {"kty": "OKP", "crv": "Ed25519", "x": x, "kid": key_id, "alg": "EdDSA", "use": "sig"}


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _bytes(text: str, length: int) -> bytes | None:
    """The bytes of base64 in its one spelling; the unused bits of the last digit are zero."""
    try:
        raw = base64.b64decode(text, validate=True)
    except ValueError:
        return None
    return raw if len(raw) == length and _base64(raw) == text else None


def parsed_document(text: bytes) -> JsonValue:
    """Return the JSON of a document that came from outside.

    Raises:
        DocumentUnreadable: it is none.
    """
    try:
        return parse_strict(text, bytes_max=DOCUMENT_BYTES_MAX)
    except InvalidPayload as problem:
        what = f"it cannot be read as JSON: {problem.detail}"
    raise DocumentUnreadable(what)


def validated_document(model: type[M], value: JsonValue) -> M:
    """Return the document in its strict form.

    Raises:
        DocumentUnreadable: it has another shape; the place is named, no value.
    """
    try:
        return model.model_validate(value)
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"] if str(part).isprintable())
    raise DocumentUnreadable(f"{place[:80] or 'the document'}: {first['type']}")
