"""What a contract may ask of a certificate before anything is sent, and which trials there are.

A certificate is made by `effect-broker contracts certify`, which names its trials as they stand
here. Not every contract goes through every trial: what is asked for and never tried would keep
every effect waiting for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field

from effect_contracts.errors import ContractProblem
from effect_contracts.expressions import Code, origin_of
from effect_contracts.facts import CertificateDemand, SafetyClass
from effect_contracts.section import Section

if TYPE_CHECKING:
    from effect_contracts.document import ContractDocument

# What was seen a year ago was another release of the target; no certificate lasts longer.
VALID_DAYS_MAX: Final = 366
CERTIFICATE_AGE_SECONDS_MAX: Final = VALID_DAYS_MAX * 86_400.0

_PLACE: Final = "/oversight/certificate"
# Such targets compare ids and nothing else, so that no trial gives them other arguments.
_COMPARES_KEYS_ALONE: Final = frozenset({"nats", "sqs"})


class CertificateSettings(Section):
    """The certificate without which nothing is sent; the empty section asks for any in force.

    Attributes:
        age_seconds_max: an attempt starts within this time of the end of the trials. Absent: as
            long as the certificate says itself that it is good.
        trials: these have to have held. All trials of a certificate have, but for `key_is_kept`
            and `lost_answer_is_settled`, which it may leave open.
        sandbox: the origin of the sandbox whose trials count for the contract's own target.
            Absent: only trials at the contract's own target count.
    """

    age_seconds_max: (
        Annotated[float, Field(ge=1, le=CERTIFICATE_AGE_SECONDS_MAX, allow_inf_nan=False)] | None
    ) = None
    trials: Annotated[tuple[Code, ...], Field(max_length=16)] = ()
    sandbox: Annotated[str, Field(max_length=2048)] | None = None


def trials_of(document: ContractDocument) -> frozenset[str]:
    """Return the trials that a certificate of this contract can show; none where there is none."""
    kind, safety = document.adapter.kind, document.safety
    if safety is SafetyClass.TRANSACTIONAL or kind == "caller":
        return frozenset()
    trials = {"accepts_the_request"}
    if safety is SafetyClass.UNSAFE:
        trials.add("one_attempt_one_arrival")
    if safety is SafetyClass.IDEMPOTENT:
        trials |= {"same_key_same_effect", "ten_at_once", "key_is_kept"}
        if kind not in _COMPARES_KEYS_ALONE:
            trials.add("drift_is_refused")
    if safety in {SafetyClass.IDEMPOTENT, SafetyClass.RECONCILABLE}:
        trials.add("lost_answer_is_settled")
    if document.policy().probes:
        trials |= {"found_once_by_key", "absence_is_shown"}
        if document.settlement_bound_seconds is not None:
            trials.add("settlement_lag")
    return frozenset(trials)


def demand_of(settings: CertificateSettings | None, account: str) -> CertificateDemand | None:
    """Return what the settings ask for, None where they ask for nothing."""
    if settings is None:
        return None
    sandbox = settings.sandbox
    return CertificateDemand(
        age_seconds_max=settings.age_seconds_max,
        trials=frozenset(settings.trials),
        # As the adapter `http` names its target: the origin with the account.
        sandbox_identity=None if sandbox is None else f"{sandbox}#{account}",
    )


def broken_certificate_rules(
    document: ContractDocument, settings: CertificateSettings
) -> Iterator[ContractProblem]:
    """Yield every broken rule."""
    possible = trials_of(document)
    if not possible:
        yield ContractProblem(
            _PLACE,
            "no certificate can be made of what the broker does not send over a wire itself, so "
            "that every effect would wait for ever: leave this out",
        )
        return
    for index, trial in enumerate(settings.trials):
        if trial not in possible:
            yield ContractProblem(
                f"{_PLACE}/trials/{index}",
                f"certificates of this contract do not show {trial}; they can show "
                f"{', '.join(sorted(possible))}",
            )
    if settings.sandbox is None:
        return
    if document.adapter.kind != "http":
        yield ContractProblem(
            f"{_PLACE}/sandbox",
            "only contracts with the adapter http are tried at another origin; leave it out",
        )
    elif not _is_origin(settings.sandbox):
        yield ContractProblem(
            f"{_PLACE}/sandbox",
            "a sandbox is scheme, host and port only, such as https://sandbox.example.com",
        )


def _is_origin(text: str) -> bool:
    try:
        return text.startswith(("https://", "http://")) and origin_of(text) == text
    except ValueError:
        return False
