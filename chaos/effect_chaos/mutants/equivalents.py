"""Mutants that are no bugs: a committed list, each with the reason why nobody could tell.

An entry names the module, the operators, the line's text and the reason. It covers the mutants
that those operators make of that line; `becomes` narrows it to one of them. An entry that covers
no mutant (the line has gone, or was changed) is an error: the reason has to be thought of again.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from effect_chaos.mutants.mutations import Mutant

LIST: Final = Path(__file__).parent / "equivalent.toml"
_FIELDS: Final = frozenset({"module", "operators", "line", "reason"})


class BadList(ValueError):
    """The list cannot be used as it stands; the message names each wrong entry."""


@dataclass(frozen=True, slots=True)
class Equivalent:
    """One entry.

    Attributes:
        module: the dotted name of the module.
        operators: cosmic-ray's names, without the provider `core/`.
        line: the text of the line, or of the lines, without indentation.
        becomes: the text after the change, if only that one is meant.
        reason: why no caller could tell.
    """

    module: str
    operators: tuple[str, ...]
    line: str
    becomes: str | None
    reason: str

    def covers(self, operator: str, mutant: Mutant) -> bool:
        """Whether the mutant is one that this operator of the entry stands for."""
        return (
            mutant.operator.removeprefix("core/") == operator
            and mutant.text == self.line
            and self.becomes in {None, mutant.becomes}
        )


class Equivalents:
    """The list, over the mutants of the modules that it names.

    Attributes:
        entries: as they were read.
    """

    def __init__(self, entries: Iterable[Equivalent]) -> None:
        self.entries = tuple(entries)

    @classmethod
    def read(cls, path: Path = LIST) -> Equivalents:
        """Read the list.

        Raises:
            BadList: it is no TOML, or an entry lacks a field, has another, or gives no reason.
        """
        try:
            entries = tomllib.loads(path.read_text("utf-8")).get("equivalent", [])
        except tomllib.TOMLDecodeError as problem:
            raise BadList(f"{path.name}: {problem}") from problem
        return cls(_entry(number, fields) for number, fields in enumerate(entries, 1))

    def reason(self, module: str, mutant: Mutant) -> str | None:
        """Return why the mutant is none, or None if it is one."""
        found = (
            entry.reason
            for entry in self.entries
            if entry.module == module and any(entry.covers(op, mutant) for op in entry.operators)
        )
        return next(found, None)

    def refuse_stale(self, mutants: Mapping[str, Iterable[Mutant]], known: Iterable[str]) -> None:
        """Look for entries that cover nothing.

        Args:
            mutants: the mutants of each module that is looked at now.
            known: every module under mutation.

        Raises:
            BadList: an entry names a module that is not under mutation, or an operator that
                makes no such change of such a line any more.
        """
        names = set(known)
        wrong: list[str] = []
        for entry in self.entries:
            if entry.module not in names:
                wrong.append(f"{entry.module}: no module under mutation")
            elif entry.module in mutants:
                wrong += [
                    f"{entry.module}: {operator} makes no such change of `{entry.line}`"
                    for operator in entry.operators
                    if not any(entry.covers(operator, m) for m in mutants[entry.module])
                ]
        if wrong:
            raise BadList("stale in the list of equivalents:\n  " + "\n  ".join(wrong))


def _entry(number: int, fields: Mapping[str, object]) -> Equivalent:
    if not _FIELDS <= set(fields) <= _FIELDS | {"becomes"}:
        raise BadList(f"equivalent {number}: needs {', '.join(sorted(_FIELDS))}; may have becomes")
    operators = fields["operators"]
    texts = {name: value for name, value in fields.items() if name != "operators"}
    if not all(isinstance(value, str) and value.strip() for value in texts.values()):
        raise BadList(
            f"equivalent {number}: every field but operators is a text that says something"
        )
    if not isinstance(operators, list) or not operators:
        raise BadList(f"equivalent {number}: operators is a list of names")
    return Equivalent(
        module=str(fields["module"]),
        operators=tuple(str(operator) for operator in operators),
        line=str(fields["line"]),
        becomes=None if "becomes" not in fields else str(fields["becomes"]),
        reason=str(fields["reason"]),
    )
