"""A function of `transact` that ends the transaction by a statement of its own is told so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from effect_broker import Broker, NotFound, TransactionEnded
from effect_contracts.facts import EffectState
from hosting.scenes import Scene
from sdk.callers import Business, business, poster_of, posting_contract
from sdk.conftest import TENANT, Access
from sdk.posting import WAYS, Post, Way


@pytest.fixture(scope="module")
def shop(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Business]:
    scene.broker.apply(posting_contract())
    with business(scene, TENANT, tmp_path_factory.mktemp("shop")) as made:
        yield made


@pytest.fixture(scope="module")
def direct(shop: Business, access: Access) -> Iterator[Broker]:
    with poster_of(shop, access.api_key).broker() as made:
        yield made


@pytest.mark.parametrize(
    ("statement", "stands"),
    [("COMMIT", 1), ("COMMIT AND CHAIN", 1), ("ROLLBACK", 0), ("ROLLBACK AND CHAIN", 0)],
)
@pytest.mark.parametrize("fails", [False, True], ids=["returns", "fails"])
@pytest.mark.parametrize("way", WAYS)
def test_a_body_that_ends_the_transaction_is_told_so_whatever_it_does_then(
    shop: Business, direct: Broker, access: Access,
    way: Way, fails: bool, statement: str, stands: int,
) -> None:  # fmt: skip
    """No connection keeps a COMMIT back that is written out: a half of the work may stand."""
    name = f"{way.__name__}_{fails}_{statement.replace(' ', '_')}"
    with pytest.raises(TransactionEnded) as told:
        way(poster_of(shop, access.api_key), Post(name, also=statement, fails=fails))
    assert told.value.code == "transaction_ended"
    assert isinstance(told.value.__cause__, LookupError) is fails
    assert (shop.orders(name), shop.intents(f"shop:{name}")) == (stands, stands)
    if stands:
        assert direct.get(told.value.effect_id).state is EffectState.SUCCEEDED
    else:
        with pytest.raises(NotFound):
            direct.get(told.value.effect_id)
