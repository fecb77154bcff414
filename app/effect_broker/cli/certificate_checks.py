"""What `doctor` says of certificates of targets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from effect_broker.cli import checks
from effect_broker.cli.checks import Finding
from effect_broker.store.certificates import CertificateRecord
from effect_contracts.certificates import certified
from effect_contracts.certified import of_target, standing_certificate
from effect_contracts.counting import counted
from effect_contracts.document import ContractDocument

CERTIFICATES_MAX: Final = 1000
_NAMED: Final = 5
_CHECK: Final = "certificates"
_DEMANDS: Final = "certificates_demanded"
# Time to hold trials anew before effects stand still.
ENDS_SOON: Final = timedelta(days=3)


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
        yield checks.ok(_CHECK, f"{counted(len(counting), 'contract')} in use with one that counts")


def demand_findings(
    documents: Sequence[ContractDocument],
    found: Sequence[CertificateRecord],
    keys: Mapping[str, bytes],
    identity_of: Callable[[ContractDocument], str],
    now: datetime,
) -> Iterator[Finding]:
    """Judge whether what contracts in use demand is there, as a worker of this ring would.

    Args:
        keys: the public halves of the ring's signing keys; none where it signs nothing.
    """
    asking = [one for one in documents if one.policy().certificate is not None]
    if not asking:
        return
    if not keys:
        yield checks.warn(
            _DEMANDS, "contracts demand certificates, and the key ring has no signing key, so "
            f"that none counts: {_versions(asking)}",
            "give the workers the ring that signs certificates",
        )  # fmt: skip
        return
    until = {one.digest(): _fits_until(one, found, keys, identity_of(one), now) for one in asking}
    waiting = [one for one in asking if until[one.digest()] is None]
    soon = [one for one in asking if _within(until[one.digest()], now + ENDS_SOON)]
    if waiting:
        yield checks.warn(
            _DEMANDS, f"nothing is sent for want of a certificate that fits: {_versions(waiting)}",
            "`effect-broker contracts certify`; docs/operations.md says when one does not fit",
        )  # fmt: skip
    if soon:
        yield checks.warn(
            _DEMANDS, f"certificates that are demanded end within {ENDS_SOON.days} days: "
            f"{_versions(soon)}", "`effect-broker contracts certify` again in time",
        )  # fmt: skip
    if not (waiting or soon):
        yield checks.ok(_DEMANDS, f"{counted(len(asking), 'contract')} with one as it demands")


def _fits_until(
    document: ContractDocument,
    found: Sequence[CertificateRecord],
    keys: Mapping[str, bytes],
    identity: str,
    now: datetime,
) -> datetime | None:
    demand, digest = document.policy().certificate, document.digest()
    assert demand is not None, "asked of contracts that demand one"
    read = (
        certified(one.content, one.signature.key_id, one.signature.signature, keys, digest)
        for one in found
        if one.counts and one.contract_digest == digest
    )
    own = of_target([one for one in read if one is not None], demand, identity)
    standing = standing_certificate(own, demand, now)
    return None if standing is None else standing[1]


def _within(at: datetime | None, until: datetime) -> bool:
    return at is not None and at <= until


def _versions(documents: Sequence[ContractDocument]) -> str:
    names = ", ".join(f"{one.name} {one.version}" for one in documents[:_NAMED])
    return names + (f" and {len(documents) - _NAMED} more" if len(documents) > _NAMED else "")


def _named(found: Sequence[CertificateRecord]) -> str:
    names = ", ".join(
        f"{one.contract_name} {one.contract_version}"
        + (f" ({one.revoked_reason})" if one.revoked_reason else "")
        for one in found[:_NAMED]
    )
    return names + (f" and {len(found) - _NAMED} more" if len(found) > _NAMED else "")
