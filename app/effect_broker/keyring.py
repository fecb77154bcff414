"""The key ring and the vault: who holds the broker's keys, and what they encrypt.

A key ring is one JSON document, given by EFFECT_BROKER_KEY_RING_FILE (a mounted secret) or
EFFECT_BROKER_KEY_RING (the document itself):

    {"encryption": {"active": "2026-11", "keys": {"2026-11": "<base64, 32 bytes>"}},
     "hmac":       {"active": "2026-11", "keys": {"2026-11": "<base64, 32 bytes or more>"}},
     "signing":    {"active": "2026-11", "keys": {"2026-11": "<base64, 32 bytes>"}}}

Encryption keys protect stored arguments, wire requests and results; a row names its key, so that
keys rotate by adding one and making it active. HMAC keys derive downstream keys; the id is stored
with the effect, so that a rotation affects new effects only. Signing keys are Ed25519 seeds; they
sign receipts, and only their public halves leave this module. A ring without `signing` is good: its
receipts are unsigned. A ring with `"development": true` is refused in production.
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
from pathlib import Path
from typing import Annotated, Final
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from effect_broker.config import Settings
from effect_broker.postgres.choice import home_directory
from effect_broker.protocol.ports import ReceiptSignature, Sealed, VaultError
from effect_contracts.certificates import certified_bytes
from effect_contracts.signed_receipts import ALGORITHM, KEY_ID_PATTERN, signed_bytes

# In the state directory of a project.
KEY_RING_NAME: Final = "key-ring.json"
ENV_KEY_RING = "EFFECT_BROKER_KEY_RING"
ENV_KEY_RING_FILE = "EFFECT_BROKER_KEY_RING_FILE"

# AES-256-GCM with a random 96-bit nonce: NIST SP 800-38D 8.3 bounds a key to 2**32 messages.
_AES_KEY_BYTES = 32
_NONCE_BYTES = 12
# HMAC-SHA-256 keys: RFC 2104 discourages keys shorter than the hash's output.
_HMAC_KEY_BYTES_MIN = 32
# A private key of RFC 8032 5.1.5.
_ED25519_SEED_BYTES = 32


class KeyRingProblem(Exception):
    """The key ring is missing or cannot be used; the text says what to do, never a key."""


def _decoded(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError("must be base64 text")
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:
        raise ValueError("must be base64 text") from None


_Key = Annotated[bytes, BeforeValidator(_decoded)]


class _Keys(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    active: str
    keys: dict[str, _Key] = Field(repr=False)

    @model_validator(mode="after")
    def _active_exists(self) -> _Keys:
        if self.active not in self.keys:
            raise ValueError("the active key id is not among the keys")
        return self


class KeyRing(BaseModel):
    """The keys of the broker, strictly parsed."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    encryption: _Keys
    hmac: _Keys
    signing: _Keys | None = None
    development: bool = False

    @model_validator(mode="after")
    def _lengths(self) -> KeyRing:
        if any(len(key) != _AES_KEY_BYTES for key in self.encryption.keys.values()):
            raise ValueError(f"an encryption key is not {_AES_KEY_BYTES} bytes long")
        if any(len(key) < _HMAC_KEY_BYTES_MIN for key in self.hmac.keys.values()):
            raise ValueError(f"an hmac key is shorter than {_HMAC_KEY_BYTES_MIN} bytes")
        for key_id, seed in ({} if self.signing is None else self.signing.keys).items():
            if len(seed) != _ED25519_SEED_BYTES:
                raise ValueError(f"a signing key is not {_ED25519_SEED_BYTES} bytes long")
            # The id is written beside each signature, and printed by whoever verifies one.
            if not re.fullmatch(KEY_ID_PATTERN, key_id):
                raise ValueError("a signing key's id is not 1 to 64 printable ASCII characters")
        return self

    def hmac_key(self, key_id: str) -> bytes:
        """Return one HMAC key.

        Raises:
            KeyRingProblem: the ring does not hold it.
        """
        try:
            return self.hmac.keys[key_id]
        except KeyError:
            raise KeyRingProblem(f"the key ring holds no hmac key {key_id!r}") from None


def parse_key_ring(text: str, *, source: str, production: bool) -> KeyRing:
    """Parse a key ring document.

    Raises:
        KeyRingProblem: it is malformed, or a development ring in production.
    """
    try:
        ring = KeyRing.model_validate(json.loads(text))
    except ValidationError as problem:
        places = "; ".join(
            f"{'.'.join(map(str, e['loc'][:2])) or 'document'}: "
            f"{e['msg'].removeprefix('Value error, ')}"
            for e in problem.errors(include_input=False, include_url=False)
        )
        raise KeyRingProblem(f"the key ring in {source} cannot be used: {places}") from None
    except (ValueError, RecursionError):
        raise KeyRingProblem(f"the key ring in {source} is not a JSON document") from None
    if ring.development and production:
        raise KeyRingProblem(
            f"the key ring in {source} is a development ring and EFFECT_BROKER_ENV=production; "
            "make a ring with `effect-broker keys ring` and keep it in your secret store"
        )
    return ring


def load_key_ring(*, production: bool, fallback: Path | None = None) -> KeyRing:
    """Load the ring from the environment, else from `fallback` if that file exists.

    Raises:
        KeyRingProblem: there is none, or it cannot be used.
    """
    inline = os.environ.get(ENV_KEY_RING)
    if inline:
        return parse_key_ring(inline, source=ENV_KEY_RING, production=production)
    named = os.environ.get(ENV_KEY_RING_FILE)
    path = Path(named) if named else fallback
    if path is None or (not named and not path.exists()):
        raise KeyRingProblem(
            f"no key ring: set {ENV_KEY_RING_FILE} to a file or {ENV_KEY_RING} to the document; "
            "`effect-broker keys ring` prints a new one, `effect-broker up` makes one for "
            "development"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise KeyRingProblem(f"cannot read the key ring {path}: {type(problem).__name__}") from None
    return parse_key_ring(text, source=str(path), production=production)


def key_ring(settings: Settings) -> KeyRing:
    """Load the key ring; in development the one that `effect-broker up` has made will do.

    Raises:
        KeyRingProblem.
    """
    fallback = None if settings.production else home_directory() / KEY_RING_NAME
    return load_key_ring(production=settings.production, fallback=fallback)


def new_key_ring(key_id: str, *, development: bool) -> str:
    """Return the text of a fresh ring with random keys."""

    def keys() -> dict[str, object]:
        # 32 random bytes are an AES-256 key, an HMAC key and an Ed25519 seed alike.
        key = base64.b64encode(secrets.token_bytes(_AES_KEY_BYTES)).decode()
        return {"active": key_id, "keys": {key_id: key}}

    ring: dict[str, object] = {"encryption": keys(), "hmac": keys(), "signing": keys()}
    if development:
        ring["development"] = True
    return json.dumps(ring, indent=2) + "\n"


def caller_ring(ring: KeyRing, hmac_key_id: str, encryption_key_id: str | None = None) -> str:
    """Return the text of the least ring that submits for tenants of one HMAC key.

    It holds that key and one encryption key, by default the active one, and no signing key.

    Raises:
        KeyRingProblem: the ring does not hold them.
    """
    sealing = encryption_key_id or ring.encryption.active
    if sealing not in ring.encryption.keys:
        raise KeyRingProblem(f"the key ring holds no encryption key {sealing!r}")

    def only(key_id: str, key: bytes) -> dict[str, object]:
        return {"active": key_id, "keys": {key_id: base64.b64encode(key).decode()}}

    made: dict[str, object] = {
        "encryption": only(sealing, ring.encryption.keys[sealing]),
        "hmac": only(hmac_key_id, ring.hmac_key(hmac_key_id)),
    }
    if ring.development:
        made["development"] = True
    return json.dumps(made, indent=2) + "\n"


class AesVault:
    """The vault of `effect_broker.protocol.ports` over a key ring.

    Tenant, effect and column are the associated data: ciphertext that is copied to another row
    or column cannot be opened there.
    """

    def __init__(self, ring: KeyRing) -> None:
        self._active = ring.encryption.active
        self._ciphers = {key_id: AESGCM(key) for key_id, key in ring.encryption.keys.items()}

    def seal(self, tenant_id: UUID, effect_id: UUID, column: str, plain: bytes) -> Sealed:
        """Encrypt under the active key; the nonce is random and stands first."""
        nonce = os.urandom(_NONCE_BYTES)
        bound = _associated(tenant_id, effect_id, column)
        sealed = self._ciphers[self._active].encrypt(nonce, plain, bound)
        return Sealed(self._active, nonce + sealed)

    def unseal(self, tenant_id: UUID, effect_id: UUID, column: str, sealed: Sealed) -> bytes:
        """Decrypt.

        Raises:
            VaultError: the ring lacks the key, or the ciphertext does not belong here.
        """
        cipher = self._ciphers.get(sealed.key_id)
        if cipher is None:
            raise VaultError(f"the key ring holds no encryption key {sealed.key_id!r}")
        nonce, body = sealed.ciphertext[:_NONCE_BYTES], sealed.ciphertext[_NONCE_BYTES:]
        try:
            return cipher.decrypt(nonce, body, _associated(tenant_id, effect_id, column))
        except (InvalidTag, ValueError):
            raise VaultError(f"a payload under key {sealed.key_id!r} cannot be opened") from None


class RingSigner:
    """The signer of `effect_broker.protocol.ports` over a key ring's active signing key."""

    def __init__(self, keys: _Keys) -> None:
        self._key_id = keys.active
        self._key = Ed25519PrivateKey.from_private_bytes(keys.keys[keys.active])

    @property
    def key_id(self) -> str:
        """The key that signs."""
        return self._key_id

    def sign(self, content: bytes) -> ReceiptSignature:
        """Sign a receipt's content; Ed25519 needs no randomness, so the same again is the same."""
        return ReceiptSignature(self._key_id, ALGORITHM, self._key.sign(signed_bytes(content)))

    def sign_certificate(self, content: bytes) -> ReceiptSignature:
        """Sign a certificate's content, which is good as no receipt's signature."""
        return ReceiptSignature(self._key_id, ALGORITHM, self._key.sign(certified_bytes(content)))


def ring_signer(ring: KeyRing) -> RingSigner | None:
    """Return what signs with this ring, None where it holds no signing key."""
    return None if ring.signing is None else RingSigner(ring.signing)


def ring_public_keys(ring: KeyRing) -> dict[str, bytes]:
    """Return the public halves of all signing keys, raw, by key id; the active one and the old."""
    seeds = {} if ring.signing is None else ring.signing.keys
    return {
        key_id: Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
        for key_id, seed in seeds.items()
    }


def _associated(tenant_id: UUID, effect_id: UUID, column: str) -> bytes:
    return tenant_id.bytes + effect_id.bytes + column.encode()
