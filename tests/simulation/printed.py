"""The tables in `docs/simulation.md`: what they hold, and how to print them anew.

    python tests/simulation/printed.py

replaces what stands between the markers by what the code says.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from effect_broker.proof.simulation.campaign import worlds
from effect_broker.proof.simulation.guard import CROWD
from effect_broker.proof.simulation.guards import GUARDS, Guard
from effect_broker.proof.simulation.invariants import MEANINGS
from effect_broker.proof.simulation.scope import BROKEN_PROMISES, WORDS

PAGE: Final = Path(__file__).parents[2] / "docs" / "simulation.md"
COMMAND: Final = "python tests/simulation/printed.py"


def tables() -> dict[str, list[str]]:
    """Return the lines of each table by its name."""
    return {
        "guards": list(_guards()),
        "faults": list(_faults()),
        "invariants": [
            "| invariant | what must hold |",
            "|---|---|",
            *(f"| `{name.value}` | {meaning} |" for name, meaning in MEANINGS.items()),
        ],
        "worlds": list(_worlds()),
    }


def block(page: str, name: str) -> str:
    """Return the table of this name that the page holds.

    Raises:
        ValueError: the page does not hold exactly one pair of its markers.
    """
    begin, end = _markers(name)
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"{PAGE.name} needs exactly one table {name} between its markers")
    return page.split(begin)[1].split(end)[0]


def printed(page: str) -> str:
    """Return the page with every table printed anew."""
    for name, lines in tables().items():
        begin, end = _markers(name)
        table = "".join(f"{line}\n" for line in lines)
        page = page.replace(begin + block(page, name) + end, begin + table + end)
    return page


def _markers(name: str) -> tuple[str, str]:
    return (
        f"<!-- {name}: printed by `{COMMAND}`; do not edit -->\n",
        f"<!-- end of {name} -->\n",
    )


def _guards() -> Iterator[str]:
    yield "| guard | without it there is | what breaks | found by |"
    yield "|---|---|---|---|"
    for guard in GUARDS.values():
        breaks = ", ".join(sorted(f"`{invariant.value}`" for invariant in guard.breaks)) or "—"
        yield f"| `{guard.name}` | {guard.prevents} | {breaks} | {_found_by(guard)} |"


def _found_by(guard: Guard) -> str:
    if guard.proof is not None:
        file, _, name = guard.proof.partition("::")
        return f"[`{name}`](../{file})"
    scope = guard.scope
    assert scope is not None
    words = ["crowd"] if scope.faults >= CROWD else []
    words += sorted(f.value for f in scope.faults - (CROWD if words else frozenset()))
    how = "explored" if guard.depth is not None else "seeds"
    also = f"; also off: {', '.join(f'`{name}`' for name in guard.beside)}" if guard.beside else ""
    return f"{how}, {scope.safety.value}: {', '.join(words)}{also}"


def _faults() -> Iterator[str]:
    yield "| fault | what happens | |"
    yield "|---|---|---|"
    for fault, words in WORDS.items():
        kind = "breaks a promise" if fault in BROKEN_PROMISES else "to be borne"
        yield f"| `{fault.value}` | {words} | {kind} |"


def _worlds() -> Iterator[str]:
    yield "| world | effects | processes | attempts | kinds of faults |"
    yield "|---|---|---|---|---|"
    for name, scope in sorted(worlds().items()):
        attempts = scope.document.policy().attempts_max
        sizes = f"{scope.effects} | {scope.processes} | {attempts} | {len(scope.faults)}"
        yield f"| `{name}` | {sizes} |"


if __name__ == "__main__":
    PAGE.write_text(printed(PAGE.read_text("utf-8")), "utf-8")
