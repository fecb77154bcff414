"""Whether a webhook delivery is what the holder of a secret has signed, and signed just now.

Pure functions over header fields, raw body, keys and a time. A refusal has a code for the log of
the operator; whoever sent the delivery is never told which. Signatures are compared in constant
time, every given one with every key, before the time is judged.

A header that counts stands there exactly once: which of two a proxy or a library would take is
anybody's guess, and the guess would be the attacker's.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, assert_never

from effect_contracts.webhook_settings import (
    BODY_PLACE,
    TIMESTAMP_PLACE,
    GithubScheme,
    HmacScheme,
    StandardWebhooksScheme,
    StripeScheme,
    WebhookScheme,
)

# Name and value as they came; names are compared without regard to case.
HeaderFields = Sequence[tuple[str, str]]

# Seconds since 1970 in at most so many digits: the year 5138.
_SECONDS: Final = re.compile(r"[0-9]{1,11}")
_HEX: Final = re.compile(r"([0-9A-Fa-f]{2})+")
_ID: Final = re.compile(r"[!-~]{1,255}")
# More than two or three stand there in no rotation of secrets.
_SIGNATURES_MAX: Final = 20
_STANDARD_PREFIX: Final = "whsec_"


class Refusal(StrEnum):
    """Why a delivery is not believed."""

    HEADER_MISSING = "header_missing"
    HEADER_REPEATED = "header_repeated"
    HEADER_MALFORMED = "header_malformed"
    SIGNATURE_WRONG = "signature_wrong"
    TIME_OUTSIDE_TOLERANCE = "time_outside_tolerance"


class SecretMalformed(ValueError):
    """A secret is not written as its scheme asks; the text holds nothing of it."""


@dataclass(frozen=True, slots=True)
class Authentic:
    """A delivery that is believed; `signed_id` is the sender's id of it, where that is signed."""

    signed_id: str | None = None


class _Refused(Exception):
    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.value)
        self.refusal = refusal


def signing_key(scheme: WebhookScheme, secret: str) -> bytes:
    """Return the key of the HMAC that a secret stands for.

    Raises:
        SecretMalformed: the secret is not written as the scheme asks.
    """
    match scheme:
        case StripeScheme() | GithubScheme() | HmacScheme(secret_encoding="text"):
            key: bytes | None = secret.encode()
        case StandardWebhooksScheme():
            key = _base64(secret.removeprefix(_STANDARD_PREFIX))
        case HmacScheme(secret_encoding="base64"):
            key = _base64(secret)
        case HmacScheme():
            key = bytes.fromhex(secret) if _HEX.fullmatch(secret) else None
        case never:
            assert_never(never)
    if not key:
        raise SecretMalformed("the secret is not written as its webhook scheme asks")
    return key


def verify(
    scheme: WebhookScheme,
    keys: Sequence[bytes],
    headers: HeaderFields,
    body: bytes,
    now_seconds: float,
) -> Authentic | Refusal:
    """Return whether one of the keys has signed this body, within the scheme's tolerance.

    `now_seconds` is the present time since 1970 in UTC.
    """
    try:
        match scheme:
            case StripeScheme():
                return _stripe(scheme, keys, headers, body, now_seconds)
            case GithubScheme():
                text = _one(headers, "X-Hub-Signature-256")
                _compare(keys, [_hex(_after(text, "sha256="))], body, "sha256")
                return Authentic()
            case StandardWebhooksScheme():
                return _standard(scheme, keys, headers, body, now_seconds)
            case HmacScheme():
                return _hmac(scheme, keys, headers, body, now_seconds)
            case never:
                assert_never(never)
    except _Refused as refused:
        return refused.refusal


def claimed_at(scheme: WebhookScheme, headers: HeaderFields) -> int | None:
    """Return the time that a delivery says it was signed at, believed or not; None without one."""
    match scheme:
        case StripeScheme():
            name, pattern = "Stripe-Signature", r"(?:.*,)? *t=([0-9]{1,11})(?:,.*)?"
        case StandardWebhooksScheme():
            name, pattern = f"{scheme.headers}-timestamp", r"([0-9]{1,11})"
        case HmacScheme(timestamp_header=str(name)):
            pattern = r"([0-9]{1,11})"
        case _:
            return None
    try:
        found = re.fullmatch(pattern, _one(headers, name))
    except _Refused:
        return None
    return int(found.group(1)) if found else None


def _stripe(
    scheme: StripeScheme, keys: Sequence[bytes], headers: HeaderFields, body: bytes, now: float
) -> Authentic:
    times: list[str] = []
    signatures: list[bytes] = []
    for part in _one(headers, "Stripe-Signature").split(","):
        name, _, value = part.strip(" ").partition("=")
        if name == "t":
            times.append(value)
        elif name == "v1":  # other versions are of older or of test schemes
            signatures.append(_hex(value))
    if len(times) != 1:
        raise _Refused(Refusal.HEADER_MALFORMED)
    _compare(keys, signatures, times[0].encode() + b"." + body, "sha256")
    _check_time(times[0], scheme.tolerance_seconds, now)
    return Authentic()


def _standard(
    scheme: StandardWebhooksScheme,
    keys: Sequence[bytes],
    headers: HeaderFields,
    body: bytes,
    now: float,
) -> Authentic:
    signed_id = _one(headers, f"{scheme.headers}-id")
    time = _one(headers, f"{scheme.headers}-timestamp")
    if not _ID.fullmatch(signed_id):
        raise _Refused(Refusal.HEADER_MALFORMED)
    signatures = []
    for part in _one(headers, f"{scheme.headers}-signature").split(" "):
        version, _, value = part.partition(",")
        if version == "v1":  # v1a and others are of keys that we do not hold
            signature = _base64(value)
            if signature is None:
                raise _Refused(Refusal.HEADER_MALFORMED)
            signatures.append(signature)
    _compare(keys, signatures, f"{signed_id}.{time}.".encode() + body, "sha256")
    _check_time(time, scheme.tolerance_seconds, now)
    return Authentic(signed_id)


def _hmac(
    scheme: HmacScheme, keys: Sequence[bytes], headers: HeaderFields, body: bytes, now: float
) -> Authentic:
    text = _after(_one(headers, scheme.header), scheme.prefix)
    signature = _hex(text) if scheme.encoding == "hex" else _base64(text)
    if signature is None:
        raise _Refused(Refusal.HEADER_MALFORMED)
    before = scheme.content.removesuffix(BODY_PLACE)
    time: str | None = None
    if scheme.timestamp_header is not None:
        time = _one(headers, scheme.timestamp_header)
        before = before.replace(TIMESTAMP_PLACE, time)
    _compare(keys, [signature], before.encode() + body, scheme.algorithm)
    if time is not None:
        _check_time(time, scheme.tolerance_seconds, now)
    return Authentic()


def _one(headers: HeaderFields, name: str) -> str:
    wanted = name.lower()
    found = [value for header, value in headers if header.lower() == wanted]
    if not found:
        raise _Refused(Refusal.HEADER_MISSING)
    if len(found) > 1:
        raise _Refused(Refusal.HEADER_REPEATED)
    # What is not ASCII is no part of any scheme, and cannot be compared as text.
    if not found[0].isascii():
        raise _Refused(Refusal.HEADER_MALFORMED)
    return found[0].strip(" \t")


def _after(text: str, prefix: str) -> str:
    if not text.startswith(prefix):
        raise _Refused(Refusal.HEADER_MALFORMED)
    return text[len(prefix) :]


def _hex(text: str) -> bytes:
    if not _HEX.fullmatch(text):
        raise _Refused(Refusal.HEADER_MALFORMED)
    return bytes.fromhex(text)


def _base64(text: str) -> bytes | None:
    """Decode base64, its padding given or left out; None where it is something else."""
    try:
        return base64.b64decode(
            text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4), validate=True
        )
    except (binascii.Error, ValueError):
        return None


def _compare(
    keys: Sequence[bytes], signatures: Sequence[bytes], signed: bytes, algorithm: str
) -> None:
    if not signatures or len(signatures) > _SIGNATURES_MAX:
        raise _Refused(Refusal.HEADER_MALFORMED)
    found = False
    for key in keys:
        expected = hmac.digest(key, signed, algorithm)
        for signature in signatures:
            found |= hmac.compare_digest(expected, signature)
    if not found:
        raise _Refused(Refusal.SIGNATURE_WRONG)


def _check_time(text: str, tolerance_seconds: float, now_seconds: float) -> None:
    if not _SECONDS.fullmatch(text):
        raise _Refused(Refusal.HEADER_MALFORMED)
    if abs(now_seconds - int(text)) > tolerance_seconds:
        raise _Refused(Refusal.TIME_OUTSIDE_TOLERANCE)
