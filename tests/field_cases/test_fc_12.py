"""FC-12: "never sent" and "the reply was lost" are two things."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from effect_broker.proof.broker import wait_until
from effect_broker.proof.target.process import TargetProcess
from field_cases.cases import SETTLE_SECONDS, Case, Document, Offer
from field_cases.odd_workers import paused
from field_cases.own_hosts import (
    NOBODY,
    OWN_HOSTS_PROGRAM,
    own_hosts_environment,
    why_no_own_hosts,
)
from tools import could_not_run

SAFETIES = ("idempotent", "reconcilable", "unsafe")
NOWHERE = "https://no-such-host.invalid"  # RFC 2606: this name never resolves
PATIENT = {"attempts_max": 100}
IMPATIENT = {"attempts_max": 2}


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetProcess]:
    """A target of this module's own, which a test may take down."""
    with TargetProcess(tmp_path_factory.mktemp("other") / "ledger.sqlite") as target:
        yield target


@contextmanager
def down(target: TargetProcess) -> Iterator[None]:
    """Nobody listens on the target's port for the length of the block."""
    target.kill()
    try:
        yield
    finally:
        target.start()


def tried_twice(offer: Offer, effect_id: str) -> bool | None:
    """True once there is more than one attempt."""
    return len(offer.attempts(effect_id)) > 1 or None


@pytest.mark.timeout(300)
def test_fc_12_a_closed_port_is_no_doubt_and_costs_nothing(
    case: Case, other: TargetProcess
) -> None:
    offers = [case.offer(safety, target=other, retry=PATIENT) for safety in SAFETIES]
    with down(other):
        begun = [(offer, offer.submit()) for offer in offers]
        for offer, effect_id in begun:
            wait_until(partial(tried_twice, offer, effect_id), "a second try", SETTLE_SECONDS)
    for offer, effect_id in begun:
        offer.judge(effect_id, state="succeeded", requests=1, effects=1)
        assert "retryable" in offer.states(effect_id)
        assert "outcome_unknown" not in offer.states(effect_id)
        refused = [a for a in offer.attempts(effect_id) if a["outcome"] == "not_sent"]
        assert {a["code"] for a in refused} == {"connect_refused"}
        assert not any(a["bytes_may_have_left"] for a in refused)


def called(name: str, target: TargetProcess) -> Callable[[Document], None]:
    """The amendment of a contract by which the target is known by name; it speaks plain HTTP."""
    named = target.url.replace("127.0.0.1", name)
    assert named != target.url

    def amend(document: Document) -> None:
        adapter = json.loads(json.dumps(document["adapter"]).replace(target.url, named))
        document["adapter"] = {**adapter, "allow_plaintext": True}

    return amend


@pytest.mark.timeout(300)
def test_fc_12_a_name_that_resolves_later_is_no_doubt_and_costs_nothing(
    case: Case, tmp_path: Path
) -> None:
    """The worker asks the C library, whose hosts file gets the name while the broker retries."""
    hosts = tmp_path / "hosts"
    hosts.write_text(NOBODY)
    if (reason := why_no_own_hosts(hosts)) is not None:
        could_not_run(reason)
    name = "shop.invalid"
    amend = called(name, case.broker.target)
    offers = [case.offer(safety, amend=amend, retry=PATIENT) for safety in SAFETIES]
    others = [worker for worker in case.scene.workers if worker.alive]
    (worker,) = case.scene.start_workers(
        1, program=OWN_HOSTS_PROGRAM, **own_hosts_environment(hosts)
    )
    with paused(*others):
        begun = [(offer, offer.submit()) for offer in offers]
        for offer, effect_id in begun:
            wait_until(partial(tried_twice, offer, effect_id), "a second try", SETTLE_SECONDS)
        hosts.write_text(f"{NOBODY}127.0.0.1 {name}\n")
        for offer, effect_id in begun:
            offer.judge(effect_id, state="succeeded", requests=1, effects=1)
    worker.kill()
    for offer, effect_id in begun:
        assert "retryable" in offer.states(effect_id)
        assert "outcome_unknown" not in offer.states(effect_id)
        unsent = [a for a in offer.attempts(effect_id) if a["outcome"] == "not_sent"]
        assert {a["code"] for a in unsent} == {"dns_failed"}
        assert not any(a["bytes_may_have_left"] for a in unsent)


@pytest.mark.parametrize(
    ("obstacle", "code"),
    [
        ("closed_port", "connect_refused"),
        ("no_such_name", "dns_failed"),
        ("no_tls", "tls_failed"),
    ],
)
def test_fc_12_what_was_never_sent_fails_as_never_sent(
    case: Case, other: TargetProcess, obstacle: str, code: str
) -> None:
    origin = {
        "closed_port": other.url,
        "no_such_name": NOWHERE,
        "no_tls": other.url.replace("http:", "https:"),  # it speaks plain HTTP
    }[obstacle]
    offers = [
        case.offer(safety, target=other, origin=origin, retry=IMPATIENT) for safety in SAFETIES
    ]

    def to_the_end() -> list[str]:
        ids = [offer.submit() for offer in offers]
        for offer, effect_id in zip(offers, ids, strict=True):
            offer.settled(effect_id)
        return ids

    if obstacle == "closed_port":
        with down(other):
            ids = to_the_end()
    else:
        ids = to_the_end()
    for offer, effect_id in zip(offers, ids, strict=True):
        offer.judge(effect_id, state="failed_final", reason="never_sent", requests=0, effects=0)
        attempts = offer.attempts(effect_id)
        assert [a["outcome"] for a in attempts] == ["not_sent"] * IMPATIENT["attempts_max"]
        assert {a["code"] for a in attempts} == {code}
        assert "outcome_unknown" not in offer.states(effect_id)


@pytest.mark.parametrize(
    ("plan", "unread", "effects"), [("accept;RST", 1, 0), ("commit;FIN", 0, 1)]
)
def test_fc_12_what_may_have_been_sent_is_doubt(
    case: Case, other: TargetProcess, plan: str, unread: int, effects: int
) -> None:
    offer = case.offer("unsafe", target=other)
    if unread:
        other.client.script(plan)  # before a byte is read, no kind is known
    else:
        offer.script(plan)
    effect_id = offer.submit()
    requests = 1 - unread
    offer.judge(
        effect_id, state="outcome_unknown", requests=requests, effects=effects, unread=unread
    )
    attempt = offer.attempts(effect_id)[-1]
    assert (attempt["outcome"], attempt["bytes_may_have_left"]) == ("ambiguous", True)
