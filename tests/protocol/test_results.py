"""What of an answer is kept for the caller: all of it up to a size, and never a failure."""

from __future__ import annotations

import json

import pytest

from effect_adapters.base import Answer, Finding
from effect_broker.protocol.results import result_bytes
from effect_contracts.canonical import JsonValue
from effect_contracts.facts import Outcome, Verdict

LARGEST = 67_108_864  # 64 MiB


KEPT: JsonValue = {"b": 1, "a": [2]}


@pytest.mark.parametrize(
    "fact",
    [
        Answer(Outcome.COMMITTED, "ok", result=KEPT),
        Finding(Verdict.COMMITTED, "ok", result=KEPT),
    ],
)
def test_the_result_is_kept_in_canonical_form(fact: Answer | Finding) -> None:
    assert result_bytes(fact) == b'{"fields":{},"result":{"a":[2],"b":1}}'


@pytest.mark.parametrize(("more", "reason"), [(0, None), (1, "too_large")])
def test_a_result_is_kept_up_to_its_size_and_said_to_be_left_out_beyond(
    more: int, reason: str | None
) -> None:
    around = len('{"fields":{},"result":""}')
    kept = json.loads(
        result_bytes(Answer(Outcome.COMMITTED, "ok", result="x" * (LARGEST - around + more)))
    )
    assert kept.get("left_out") == reason
    assert (kept["result"] is None) is (reason is not None)


def test_a_result_without_a_canonical_form_is_left_out_with_its_reason() -> None:
    kept = json.loads(result_bytes(Answer(Outcome.COMMITTED, "ok", result="a\0b")))
    assert kept == {"fields": {}, "left_out": "nul_character", "result": None}
