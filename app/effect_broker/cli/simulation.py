"""`effect-broker demo simulate`: the protocol under schedules that chance or patience finds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from effect_broker.cli.output import AsJson, complain, console, print_json, print_table
from effect_broker.clock import SystemClock
from effect_contracts.counting import counted

if TYPE_CHECKING:
    from effect_broker.proof.simulation.campaign import Broken, Tally
    from effect_broker.proof.simulation.exploration import Depth, Explored

# How often the campaign says where it is.
_TOLD_EVERY_SCHEDULES: Final = 20_000


def register(app: typer.Typer) -> None:
    """Add the command to `demo`."""
    app.command("simulate")(simulate)


def simulate(
    schedules: Annotated[int, typer.Option(min=1, help="Schedules to run.")] = 1_000_000,
    seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    processes: Annotated[
        int, typer.Option(min=0, help="Processes to use; 0 is one for each core.")
    ] = 0,
    explore: Annotated[
        bool, typer.Option("--explore", help="Follow every schedule of a small world instead.")
    ] = False,
    takeovers: Annotated[
        int, typer.Option(min=0, max=3, help="--explore: runs given away while they live.")
    ] = 1,
    target_faults: Annotated[
        int, typer.Option(min=0, max=3, help="--explore: faults of the target.")
    ] = 0,
    store_faults: Annotated[
        int, typer.Option(min=0, max=3, help="--explore: faults of the database.")
    ] = 0,
    limit: Annotated[
        int | None, typer.Option(min=1, help="--explore: schedules of one cell at most.")
    ] = None,
    cells: Annotated[
        str, typer.Option(metavar="WORD", help="--explore: only cells whose name holds this word.")
    ] = "",
    replay: Annotated[
        str | None,
        typer.Option(metavar="WORLD@PICKS", help="Tell one schedule again, as a report names it."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run the protocol's own code under a scheduler that owns time, chance and trouble.

    Exit 1 if an invariant breaks; the shortest story of it is printed, and runs again by --replay.
    """
    from effect_broker.proof.simulation.exploration import Depth

    processes = processes or os.cpu_count() or 1
    depth = Depth(takeovers=takeovers, target=target_faults, store=store_faults)
    if replay is not None:
        _tell(replay, depth)
    elif explore:
        _explore(cells, depth, limit, processes, as_json)
    else:
        _campaign(seed, schedules, processes, as_json)


def _campaign(seed: int, schedules: int, processes: int, as_json: bool) -> None:
    from effect_broker.proof.simulation.campaign import run_campaign, shortest, worlds
    from effect_broker.proof.simulation.schedule import run_picks
    from effect_broker.proof.simulation.shrinking import spelled

    clock = SystemClock()
    began = clock.boot_seconds()
    told = 0

    def tell(tally: Tally) -> None:
        nonlocal told
        if tally.schedules - told >= _TOLD_EVERY_SCHEDULES:
            told = tally.schedules
            rate = tally.schedules / max(clock.boot_seconds() - began, 1e-9)
            typer.echo(f"{counted(tally.schedules, 'schedule')}, {rate:.0f} a second", err=True)

    asked = f"{counted(schedules, 'schedule')}, {counted(processes, 'process', 'processes')}"
    typer.echo(f"seeds from {seed}, {asked}", err=True)
    tally = run_campaign(seed, schedules, processes=processes, told=tell)
    seconds = clock.boot_seconds() - began
    stories: list[dict[str, Any]] = []
    for broken in tally.first.values():
        scope = worlds()[broken.world]
        picks = shortest(scope, broken.picks, broken.invariant)
        story = run_picks(scope, picks, telling=True).story
        replay = f"{broken.world}@{spelled(picks)}"
        stories.append(_broken_body(broken) | {"replay": replay, "story": story})
    if as_json:
        print_json(_body(tally, seed, seconds) | {"broken": stories})
    else:
        _print(tally, seed, seconds, stories)
    if stories:
        complain("an invariant broke")


def _explore(word: str, depth: Depth, limit: int | None, processes: int, as_json: bool) -> None:
    from effect_broker.proof.simulation.exploration import CELLS, explore_cell, replay
    from effect_broker.proof.simulation.shrinking import spelled

    names = [name for name in CELLS if word in name]
    if not names:
        complain(f"no cell's name holds {word}; one is {next(iter(CELLS))}")
    rows: list[dict[str, Any]] = []
    for name, seen in _explored(explore_cell, names, depth, limit, processes):
        cell = CELLS[name]
        row: dict[str, Any] = {
            "class": cell.safety.value,
            "trouble": cell.trouble.value,
            "second run": cell.takeover.value,
            "schedules": seen.schedules,
            "states": seen.states,
            "complete": seen.complete,
            "broken": None if seen.violation is None else str(seen.violation),
        }
        if seen.violation is not None:
            row["replay"] = f"{name}@{spelled(seen.picks)}"
            row["story"] = replay(cell.scope, depth, seen.picks)[1]
        rows.append(row)
        told = f"{counted(seen.schedules, 'schedule')}, {counted(seen.states, 'state')}"
        typer.echo(f"{name}: {told}", err=True)
    if as_json:
        print_json(rows)
    else:
        columns = ["class", "trouble", "second run", "schedules", "states", "complete", "broken"]
        print_table("Every schedule", columns, ([row[c] for c in columns] for row in rows))
        for row in rows:
            for line in row.get("story", ()):
                console().print(line)
            if "replay" in row:
                console().print(f"  --replay {row['replay']}")
    if any(row["broken"] for row in rows):
        complain("an invariant broke")


def _explored(
    explore_cell: Callable[..., Explored],
    names: list[str],
    depth: Depth,
    limit: int | None,
    processes: int,
) -> Iterator[tuple[str, Explored]]:
    """Explore all cells, side by side; violations of several cells are all reported."""
    if processes == 1:
        for name in names:
            yield name, explore_cell(name, depth, limit)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        found = pool.map(explore_cell, names, repeat(depth), repeat(limit))
        yield from zip(names, found, strict=True)


def _tell(word: str, depth: Depth) -> None:
    from effect_broker.proof.simulation import exploration
    from effect_broker.proof.simulation.campaign import worlds
    from effect_broker.proof.simulation.schedule import run_picks, silence
    from effect_broker.proof.simulation.shrinking import read

    name, _, spelling = word.partition("@")
    try:
        picks = read(spelling)
        with silence():
            if name in exploration.CELLS:
                scope = exploration.CELLS[name].scope
                broken, story = exploration.replay(scope, depth, picks)
            else:
                outcome = run_picks(worlds()[name], picks, telling=True)
                broken, story = outcome.violation, outcome.story
    except (ValueError, KeyError):
        complain("--replay takes WORLD@PICKS as a report prints it")
    for line in story:
        console().print(line)
    if broken is not None:
        complain(f"an invariant broke: {broken}")


def _broken_body(broken: Broken) -> dict[str, Any]:
    return {
        "invariant": broken.invariant.value,
        "text": broken.text,
        "world": broken.world,
        "seed": broken.seed,
    }


def _body(tally: Tally, seed: int, seconds: float) -> dict[str, Any]:
    from effect_broker.proof.simulation.invariants import MEANINGS

    return {
        "first_seed": seed,
        "schedules": tally.schedules,
        "seconds": round(seconds, 1),
        "sends": tally.sends,
        "late_facts": tally.late_facts,
        "invariants": [
            {
                "invariant": invariant.value,
                "meaning": meaning,
                "tried": tally.tried[invariant],
                "broken": tally.broken[invariant],
            }
            for invariant, meaning in MEANINGS.items()
        ],
        "never_tried": [invariant.value for invariant in tally.untried()],
        "endings": dict(tally.endings.most_common()),
        "worlds": dict(tally.worlds),
    }


def _print(tally: Tally, seed: int, seconds: float, stories: list[dict[str, Any]]) -> None:
    from effect_broker.proof.simulation.invariants import MEANINGS

    print_table(
        f"{counted(tally.schedules, 'schedule')} from seed {seed} in {seconds:.0f} s",
        ["invariant", "what must hold", "tried", "broken"],
        (
            (invariant.value, meaning, tally.tried[invariant], tally.broken[invariant])
            for invariant, meaning in MEANINGS.items()
        ),
    )
    endings = [(name, count) for name, count in tally.endings.most_common()]
    print_table("How effects ended", ["state", "effects"], endings)
    for invariant in tally.untried():
        console().print(f"never tried: {invariant.value}")
    for story in stories:
        console().print(f"\n{story['text']} (world {story['world']}, seed {story['seed']})")
        for line in story["story"]:
            console().print(line)
        console().print(f"  --replay {story['replay']}")
