"""Which certificate lets an effect be sent: a pure look at those in force and at what is demanded.

A store gives certificates whose signatures it has verified and that no revocation ends
(`effect_contracts.certificates.certified`); what a contract asks of them is judged here, on the
database clock: of the contract's own target or of its sandbox, with the trials that have to hold,
young enough, and not expired.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from effect_contracts.facts import CertificateDemand, Certified


def counts_until(certificate: Certified, demand: CertificateDemand) -> datetime | None:
    """Return when the certificate ceases to fit the demand; None where it does not fit at all."""
    if not demand.trials <= certificate.trials:
        return None
    if demand.age_seconds_max is None:
        return certificate.expires_at
    aged_at = certificate.ended_at + timedelta(seconds=demand.age_seconds_max)
    return min(certificate.expires_at, aged_at)


def standing_certificate(
    certificates: Iterable[Certified], demand: CertificateDemand, now: datetime
) -> tuple[Certified, datetime] | None:
    """Return the certificate that fits at `now` and does so longest, and until when; None without.

    It has ceased to count at the moment that is returned.
    """
    fitting = [
        (until, certificate.certificate_id, certificate)
        for certificate in certificates
        if (until := counts_until(certificate, demand)) is not None and now < until
    ]
    if not fitting:
        return None
    until, _, certificate = max(fitting, key=lambda one: one[:2])
    return certificate, until


def of_target(
    certificates: Iterable[Certified], demand: CertificateDemand | None, identity: str
) -> tuple[Certified, ...]:
    """Return those that speak of this target, or of the sandbox that stands in for it."""
    if demand is None:
        return ()
    places = {identity, demand.sandbox_identity}
    return tuple(one for one in certificates if one.target_identity in places)
