"""Long polls: they starve nobody, an outage ends none, and each ends as it had to begin."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from fastapi import FastAPI

from api.deployment import Deployment, charge, entry
from effect_broker.api.waiting import Waited, Waits
from effect_broker.authentication import CACHE_SECONDS
from effect_broker.protocol.ports import StoreUnavailable
from effect_broker.reading import EffectReads
from effect_broker.store.pool import Pool
from effect_broker.store.tenants import Tenants
from effect_contracts.errors import RateLimited

PATH = "/v1/effects"

pytestmark = pytest.mark.timeout(120)


async def _never() -> bool:
    return False


class _Source:
    """Counts the rounds, and knows what stands still."""

    def __init__(self) -> None:
        self.still: set[Waited] = set()
        self.rounds: list[frozenset[Waited]] = []
        self.out = False

    async def __call__(self, waited: Collection[Waited]) -> frozenset[Waited]:
        self.rounds.append(frozenset(waited))
        if self.out:
            raise StoreUnavailable("away")
        return frozenset(self.still & set(waited))


def _pair(tenant: int) -> Waited:
    return UUID(int=tenant), uuid4()


async def test_all_waits_share_one_question() -> None:
    source = _Source()
    waits = Waits(source, waits_max=1000, tenant_waits_max=1000)
    one, other = _pair(1), _pair(2)
    async with waits.asking():
        waiting = [
            asyncio.create_task(waits.until_still(pair, 30, _never))
            for pair in (one, other)
            for _ in range(300)
        ]
        await asyncio.sleep(0.5)
        assert 0 < len(source.rounds) <= 6
        assert source.rounds[-1] == {one, other}
        source.still.add(one)
        await asyncio.wait_for(asyncio.gather(*waiting[:300]), 10)
        assert not any(task.done() for task in waiting[300:])
        source.still.add(other)
        await asyncio.wait_for(asyncio.gather(*waiting), 10)
        await asyncio.sleep(0.3)
        asked = len(source.rounds)
        await asyncio.sleep(0.5)
        assert len(source.rounds) == asked, "nobody waits, nothing is asked"


async def test_an_outage_ends_no_wait_and_a_bad_round_not_all_of_them() -> None:
    source = _Source()
    waits = Waits(source, waits_max=10, tenant_waits_max=10)
    pair = _pair(1)
    source.out = True
    async with waits.asking():
        waiting = asyncio.create_task(waits.until_still(pair, 30, _never))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        source.out = False
        source.still.add(pair)
        await asyncio.wait_for(waiting, 10)


def test_a_tenant_has_a_share_of_the_places_and_gets_it_back() -> None:
    waits = Waits(_Source(), waits_max=5, tenant_waits_max=3)
    first, second, third = (UUID(int=number) for number in (1, 2, 3))
    with ExitStack() as held:
        for _ in range(2):
            held.enter_context(waits.place(first))
            held.enter_context(waits.place(second))
        with waits.place(first):
            for other in (first, third):  # its share is full, and so are all places
                with pytest.raises(RateLimited), waits.place(other):
                    pass
        with waits.place(first):
            pass


# Over HTTP ----------------------------------------------------------------------------------------


async def test_polls_of_one_caller_starve_no_other(
    api: httpx.AsyncClient, deployment: Deployment, application: FastAPI
) -> None:
    made = (await api.post(PATH, json=charge())).json()
    polls = [
        asyncio.create_task(api.get(made["links"]["self"], params={"wait": 50}, timeout=90))
        for _ in range(800)
    ]
    await asyncio.sleep(2)
    async with deployment.client(application, "globex") as other:
        for number in range(20):
            answer = await asyncio.wait_for(other.get(PATH), 10)
            assert answer.status_code == 200
            submitted = await asyncio.wait_for(other.post(PATH, json=charge(f"k-{number}")), 10)
            assert submitted.status_code == 202
    assert sum(not poll.done() for poll in polls) == 256
    cancelled = await api.post(made["links"]["self"] + "/cancel")
    assert cancelled.status_code == 200, cancelled.text
    answers = await asyncio.gather(*polls)
    counts = {status: sum(a.status_code == status for a in answers) for status in (200, 429)}
    assert counts[200] == 256
    assert counts[429] == 800 - 256
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert refused.json()["code"] == "rate_limited"
    assert int(refused.headers["retry-after"]) >= 1


async def test_a_submit_is_never_refused_for_its_wait(
    api: httpx.AsyncClient, application: FastAPI
) -> None:
    reads = application.state.services.reads
    application.state.waits = Waits(reads.standing_still, waits_max=0, tenant_waits_max=0)
    answer = await asyncio.wait_for(api.post(PATH, json=charge(), params={"wait": 60}), 10)
    assert (answer.status_code, answer.json()["state"]) == (202, "prepared")
    poll = await api.get(answer.json()["links"]["self"], params={"wait": 60})
    assert (poll.status_code, poll.json()["code"]) == (429, "rate_limited")
    assert (await api.get(answer.json()["links"]["self"])).status_code == 200


async def test_each_tenants_effect_is_waited_for_by_its_own_rows(
    api: httpx.AsyncClient, deployment: Deployment, application: FastAPI
) -> None:
    deployment.make_ledger()
    mine = UUID((await api.post(PATH, json=entry())).json()["effect_id"])
    async with deployment.client(application, "globex") as other:
        theirs = UUID((await other.post(PATH, json=entry())).json()["effect_id"])
    await deployment.settle(str(mine))
    await deployment.settle(str(theirs), "globex")
    reads: EffectReads = application.state.services.reads
    acme, globex = (deployment.tenant_ids[name] for name in ("acme", "globex"))
    asked = [(acme, mine), (globex, theirs), (acme, theirs), (globex, mine), (uuid4(), mine)]
    assert await reads.standing_still(asked) == {(acme, mine), (globex, theirs)}
    assert await reads.standing_still([(globex, mine), (acme, theirs)]) == frozenset()
    # Nothing of the tenant stays with the session.
    assert (await api.get(PATH)).json()["effects"][0]["effect_id"] == str(mine)


class _Away:
    """Reads that fail from some call on, as in an outage that begins after the commit."""

    def __init__(self, reads: EffectReads, good: int) -> None:
        self._reads = reads
        self._good = good

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reads, name)

    async def effect(self, tenant_id: UUID, effect_id: UUID) -> Any:
        self._good -= 1
        if self._good < 0:
            raise StoreUnavailable("no connection to the database")
        return await self._reads.effect(tenant_id, effect_id)


@pytest.mark.parametrize("good", [0, 1])
@pytest.mark.parametrize("wait", [0, 0.3])
@pytest.mark.parametrize("linked", [True, False])
async def test_an_outage_after_the_commit_is_no_refusal(
    api: httpx.AsyncClient,
    deployment: Deployment,
    application: FastAPI,
    good: int,
    wait: float,
    linked: bool,
) -> None:
    asked = charge()
    if linked:
        parent = await api.post(PATH, json=charge("parent"))
        asked["parent_effect_id"] = parent.json()["effect_id"]
    services = application.state.services
    reads = _Away(services.reads, good)
    application.state.services = replace(services, reads=reads)
    answer = await api.post(PATH, json=asked, params={"wait": wait})
    assert answer.status_code == 202
    body = answer.json()
    assert (body["state"], body["version"], body["replayed"]) == ("prepared", 1, False)
    assert answer.headers["location"] == body["links"]["self"]
    assert deployment.count("effect_intents") == 1 + linked
    # What is not known is null; the members are those of every answer.
    application.state.services = services
    again = await api.post(PATH, json=asked)
    assert (again.status_code, again.json()["replayed"]) == (200, True)
    assert again.json().keys() == body.keys()
    # Of an effect that belongs to no other the submit itself has said all.
    assert (body["now"] is None) is (linked and good == 0)


async def test_a_submit_says_the_same_of_an_effect_as_a_look_at_it(
    api: httpx.AsyncClient,
) -> None:
    parent = (await api.post(PATH, json=charge("parent"))).json()
    for asked in (charge("alone", trace_id="t-1"), charge("child"), charge("parent")):
        if asked["operation_key"] == "child":
            asked["parent_effect_id"] = parent["effect_id"]
        for replayed in (asked["operation_key"] == "parent", True):
            said = (await api.post(PATH, json=asked)).json()
            assert said.pop("replayed") is replayed
            seen = (await api.get(said["links"]["self"])).json()
            del seen["attempts"], seen["now"], said["now"]
            assert said == seen
    # The last one was the parent, after it had got a child.
    assert said["children"]["total"] == 1


async def test_an_outage_at_the_end_of_a_poll_returns_what_was_known(
    api: httpx.AsyncClient, application: FastAPI
) -> None:
    made = (await api.post(PATH, json=charge())).json()
    services = application.state.services
    application.state.services = replace(services, reads=_Away(services.reads, 1))
    answer = await api.get(made["links"]["self"], params={"wait": 0.3})
    assert (answer.status_code, answer.json()["state"]) == (200, "prepared")


async def test_a_key_that_is_revoked_during_a_poll_gets_no_answer(
    api: httpx.AsyncClient, deployment: Deployment, admin_pool: Pool
) -> None:
    made = (await api.post(PATH, json=charge())).json()
    wait = CACHE_SECONDS + 1.5
    poll = asyncio.create_task(api.get(made["links"]["self"], params={"wait": wait}, timeout=30))
    await asyncio.sleep(0.3)
    await Tenants(admin_pool).revoke_key(deployment.key_ids["acme"])
    answer = await poll
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    assert made["effect_id"] not in answer.text.replace(answer.json()["instance"], "")
