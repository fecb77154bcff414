"""The shipped demo contracts, carried out at the demo target: adapter and truth must agree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from adapter_calls import KEY, budget, dispatch_call, probe_call, secrets
from effect_adapters.base import Answer, Finding
from effect_adapters.http import HttpAdapter
from effect_broker.proof.target.client import TargetClient
from effect_broker.proof.target.process import TargetProcess
from effect_contracts.catalog import catalog_documents
from effect_contracts.document import with_origin
from effect_contracts.facts import Outcome, Verdict

ARGUMENTS: dict[str, Any] = {"order": "o-1", "amount": 700, "currency": "eur"}
ADAPTER = HttpAdapter(secrets)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetProcess]:
    with TargetProcess(tmp_path_factory.mktemp("demo") / "ledger.db") as process:
        yield process


@pytest.fixture
def target(running: TargetProcess) -> TargetClient:
    running.client.reset()
    return running.client


class Demo:
    """One demo contract at the running target."""

    def __init__(self, running: TargetProcess, name: str) -> None:
        self.document = with_origin(catalog_documents()[name], running.url)
        self.wire = ADAPTER.render(self.document, ARGUMENTS, KEY)

    async def send(self, seconds: float = 3.0) -> Answer:
        call = dispatch_call(self.document, self.wire, within=budget(seconds))
        return await ADAPTER.dispatch(call)

    async def look(self, **arguments: Any) -> Finding:
        call = probe_call(self.document, arguments={**ARGUMENTS, **arguments})
        return await ADAPTER.probe(call)


def counts(target: TargetClient) -> tuple[int, int]:
    view = target.ledger(rows=False)
    return view.arrivals, view.effects


PLANS: list[tuple[str, Outcome, int]] = [
    ("ok", Outcome.COMMITTED, 1),
    ("commit;FIN", Outcome.AMBIGUOUS, 1),
    ("commit;RST", Outcome.AMBIGUOUS, 1),
    ("commit;hang(5)", Outcome.AMBIGUOUS, 1),
    ("commit;status(500)", Outcome.AMBIGUOUS, 1),
    ("commit;status(502)", Outcome.AMBIGUOUS, 1),
    ("commit;status(503)", Outcome.AMBIGUOUS, 1),
    ("commit;status(504)", Outcome.AMBIGUOUS, 1),
    ("commit;status(408)", Outcome.AMBIGUOUS, 1),
    ("commit;trunc", Outcome.AMBIGUOUS, 1),
    ("commit;empty(204)", Outcome.AMBIGUOUS, 1),
    ("commit;status(307)", Outcome.AMBIGUOUS, 1),
    ("FIN", Outcome.AMBIGUOUS, 0),
    ("RST", Outcome.AMBIGUOUS, 0),
]


@pytest.mark.parametrize(("plan", "outcome", "effects"), PLANS)
async def test_no_verb_of_the_target_makes_an_unsafe_effect_look_like_something_else(
    running: TargetProcess, target: TargetClient, plan: str, outcome: Outcome, effects: int
) -> None:
    target.set_mode("charges", "neither")
    target.script(plan)
    answer = await Demo(running, "demo-charge-unsafe").send(seconds=0.8)
    assert answer.outcome is outcome, answer.code
    assert answer.bytes_may_have_left
    assert counts(target) == (1, effects)


async def test_an_idempotent_charge_is_replayed_and_drift_is_refused(
    running: TargetProcess, target: TargetClient
) -> None:
    target.set_mode("charges", "dedupe")
    target.script("commit;FIN")
    demo = Demo(running, "demo-charge-idempotent")
    assert (await demo.send()).outcome is Outcome.AMBIGUOUS
    again = await demo.send()
    assert again.outcome is Outcome.COMMITTED
    assert counts(target) == (2, 1)
    demo.wire = ADAPTER.render(demo.document, {**ARGUMENTS, "amount": 701}, KEY)
    assert (await demo.send()).outcome is Outcome.KEY_CONFLICT
    assert counts(target)[1] == 1


async def test_a_stored_error_that_comes_again_is_told_from_a_new_one(
    running: TargetProcess, target: TargetClient
) -> None:
    target.set_mode("charges", "store_errors")
    target.script("status(500)")
    demo = Demo(running, "demo-charge-idempotent")
    assert (await demo.send()).code == "unmatched_status_500"
    again = await demo.send()
    assert (again.outcome, again.code) == (Outcome.AMBIGUOUS, "replayed_error")


async def test_a_lost_charge_is_found_by_its_key(
    running: TargetProcess, target: TargetClient
) -> None:
    target.set_mode("charges", "lookup")
    target.script("commit;RST")
    demo = Demo(running, "demo-charge-reconcilable")
    assert (await demo.look()).verdict is Verdict.NOT_COMMITTED
    assert (await demo.send()).outcome is Outcome.AMBIGUOUS
    finding = await demo.look()
    assert finding.verdict is Verdict.COMMITTED, finding.code
    assert len(finding.external_ids) == 1
    assert (await demo.look(amount=1)).verdict is Verdict.MISMATCH
    assert counts(target)[1] == 1


async def test_two_charges_under_one_key_are_seen(
    running: TargetProcess, target: TargetClient
) -> None:
    target.set_mode("charges", "lookup")
    demo = Demo(running, "demo-charge-reconcilable")
    await demo.send()
    await demo.send()
    finding = await demo.look()
    assert (finding.verdict, finding.code) == (Verdict.MISMATCH, "several_matches")
    assert len(finding.external_ids) == 2
