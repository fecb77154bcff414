"""The names of an effect: this file owns what an operation key is and what is derived from it.

Everything here is a pure function of (tenant, operation key) and, for the downstream key, of the
secret and of the format that the contract asks for. No argument, attempt, trace or clock takes
part, so that a resubmit after a lost commit meets the same effect and the same downstream key.
The encodings under the hashes have one reading each: ("a", "b:c") and ("a:b", "c") cannot meet.

A derived key always satisfies its format; a format that cannot carry it is refused when the
contract is validated (`key_format_problem`), never silently served with fewer bits. The rule is
one for all formats: at least 122 bits of the HMAC survive, which is what a UUID holds.

The golden vectors in tests/contracts/golden pin every function: a change here would give effects
in flight another identity.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Literal, assert_never, get_args
from uuid import UUID

from effect_contracts.errors import (
    ContractInvalid,
    ContractProblem,
    InvalidOperationKey,
    OperationKeyReason,
)

# design, section 2: printable ASCII without spaces, 1 to 255 characters. Case counts.
OPERATION_KEY_CHARS_MAX: Final = 255
_FIRST_PRINTABLE: Final = "\x21"
_LAST_PRINTABLE: Final = "\x7e"

# RFC 9562, section 5.8: version and variant take 6 of 128 bits.
KEY_BITS_MIN: Final = 122
# All of an HMAC-SHA-256. A longer rendering would add symbols that carry nothing.
KEY_BITS_MAX: Final = 256

# RFC 2104, section 3: a key shorter than the hash weakens the HMAC.
SECRET_BYTES_MIN: Final = 32

# Separates this hash from every other use of SHA-256 in the project.
_EFFECT_ID_DOMAIN: Final = b"effect-broker/effect-id/1"

_UUID_CHARS: Final = 36

KeyKind = Literal["base64url", "hex", "uuid", "alphabet"]


@dataclass(frozen=True, slots=True)
class KeyFormat:
    """How the target wants its idempotency key written.

    kind: the encoding; `uuid` is RFC 9562 version 8, lower case with hyphens.
    length_max: the most characters the target takes, prefix included; None for no bound.
    alphabet: the symbols of kind `alphabet`, in the order of their digits; None for the others.
    prefix: fixed text before the key; empty for `uuid`.
    """

    kind: KeyKind = "base64url"
    length_max: int | None = None
    alphabet: str | None = None
    prefix: str = ""


def check_operation_key(text: object) -> str:
    """Return `text` if it is an operation key; raise `InvalidOperationKey` otherwise.

    Nothing is trimmed, folded or cut: every character is part of the name. Since only ASCII
    passes, Unicode's several spellings of one text do not arise.
    """
    if type(text) is not str:
        raise InvalidOperationKey(OperationKeyReason.NOT_TEXT)
    if not text:
        raise InvalidOperationKey(OperationKeyReason.EMPTY)
    if len(text) > OPERATION_KEY_CHARS_MAX:
        raise InvalidOperationKey(OperationKeyReason.TOO_LONG, limit=OPERATION_KEY_CHARS_MAX)
    for offset, character in enumerate(text):
        if not _FIRST_PRINTABLE <= character <= _LAST_PRINTABLE:
            raise InvalidOperationKey(OperationKeyReason.ILLEGAL_CHARACTER, offset_chars=offset)
    return text


def effect_id(tenant_id: UUID, operation_key: str) -> UUID:
    """Return the effect's id, a UUID of version 8, the same in every process and for ever.

    SHA-256 over the fields, each behind its length in two bytes; the first 16 bytes with the
    version and variant bits of RFC 9562. Raises `InvalidOperationKey`.
    """
    key = check_operation_key(operation_key).encode("ascii")
    fields = (_EFFECT_ID_DOMAIN, tenant_id.bytes, key)
    encoded = b"".join(len(field).to_bytes(2, "big") + field for field in fields)
    return _uuid_8(sha256(encoded).digest())


def downstream_key(
    secret: bytes, tenant_id: UUID, operation_key: str, key_format: KeyFormat
) -> str:
    """Return the key that the target sees on every attempt of the effect.

    HMAC-SHA-256 of tenant_id + NUL + operation_key (specification, "Operation identity"), in the
    contract's format. The tenant is 36 characters of fixed shape and no operation key holds NUL,
    so the message has one reading. Raises `InvalidOperationKey`, and `ContractInvalid` for a
    format that cannot carry the key.
    """
    assert len(secret) >= SECRET_BYTES_MIN, "the key ring checks its secrets when it is read"
    complaint = key_format_problem(key_format)
    if complaint is not None:
        raise ContractInvalid([ContractProblem("/key/format", complaint)])
    message = f"{tenant_id}\0{check_operation_key(operation_key)}".encode("ascii")
    mac = hmac.digest(secret, message, "sha256")
    return key_format.prefix + _rendered(mac, key_format)


def key_format_problem(key_format: KeyFormat) -> str | None:
    """Return a sentence on why no key can be written in this format, or None if one can."""
    if key_format.kind not in get_args(KeyKind):
        return f"The key format must be one of {', '.join(get_args(KeyKind))}."
    if not _is_printable(key_format.prefix):
        return "The key prefix may hold printable ASCII without spaces only."
    if key_format.kind == "alphabet":
        complaint = _alphabet_problem(key_format.alphabet)
        if complaint is not None:
            return complaint
    elif key_format.alphabet is not None:
        return f"The key format {key_format.kind} has its own alphabet; remove yours."
    if key_format.kind == "uuid" and key_format.prefix:
        return "A UUID with a prefix is no UUID; remove the prefix or use the key format hex."
    needed = len(key_format.prefix) + _symbols_min(key_format)
    if key_format.length_max is not None and key_format.length_max < needed:
        return (
            f"{key_format.length_max} characters cannot carry the key: the format "
            f"{key_format.kind} needs {needed}, prefix included, to keep {KEY_BITS_MIN} bits."
        )
    return None


def key_length(key_format: KeyFormat) -> int:
    """Return the length in characters of every key in this (valid) format, prefix included."""
    return len(key_format.prefix) + _symbols(key_format)


def _alphabet_problem(alphabet: str | None) -> str | None:
    if alphabet is None or len(alphabet) < 2:
        return "A key alphabet needs two symbols at least."
    if not _is_printable(alphabet):
        return "A key alphabet may hold printable ASCII without spaces only."
    if len(set(alphabet)) != len(alphabet):
        return "A key alphabet may name each symbol only once."
    return None


def _is_printable(text: str) -> bool:
    return all(_FIRST_PRINTABLE <= character <= _LAST_PRINTABLE for character in text)


def _radix(key_format: KeyFormat) -> int:
    """How many values one symbol of the format has."""
    match key_format.kind:
        case "base64url":
            return 64
        case "hex" | "uuid":
            return 16
        case "alphabet":
            assert key_format.alphabet is not None
            return len(key_format.alphabet)
        case _:
            assert_never(key_format.kind)


def _symbols_for(bits: int, radix: int) -> int:
    """The least number of symbols that have at least 2**bits values; whole numbers only."""
    count, values = 0, 1
    while values < 1 << bits:
        count, values = count + 1, values * radix
    return count


def _symbols_min(key_format: KeyFormat) -> int:
    if key_format.kind == "uuid":
        return _UUID_CHARS
    return _symbols_for(KEY_BITS_MIN, _radix(key_format))


def _symbols(key_format: KeyFormat) -> int:
    if key_format.kind == "uuid":
        return _UUID_CHARS
    full = _symbols_for(KEY_BITS_MAX, _radix(key_format))
    if key_format.length_max is None:
        return full
    return min(full, key_format.length_max - len(key_format.prefix))


def _rendered(mac: bytes, key_format: KeyFormat) -> str:
    count = _symbols(key_format)
    match key_format.kind:
        case "base64url":
            return urlsafe_b64encode(mac).decode("ascii").rstrip("=")[:count]
        case "hex":
            return mac.hex()[:count]
        case "uuid":
            return str(_uuid_8(mac))
        case "alphabet":
            assert key_format.alphabet is not None
            return _in_radix(int.from_bytes(mac, "big"), key_format.alphabet, count)
        case _:
            assert_never(key_format.kind)


def _in_radix(number: int, alphabet: str, count: int) -> str:
    """Write `number` modulo len(alphabet)**count, most significant symbol first.

    A remainder of 256 even bits is uneven by at most one bit of its least likely value.
    """
    symbols = []
    for _ in range(count):
        number, digit = divmod(number, len(alphabet))
        symbols.append(alphabet[digit])
    return "".join(reversed(symbols))


def _uuid_8(hash_bytes: bytes) -> UUID:
    number = int.from_bytes(hash_bytes[:16], "big")
    number = number & ~(0xF << 76) | (8 << 76)  # RFC 9562, section 4.2: the version
    number = number & ~(0x3 << 62) | (0x2 << 62)  # section 4.1: the variant
    return UUID(int=number)
