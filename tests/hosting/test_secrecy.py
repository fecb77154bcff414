"""The engine's tables and the logs hold ids, ordinals, states and codes, and nothing else."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from psycopg import Connection, sql
from psycopg.rows import DictRow

from effect_broker.faultpoints import FaultPoint
from effect_broker.proof.contracts import tuned
from effect_contracts.document import ContractDocument
from hosting.scenes import MODES, Scene

ARGUMENT = "MARKER-argument-7d1f"
ADDRESS = "MARKER-address-7d1f@example.org"
ANSWER = "MARKER-answer-7d1f"
SECRET = "MARKER-secret-7d1f"
MARK = "MARKER-"

KINDS = {
    # kind: safety, what the target does
    "told": ("idempotent", "ok"),
    "refused": ("idempotent", f'status(402, {{"error": "{ANSWER}"}})'),
    "limited": ("idempotent", f'status(429, {{"error": "{ANSWER}"}})'),
    "probed": ("reconcilable", "commit;RST"),
    "unclear": ("unsafe", f'commit;status(500, {{"error": "{ANSWER}"}})'),
    "broken": ("unsafe", f'commit;status(200, "{ANSWER}")'),
}
STATES = {
    "told": "succeeded",
    "refused": "failed_final",
    "limited": "succeeded",
    "probed": "succeeded",
    "unclear": "outcome_unknown",
    "broken": "outcome_unknown",
}


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """A secret for the target, and logs that say all they can."""
    return {"EFFECT_BROKER_SECRET_PROOF": SECRET, "EFFECT_BROKER_LOG_LEVEL": "DEBUG"}


def with_secret(document: ContractDocument) -> ContractDocument:
    """The contract, for a target that wants a token."""
    members = json.loads(document.canonical())
    members["adapter"]["auth"] = {"kind": "bearer", "token": "env:EFFECT_BROKER_SECRET_PROOF"}
    return ContractDocument.parse_yaml(json.dumps(members))


@pytest.fixture(scope="module")
def told(scene: Scene) -> dict[str, str]:
    """The effects of all kinds, by kind: answered, refused, probed, lost, taken over."""
    client = scene.broker.target.client
    for kind, (safety, plan) in KINDS.items():
        settings: dict[str, Any] = {}
        if safety == "reconcilable":
            settings["settlement_bound_seconds"] = 1.0
        client.set_mode(kind, MODES[safety])
        document = tuned(f"demo-charge-{safety}", scene.broker.target.url, kind, **settings)
        scene.broker.apply(with_secret(document))
        client.script(plan, kind=kind)
    scene.start_workers(2)
    # One of them is killed over the first effect, so that recovery is part of this.
    scene.broker.arm(FaultPoint.AFTER_TARGET_ANSWER)
    effect_ids = {"told": submitted(scene, "told")}
    scene.broker.wait_fired(FaultPoint.AFTER_TARGET_ANSWER)
    effect_ids |= {kind: submitted(scene, kind) for kind in KINDS if kind != "told"}
    # A step that fails on the inside: the stored request cannot be opened.
    effect_ids["spoilt"] = spoilt(scene)
    for kind, state in STATES.items():
        assert scene.broker.settled(effect_ids[kind])["state"] == state
    return effect_ids


def submitted(scene: Scene, kind: str) -> str:
    """Submit one charge full of markers; return the effect's id."""
    arguments = {"order": ARGUMENT, "amount": 7, "currency": "eur", "customer_email": ADDRESS}
    answer = scene.broker.submit(f"secrecy:{kind}", f"proof.{kind}", arguments)
    assert answer.status_code == 202, answer.text
    effect_id: str = answer.json()["effect_id"]
    return effect_id


def spoilt(scene: Scene) -> str:
    """Submit an effect whose payloads are spoilt while it waits; return its id."""
    client = scene.broker.target.client
    client.set_mode("spoilt", "dedupe")
    document = tuned("demo-charge-idempotent", scene.broker.target.url, "spoilt")
    scene.broker.apply(with_secret(document))
    client.script('status(429, {}, {"retry-after": "2"})', kind="spoilt")
    effect_id = submitted(scene, "spoilt")
    scene.wait_for(
        "it waits",
        "SELECT state = 'retryable' FROM effect_broker.effect_intents WHERE effect_id = %s",
        effect_id,
    )
    scene.rows(
        "UPDATE effect_broker.effect_payloads SET ciphertext = set_byte(ciphertext, 40,"
        " 255 - get_byte(ciphertext, 40)) WHERE effect_id = %s AND kind = 'wire'",
        effect_id,
    )
    scene.wait_for(
        "its run has failed",
        "SELECT count(*) > 0 FROM dbos.operation_outputs"
        " WHERE workflow_uuid LIKE %s AND output LIKE '%%VaultError%%'",
        f"{effect_id}.%",
    )
    return effect_id


def tables_with(superuser: Connection[DictRow], schema: str, text: str) -> list[str]:
    """The tables of a schema that hold a text in any column of any row."""
    names = superuser.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind = 'r'",
        [schema],
    ).fetchall()
    assert names
    found = []
    for row in names:
        table = sql.Identifier(schema, row["relname"])
        query = sql.SQL("SELECT 1 FROM {} AS t WHERE t::text LIKE %s LIMIT 1").format(table)
        if superuser.execute(query, [f"%{text}%"]).fetchone():
            found.append(row["relname"])
    return sorted(found)


def test_the_engines_tables_hold_no_argument_no_answer_and_no_secret(
    superuser: Connection[DictRow], told: dict[str, str]
) -> None:
    assert tables_with(superuser, "dbos", MARK) == []


def test_the_search_finds_what_is_there(
    scene: Scene, superuser: Connection[DictRow], told: dict[str, str]
) -> None:
    found = tables_with(superuser, "dbos", told["told"])
    assert {"workflow_status", "workflow_input", "operation_outputs"} <= set(found)
    sent = scene.ledger("told").arrival_rows[0]
    assert ARGUMENT.encode() in sent.body
    assert ADDRESS.encode() in sent.body
    # The target keeps the digest of a credential.
    digest = hashlib.sha256(f"Bearer {SECRET}".encode()).hexdigest()
    assert sent.header("authorization") == f"sha256:{digest}"


@pytest.mark.parametrize("text", [ADDRESS, ANSWER, SECRET])
def test_the_brokers_own_tables_hold_what_is_sensitive_as_ciphertext_only(
    superuser: Connection[DictRow], told: dict[str, str], text: str
) -> None:
    assert tables_with(superuser, "effect_broker", text) == []


def test_the_logs_hold_none_of_it(scene: Scene, told: dict[str, str]) -> None:
    logs = {
        path.name: path.read_text()
        for path in scene.broker.directory.glob("*.log")
        if not path.name.startswith("target")
    }
    assert any(told["spoilt"] in text for text in logs.values()), "a failing step is reported"
    assert [name for name, text in logs.items() if MARK in text] == []


def test_a_step_gives_the_engine_its_fields_and_no_more(
    superuser: Connection[DictRow], told: dict[str, str]
) -> None:
    rows = superuser.execute("SELECT output, error FROM dbos.operation_outputs").fetchall()
    assert rows
    for row in rows:
        assert row["error"] is None
        assert set(json.loads(row["output"])) <= {
            "next",
            "version",
            "state",
            "reason",
            "now",
            "ordinal",
            "at",
            "alert",
        }
