"""What the matrix has shown: a table of class × fault, every cell that failed, and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from effect_broker.proof.matrix.axes import OMITTED, Cell, Fault, TargetClass
from effect_broker.proof.matrix.cells import CellResult
from effect_broker.proof.matrix.expected import expected, situation


def cell_body(cell: Cell) -> dict[str, Any]:
    """Return a cell with what is expected of it."""
    return {
        "cell": cell.name,
        "class": cell.target.value,
        "point": cell.point.value,
        "fault": cell.fault.value,
        "situation": situation(cell).value,
        "expected": asdict(expected(cell)),
    }


def result_body(result: CellResult) -> dict[str, Any]:
    """Return a cell with what it has shown."""
    observation = result.observation
    return {
        **cell_body(result.cell),
        "status": status(result),
        "slow_motion": result.slow,
        "seconds": round(result.seconds, 1),
        "not_run": result.not_run,
        "problems": list(result.verdict.problems),
        "seen": None if observation is None else asdict(observation.end),
        "seen_meanwhile": (
            asdict(observation.meanwhile) if observation and observation.meanwhile else None
        ),
    }


def status(result: CellResult) -> str:
    """Return `held`, `failed` or `not_run`."""
    if result.not_run is not None:
        return "not_run"
    return "held" if result.held else "failed"


def report(results: Sequence[CellResult], lanes: int, seconds: float) -> dict[str, Any]:
    """Return the whole report."""
    counted = Counter(status(result) for result in results)
    return {
        "cells": len(results),
        "held": counted["held"],
        "failed": counted["failed"],
        "not_run": counted["not_run"],
        "slow_motion": sum(result.slow for result in results),
        "lanes": lanes,
        "seconds": round(seconds, 1),
        "left_out": dict(OMITTED),
        "results": [result_body(result) for result in results],
    }


def summary_rows(results: Sequence[CellResult]) -> Iterator[list[str]]:
    """Yield one row for each fault: held of all, by class of target."""
    cells: Mapping[tuple[Fault, TargetClass], list[CellResult]] = {
        (fault, target): [r for r in results if (r.cell.fault, r.cell.target) == (fault, target)]
        for fault in Fault
        for target in TargetClass
    }
    for fault in Fault:
        row = [_share(cells[fault, target]) for target in TargetClass]
        if any(row):
            yield [fault.value, *row]


def _share(results: Sequence[CellResult]) -> str:
    if not results:
        return ""
    not_run = sum(result.not_run is not None for result in results)
    share = f"{sum(result.held for result in results)}/{len(results)}"
    return f"{share} ({not_run} not run)" if not_run else share


def failure_rows(results: Sequence[CellResult]) -> Iterator[list[str]]:
    """Yield one row for each cell that failed or did not run."""
    for result in results:
        if result.held:
            continue
        seen = result.observation.end if result.observation else None
        yield [
            result.cell.name,
            status(result),
            "" if seen is None else f"{seen.state}, {seen.requests}/{seen.effects}",
            result.not_run or "; ".join(result.verdict.problems),
        ]
