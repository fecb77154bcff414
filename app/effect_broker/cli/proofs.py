"""The proofs that ship: `effect-broker demo main` and `effect-broker demo crash-matrix`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from effect_broker.cli.output import AsJson, complain, console, print_json, print_table

if TYPE_CHECKING:
    from effect_broker.proof.broker import ProofBroker
    from effect_broker.proof.demo import ScenarioResult

Tell = Callable[[str], None]
Keep = Annotated[
    Path | None, typer.Option(help="Keep logs and the target's ledger in this directory.")
]

# Peers take over sooner than in production, so that a proof takes less time; nothing else differs.
_TTL_SECONDS = "2"

_app = typer.Typer(help="Proofs with real processes and real SIGKILLs.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(_app, name="demo")


@_app.command("main")
def main(as_json: AsJson = False, keep: Keep = None) -> None:
    """Kill a worker between the target's commit and the receipt, and count at the target."""
    from effect_broker.proof.broker import NotInTime
    from effect_broker.proof.demo import run_scenarios

    tell = _teller(as_json)
    try:
        with _broker(keep, tell) as broker:
            results = list(run_scenarios(broker, tell))
    except NotInTime as problem:
        complain(f"the demo did not come to its end: {problem}")
    if as_json:
        print_json([_scenario_json(result) for result in results])
    else:
        print_table(
            "What the target's own ledger says",
            ["scenario", "class", "killed at", "requests", "effects", "state", "receipt", "pass"],
            (
                [
                    r.scenario,
                    r.safety,
                    r.kill_point,
                    r.requests,
                    r.effects,
                    r.state,
                    _yes(r.receipt),
                    _yes(r.passed),
                ]
                for r in results
            ),
        )
        for result in results:
            for check in result.checks:
                mark = "ok  " if check.held else "FAIL"
                console().print(f"  {mark} {result.scenario}: {check.name}")
    if not all(result.passed for result in results):
        complain("a guarantee did not hold")


@_app.command("crash-matrix")
def crash_matrix(
    as_json: AsJson = False,
    only_list: Annotated[bool, typer.Option("--list", help="Print the cells, run none.")] = False,
    keep: Keep = None,
) -> None:
    """Kill a process at every boundary, for every safety class, and count at the target."""
    from effect_broker.proof.broker import NotInTime
    from effect_broker.proof.matrix import CELLS, CellResult, Counted, run_cell
    from effect_broker.store import demo_ledger

    if only_list:
        cells = [{"class": c.safety.value, "killed_at": c.point} for c in CELLS]
        if as_json:
            print_json(cells)
        else:
            print_table("Cells", ["class", "killed at"], (list(c.values()) for c in cells))
        return
    tell = _teller(as_json)
    results: list[CellResult] = []
    with _broker(keep, tell) as broker:
        demo_ledger.create(broker.superuser_url)
        for cell in CELLS:
            tell(f"{cell.safety}, killed {cell.point}")
            try:
                results.append(run_cell(broker, cell))
            except NotInTime as problem:
                results.append(CellResult(cell, Counted("stuck", 0, 0), False, (str(problem),)))
    rows = [
        {
            "class": r.cell.safety.value,
            "killed_at": r.cell.point,
            "requests": r.counted.requests,
            "effects": r.counted.effects,
            "state": r.counted.state,
            "receipt": r.receipt,
            "problems": list(r.problems),
        }
        for r in results
    ]
    if as_json:
        print_json(rows)
    else:
        columns = ["class", "killed at", "requests", "effects", "state", "receipt", "problems"]
        print_table("The crash matrix", columns, (list(row.values()) for row in rows))
    if any(result.problems for result in results):
        complain("a guarantee did not hold")


@contextmanager
def _broker(keep: Path | None, tell: Tell) -> Iterator[ProofBroker]:
    """A prepared broker with an API, two workers and the target, each a process of its own."""
    from effect_broker import assembly
    from effect_broker.config import Role, load_settings
    from effect_broker.proof.broker import ProofBroker
    from effect_broker.store.scratch import scratch_database

    settings = load_settings()
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="effect-broker-") as scratch,
        assembly.database(settings, Role.MIGRATE) as server,
        scratch_database(server.url) as url,
        ProofBroker(
            keep or Path(scratch),
            url,
            environment={"EFFECT_BROKER_HEARTBEAT_TTL_SECONDS": _TTL_SECONDS},
            own_logins=settings.url(Role.MIGRATE) is None,
        ) as broker,
    ):
        tell("preparing a database, a target, an API and two workers")
        broker.prepare("demo")
        workers = [broker.stack.worker() for _ in range(2)]
        broker.start_api()
        for worker in workers:
            worker.wait_ready()
        yield broker


def _teller(as_json: bool) -> Tell:
    def tell(text: str) -> None:
        typer.echo(text, err=as_json)

    return tell


def _scenario_json(result: ScenarioResult) -> dict[str, object]:
    return {**asdict(result), "passed": result.passed}


def _yes(value: bool) -> str:
    return "yes" if value else "no"
