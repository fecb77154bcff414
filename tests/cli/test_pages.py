"""What the pages tell people to type, to write and to look at is there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from effect_broker.cli.main import app
from effect_contracts.document import ContractDocument

CHECKOUT = Path(__file__).resolve().parents[2]
PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("*.md"))]
# The first lines of texts that are signed; no commands.
FORMATS = ("effect-broker certificate v1", "effect-broker receipt v1")


def _blocks(page: Path) -> Iterator[str]:
    yield from re.findall(r"```[a-z]*\n(.*?)```", page.read_text("utf-8"), re.DOTALL)


def _commands(page: Path) -> Iterator[str]:
    """Yield each command line of the program, from blocks and from the running text."""
    for block in _blocks(page):
        for line in block.replace("\\\n", " ").splitlines():
            if line.strip().removeprefix("$ ").startswith("effect-broker "):
                yield line.strip().removeprefix("$ ")
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    for span in re.findall(r"`(effect-broker [^`]+)`", text):
        yield " ".join(span.split())


def _problem(line: str) -> str | None:
    """Say what of a command line the program does not know."""
    plain = re.split(r"\s#| > | \| | && ", line)[0]
    words = shlex.split(plain)[1:]
    # By what they can do: the library has groups and contexts of its own.
    command: Any = typer.main.get_command(app)
    context = command.context_class(command, info_name="effect-broker")
    while words and hasattr(command, "get_command") and not words[0].startswith("-"):
        # `list|inspect|wait` stands for one of them.
        names = words.pop(0).split("|")
        found = [command.get_command(context, name) for name in names]
        if None in found or found[0] is None:
            return f"no command {names}"
        command = found[0]
        context = command.context_class(command, parent=context, info_name=names[0])
    options = {"--help"}
    for parameter in command.get_params(context):
        options.update(parameter.opts, parameter.secondary_opts)
    unknown = {word.partition("=")[0] for word in words if word.startswith("--")} - options
    return f"no option {sorted(unknown)}" if unknown else None


def test_every_command_on_a_page_is_one() -> None:
    seen = 0
    wrong = []
    for page in PAGES:
        for line in _commands(page):
            if not line.startswith(FORMATS):
                seen += 1
                problem = _problem(line)
                wrong += [f"{page.name}: {line}: {problem}"] if problem else []
    assert wrong == []
    assert seen > 100


def test_a_command_that_is_none_is_found_out() -> None:
    for line in ("effect-broker effects retry ID", "effect-broker worker --twice"):
        assert _problem(line)


def test_every_contract_on_a_page_is_one() -> None:
    read = [
        ContractDocument.parse_yaml(block).name
        for page in PAGES
        for block in _blocks(page)
        if block.startswith("name: ")
    ]
    assert "acme-charge" in read


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_points_to_is_there(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    named = set(re.findall(r"`(tests/[a-z0-9_/.]+)`", text))
    assert [one for one in sorted(named) if not (CHECKOUT / one).exists()] == []
    lost = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = page if not path else (page.parent / path)
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            lost.append(link)
    assert lost == []


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    made = set()
    for heading in headings:
        plain = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", heading).lower()
        made.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return made
