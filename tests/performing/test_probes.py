"""What workers do for effects that callers perform: by contract, and by registered probes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from effect_adapters.base import Adapter, Budget, Finding, ProbeCall
from effect_adapters.caller import CallerAdapter
from effect_adapters.registry import adapters
from effect_broker.config import ConfigurationProblem
from effect_broker.probes import load_probes
from effect_contracts.document import ContractDocument, sent_by_workers
from effect_contracts.errors import ContractInvalid
from effect_contracts.facts import Verdict
from performing.conftest import caller_contract

HTTP: dict[str, Any] = {
    "kind": "http",
    "url": "https://shop.example/charges",
    "key": {"in": "header", "name": "Idempotency-Key"},
    "answers": {"success": [{"statuses": [201]}]},
}
LOOK: dict[str, Any] = {
    "url": "https://shop.example/charges{?key}",
    "key_match": {"kind": "field", "path": "key"},
    "agree": {"/amount": "amount"},
    "absent": [{"statuses": [404]}],
}


@pytest.mark.parametrize(
    ("safety", "changes", "field"),
    [
        ("unsafe", {"adapter": {"lease_seconds_max": 30}}, "/adapter/lease_seconds_max"),
        ("reconcilable", {"adapter": {"probe": None}}, "/adapter/probe"),
        ("reconcilable", {"adapter": {"http": HTTP | {"probe": LOOK}}}, "/adapter/probe"),
        ("unsafe", {"adapter": {"probe": "shop"}}, "/adapter/probe"),
        ("transactional", {}, "/safety"),
        ("idempotent", {"adapter": {"http": HTTP | {"key": None}}}, "/adapter/http/key"),
        (
            "idempotent",
            {"adapter": {"http": HTTP | {"url": "http://shop.example/x"}}},
            "/adapter/http/url",
        ),
    ],
)
def test_a_contract_of_callers_that_cannot_hold_is_refused_at_its_place(
    safety: str, changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(ContractInvalid) as refused:
        caller_contract(safety, **changes)
    problems = refused.value.extras["problems"]
    assert isinstance(problems, list)
    assert field in {problem["field"] for problem in problems}


def test_a_contract_of_callers_is_kept_as_it_was_written() -> None:
    made = caller_contract("idempotent", adapter={"http": HTTP, "lease_seconds_max": 60})
    assert ContractDocument.from_canonical(made.canonical()) == made
    written = json.loads(made.canonical())["adapter"]
    assert written["lease_seconds_max"] == 60
    assert "probe" not in written


def test_workers_send_only_what_may_be_sent_again_and_how_is_known() -> None:
    assert sent_by_workers(caller_contract("idempotent", adapter={"http": HTTP}))
    assert not sent_by_workers(caller_contract("idempotent"))
    looked_up = {"probe": None, "http": HTTP | {"probe": LOOK}}
    assert not sent_by_workers(caller_contract("reconcilable", adapter=looked_up))
    assert not sent_by_workers(caller_contract("unsafe", adapter={"http": HTTP | {"key": None}}))


# Registered probes -------------------------------------------------------------------------------


def call(document: ContractDocument, seconds: float = 5.0) -> ProbeCall:
    return ProbeCall(
        effect_id=UUID(int=1),
        tenant_id=UUID(int=2),
        downstream_key="key-1",
        arguments={"amount": 5},
        document=document,
        operation=None,
        budget=Budget(seconds, lambda: 0.0),
        reach=lambda _: None,
    )


def adapter(**probes: Any) -> Adapter:
    made = adapters(lambda _: "", probes)["caller"]
    assert isinstance(made, CallerAdapter)
    return made


async def raises(_: ProbeCall) -> Finding:
    raise RuntimeError("4242-a-secret")


async def sleeps(_: ProbeCall) -> Finding:
    await asyncio.sleep(60)
    raise AssertionError


@pytest.mark.parametrize(
    ("probe", "code"),
    [
        (None, "probe_not_registered"),
        (raises, "probe_failed"),
        (sleeps, "deadline"),
        (lambda _: "found", "probe_invalid"),
        (lambda _: Finding(Verdict.REJECTED, "no"), "probe_invalid"),
        (lambda _: Finding(Verdict.COMMITTED, "Not A Code"), "probe_invalid"),
        (lambda _: Finding(Verdict.COMMITTED, "ok", (7,)), "probe_invalid"),  # type: ignore[arg-type]
    ],
)
async def test_a_probe_that_says_nothing_clear_is_unknown(probe: Any, code: str) -> None:
    known = {} if probe is None else {"shop": probe}
    seconds = 0.05 if probe is sleeps else 5.0
    found = await adapter(**known).probe(call(caller_contract("reconcilable"), seconds))
    assert (found.verdict, found.code) == (Verdict.UNKNOWN, code)


async def test_a_probe_that_finds_several_objects_has_found_none_that_is_ours() -> None:
    made = adapter(shop=lambda _: Finding(Verdict.COMMITTED, "ok", ("a", "b")))
    found = await made.probe(call(caller_contract("reconcilable")))
    assert (found.verdict, found.external_ids) == (Verdict.MISMATCH, ("a", "b"))


async def test_a_worker_without_a_way_sends_nothing_and_knows_nothing() -> None:
    made = adapter()
    document = caller_contract("unsafe")
    assert made.render(document, {"amount": 5}, "key-1") == b""
    assert made.identity(document) == "caller:shop.example#acct_1"
    assert (await made.probe(call(document))).code == "no_probe"


def test_a_registry_is_loaded_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop_probes.py").write_text(
        "def look(call): ...\nPROBES = {'shop': look}\nWRONG = {'shop': 7}\nNONE = 7\n"
    )
    (tmp_path / "broken_probes.py").write_text("raise RuntimeError('4242-a-secret')\n")
    monkeypatch.chdir(tmp_path)
    assert load_probes(None) == {}
    assert list(load_probes("shop_probes:PROBES")) == ["shop"]
    for spec, words in (
        ("shop_probes", "module:registry"),
        ("nowhere:PROBES", "cannot be imported (ModuleNotFoundError)"),
        ("broken_probes:PROBES", "cannot be imported (RuntimeError)"),
        ("shop_probes:NONE", "no mapping named NONE"),
        ("shop_probes:WRONG", "these are not: shop"),
    ):
        with pytest.raises(ConfigurationProblem) as refused:
            load_probes(spec)
        assert words in str(refused.value)
        assert "4242" not in str(refused.value)
