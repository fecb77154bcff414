"""The proxy refuses, relays, and delivers a mutating request twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from effect_broker.proof.http_proxy import HttpProxy
from effect_broker.proof.target.process import TargetProcess


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetProcess]:
    """A target that never de-duplicates."""
    path: Path = tmp_path_factory.mktemp("target") / "ledger.sqlite"
    with TargetProcess(path) as running:
        yield running


def post(proxy: HttpProxy, kind: str) -> httpx.Response:
    return httpx.post(
        f"{proxy.url}/objects/{kind}",
        json={"amount": 1},
        headers={"idempotency-key": "k", "connection": "close"},
        trust_env=False,
    )


@pytest.mark.parametrize("deliveries", [1, 2])
def test_each_request_is_delivered_so_often_and_answered_once(
    target: TargetProcess, deliveries: int
) -> None:
    kind = f"delivered{deliveries}"
    target.client.set_mode(kind, "lookup")
    with HttpProxy(target.url, deliveries=deliveries) as proxy:
        assert post(proxy, kind).status_code == 201
        listed = httpx.get(
            f"{proxy.url}/objects/{kind}", headers={"connection": "close"}, trust_env=False
        )
        assert listed.status_code == 200
    ledger = target.client.ledger(kind=kind)
    assert (ledger.arrivals, ledger.effects, ledger.lookups) == (deliveries, deliveries, 1)
    assert len(ledger.body_digests) == 1


def test_a_refusing_proxy_keeps_its_port(target: TargetProcess) -> None:
    with HttpProxy(target.url, refusing=True) as proxy:
        with pytest.raises(httpx.ConnectError):
            post(proxy, "refused")
        proxy.accept()
        assert post(proxy, "refused").status_code == 201
        proxy.refuse()
        with pytest.raises(httpx.ConnectError):
            post(proxy, "refused")
    assert target.client.ledger(kind="refused").arrivals == 1


def test_a_target_that_goes_without_an_answer_is_seen_as_that(target: TargetProcess) -> None:
    target.client.script("commit;FIN", kind="gone")
    with HttpProxy(target.url) as proxy, pytest.raises(httpx.RemoteProtocolError):
        post(proxy, "gone")
    assert target.client.ledger(kind="gone").effects == 1
