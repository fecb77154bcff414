"""Several processes on one Postgres: a race for one key, and a process that is killed at work."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path

import httpx
import pytest

from effect_broker.receiving import (
    KeptResult,
    KeyedRequest,
    PostgresKeys,
    connecting,
    request_digest,
)
from receiving.shop import PostgresShop
from receiving.shop_process import LEASE_SECONDS

PROGRAM = Path(__file__).with_name("shop_process.py")


class Process:
    """One process of the shop."""

    def __init__(self, popen: subprocess.Popen[str]) -> None:
        self._popen = popen

    @cached_property
    def port(self) -> int:
        """Where it serves; waits until it does, so that several start at once."""
        return int(self.line())

    def line(self) -> str:
        """The next line that it says."""
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline()
        assert line, "the shop has ended"
        return line.strip()

    def place(self, order: str, note: str = "") -> httpx.Response:
        """Place one order, under its own name as the key."""
        body = {"order": order, "amount": 3, **({"note": note} if note else {})}
        headers = {"Authorization": "Bearer ada", "Idempotency-Key": order}
        url = f"http://127.0.0.1:{self.port}/orders"
        return httpx.post(url, json=body, headers=headers, timeout=30, trust_env=False)

    def look_up(self, key: str) -> str:
        """The state of a key."""
        url = f"http://127.0.0.1:{self.port}/idempotency-keys/{key}"
        headers = {"Authorization": "Bearer ada"}
        return str(httpx.get(url, headers=headers, timeout=30, trust_env=False).json()["state"])

    def kill(self) -> None:
        """SIGKILL."""
        self._popen.kill()
        self._popen.wait(10)


@contextmanager
def process(url: str, way: str) -> Iterator[Process]:
    with subprocess.Popen(
        [sys.executable, PROGRAM, url, way], stdout=subprocess.PIPE, text=True
    ) as popen:
        try:
            yield Process(popen)
        finally:
            popen.kill()


@pytest.fixture
async def shop(shop_url: str) -> PostgresShop:
    store = PostgresKeys(connecting(shop_url))
    await store.create_table()
    return PostgresShop(store, shop_url)


@pytest.fixture(scope="module")
def racing(shop_url: str) -> Iterator[list[Process]]:
    """Three processes that live as long as this module: two of one way, and one of the other."""
    with ExitStack() as stack:
        ways = ("atomic", "atomic", "separate")
        yield [stack.enter_context(process(shop_url, way)) for way in ways]


def test_processes_that_race_for_a_key_do_its_work_once_in_either_way(
    shop: PostgresShop, racing: list[Process], order: str
) -> None:
    names = [f"{order}-{number}" for number in range(8)]
    answers: list[tuple[str, httpx.Response]] = []
    assert all(at.port for at in racing)
    start = threading.Barrier(2 * len(racing))

    def race(at: Process) -> None:
        for name in names:
            start.wait(30)
            answers.append((name, at.place(name)))

    racers = [threading.Thread(target=race, args=(at,)) for at in racing * 2]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(60)
    assert len(answers) == len(names) * len(racers)
    for name in names:
        told = [answer for other, answer in answers if other == name]
        done = [answer for answer in told if answer.status_code == 201]
        assert len({answer.content for answer in done}) == 1
        assert sum("idempotency-replayed" not in answer.headers for answer in done) == 1
        assert all(a.json()["code"] == "in_progress" for a in told if a.status_code != 201)
        assert shop.orders(name) == 1


@pytest.mark.parametrize("way", ["atomic", "separate"])
def test_a_process_killed_after_the_work_never_leads_to_a_second_order(
    shop: PostgresShop, racing: list[Process], shop_url: str, order: str, way: str
) -> None:
    other = racing[0] if way == "atomic" else racing[-1]
    with process(shop_url, way) as killed, pytest.raises(httpx.TransportError):
        _killed_in_the_middle(killed, order)
    # The database sees a dead process at once, and its transaction is gone.
    states = _states_until_settled(other, order)
    if way == "atomic":
        assert states[-1] == "not_landed"
        assert shop.orders(order) == 0
        assert other.place(order).status_code == 201
    else:
        assert states[-1] == "unknown"
        # The same bytes, again and again: the order is there, and is not made again.
        for _ in range(2):
            answer = other.place(order, "wait")
            assert (answer.status_code, answer.json()["code"]) == (409, "outcome_unknown")
    assert shop.orders(order) == 1


def _killed_in_the_middle(killed: Process, order: str) -> None:
    """Place an order that was written and waits, and kill the process under it."""

    assert killed.port, "read here, and not by both threads"

    def kill() -> None:
        assert killed.line() == "entered"
        killed.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        killed.place(order, "wait")
    finally:
        killer.join(30)


def _states_until_settled(at: Process, key: str) -> list[str]:
    """The states of a key, until it is in progress no more."""
    states: list[str] = []
    until = time.monotonic() + LEASE_SECONDS + 20
    while not states or states[-1] == "in_progress":
        assert time.monotonic() < until, "the claim of a dead process is never over"
        states.append(at.look_up(key))
        time.sleep(0.05)
    return states


async def test_a_claim_in_the_callers_own_transaction_shares_its_fate(
    shop: PostgresShop, shop_url: str, order: str
) -> None:
    request = KeyedRequest("ada", order, request_digest({"order": order}))
    result = KeptResult(200, (), b"{}")

    async def place(*, undo: bool) -> object:
        async with connecting(shop_url)() as own:
            try:
                async with own.transaction():
                    async with shop.store.claim(request, connection=own) as claim:
                        if isinstance(claim, KeptResult):
                            return claim
                        await claim.connection.execute(
                            'INSERT INTO orders ("order", amount) VALUES (%s, 1)', [order]
                        )
                        await claim.complete(result)
                    if undo:
                        raise TimeoutError
            except TimeoutError:
                return "undone"
        return "placed"

    assert await place(undo=True) == "undone"
    assert shop.orders(order) == 0
    assert await place(undo=False) == "placed"
    assert await place(undo=False) == result
    assert shop.orders(order) == 1
