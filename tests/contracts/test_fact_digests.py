"""The digest of a fact covers every column of its row, and is the same for ever."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from effect_contracts.fact_digests import evidence_digest, outcome_digest
from effect_contracts.facts import EvidenceSource, Outcome, Verdict

AT = datetime(2026, 11, 30, 4, 5, 6, 789012, tzinfo=UTC)
OUTCOME: dict[str, Any] = {
    "attempt_id": UUID(int=1), "ordinal": 2, "outcome": Outcome.REJECTED, "code": "declinéd",
    "recorded_at": AT, "external_id": "ch_1", "retry_after_seconds": 1.5, "operation": False,
    "result_digest": "ab",
}  # fmt: skip
EVIDENCE: dict[str, Any] = {
    "evidence_id": UUID(int=1), "source": EvidenceSource.PROBE, "verdict": Verdict.UNKNOWN,
    "code": "timeout", "began_at": AT, "covers_through": 2, "external_ids": ("b", "a"),
    "target_identity": "t", "result_digest": None,
}  # fmt: skip
OUTCOME_TEXT = (
    r'{"attempt_id":"00000000-0000-0000-0000-000000000001","code":"declin\u00e9d",'
    r'"external_id":"ch_1","format":"effect-broker/outcome/1","operation":false,"ordinal":2,'
    r'"outcome":"rejected","recorded_at":"2026-11-30T04:05:06.789012Z","result_digest":"ab",'
    r'"retry_after_seconds":"1.5"}'
)
EVIDENCE_TEXT = (
    '{"began_at":"2026-11-30T04:05:06.789012Z","code":"timeout","covers_through":2,'
    '"evidence_id":"00000000-0000-0000-0000-000000000001","external_ids":["b","a"],'
    '"format":"effect-broker/evidence/1","result_digest":null,"source":"probe",'
    '"target_identity":"t","verdict":"unknown"}'
)


def test_what_is_digested_never_changes() -> None:
    assert outcome_digest(**OUTCOME) == hashlib.sha256(OUTCOME_TEXT.encode()).hexdigest()
    assert evidence_digest(**EVIDENCE) == hashlib.sha256(EVIDENCE_TEXT.encode()).hexdigest()


@pytest.mark.parametrize(
    "change",
    [
        {"attempt_id": UUID(int=2)}, {"ordinal": 3}, {"outcome": Outcome.COMMITTED},
        {"code": None}, {"recorded_at": AT + timedelta(microseconds=1)}, {"external_id": None},
        {"retry_after_seconds": None}, {"retry_after_seconds": 1.25}, {"operation": True},
        {"result_digest": None},
    ],
)  # fmt: skip
def test_no_column_of_an_outcome_can_be_changed_alone(change: dict[str, Any]) -> None:
    assert outcome_digest(**OUTCOME | change) != outcome_digest(**OUTCOME)


@pytest.mark.parametrize(
    "change",
    [
        {"evidence_id": UUID(int=2)}, {"source": EvidenceSource.WEBHOOK},
        {"verdict": Verdict.COMMITTED}, {"code": "x"}, {"began_at": AT + timedelta(microseconds=1)},
        {"covers_through": 1}, {"external_ids": ("a", "b")}, {"target_identity": None},
        {"result_digest": "ab"},
    ],
)  # fmt: skip
def test_no_column_of_evidence_can_be_changed_alone(change: dict[str, Any]) -> None:
    assert evidence_digest(**EVIDENCE | change) != evidence_digest(**EVIDENCE)


def test_a_whole_number_of_seconds_has_one_spelling() -> None:
    as_integer = outcome_digest(**OUTCOME | {"retry_after_seconds": 2})
    assert as_integer == outcome_digest(**OUTCOME | {"retry_after_seconds": 2.0})


def test_an_id_that_no_canonical_json_may_hold_has_a_digest_all_the_same() -> None:
    """What was seen has to be stored, whatever it is."""
    assert len(outcome_digest(**OUTCOME | {"external_id": "\ud800"})) == 64
