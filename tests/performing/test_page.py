"""What docs/caller-performed.md shows is what runs: every Python block, in order."""

from __future__ import annotations

import re
from typing import Any

import pytest

from effect_contracts.document import ContractDocument
from performing.conftest import Desk
from repository.checkout import CHECKOUT

PAGE = CHECKOUT / "docs" / "caller-performed.md"


def blocks(language: str) -> list[str]:
    text = PAGE.read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


class Shop:
    """A target that counts, and is not there for whoever connects to it."""

    def __init__(self) -> None:
        self.charges: dict[str, dict[str, Any]] = {}
        self.calls = 0

    def charge(self, order: str, amount: int, *, idempotency_key: str) -> dict[str, Any]:
        self.calls += 1
        made = {"id": f"ch_{order}", "order": order, "amount": amount}
        return self.charges.setdefault(idempotency_key, made)

    def connect(self) -> None:
        raise ConnectionRefusedError

    def find(self, *, idempotency_key: str) -> list[dict[str, Any]]:
        return [self.charges[idempotency_key]] if idempotency_key in self.charges else []


async def test_the_contract_of_the_page_is_one(desk: Desk) -> None:
    (text,) = blocks("yaml")
    await desk.apply(ContractDocument.parse_yaml(text))


def test_every_example_of_the_page_runs(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EFFECT_BROKER_API_DATABASE_URL", desk.url())
    monkeypatch.setenv("EFFECT_BROKER_API_KEY", desk.api_key)
    monkeypatch.setenv("EFFECT_BROKER_KEY_RING", desk.ring)
    shop = Shop()
    namespace: dict[str, Any] = {"__name__": "page", "shop": shop}
    try:
        for block in blocks("python"):
            exec(compile(block, f"{PAGE.name}: {block[:40]!r}", "exec"), namespace)
    finally:
        namespace["broker"].close()
    out = capsys.readouterr().out
    assert out.startswith("charged as ch_42\nnothing was sent; perform it again in ")
    assert (shop.calls, len(shop.charges)) == (2, 2)
    assert set(namespace["PROBES"]) == {"shop_charge_by_key"}
