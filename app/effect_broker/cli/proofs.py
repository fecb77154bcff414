"""The proofs that ship, `effect-broker demo …`: `main` and `crash-matrix` are here."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from effect_broker.cli import agent, simulation
from effect_broker.cli.output import AsJson, complain, console, print_json, print_table
from effect_contracts.counting import counted

if TYPE_CHECKING:
    from effect_broker.proof.broker import ProofBroker
    from effect_broker.proof.demo import ScenarioResult
    from effect_broker.proof.matrix.axes import Cell
    from effect_broker.proof.matrix.cells import CellResult

Tell = Callable[[str], None]
Keep = Annotated[
    Path | None, typer.Option(help="Keep logs and the target's ledger in this directory.")
]

# Peers take over sooner than in production, so that a proof takes less time; nothing else differs.
_TTL_SECONDS = "2"

_app = typer.Typer(help="Proofs with real processes and real SIGKILLs.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(_whole(), name="demo")


@cache  # two roots share one
def _whole() -> typer.Typer:
    simulation.register(_app)
    agent.register(_app, _broker)
    return _app


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
    file: Annotated[
        Path | None, typer.Argument(help="With --json: write the report to this file.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write a JSON report, to FILE or instead of the table.")
    ] = False,
    only_list: Annotated[bool, typer.Option("--list", help="Print the cells, run none.")] = False,
    only: Annotated[
        str | None,
        typer.Option(help="Only cells whose class/point/fault matches: a word, or a glob."),
    ] = None,
    sample: Annotated[
        int | None, typer.Option(min=1, help="Only so many cells, spread over all axes.")
    ] = None,
    lanes: Annotated[
        int, typer.Option(min=1, max=32, help="Brokers side by side, each with a Postgres.")
    ] = 4,
    keep: Keep = None,
) -> None:
    """Break every boundary in every way, for every class of target, and count at the target."""
    from effect_broker.proof.matrix import axes, report

    cells = axes.select(only, sample)
    if not cells:
        complain(f"no cell matches {only!r}; --list shows them all")
    if file is not None and not as_json:
        complain(f"write --json {file} to get the report there")
    if only_list:
        bodies = [report.cell_body(cell) for cell in cells]
        if as_json:
            _write_json(bodies, file)
        else:
            rows = ([cell.target, cell.point, cell.fault] for cell in cells)
            print_table(counted(len(cells), "cell"), ["class", "place", "fault"], rows)
        return
    tell = _teller(as_json and file is None)
    body, results = _run_matrix(cells, lanes, keep, tell)
    if as_json:
        _write_json(body, file)
    if not as_json or file is not None:
        _print_matrix(results)
    _complain_of_matrix(body)


def _run_matrix(
    cells: Sequence[Cell], lanes: int, keep: Path | None, tell: Tell
) -> tuple[dict[str, Any], list[CellResult]]:
    from effect_broker.clock import SystemClock
    from effect_broker.proof.matrix import report
    from effect_broker.proof.matrix.runner import run_cells

    # A matrix that is told to end takes its processes and servers with it, as with Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    clock = SystemClock()
    began = clock.boot_seconds()
    done = 0

    def told(result: CellResult) -> None:
        nonlocal done
        done += 1
        problems = "; ".join(result.verdict.problems)
        word = "held" if result.held else f"FAILED: {problems}"
        tell(f"{done}/{len(cells)} {result.cell.name} {result.seconds:.1f} s {word}")

    with tempfile.TemporaryDirectory(prefix="effect-broker-") as scratch:
        directory = keep or Path(scratch)
        results = run_cells(directory, cells, lanes, told)
    return report.report(results, lanes, clock.boot_seconds() - began), results


def _print_matrix(results: Sequence[CellResult]) -> None:
    from effect_broker.proof.matrix import axes, report

    columns = ["fault", *axes.TargetClass]
    print_table("Cells that held, of all", columns, report.summary_rows(results))
    failures = list(report.failure_rows(results))
    if failures:
        columns = ["cell", "status", "state, requests/effects", "why"]
        print_table("Cells that did not hold", columns, failures)


def _complain_of_matrix(body: Mapping[str, Any]) -> None:
    """End with what did not hold, and with what did not run where everything has to."""
    if body["failed"]:
        complain(f"{body['failed']} of {counted(body['cells'], 'cell')} did not hold")
    if body["not_run"]:
        text = f"{body['not_run']} of {counted(body['cells'], 'cell')} could not run here"
        if os.environ.get("REQUIRE_ALL") == "1":
            complain(f"{text} (REQUIRE_ALL=1: everything must run)")
        typer.echo(text, err=True)
    held = f"{body['held']} of {counted(body['cells'], 'cell')} held"
    typer.echo(f"{held} in {body['seconds']:.0f} s", err=True)


def _write_json(value: Any, file: Path | None) -> None:
    if file is None:
        print_json(value)
    else:
        file.write_text(json.dumps(value, indent=2) + "\n")


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
