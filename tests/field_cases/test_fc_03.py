"""FC-03: somebody below the caller sends the request once more, and nobody above can see it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.commands import Cli, Ended
from effect_broker.proof.contracts import charge
from effect_broker.proof.http_proxy import HttpProxy
from effect_broker.proof.target.process import TargetProcess
from field_cases.cases import Case, Offer


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetProcess]:
    """A target of this module's own, at the end of the route that is tried."""
    with TargetProcess(tmp_path_factory.mktemp("counting") / "ledger.sqlite") as target:
        yield target


@pytest.fixture
def doubling(counting: TargetProcess) -> Iterator[HttpProxy]:
    """A proxy that delivers each request twice, as a retry of its own would."""
    with HttpProxy(counting.url, deliveries=2) as proxy:
        yield proxy


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line, in this process."""
    return Cli(monkeypatch, capsys)


@pytest.mark.parametrize(
    ("safety", "state", "requests"),
    [("unsafe", "outcome_unknown", 1), ("idempotent", "succeeded", 2)],
)
def test_fc_03_a_connection_is_never_used_twice_so_nothing_is_replayed_on_it(
    case: Case, safety: str, state: str, requests: int
) -> None:
    offer = case.offer(safety)
    first = offer.submit("first")
    offer.judge(first, state="succeeded", requests=1, effects=1)
    offer.script("commit;RST")
    second = offer.submit("second")
    offer.judge(second, state=state, requests=requests, effects=1)
    assert offer.codes(second)[0] == ("ambiguous", "reset")
    assert {row.header("connection") for row in offer.requests()} == {"close"}


def test_fc_03_what_a_proxy_delivers_twice_is_one_effect_where_the_key_is_honoured(
    case: Case, counting: TargetProcess, doubling: HttpProxy
) -> None:
    offer = case.offer("idempotent", target=counting, origin=doubling.url)
    effect_id = offer.submit()
    offer.judge(effect_id, state="succeeded", requests=2, effects=1, redelivered=1)
    assert len(offer.attempts(effect_id)) == 1
    assert offer.receipt(effect_id)["external_id"] == offer.effect_ids(effect_id)[0]


def test_fc_03_a_route_that_delivers_twice_is_not_certified(
    case: Case, counting: TargetProcess, doubling: HttpProxy, cli: Cli, tmp_path: Path
) -> None:
    unsafe = case.offer("unsafe", target=counting, origin=doubling.url)
    effect_id = unsafe.submit()
    # The broker has sent once and cannot see it; hence the trial before the route is used.
    unsafe.judge(effect_id, state="succeeded", requests=2, effects=2, redelivered=1)
    assert len(unsafe.attempts(effect_id)) == 1

    trial = Case(case.scene, f"{case.name}_trial")  # what it sends belongs to no effect
    refused = tried(cli, trial.offer("unsafe", target=counting, origin=doubling.url), tmp_path)
    judgement, text = verdict(refused)
    assert (refused.code, refused.json["conforms"], judgement) == (1, False, "broken")
    assert text.startswith("one attempt, two arrivals")
    certified = tried(cli, trial.offer("unsafe", target=counting), tmp_path)
    assert (certified.code, certified.json["conforms"]) == (0, True)
    assert verdict(certified) == ("kept", "one attempt, one arrival")
    tolerated = tried(
        cli, trial.offer("idempotent", target=counting, origin=doubling.url), tmp_path
    )
    assert (tolerated.code, verdict(tolerated)[0]) == (0, "kept")
    assert "two arrivals" in verdict(tolerated)[1]


def test_fc_03_a_route_to_an_unsafe_target_is_not_certified_uncounted(
    case: Case, counting: TargetProcess, cli: Cli, tmp_path: Path
) -> None:
    trial = Case(case.scene, f"{case.name}_trial")
    offer = trial.offer("unsafe", target=counting)
    ended = tried(cli, offer, tmp_path, counted=False)
    assert (ended.code, ended.json["conforms"], verdict(ended)[0]) == (3, False, "unproved")
    elsewhere = tried(cli, offer, tmp_path, counter=case.broker.target.url)
    assert (elsewhere.code, verdict(elsewhere)[0]) == (3, "unproved")


def tried(
    cli: Cli, offer: Offer, directory: Path, *, counted: bool = True, counter: str | None = None
) -> Ended:
    """Try the route as an operator does, with the target at its end as the counter."""
    assert offer.document is not None
    contract, arguments = directory / f"{offer.kind}.yaml", directory / f"{offer.kind}.json"
    contract.write_bytes(offer.document.canonical())
    arguments.write_text(json.dumps(charge("conformance")))
    words = ["contracts", "conformance", str(contract), "--arguments", str(arguments), "--json"]
    if counted:
        words += ["--counter", counter or offer.target.url]
    return cli(*words)


def verdict(ended: Ended) -> tuple[str, str]:
    """What the trial says of the route."""
    (found,) = [c for c in ended.json["checks"] if c["check"] == "one_attempt_one_arrival"]
    return found["judgement"], found["text"]
