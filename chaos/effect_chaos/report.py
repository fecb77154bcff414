"""How a run is shown: the schedule, what came of the operations, and what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from effect_chaos.auditor import idle
from effect_chaos.auditor.__main__ import table as verdict_table
from effect_chaos.schedule import Schedule
from effect_chaos.supervisor import Result
from effect_chaos.tools import TOOLS
from effect_chaos.workload import Workload

_PROBLEMS_SHOWN = 40


def schedule_text(workload: Workload, schedule: Schedule) -> str:
    """Return the whole plan of a run: what is asked for and what breaks when."""
    tools = Counter(plan.tool.name for plan in workload.plans)
    manners = Counter(str(call.manner) for call, _ in workload.calls())
    lines = [
        f"workers     {schedule.workers}",
        f"operations  {len(workload.plans)}: {_counted(tools)}",
        f"calls       {manners.total()}: {_counted(manners)}",
        f"faults      {len(schedule.faults)}:",
    ]
    lines += [f"{fault.at_seconds:8.2f}  {fault.words}" for fault in schedule.faults]
    return "\n".join(lines)


def result_text(result: Result) -> str:
    """Return the tables of a run that is over, and every problem."""
    rows = [
        (
            tool.name,
            str(tool.safety),
            str(result.operations[tool.name]),
            "-" if tool.transactional else str(result.requests[tool.name]),
            str(result.effects[tool.name]),
            _counted(result.states[tool.name]),
        )
        for tool in TOOLS
    ]
    total = (
        "all",
        "",
        str(result.operations.total()),
        str(result.requests.total()),
        str(result.effects.total()),
        _counted(sum(result.states.values(), Counter())),
    )
    heads = ("tool", "class", "operations", "requests", "effects", "states")
    lines = [
        _table([heads, *rows, total]),
        "",
        f"faults carried out: {_counted(result.faults)}",
        f"fault points met: {_counted(result.fired) or 'none'}",
        "",
        verdict_table(result.verdicts),
    ]
    if owing := idle(result.verdicts):
        lines.append(f"there was to be something for: {', '.join(owing)}")
    lines += [f"supervisor: {problem}" for problem in result.problems[:_PROBLEMS_SHOWN]]
    more = len(result.problems) - _PROBLEMS_SHOWN
    if more > 0:
        lines.append(f"supervisor: … and {more} more")
    return "\n".join(lines)


def _counted(counts: Counter[str]) -> str:
    """Counts by name, the most first."""
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
