"""FC-16: a batch of which some was delivered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.commands import Cli
from effect_broker.keyring import ENV_KEY_RING_FILE
from field_cases.cases import Case, Document

RECIPIENTS = ["a@example.com", "b@example.com", "c@example.com"]
BATCH: dict[str, Any] = {"order": "1", "recipients": RECIPIENTS}


def sends_a_batch(document: Document) -> None:
    """`send_batch`: one request for several recipients, answered for each of them."""
    document["arguments"] = {
        "type": "object",
        "properties": {
            "order": {"type": "string"},
            "recipients": {"type": "array", "items": {"type": "string", "format": "email"}},
        },
        "required": ["order", "recipients"],
        "additionalProperties": False,
    }
    document["sensitive"] = []
    answers = document["adapter"]["answers"]
    answers["success"] = [{"statuses": [201], "body_schema": {"required": ["id"]}}]
    answers["partial"] = [
        {"statuses": [207], "body_schema": {"required": ["results"]}, "code": "some_failed"}
    ]
    document["adapter"]["extraction"] = {"external_id": "id"}
    probe = document["adapter"].get("probe")
    if probe:
        probe["agree"] = {"/order": "order"}
        probe["extraction"] = {"external_id": "id"}


@pytest.mark.parametrize("safety", ["idempotent", "reconcilable", "unsafe"])
def test_fc_16_mixed_results_are_neither_success_nor_failure(case: Case, safety: str) -> None:
    offer = case.offer(safety, amend=sends_a_batch)
    offer.script("commit;partial(ok,ok,fail)")
    effect_id = offer.submit(arguments=BATCH)
    offer.judge(effect_id, state="manual_review", reason="partial_result", requests=1, effects=2)
    assert offer.codes(effect_id) == [("partial", "some_failed")]
    assert offer.post(arguments=BATCH).json()["effect_id"] == effect_id
    (attempt,) = offer.attempts(effect_id)
    kept = json.loads(offer.unsealed(effect_id, "result", str(attempt["attempt_id"])))
    results = kept["result"]["results"]
    assert [item["status"] for item in results] == ["ok", "ok", "fail"]
    assert [item.get("id") for item in results[:2]] == offer.effect_ids(effect_id)
    offer.judge(effect_id, state="manual_review", reason="partial_result", requests=1, effects=2)


@pytest.mark.parametrize(
    ("safety", "state", "reason", "requests"),
    [
        ("unsafe", "outcome_unknown", "outcome_unknown", 1),
        # Three objects under one key: whoever has to decide gets all of their ids.
        ("reconcilable", "manual_review", "ambiguous_probe", 1),
        ("idempotent", "succeeded", "committed", 2),
    ],
)
def test_fc_16_a_batch_whose_answer_is_lost_is_not_sent_again_blindly(
    case: Case, safety: str, state: str, reason: str, requests: int
) -> None:
    offer = case.offer(safety, amend=sends_a_batch)
    offer.script("commit(3);RST")
    effect_id = offer.submit(arguments=BATCH)
    offer.judge(effect_id, state=state, reason=reason, requests=requests, effects=3)
    if safety == "reconcilable":
        seen = offer.evidence(effect_id)[-1]
        assert seen["verdict"] == "mismatch"
        assert seen["external_ids"] == offer.effect_ids(effect_id)


def test_fc_16_a_batch_under_an_unsafe_contract_is_warned_of(
    case: Case,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cli = Cli(monkeypatch, capsys)
    for safety, warned in (("unsafe", True), ("idempotent", False)):
        offer = case.offer(safety, amend=sends_a_batch)
        assert offer.document is not None
        file = tmp_path / f"{safety}.yaml"
        file.write_bytes(offer.document.canonical())
        ended = cli("contracts", "validate", file, "--json")
        (reading,) = ended.json
        assert (ended.code, reading["valid"]) == (0, True)
        assert any("recipients" in warning["text"] for warning in reading["warnings"]) is warned
        shown = cli("contracts", "validate", file)
        assert shown.code == 0
        assert ("recipients" in shown.err) is warned
    monkeypatch.setenv("EFFECT_BROKER_WORKER_DATABASE_URL", case.broker.superuser_url)
    monkeypatch.setenv(ENV_KEY_RING_FILE, str(case.broker.directory / "keyring.json"))
    found = cli("doctor", "--json").json["findings"]
    unsafe = f"proof-{case.offers[0].kind.replace('_', '-')} 1: unsafe"
    assert any(
        f["level"] == "warn" and f["text"].startswith(unsafe) and "recipients" in f["text"]
        for f in found
    )
