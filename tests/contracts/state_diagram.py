"""The state diagram in `docs/state-machine.md`: where it stands, and how to print it anew.

    python tests/contracts/state_diagram.py

replaces the block between the two markers by what `effect_contracts.life.mermaid` prints.
"""

from __future__ import annotations

from pathlib import Path

from effect_contracts.life import mermaid

PAGE = Path(__file__).parents[2] / "docs" / "state-machine.md"
COMMAND = "python tests/contracts/state_diagram.py"
_BEGIN = f"<!-- printed by `{COMMAND}`; do not edit -->\n```mermaid\n"
_END = "```\n<!-- end of the printed diagram -->\n"


def block(page: str) -> str:
    """Return the diagram that the page holds.

    Raises:
        ValueError: the page does not hold exactly one pair of markers.
    """
    if page.count(_BEGIN) != 1 or page.count(_END) != 1:
        raise ValueError(f"{PAGE.name} needs exactly one diagram between its markers")
    return page.split(_BEGIN)[1].split(_END)[0]


def with_block(page: str, diagram: str) -> str:
    """Return the page with this diagram between its markers."""
    return page.replace(_BEGIN + block(page) + _END, _BEGIN + diagram + _END)


if __name__ == "__main__":
    PAGE.write_text(with_block(PAGE.read_text("utf-8"), mermaid()), "utf-8")
