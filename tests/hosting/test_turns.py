"""Turns: tenants are served one after the other, however many runs each of them has."""

from __future__ import annotations

import asyncio

from effect_broker.turns import Turns, give_up_turn


class Runs:
    """Runs that note when their turn comes, and hold it until they are told."""

    def __init__(self, turns_max: int) -> None:
        self.turns = Turns(turns_max)
        self.begun: list[str] = []
        self.held: asyncio.Queue[asyncio.Event] = asyncio.Queue()

    async def run(self, tenant_id: str) -> None:
        """One run that computes until it is let go."""
        async with self.turns.turn(tenant_id):
            self.begun.append(tenant_id)
            ended = asyncio.Event()
            self.held.put_nowait(ended)
            await ended.wait()

    async def end_one(self) -> None:
        """Let the run end that has held its turn for longest, and others take theirs."""
        (await self.held.get()).set()
        await settle()


async def settle() -> None:
    """Let every task go as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_single_run_waits_for_one_run_of_a_backlog() -> None:
    runs = Runs(turns_max=1)
    tasks = [asyncio.create_task(runs.run("many")) for _ in range(20)]
    await settle()
    tasks.append(asyncio.create_task(runs.run("single")))
    await settle()
    for _ in range(21):
        await runs.end_one()
    await asyncio.gather(*tasks)
    # The second of the many had waited before the single one came.
    assert runs.begun[:3] == ["many", "many", "single"]
    assert len(runs.begun) == 21


async def test_no_more_runs_than_there_are_turns_are_at_their_beginning() -> None:
    runs = Runs(turns_max=3)
    tasks = [asyncio.create_task(runs.run(f"t{n % 4}")) for n in range(12)]
    for served in range(12):
        await settle()
        assert len(runs.begun) == min(served + 3, 12)
        await runs.end_one()
    await asyncio.gather(*tasks)


async def test_a_run_that_begins_to_wait_gives_its_turn_to_the_next() -> None:
    runs = Runs(turns_max=1)
    waiting = asyncio.Event()

    async def sending() -> None:
        async with runs.turns.turn("slow"):
            # A step is a task of its own.
            await asyncio.create_task(send())
            give_up_turn()  # given up once, whoever says it again

    async def send() -> None:
        give_up_turn()
        await waiting.wait()

    slow = asyncio.create_task(sending())
    await settle()
    tasks = [asyncio.create_task(runs.run("quick")) for _ in range(2)]
    await settle()
    assert runs.begun == ["quick"]
    waiting.set()
    await slow
    await settle()
    assert runs.begun == ["quick"], "a turn that was given up is not given up again"
    await runs.end_one()
    await runs.end_one()
    await asyncio.gather(*tasks)


async def test_a_run_that_is_cancelled_while_it_waits_takes_no_turn_with_it() -> None:
    turns = Turns(turns_max=1)

    async def run() -> None:
        async with turns.turn("t"):
            pass

    async with turns.turn("t"):
        waiting, next_one = asyncio.create_task(run()), asyncio.create_task(run())
        await settle()
        waiting.cancel()
        await settle()
    # Its turn has just come.
    next_one.cancel()
    await settle()
    assert waiting.cancelled()
    assert next_one.cancelled()
    await asyncio.wait_for(run(), 30)
