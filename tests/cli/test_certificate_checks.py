"""What doctor says of contracts that demand a certificate, over certificates that are signed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from effect_broker.cli.certificate_checks import ENDS_SOON, demand_findings
from effect_broker.cli.checks import Level, contract_findings
from effect_broker.keyring import ring_public_keys, ring_signer
from effect_broker.store.certificates import CertificateRecord
from effect_contracts.document import ContractDocument
from effect_contracts.facts import Certified
from effect_contracts.receipts import receipt_digest
from store.issuer import content_of, signing_ring
from store.samples import TARGET, contract

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
RING = signing_ring()
KEYS = ring_public_keys(RING)
DEMANDING = contract("idempotent", oversight={"certificate": {"trials": ["ten_at_once"]}})


def record(
    document: ContractDocument = DEMANDING, *, good_for: timedelta = 10 * ENDS_SOON, **members: Any
) -> CertificateRecord:
    """A stored certificate of yesterday, as it is signed."""
    said = Certified(str(uuid4()), TARGET, frozenset({"ten_at_once"}), NOW, NOW + good_for)
    said = replace(said, ended_at=NOW - timedelta(days=1), **members)
    content, signer = content_of(document, said), ring_signer(RING)
    assert signer is not None
    return CertificateRecord(
        certificate_id=UUID(said.certificate_id),
        contract_digest=document.digest(),
        contract_name=document.name,
        contract_version=document.version,
        target_identity=said.target_identity,
        content=content,
        digest=receipt_digest(content),
        signature=signer.sign_certificate(content),
        ended_at=said.ended_at,
        expires_at=said.expires_at,
        expired=False,
        revoked_reason=None,
        revoked_at=None,
        active=True,
    )


def found(*records: CertificateRecord, keys: dict[str, bytes] = KEYS) -> list[tuple[Level, str]]:
    findings = demand_findings([DEMANDING], records, keys, lambda _: TARGET, NOW)
    return [(one.level, one.text) for one in findings]


def test_a_demand_that_is_met_is_well() -> None:
    ((level, text),) = found(record())
    assert (level, text) == (Level.OK, "1 contract with one as it demands")
    assert list(demand_findings([contract("idempotent")], [], {}, lambda _: TARGET, NOW)) == []


@pytest.mark.parametrize(
    "records",
    [
        (),
        (record(contract("idempotent", "2", oversight={"certificate": {}})),),
        (record(target_identity="https://sandbox.example.com#acct_1"),),
        (record(trials=frozenset({"accepts_the_request"})),),
        (replace(record(), revoked_at=NOW),),
        (replace(record(), expired=True),),
        (record(expires_at=NOW),),
    ],
    ids=["none", "another contract", "another target", "no such trial", "revoked", "expired",
         "expires now"],
)  # fmt: skip
def test_a_demand_that_nothing_meets_is_a_warning(records: tuple[CertificateRecord, ...]) -> None:
    ((level, text),) = found(*records)
    assert (level, text.endswith("that fits: idempotent 1")) == (Level.WARN, True)


def test_a_key_that_the_ring_does_not_hold_meets_no_demand() -> None:
    ((level, text),) = found(record(), keys=ring_public_keys(signing_ring("k1")))
    assert (level, "that fits" in text) == (Level.WARN, True)
    ((level, text),) = found(record(), keys={})
    assert (level, "no signing key" in text) == (Level.WARN, True)


def test_a_certificate_that_ends_soon_is_a_warning_in_time() -> None:
    ((level, text),) = found(record(good_for=ENDS_SOON))
    assert (level, "end within 3 days" in text) == (Level.WARN, True)
    later = record(good_for=ENDS_SOON + timedelta(seconds=1))
    assert found(record(good_for=ENDS_SOON), later)[0][0] is Level.OK


def test_a_demand_of_an_unsafe_contract_is_said_to_show_little() -> None:
    unsafe = contract("unsafe", oversight={"certificate": {}})
    (warning,) = contract_findings([unsafe], lambda _: True)
    assert (warning.level, "shows little" in warning.text) == (Level.WARN, True)
    assert [f.level for f in contract_findings([DEMANDING], lambda _: True)] == [Level.OK]
