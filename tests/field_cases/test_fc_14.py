"""FC-14: a redirect would carry the request, with its key and body, to a host nobody approved."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from effect_broker.proof.target.process import TargetProcess
from field_cases.cases import Case, Document

CODES = (307, 308, 302)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetProcess]:
    """The host that nobody approved."""
    with TargetProcess(tmp_path_factory.mktemp("elsewhere") / "ledger.sqlite") as target:
        yield target


def lists_redirects_as_rejections(document: Document) -> None:
    document["adapter"]["answers"]["rejected"].append({"statuses": ["3xx"], "code": "moved"})


def untouched(target: TargetProcess) -> bool:
    """Whether nobody came, not even to ask."""
    ledger = target.client.ledger()
    return not ledger.arrival_rows and ledger.broken == 0


@pytest.mark.parametrize("place", ["elsewhere", "the same host"])
def test_fc_14_a_redirect_is_not_followed_and_proves_nothing(
    case: Case, elsewhere: TargetProcess, place: str
) -> None:
    begun = []
    for code in CODES:
        offer = case.offer("unsafe")
        path = f"/objects/{offer.kind}"
        url = f"{elsewhere.url}{path}" if place == "elsewhere" else path
        offer.script(f"redirect({code},{url})")
        begun.append((offer, offer.submit()))
    for offer, effect_id in begun:
        offer.judge(effect_id, state="outcome_unknown", requests=1, effects=0)
        assert offer.codes(effect_id) == [("ambiguous", "unexpected_redirect")]
        assert offer.ledger().lookups == 0
    assert untouched(elsewhere)


def test_fc_14_the_look_up_is_not_led_away_either(case: Case, elsewhere: TargetProcess) -> None:
    begun = []
    for code in CODES:
        offer = case.offer("reconcilable", probe={"initial_seconds": 0.2})
        away = f"redirect({code},{elsewhere.url}/objects/{offer.kind})"
        offer.script(f"commit;{away}")
        offer.script(away, method="GET")
        begun.append((offer, offer.submit()))
    for offer, effect_id in begun:
        offer.judge(effect_id, state="succeeded", requests=1, effects=1)
        assert offer.codes(effect_id) == [("ambiguous", "unexpected_redirect")]
        found = [(e["verdict"], e["code"]) for e in offer.evidence(effect_id)]
        assert found[0] == ("unknown", "unexpected_redirect")
        assert found[-1] == ("committed", "found")
    assert untouched(elsewhere)


def test_fc_14_a_redirect_is_a_rejection_only_where_the_contract_lists_it(
    case: Case, elsewhere: TargetProcess
) -> None:
    offer = case.offer("unsafe", amend=lists_redirects_as_rejections)
    offer.script(f"redirect(307,{elsewhere.url}/objects/{offer.kind})")
    effect_id = offer.submit()
    offer.judge(effect_id, state="failed_final", reason="rejected", requests=1, effects=0)
    assert offer.codes(effect_id) == [("rejected", "moved")]
    assert untouched(elsewhere)
