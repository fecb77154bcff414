"""Distinctive secrets are planted wherever a broker takes one, real processes work on them, and
then each is looked for in all that the broker leaves behind.

Plain text belongs in few places, and each is named here: an argument that its contract does not
call sensitive in the preview of its effect, what a person has written in the record of a decision.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx
import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row

import warm_start
from api.webhooks import SECTION
from effect_broker.faultpoints import FaultPoint
from effect_broker.proof.broker import ProofBroker, wait_until
from effect_broker.proof.contracts import tuned
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.tenants import Tenants
from effect_contracts.document import ContractDocument
from hosting.scenes import MODES, Scene
from postgres import Database, RunningServer, clone, drop_database

# What may be seen nowhere, by where it was planted. Any part that is shown shows the mark.
PLANTED = {
    "token": "MARKER-token-5c1e",
    "header": "MARKER-header-5c1e",
    "file": "MARKER-file-5c1e",
    "password": "MARKER-password-5c1e",
    "webhook_secret": "MARKER-webhooksecret-5c1e",
    "sensitive": "MARKER-sensitive-5c1e@example.org",
    "answer": "MARKER-answer-5c1e",
    "webhook_body": "MARKER-webhookbody-5c1e",
}
# What has its place, and no other one.
ARGUMENT = "MARKED-argument-5c1e"
NOTE = "MARKED-note-5c1e"
PLACES = {
    ARGUMENT: {"effect_broker.effect_intents"},  # the preview
    NOTE: {"effect_broker.effect_resolutions"},
}
STATES = {
    "good": "succeeded",
    "killed": "succeeded",
    "refused": "failed_final",
    "probed": "succeeded",
    "unclear": "outcome_unknown",
    "hooked": "succeeded",
    "unsure": "outcome_unknown",
}
PLANS = {
    # What the target does, with a secret in each answer that can hold one.
    "refused": f'status(402, {{"error": "{PLANTED["answer"]}"}})',
    "probed": "commit;RST",
    "unclear": f'commit;status(500, {{"error": "{PLANTED["answer"]}"}})',
    "hooked": f'commit;status(200, "{PLANTED["answer"]}")',
    "unsure": "commit;RST",
}
SAFETIES = {"good": "idempotent", "killed": "idempotent", "refused": "idempotent",
            "probed": "reconcilable"}  # fmt: skip


@dataclass
class Scanned:
    """A broker after its work, with what was planted."""

    scene: Scene
    secrets: dict[str, str]
    effects: dict[str, str] = field(default_factory=dict)

    def texts_with(self, texts: dict[str, str]) -> list[tuple[str, str]]:
        """Return which secret was found where."""
        return [
            (name, place)
            for place, text in texts.items()
            for name, secret in self.secrets.items()
            if secret in text
        ]


@pytest.fixture(scope="module")
def module_database(running_server: RunningServer, template_name: str) -> Iterator[Database]:
    """One database for the tests of this module."""
    cloned = clone(running_server, template_name)
    yield cloned
    drop_database(running_server, cloned.name)


def with_password(url: str) -> str:
    """The URL with a password, which a server that trusts its clients does not ask for."""
    parts = urlsplit(url)
    user, _, address = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user}:{PLANTED['password']}@{address}"))


@pytest.fixture(scope="module")
def scanned(module_database: Database) -> Iterator[Scanned]:
    """A broker that has done all kinds of work, and whose processes still run."""
    directory = Path(tempfile.mkdtemp(prefix="effect-broker-security-"))
    secrets = directory / "secrets"
    secrets.mkdir()
    (secrets / "token").write_text(PLANTED["file"] + "\n")
    environment = {
        f"EFFECT_BROKER_{name}_DATABASE_URL": with_password(module_database.url_for(role))
        for name, role in (("API", DatabaseRole.API), ("WORKER", DatabaseRole.WORKER))
    } | {
        "EFFECT_BROKER_SECRET_TOKEN": PLANTED["token"],
        "EFFECT_BROKER_SECRET_HEADER": PLANTED["header"],
        "EFFECT_BROKER_SECRET_DIRECTORY": str(secrets),
        "EFFECT_BROKER_WEBHOOK_KEY_TEST": PLANTED["webhook_secret"],
        "EFFECT_BROKER_LOG_LEVEL": "DEBUG",
        "EFFECT_BROKER_METRICS_PORT": "0",
        "EFFECT_BROKER_MIGRATE_DATABASE_URL": with_password(module_database.superuser_url),
    }
    broker = ProofBroker(
        directory, module_database.superuser_url, environment=environment, migrated=True
    )
    with broker, Scene(broker) as scene:
        broker.prepare()
        broker.start_api()
        made = Scanned(scene, {**PLANTED, **ring_secrets(directory), "api_key": broker._api_key})
        work(made)
        yield made
    shutil.rmtree(directory, ignore_errors=True)


def ring_secrets(directory: Path) -> dict[str, str]:
    """Every key of the broker's own ring, as it is written there."""
    found: dict[str, str] = {}

    def walk(value: Any, path: str) -> None:
        if isinstance(value, dict):
            for name, member in value.items():
                walk(member, f"{path}/{name}")
        elif isinstance(value, str) and len(value) >= 32:
            found[f"ring{path}"] = value

    walk(json.loads((directory / "keyring.json").read_text()), "")
    assert len(found) >= 3
    return found


def document_of(scene: Scene, kind: str) -> ContractDocument:
    """A contract of a kind that uses every way to name a secret."""
    safety = SAFETIES.get(kind, "unsafe")
    scene.broker.target.client.set_mode(kind, MODES[safety])
    settings: dict[str, Any] = {}
    if safety == "reconcilable":
        settings["settlement_bound_seconds"] = 1.0
    made = tuned(f"demo-charge-{safety}", scene.broker.target.url, kind, **settings)
    members = json.loads(made.canonical())
    members["adapter"]["auth"] = {"kind": "bearer", "token": "env:EFFECT_BROKER_SECRET_TOKEN"}
    members["adapter"]["headers"] = {
        "X-Account-Token": {"secret": "env:EFFECT_BROKER_SECRET_HEADER"},
        "X-File-Token": {"secret": f"file:{scene.broker.directory}/secrets/token"},
    }
    if kind == "hooked":
        members["webhook"] = SECTION
    return ContractDocument.parse_yaml(json.dumps(members))


def work(made: Scanned) -> None:
    """Success, a killed worker, refusal, look-up, a webhook, and a person's word."""
    scene = made.scene
    for kind in STATES:
        scene.broker.apply(document_of(scene, kind))
        if kind in PLANS:
            scene.broker.target.client.script(PLANS[kind], kind=kind)
    scene.start_workers(2)
    scene.broker.arm(FaultPoint.AFTER_TARGET_ANSWER)
    made.effects["killed"] = submit(scene, "killed")
    scene.broker.wait_fired(FaultPoint.AFTER_TARGET_ANSWER)
    scene.ensure_workers(2)
    made.effects |= {kind: submit(scene, kind) for kind in STATES if kind != "killed"}
    wait_until(
        lambda: scene.broker.effect(made.effects["hooked"])["attempts"] or None, "it was sent"
    )
    scene.broker.settled(made.effects["hooked"])
    deliver(made)
    for kind, state in STATES.items():
        wait_until(partial(stands, made, kind, state), f"{kind} is {state}")
    resolve(made)


def stands(made: Scanned, kind: str, state: str) -> bool | None:
    """Whether an effect is in a state by now."""
    return made.scene.broker.effect(made.effects[kind])["state"] == state or None


def submit(scene: Scene, kind: str) -> str:
    arguments = {"order": ARGUMENT, "amount": 7, "currency": "eur",
                 "customer_email": PLANTED["sensitive"]}  # fmt: skip
    answer = scene.broker.submit(f"secrets:{kind}", f"proof.{kind}", arguments)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["effect_id"])


def deliver(made: Scanned) -> None:
    """A good delivery that settles an effect, and one that is not believed."""
    scene = made.scene
    key = scene.intent(made.effects["hooked"])["downstream_key"]
    charge = {"id": "ch_1", "amount": 7, "currency": "eur", "note": PLANTED["webhook_body"],
              "metadata": {"key": key, "order": ARGUMENT}}  # fmt: skip
    body = json.dumps(
        {"id": "evt_1", "type": "charge.succeeded", "data": {"object": charge}}
    ).encode()
    at = int(time.time())
    secret = PLANTED["webhook_secret"].encode()
    signed = hmac.new(secret, b"%d." % at + body, hashlib.sha256).hexdigest()
    path = "/v1/evidence/proof/proof-hooked"
    for signature, status in ((f"t={at},v1={signed}", 200), (f"t={at},v1={'0' * 64}", 404)):
        answer = httpx.post(
            f"{scene.broker.http.base_url}{path}",
            content=body,
            headers={"Stripe-Signature": signature, "Content-Type": "application/json"},
            trust_env=False,
        )
        assert answer.status_code == status, answer.text


def resolve(made: Scanned) -> None:
    """An operator with a key of his own concludes one effect; a stranger is refused."""
    scene = made.scene

    async def key(pool: Any) -> str:
        return (await Tenants(pool).create_key("proof", ("effects", "operate"))).api_key

    made.secrets["operator_key"] = scene.broker._administer(key)
    made.secrets["wrong_key"] = "eb_" + "MARKER-wrong-5c1e".ljust(43, "x")
    effect_id = made.effects["unsure"]
    seen_at = datetime.now(UTC).isoformat()
    statement = {
        "decision_id": "incident-1",
        "expected_version": scene.broker.effect(effect_id)["version"],
        "conclusion": "committed",
        "external_id": "ch_2",
        "reason": f"It stands in the dashboard. {NOTE}",
        "evidence": [{"kind": "dashboard", "observed_at": seen_at, "reference": "https://x/1"}],
    }
    for name, status in (("wrong_key", 401), ("api_key", 403), ("operator_key", 200)):
        answer = scene.broker.http.post(
            f"/v1/effects/{effect_id}/resolve",
            json=statement,
            headers={"Authorization": f"Bearer {made.secrets[name]}"},
        )
        assert answer.status_code == status, answer.text


def rows_with(database: Database, text: str) -> set[str]:
    """The tables of any schema that hold a text in any column of any row, bytes included."""
    found = set()
    with psycopg.connect(database.superuser_url, row_factory=dict_row) as connection:
        tables = connection.execute(
            "SELECT n.nspname AS schema, c.relname AS name FROM pg_class AS c"
            " JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'm')"
            " AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')"
        ).fetchall()
        assert len(tables) > 30
        for table in tables:
            query = sql.SQL("SELECT 1 FROM {} AS t WHERE t::text LIKE ANY (%s) LIMIT 1").format(
                sql.Identifier(table["schema"], table["name"])
            )
            # A column of bytes is shown in hexadecimal digits.
            wanted = [f"%{text}%", f"%{text.encode().hex()}%"]
            if connection.execute(query, [wanted]).fetchone():
                found.add(f"{table['schema']}.{table['name']}")
    return found


def logs_of(scene: Scene) -> dict[str, str]:
    """What the broker's processes have written; the target is not the broker."""
    return {
        path.name: path.read_text()
        for path in scene.broker.directory.glob("*.log")
        if not path.name.startswith("target")
    }


def said(scene: Scene, *arguments: str, **environment: str) -> str:
    """All that a command prints, with its errors."""
    ended = warm_start.run(
        ["effect_broker", *arguments], {**scene.broker.stack.environment, **environment}
    )
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended.stdout + ended.stderr


def test_the_scan_finds_what_is_there(scanned: Scanned, module_database: Database) -> None:
    """The planted things have been used: else nothing below would prove anything."""
    sent = scanned.scene.ledger("good").arrival_rows[0]
    assert PLANTED["sensitive"].encode() in sent.body
    # The target keeps the digest of what it was given to authenticate.
    digest = hashlib.sha256(f"Bearer {PLANTED['token']}".encode()).hexdigest()
    assert sent.header("authorization") == f"sha256:{digest}"
    assert sent.header("x-account-token")
    assert sent.header("x-file-token")
    assert rows_with(module_database, scanned.effects["good"]) >= {
        "dbos.workflow_status", "effect_broker.effect_intents", "effect_broker.effect_events",
    }  # fmt: skip


def test_no_table_of_any_schema_holds_a_secret(scanned: Scanned, module_database: Database) -> None:
    for name, secret in scanned.secrets.items():
        assert rows_with(module_database, secret) == set(), name


@pytest.mark.parametrize("text", [ARGUMENT, NOTE])
def test_what_is_no_secret_is_where_it_belongs_and_nowhere_else(
    scanned: Scanned, module_database: Database, text: str
) -> None:
    assert rows_with(module_database, text) == PLACES[text]
    assert [name for name, log in logs_of(scanned.scene).items() if text in log] == []


def test_no_log_holds_a_secret(scanned: Scanned) -> None:
    logs = logs_of(scanned.scene)
    assert len(logs) >= 3
    assert scanned.texts_with(logs) == []


def test_no_metric_holds_a_secret_or_an_argument(scanned: Scanned) -> None:
    pages = {}
    for name, log in logs_of(scanned.scene).items():
        if "metrics on port" not in log:
            continue
        port = log.partition("metrics on port ")[2].split()[0].rstrip(".")
        try:
            pages[name] = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text
        except httpx.ConnectError:
            continue  # it was killed
    assert len(pages) >= 2
    assert all("effect_broker_" in page for page in pages.values())
    assert scanned.texts_with(pages) == []
    assert not any(text in page for page in pages.values() for text in (ARGUMENT, NOTE))


def test_no_command_prints_a_secret(scanned: Scanned) -> None:
    scene, effects = scanned.scene, scanned.effects
    printed = {
        " ".join(command): said(scene, *command)
        for command in (
            ("effects", "list", "--json"),
            ("effects", "unresolved", "--json"),
            ("events", "export", "--tenant", "proof"),
            ("evidence", "list", "--tenant", "proof", "--json"),
            ("doctor",),
            ("keys", "list", "--json"),
            *(("effects", "inspect", effects[kind]) for kind in ("good", "hooked", "unclear")),
            ("receipts", "show", effects["good"], "--json"),
        )
    }
    for command, text in printed.items():
        assert len(text) > 100, (command, text)
        assert "Usage:" not in text, (command, text)
    assert effects["good"] in printed["effects list --json"]
    assert effects["unclear"] in printed["effects unresolved --json"]
    assert effects["unsure"] in printed["events export --tenant proof"]
    assert scanned.texts_with(printed) == []
    assert ARGUMENT not in printed["events export --tenant proof"]
    assert NOTE not in printed["events export --tenant proof"]


def test_no_error_text_holds_a_secret(scanned: Scanned) -> None:
    """A login that fails, a ring that is none, a wrong key: each is a sentence without it."""
    away = f"postgresql://effect_broker_worker:{PLANTED['password']}@127.0.0.1:1/x"
    broken = f'{{"hmac": "{PLANTED["token"]}"}}'
    texts = {
        "database": said(scanned.scene, "effects", "list", EFFECT_BROKER_WORKER_DATABASE_URL=away),
        "url": said(
            scanned.scene, "effects", "list",
            EFFECT_BROKER_WORKER_DATABASE_URL=f"mysql://x:{PLANTED['password']}@h/d",
        ),
        "ring": said(
            scanned.scene, "doctor", EFFECT_BROKER_KEY_RING=broken, EFFECT_BROKER_KEY_RING_FILE=""
        ),
        "worker": said(scanned.scene, "worker", EFFECT_BROKER_WORKER_DATABASE_URL=away),
        "revoke": said(scanned.scene, "keys", "revoke", scanned.secrets["operator_key"]),
    }  # fmt: skip
    for what, text in texts.items():
        assert text.strip(), what
    assert scanned.texts_with(texts) == []


def test_no_answer_of_the_api_holds_a_secret_but_the_results_of_ones_own_effects(
    scanned: Scanned,
) -> None:
    http = scanned.scene.broker.http
    answers = {}
    for kind, effect_id in scanned.effects.items():
        for path in ("", "/history"):
            answer = http.get(f"/v1/effects/{effect_id}{path}")
            assert answer.status_code == 200
            answers[f"{kind}{path}"] = answer.text
    operator = {"Authorization": f"Bearer {scanned.secrets['operator_key']}"}
    deliveries = http.get("/v1/evidence", headers=operator)
    assert deliveries.json()["deliveries"]
    answers["deliveries"] = deliveries.text
    assert scanned.texts_with(answers) == []
