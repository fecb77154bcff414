"""Certification: each lie of a target is found by its trial, and what held is signed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from cli.commands import Cli
from effect_adapters.http import HttpAdapter
from effect_broker.certification import (
    KEY_IS_KEPT,
    LOST_ANSWER,
    Terms,
    TrialRecord,
    certifiable,
    certify,
    is_sandbox,
    plan,
)
from effect_broker.clock import SystemClock, new_id
from effect_broker.conformance import Trial, drifted_arguments
from effect_broker.keyring import (
    new_key_ring,
    parse_key_ring,
    ring_public_keys,
    ring_signer,
)
from effect_broker.proof.contracts import charge, tuned
from effect_broker.proof.target.client import TargetClient
from effect_broker.proof.target.modes import ModeName
from effect_broker.proof.target.process import TargetProcess
from effect_broker.protocol.ports import Change, FreezeContract
from effect_broker.store.api import PostgresApiStore
from effect_broker.store.pool import make_pool
from effect_broker.store.postgres import PostgresStore
from effect_broker.store.roles import DatabaseRole
from effect_contracts.certificates import (
    Flaw,
    read_signed_certificate,
    signed_certificate,
    verify_certificate,
)
from effect_contracts.document import ContractDocument
from effect_contracts.signed_receipts import read_public_keys
from postgres import Database

IDEMPOTENT, RECONCILABLE = "demo-charge-idempotent", "demo-charge-reconcilable"
ARGUMENTS: Any = charge("certify")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetProcess]:
    with TargetProcess(tmp_path_factory.mktemp("target") / "ledger.db") as process:
        yield process


@pytest.fixture
def target(running: TargetProcess) -> TargetClient:
    running.client.reset()
    return running.client


class TargetTime:
    """A clock whose waits move the target's clock, so that nobody waits for them."""

    def __init__(self, target: TargetClient) -> None:
        self._target, self._system, self._ahead = target, SystemClock(), 0.0

    def boot_seconds(self) -> float:
        return self._system.boot_seconds() + self._ahead

    async def sleep(self, seconds: float) -> None:
        if seconds > 0:
            await asyncio.to_thread(self._target.advance_clock, seconds)
            self._ahead += seconds


def on_trial(target: TargetClient, name: str, **members: Any) -> Trial:
    document = tuned(name, target.base_url, "charges", attempt_deadline_seconds=5.0, **members)
    adapter = HttpAdapter(lambda _: "")
    drifted = drifted_arguments(document, adapter, ARGUMENTS)
    return Trial(document, adapter, ARGUMENTS, drifted, TargetTime(target), new_id)


def tried(trial: Trial, **terms: Any) -> dict[str, TrialRecord]:
    records = asyncio.run(certify(trial, Terms(**terms)))
    return {record.trial: record for record in records}


def verdicts(records: dict[str, TrialRecord], verdict: str) -> set[str]:
    return {name for name, record in records.items() if record.verdict == verdict}


@pytest.mark.parametrize(
    ("name", "mode", "settings", "caught"),
    [
        ("ignores keys", "ignore_key", {}, {"same_key_same_effect", "drift_is_refused",
                                            "lost_answer_is_settled", "ten_at_once", KEY_IS_KEPT}),
        ("accepts drift", "dedupe", {"drift": "replay"}, {"drift_is_refused"}),
        ("forgets keys early", "dedupe", {"ttl_seconds": 60.0}, {KEY_IS_KEPT}),
    ],
)  # fmt: skip
def test_a_lie_about_keys_is_found_by_its_trial(
    target: TargetClient, name: str, mode: ModeName, settings: dict[str, Any], caught: set[str]
) -> None:
    target.set_mode("charges", mode, **settings)
    records = tried(on_trial(target, IDEMPOTENT), retention_wait_seconds=120.0)
    assert verdicts(records, "broken") == caught, name
    assert not certifiable(tuple(records.values()))


def test_a_key_that_is_forgotten_with_its_client_is_found_by_the_broken_connection_alone(
    target: TargetClient,
) -> None:
    """Whoever hears the answer gets a target that keeps its word."""
    target.set_mode("charges", "forget_unheard")
    # The plain one, its repeat, the drifted one; the fourth is still at work when its client goes.
    target.script(*["ok"] * 3, "commit;delay(1)", method="POST")
    records = tried(on_trial(target, IDEMPOTENT))
    assert target.plans_left() == []
    assert verdicts(records, "broken") == {LOST_ANSWER}
    assert "ch_000002 was made and its answer lost; found was ch_000003" in (
        records[LOST_ANSWER].seen
    )
    assert not certifiable(tuple(records.values()))


def test_two_effects_of_a_connection_that_was_never_answered_are_found_by_the_look_up(
    target: TargetClient,
) -> None:
    target.set_mode("charges", "forget_unheard")
    target.script(*["ok"] * 2, "commit;delay(1);FIN", method="POST")
    looked_up = on_trial(target, RECONCILABLE, safety="idempotent", key_retention_seconds=3600.0)
    looked_up.drifted = None
    records = tried(looked_up)
    assert target.plans_left() == []
    assert verdicts(records, "broken") == {LOST_ANSWER}
    assert "the look-up said mismatch" in records[LOST_ANSWER].seen
    target.reset()
    target.script(*["ok"] * 2, "commit;FIN", method="POST")
    assert tried(looked_up)[LOST_ANSWER].verdict == "holds"


@pytest.mark.parametrize(
    ("plans", "verdict"),
    [
        (["commit;FIN"], "not_shown"),
        (["commit;RST"], "not_shown"),
        (["FIN"], "not_shown"),
        (["FIN", 'status(409,{"error":"idempotency_error"})'], "broken"),
    ],
)
def test_a_target_that_says_nothing_on_a_broken_connection_has_to_take_the_key_again(
    target: TargetClient, plans: list[str], verdict: str
) -> None:
    """Without a look-up that is all that can be seen of it, and the certificate says so."""
    target.script(*["ok"] * 3, *plans, method="POST")
    records = tried(on_trial(target, IDEMPOTENT), retention_wait_seconds=86_400.0)
    assert target.plans_left() == []
    assert verdicts(records, verdict) == {LOST_ANSWER}
    assert certifiable(tuple(records.values())) is (verdict == "not_shown")


@pytest.mark.parametrize(
    ("plan_of_the_lost", "verdict"),
    [("commit;FIN", "holds"), ("commit;delay(0.2)", "holds"), ("FIN", "not_shown")],
)
def test_what_a_broken_connection_has_made_is_found_by_the_look_up(
    target: TargetClient, plan_of_the_lost: str, verdict: str
) -> None:
    target.set_mode("charges", "lookup")
    target.script("ok", plan_of_the_lost, method="POST")
    records = tried(on_trial(target, RECONCILABLE), lag_samples=1)
    assert target.plans_left() == []
    assert records[LOST_ANSWER].verdict == verdict
    assert verdicts(records, "broken") == set()


def test_keys_that_race_are_found_by_the_requests_at_once_alone(target: TargetClient) -> None:
    """A target that honours keys which come one after the other."""
    target.set_mode("charges", "racing")
    records = tried(on_trial(target, IDEMPOTENT), retention_wait_seconds=86_400.0)
    assert verdicts(records, "broken") == {"ten_at_once"}
    assert verdicts(records, "holds") == set(records) - {"ten_at_once"}


@pytest.mark.parametrize(
    ("mode", "lag_seconds", "caught"),
    [
        ("lookup", 30.0, {"found_once_by_key", "lost_answer_is_settled", "settlement_lag"}),
        ("neither", 0.0, {"found_once_by_key", "lost_answer_is_settled", "settlement_lag",
                          "absence_is_shown"}),
    ],
)  # fmt: skip
def test_a_look_up_that_lags_beyond_its_bound_or_denies_what_is_there_is_found(
    target: TargetClient, mode: ModeName, lag_seconds: float, caught: set[str]
) -> None:
    target.set_mode("charges", mode, search_lag_seconds=lag_seconds)
    records = tried(on_trial(target, RECONCILABLE), lag_samples=2)
    assert verdicts(records, "broken") == caught


def test_a_look_up_that_denies_later_what_it_has_shown_is_found(target: TargetClient) -> None:
    target.set_mode("charges", "lookup")
    empty = 'status(200,{"data":[],"has_more":false})'
    # Found once, absence, the lost one twice; then two samples are seen, and one is denied.
    target.script(*["ok"] * 6, empty, method="GET")
    records = tried(on_trial(target, RECONCILABLE), lag_samples=2)
    assert target.plans_left() == []
    assert verdicts(records, "broken") == {"settlement_lag"}
    assert "denied later" in records["settlement_lag"].seen


def test_the_lag_of_an_honest_look_up_is_measured_against_its_bound(target: TargetClient) -> None:
    target.set_mode("charges", "lookup", search_lag_seconds=1.0)
    trial = on_trial(target, RECONCILABLE, settlement_bound_seconds=5.0)
    records = tried(trial, lag_samples=3)
    assert verdicts(records, "holds") == set(records)
    assert trial.figures["settlement_lag_samples"] == 3
    assert 0.9 < trial.figures["settlement_lag_seconds_max"] < 4


def test_what_is_sent_is_what_was_said_before_and_what_was_not_waited_for_is_not_shown(
    target: TargetClient,
) -> None:
    trial, terms = on_trial(target, IDEMPOTENT), Terms(retention_wait_seconds=30.0)
    said = plan(trial.document, terms, drifts=True)
    records = tried(trial, retention_wait_seconds=30.0)
    ledger = target.ledger(rows=False)
    assert (ledger.arrivals, ledger.effects) == (said.requests, said.objects)
    assert sum(record.requests for record in records.values()) == said.requests
    assert verdicts(records, "not_shown") == {KEY_IS_KEPT}
    assert 30 <= trial.figures["key_held_seconds"] < 60
    assert certifiable(tuple(records.values()))
    target.reset()
    long = tried(on_trial(target, IDEMPOTENT), retention_wait_seconds=86_400.0)
    assert verdicts(long, "holds") == set(long)
    reconcilable = on_trial(target, RECONCILABLE)
    target.reset()
    target.set_mode("charges", "lookup")
    tried(reconcilable)
    ledger = target.ledger(rows=False)
    said = plan(reconcilable.document, Terms(), drifts=True)
    assert (ledger.arrivals, ledger.effects) == (said.requests, said.objects)


def test_a_sandbox_is_this_machine_or_a_place_that_no_contract_names() -> None:
    own, other = "https://api.example.com#a", "https://sandbox.example.com#a"
    assert is_sandbox("http://127.0.0.1:8090#a", own, [], production=False)
    assert is_sandbox("http://[::1]:8090#a", own, [], production=False)
    assert is_sandbox(other, own, [own], production=False)
    assert not is_sandbox(own, own, [], production=False)
    assert not is_sandbox("https://api.example.com#test", own, [], production=False)
    # The same machine, by another spelling of it.
    for spelling in ("https://api.example.com.#a", "http://api.example.com#a"):
        assert not is_sandbox(spelling, own, [], production=False)
    assert not is_sandbox(other, own, [other], production=False)
    assert not is_sandbox("http://127.0.0.1:8090#a", own, [], production=True)


# The command ----------------------------------------------------------------------------------


Certify = Callable[..., Any]


@pytest.fixture
def contract(target: TargetClient) -> ContractDocument:
    """A contract whose own target is elsewhere; the demo target is its sandbox."""
    return tuned(IDEMPOTENT, "https://api.example.com", "charges", attempt_deadline_seconds=5.0)


@pytest.fixture
def certify_it(
    broker: Cli, target: TargetClient, contract: ContractDocument, tmp_path: Path
) -> Certify:
    """Certify the contract at the demo target; the certificate is `certificate.json`."""
    file, arguments = tmp_path / "contract.yaml", tmp_path / "arguments.json"
    file.write_bytes(contract.canonical())
    arguments.write_text(json.dumps(ARGUMENTS))

    def run(*more: object) -> Any:
        return broker(
            "contracts", "certify", file, "--arguments", arguments, "--retention-wait", "0s",
            "--out", tmp_path / "certificate.json", *more,
        )  # fmt: skip

    return run


def test_an_honest_target_gets_a_certificate_that_verifies_offline_until_it_ends(
    broker: Cli,
    certify_it: Certify,
    target: TargetClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = certify_it("--target", target.base_url, "--json")
    assert ended.code == 0, ended.err
    assert "17 requests" in ended.err
    assert ended.json["certified"]
    place, keys = tmp_path / "certificate.json", tmp_path / "keys.json"
    (listed,) = broker("contracts", "certificate", "list", "--json").json
    assert (listed["counts"], listed["target"]) == (True, f"{target.base_url}#demo")
    fetched = broker("contracts", "certificate", "fetch", listed["certificate_id"]).out
    assert json.loads(fetched) == json.loads(place.read_text())
    keys.write_text(broker("keys", "public").out)

    verify = ("contracts", "certificate", "verify")
    for name in ("API", "WORKER", "MIGRATE"):
        monkeypatch.delenv(f"EFFECT_BROKER_{name}_DATABASE_URL")
    monkeypatch.delenv("EFFECT_BROKER_KEY_RING")
    good = broker(*verify, place, "--public-keys", keys, "--contract", tmp_path / "contract.yaml")
    assert (good.code, good.out.startswith("good: signed by key k1")) == (0, True)
    shown = broker("contracts", "certificate", "show", place)
    assert (shown.code, "ten_at_once" in shown.out) == (0, True)

    other = tmp_path / "other.yaml"
    other.write_bytes((tmp_path / "contract.yaml").read_bytes().replace(b'"demo"', b'"demo2"'))

    def failed(text: str, *more: object) -> str:
        ended = broker(
            *verify, "-", "--public-keys", keys, "--json", *more, stdin=text.encode()
        )  # fmt: skip
        assert ended.code == 1
        return str(ended.json["failed"])

    document = json.loads(place.read_text())
    assert failed(place.read_text(), "--contract", other) == Flaw.CONTRACT
    forged = {**document, "content": document["content"].replace('"demo"', '"demo2"')}
    assert failed(json.dumps(forged)) == Flaw.DIGEST
    forged["digest"] = sha256(forged["content"].encode()).hexdigest()
    assert failed(json.dumps(forged)) == Flaw.SIGNATURE
    unknown = {**document, "signatures": [{**document["signatures"][0], "key_id": "k9"}]}
    assert failed(json.dumps(unknown)) == Flaw.KEY
    assert failed(json.dumps({**document, "content": "{}"})) == Flaw.CONTENT
    refused = broker(*verify, "-", "--public-keys", keys, stdin=b'{"x": 1}').refused()
    assert "is no certificate" in refused
    ends_at = datetime.fromisoformat(json.loads(document["content"])["expires_at"])
    signed, known = read_signed_certificate(place.read_bytes()), read_public_keys(keys.read_bytes())
    assert verify_certificate(signed, known, ends_at - timedelta(microseconds=1)).good
    assert verify_certificate(signed, known, ends_at).flaw is Flaw.EXPIRY


def test_a_signature_of_a_receipt_is_none_of_a_certificate(
    certify_it: Certify, target: TargetClient, ring: str, tmp_path: Path
) -> None:
    assert certify_it("--target", target.base_url).code == 0
    place = tmp_path / "certificate.json"
    document = json.loads(place.read_text())
    keys = parse_key_ring(ring, source="test", production=False)
    signer = ring_signer(keys)
    assert signer is not None
    content = document["content"].encode()
    for made, flaw in (
        (signer.sign_certificate(content), None),
        (signer.sign(content), Flaw.SIGNATURE),
    ):
        signed = signed_certificate(content, made.key_id, made.signature)
        read = read_signed_certificate(json.dumps(signed).encode())
        now = datetime.fromisoformat(json.loads(content)["ended_at"])
        assert verify_certificate(read, ring_public_keys(keys), now).flaw is flaw


def test_nothing_is_sent_to_what_may_be_production_and_a_lie_is_not_certified(
    broker: Cli, certify_it: Certify, contract: ContractDocument, target: TargetClient,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    assert "may be a production target" in certify_it().refused()
    other = contract.canonical().replace(b"api.example.com", b"sandbox.example.com")
    (tmp_path / "other.yaml").write_bytes(other.replace(b"proof-charges", b"other"))
    assert broker("contracts", "apply", tmp_path / "other.yaml").code == 0
    assert "a contract in use" in certify_it("--target", "https://sandbox.example.com").refused()
    assert "host and port only" in certify_it("--target", f"{target.base_url}/charges").refused()
    with monkeypatch.context() as patched:
        patched.setenv("EFFECT_BROKER_KEY_RING", json.dumps(without_signing()))
        assert "no signing key" in certify_it("--target", target.base_url).refused()
    assert target.ledger(rows=False).arrivals == 0
    target.set_mode("charges", "ignore_key")
    ended = certify_it("--target", target.base_url)
    assert (ended.code, "BROKEN" in ended.out) == (1, True)
    assert not (tmp_path / "certificate.json").exists()
    assert broker("contracts", "certificate", "list", "--json").json == []


def without_signing() -> dict[str, Any]:
    ring: dict[str, Any] = json.loads(new_key_ring("k1", development=True))
    del ring["signing"]
    return ring


def test_a_lie_found_in_use_revokes_what_was_tried_before_it_and_nothing_later(
    broker: Cli, certify_it: Certify, target: TargetClient, database: Database, tmp_path: Path
) -> None:
    def standing() -> list[bool]:
        listed = broker("contracts", "certificate", "list", "--json").json
        return [one["counts"] for one in listed]

    def doctor() -> tuple[str, str]:
        found = {f["check"]: f for f in broker("doctor", "--json").json["findings"]}
        return found["certificates"]["level"], found["certificates"]["text"]

    broker("tenants", "create", "acme")
    assert broker("contracts", "apply", tmp_path / "contract.yaml").code == 0
    assert certify_it("--target", target.base_url).code == 0
    assert standing() == [True]
    arguments = json.dumps(ARGUMENTS)
    submit = ("effects", "submit", "--tool", "proof.charges", "--arguments", arguments, "--json")
    effect_id = UUID(broker(*submit, "--key", "order-1").json["effect_id"])
    freeze(database, DatabaseRole.WORKER, effect_id)
    assert standing() == [False]
    assert "contract_violation" in broker("contracts", "certificate", "list").out
    level, text = doctor()
    assert (level, "contract_violation" in text) == ("warn", True)
    # Trials that begin after the lie are another look at the target; the same lie ends them not.
    assert certify_it("--target", target.base_url).code == 0
    freeze(database, DatabaseRole.WORKER, effect_id)
    assert standing() == [True, False]
    # What a webhook or a person shows, the API's role records.
    second = UUID(broker(*submit, "--key", "order-2").json["effect_id"])
    freeze(database, DatabaseRole.API, second)
    assert standing() == [False, False]
    assert certify_it("--target", target.base_url).code == 0
    latest = broker("contracts", "certificate", "list", "--json").json[0]["certificate_id"]
    revoke = ("contracts", "certificate", "revoke")
    assert broker(*revoke, latest, "--reason", "The sandbox was the wrong one.").code == 0
    assert standing() == [False, False, False]
    assert "no certificate" in broker(*revoke, str(uuid4()), "--reason", "x").refused()
    assert "no id" in broker(*revoke, "x", "--reason", "x").refused(2)
    with psycopg.connect(database.superuser_url, autocommit=True) as superuser:
        for table in ("certificates", "certificate_revocations"):
            for change in ("DELETE FROM", "TRUNCATE"):
                with pytest.raises(psycopg.Error, match=r"kept as they are|foreign key"):
                    superuser.execute(f"{change} effect_broker.{table}".encode())


def freeze(database: Database, role: DatabaseRole, effect_id: UUID) -> None:
    """Do to the contract of an effect what is done when its target is found to lie."""

    async def write() -> None:
        with psycopg.connect(database.superuser_url) as superuser:
            row = superuser.execute(
                "SELECT tenant_id FROM effect_broker.effect_intents WHERE effect_id = %s",
                [effect_id],
            ).fetchone()
        assert row is not None
        async with make_pool(database.url_for(role), None, application_name="test") as pool:
            store = PostgresStore(pool) if role is DatabaseRole.WORKER else PostgresApiStore(pool)
            await store.change(
                row[0], effect_id, lambda s: Change(s, (FreezeContract("contract_violation"),))
            )

    asyncio.run(write())


def test_a_certificate_that_does_not_meet_the_contracts_demand_says_so_when_it_is_made(
    broker: Cli, target: TargetClient, contract: ContractDocument, tmp_path: Path
) -> None:
    arguments = tmp_path / "arguments.json"
    arguments.write_text(json.dumps(ARGUMENTS))

    def certified(**demand: Any) -> str:
        file = tmp_path / "demanding.yaml"
        document = {**json.loads(contract.canonical()), "oversight": {"certificate": demand}}
        file.write_text(json.dumps(document))
        ended = broker(
            "contracts", "certify", file, "--arguments", arguments, "--retention-wait", "0s",
            "--target", target.base_url, "--out", tmp_path / "certificate.json",
        )  # fmt: skip
        assert ended.code == 0, ended.err
        return str(ended.err)

    assert "oversight.certificate.sandbox, not at" in certified()
    late = certified(sandbox=target.base_url, trials=[KEY_IS_KEPT])
    assert f"demands {KEY_IS_KEPT} to hold" in late
    assert "demands" not in certified(sandbox=target.base_url, trials=["ten_at_once"])
