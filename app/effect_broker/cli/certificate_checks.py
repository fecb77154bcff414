"""What `doctor` says of certificates of targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from effect_broker.cli import checks
from effect_broker.cli.checks import Finding
from effect_broker.store.certificates import CertificateRecord

CERTIFICATES_MAX: Final = 1000
_NAMED: Final = 5
_CHECK: Final = "certificates"


def certificate_findings(found: Sequence[CertificateRecord]) -> Iterator[Finding]:
    """Judge the certificates of contracts in use, newest first; no certificate is no finding."""
    latest: dict[bytes, CertificateRecord] = {}
    counting: set[bytes] = set()
    for record in found:
        if record.active:
            latest.setdefault(record.contract_digest, record)
            if record.counts:
                counting.add(record.contract_digest)
    ended = [one for digest, one in latest.items() if digest not in counting]
    revoked = [one for one in ended if one.revoked_at is not None]
    expired = [one for one in ended if one.revoked_at is None]
    if revoked:
        yield checks.warn(
            _CHECK, f"revoked, since the target did not do what was certified: {_named(revoked)}",
            "find out why (`effect-broker holds list`, the reason contract_violation), then "
            "`effect-broker contracts certify` again",
        )  # fmt: skip
    if expired:
        yield checks.warn(
            _CHECK, f"expired: {_named(expired)}", "`effect-broker contracts certify` again"
        )
    if not (revoked or expired):
        yield checks.ok(_CHECK, f"{len(counting)} contracts in use have one that counts")


def _named(found: Sequence[CertificateRecord]) -> str:
    names = ", ".join(
        f"{one.contract_name} {one.contract_version}"
        + (f" ({one.revoked_reason})" if one.revoked_reason else "")
        for one in found[:_NAMED]
    )
    return names + (f" and {len(found) - _NAMED} more" if len(found) > _NAMED else "")
