"""`effects inspect` tells what is missing and gives the line to paste, and never a wrong one."""

from __future__ import annotations

import json
import re
import shlex
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from cli.commands import Cli
from cli.sender import Sender
from effect_broker.cli import effect_page
from effect_broker.cli.effect_page import Inspection, advice
from effect_broker.cli.next_commands import PLACEHOLDERS
from effect_broker.cli.reasons import WORDS
from effect_broker.obstacles import obstacle
from effect_contracts.catalog import catalog_texts
from effect_contracts.decide import Reason
from effect_contracts.document import ContractDocument
from effect_contracts.facts import Outcome
from postgres import Database

ARGUMENTS = '{"order": "42", "amount": 1200, "currency": "eur", "customer_email": "a@example.com"}'
# In these the broker goes on by itself, or nothing is left to do.
NOTHING_TO_DO = {
    "submitted", Reason.FIRST_ATTEMPT, Reason.SAME_KEY_AGAIN, Reason.NO_COMMIT_PROVED,
    Reason.ATTEMPT_OPEN, Reason.BACKOFF, Reason.TARGET_BUSY, Reason.SETTLING,
    Reason.IN_PROGRESS, Reason.LOOK_UP, Reason.COMMITTED, Reason.CANCELLED,
    Reason.FAILED_BY_OPERATOR,
}  # fmt: skip
_STYLES = re.compile(r"\x1b\[[0-9;]*m")


class Desk:
    """A tenant with one contract of each kind, and a worker's hand."""

    def __init__(self, broker: Cli, database: Database, folder: Path) -> None:
        self.broker = broker
        assert broker("tenants", "create", "acme").code == 0
        for name, tool in (
            ("idempotent", "acme.charge"), ("unsafe", "acme.once"), ("approved", "acme.approved"),
        ):  # fmt: skip
            text = catalog_texts()[f"demo-charge-{'unsafe' if name == 'unsafe' else 'idempotent'}"]
            document = json.loads(ContractDocument.parse_yaml(text).canonical())
            document |= {"name": f"acme-{name}", "tool": tool}
            if name == "idempotent":
                document["adapter"]["headers"] = {
                    "Authorization": {"secret": "env:EFFECT_BROKER_SECRET_ACME"}
                }
            if name == "approved":
                document["oversight"] = {"approval_valid_seconds": 600}
            path = folder / f"{name}.yaml"
            path.write_text(json.dumps(document))
            assert broker("contracts", "apply", path).code == 0
        (tenant,) = broker("tenants", "list", "--json").json
        self.sender = Sender(database, tenant["tenant_id"])

    def submit(self, tool: str, key: str) -> str:
        asked = ("--tool", tool, "--key", key, "--arguments", ARGUMENTS)
        return str(self.broker("effects", "submit", *asked, "--json").json["effect_id"])

    def inspect(self, effect_id: str) -> Any:
        return self.broker("effects", "inspect", effect_id, "--json").json


@pytest.fixture
def desk(broker: Cli, database: Database, tmp_path: Path) -> Desk:
    return Desk(broker, database, tmp_path)


def _lines(body: Any, verb: str) -> list[list[str]]:
    found = [shlex.split(one["command"]) for one in body["commands"]]
    return [words for words in found if words[1:3] == ["effects", verb]]


def test_what_waits_for_a_secret_names_it_and_says_what_to_do(desk: Desk) -> None:
    effect_id = desk.submit("acme.charge", "order:1:charge")
    desk.sender.show(effect_id, Outcome.NOT_SENT, code="secret_unavailable")
    said = " ".join(desk.inspect(effect_id)["what_you_can_do"])
    assert "could not read the secret env:EFFECT_BROKER_SECRET_ACME" in said
    assert "Set EFFECT_BROKER_SECRET_ACME where workers run" in said
    assert "more times by itself" in said
    assert "Nothing to do" not in said
    assert "EFFECT_BROKER_SECRET_ACME" in desk.broker("effects", "inspect", effect_id).out


def test_a_line_to_paste_records_what_it_says_once_its_words_are_replaced(desk: Desk) -> None:
    effect_id = desk.submit("acme.once", "mail:1")
    desk.sender.show(effect_id, Outcome.AMBIGUOUS)
    body = desk.inspect(effect_id)
    lines = _lines(body, "resolve")
    assert [words[words.index("--as") + 1] for words in lines] == [
        "committed", "not_committed", "failed",
    ]  # fmt: skip
    assert "never sent twice" in body["commands"][1]["for"]
    line = lines[0]
    # Pasted unread, it records nothing, whichever of its words is left.
    for kept in PLACEHOLDERS[3:]:
        told = _replaced(line, kept)
        assert desk.broker(*told[1:]).code == 2, kept
    said = _replaced(line)[1:]
    assert desk.broker(*said, "--json").json["state"] == "succeeded"
    assert desk.broker(*said, "--json").json["replayed"]


def _replaced(line: list[str], kept: str = "") -> list[str]:
    values = {
        "THE_TARGETS_ID": "ch_1",
        "MOMENT": datetime.now(UTC).isoformat(),
        "WHERE": "https://provider.example/1",
        "WHY": "it is there",
    }
    values.pop(kept, None)
    words = []
    for word in line:
        for name, value in values.items():
            word = word.replace(name, value) if "observed=" in word or word == name else word
        words.append(word)
    return words


def test_what_the_contract_refuses_is_not_offered(desk: Desk) -> None:
    effect_id = desk.submit("acme.charge", "order:2:charge")
    desk.sender.show(effect_id, Outcome.KEY_CONFLICT)
    body = desk.inspect(effect_id)
    assert body["reason"] == "target_key_conflict"
    offered = {words[words.index("--as") + 1] for words in _lines(body, "resolve")}
    assert offered == {"committed", "failed"}


def test_what_is_held_is_told_with_the_line_that_lets_it_go(desk: Desk) -> None:
    effect_id = desk.submit("acme.approved", "order:3:charge")
    held = desk.inspect(effect_id)
    (approve,), (deny,) = _lines(held, "approve"), _lines(held, "deny")
    assert held["request_hash"] in approve
    assert desk.broker(*deny[1:]).code == 2  # WHY is still to be said
    assert desk.broker(*(w if w != "WHY" else "not wanted" for w in deny[1:])).code == 0

    pause = ("holds", "pause", "--tenant", "acme", "--reason", "an incident")
    assert desk.broker(*pause).code in (0, 3)
    other = desk.submit("acme.charge", "order:4:charge")
    body = desk.inspect(other)
    assert body["holds"] == ["paused"]
    assert "effect-broker holds list" in [one["command"] for one in body["commands"]]
    assert any("holds lift" in line for line in body["what_you_can_do"])
    assert "Nothing to do: the broker goes on by itself." not in body["what_you_can_do"]


def test_every_reason_that_waits_for_somebody_says_what_to_do() -> None:
    assert {reason for reason, words in WORDS.items() if words.remedy is None} == NOTHING_TO_DO


@pytest.mark.parametrize("parked", [True, False])
def test_the_page_says_what_its_reason_asks_for_whether_it_is_due_again_or_not(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, parked: bool
) -> None:
    effect_id, seen = desk.submit("acme.charge", "order:5:charge"), list[Inspection]()
    with monkeypatch.context() as patched:
        patched.setattr(effect_page, "body", seen.append)
        desk.broker("effects", "inspect", effect_id, "--json")
    (one,) = seen
    due_at = None if parked else one.detail.now + timedelta(hours=1)
    for reason, words in WORDS.items():
        intent = replace(one.detail.intent, reason=str(reason), next_action_at=due_at)
        detail = replace(one.detail, intent=intent, parked=parked)
        said = list(advice(replace(one, detail=detail)))
        assert (words.remedy in said) == (words.remedy is not None), reason
        goes_on = "Nothing to do: the broker goes on by itself." in said
        assert goes_on == (words.remedy is None and not parked), reason


def test_an_id_can_be_copied_at_80_columns(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    effect_id = desk.submit("acme.charge", "order:a-key-that-is-rather-long:charge:v1")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    listed = desk.broker("effects", "list").out
    assert str(UUID(effect_id)) in listed
    assert "prepared" in listed
    assert "no room for: tool, age, next action" in listed
    assert max(len(_STYLES.sub("", line)) for line in listed.splitlines()) <= 80


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("secret_unavailable", "EFFECT_BROKER_SECRET_STRIPE"),
        ("extra_missing_aws", "effect-broker[aws]"),
        ("dns_failed", "host name"),
        ("program_not_allowed", "EFFECT_BROKER_MCP_PROGRAMS"),
    ],
)
def test_what_stood_in_the_way_of_a_look_up_is_told_too(code: str, word: str) -> None:
    document = ContractDocument.parse_yaml(catalog_texts()["stripe-charge"])
    words = obstacle(document, (), code)
    assert words is not None
    assert word in f"{words.meaning} {words.remedy}"
