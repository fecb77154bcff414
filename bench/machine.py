"""What processes use, from /proc: processor seconds and memory (Linux)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Memory:
    """Of one process, in MB (10^6 bytes).

    Attributes:
        rss: what it has mapped and touched; pages that it shares count in full.
        pss: the same, shared pages divided among those who share them.
    """

    rss: float
    pss: float


def _stat(pid: int) -> list[str]:
    # The name may hold spaces; what follows it does not. Field 3 of the manual is the first here.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def parent_of(pid: int) -> int:
    """Return the parent's id."""
    return int(_stat(pid)[1])


def cpu_seconds(pid: int, *, ended_children: bool = False) -> float:
    """Return the processor time of a process; 0 for one that has ended."""
    try:
        fields = _stat(pid)
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(map(int, fields[11 : 15 if ended_children else 13])) / _TICKS


def cpu_of_family(pid: int) -> float:
    """Return the processor time of a process, of its children, and of those that have ended."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return cpu_seconds(pid, ended_children=True) + sum(
        cpu_seconds(int(child)) for child in children
    )


def memory(pid: int) -> Memory:
    """Return what a process holds now."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines[1:]}
    return Memory(sizes["Rss"] * 1024 / 1e6, sizes["Pss"] * 1024 / 1e6)


def greatest_memory(pid: int) -> float:
    """Return the greatest resident memory that a process has ever had, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM:"))


def cpu_of(pids: Iterable[int]) -> float:
    """Return the processor time of several processes."""
    return sum(map(cpu_seconds, pids))
