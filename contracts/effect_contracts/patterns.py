"""Regular expressions of a contract: matched in time linear in the text, or refused when read.

Python's own engine backtracks, and a few dozen characters make `^(a+)+$` run for years. The engine
here is the one of pydantic (the Rust crate `regex`), which cannot. It reads what ECMA-262 and RE2
have in common; look-around and back-references have no linear form and are refused. What the
dialects read in different ways is refused as well, so that a pattern means the same everywhere.
`$` is the end of the text and nothing else: a final newline is a character like any other.

Linear still has a factor: `[01]*1[01]{1000}` keeps a thousand positions alive for each character.
`LinearPattern.weight` bounds that factor, and who matches pays text times weight.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from pydantic_core import SchemaError, SchemaValidator, core_schema

PATTERN_CHARS_MAX: Final = 1024
# Positions of the compiled expression. A text of 4,096 characters then costs half a second at the
# worst; `{1,5000}` is better said by maxLength.
PATTERN_WEIGHT_MAX: Final = 4096

# `(?i:…)` and the like are ECMA-262's own; the other flags are the engine's.
_GROUP_BEGIN: Final = re.compile(r"\((?:\?(?::|P?<[^>]*>|[ims-]+[:)]))?")
_COUNT: Final = re.compile(r"\{([0-9]+)(,([0-9]*))?\}")
_ESCAPE: Final = re.compile(r"\\(?:[pPxuU]\{[^}]*\}|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_SET_OPERATORS: Final = ("&&", "--", "~~")


class LinearPattern(str):
    """A checked regular expression; as a text it is what the contract says.

    Attributes:
        weight: how many positions it may have to keep for each character, at the most.
    """

    __slots__ = ("_engine", "weight")

    weight: int
    _engine: SchemaValidator

    def found_in(self, text: str) -> bool:
        """Whether it matches somewhere in `text`, as JSON Schema has it (no anchors by itself)."""
        return self._engine.isinstance_python(text)


@lru_cache(maxsize=4096)
def linear_pattern(text: str) -> LinearPattern:
    """Return the compiled expression.

    Raises:
        ValueError: it is none, or none that can be matched in linear time; the text says why.
    """
    if len(text) > PATTERN_CHARS_MAX:
        raise ValueError(f"a regular expression has at most {PATTERN_CHARS_MAX} characters")
    engine = _compiled(text)
    weight = _Scan(text).weight()
    if weight > PATTERN_WEIGHT_MAX:
        raise ValueError(
            "the regular expression repeats too much by counts; say lengths by minLength and "
            "maxLength"
        )
    pattern = LinearPattern(text)
    pattern.weight = weight
    pattern._engine = engine
    return pattern


def _compiled(text: str) -> SchemaValidator:
    schema = core_schema.str_schema(pattern=text, regex_engine="rust-regex", strict=True)
    try:
        return SchemaValidator(schema)
    except SchemaError as error:
        said = str(error)
    if "size limit" in said:
        raise ValueError("the regular expression repeats too much by counts")
    reason = said.rpartition("error: ")[2].strip()
    raise ValueError(
        f"not a regular expression that is matched in linear time: {reason} (the common part of "
        "ECMA-262 and RE2 is taken, which has neither look-around nor back-references)"
    )


@dataclass(slots=True)
class _Scan:
    """Counts positions of an expression that has compiled; nothing is forgotten, some twice."""

    text: str
    at: int = 0
    # The sum of each open group, and the weight of what a count would repeat next.
    sums: list[int] = field(default_factory=lambda: [0])
    last: int = 0

    def weight(self) -> int:
        """Return the positions.

        Raises:
            ValueError: a construct that other engines read in another way.
        """
        while self.at < len(self.text):
            self._step()
            # Counts within counts multiply; there is no need to know how far.
            if self.sums[-1] > PATTERN_WEIGHT_MAX:
                return self.sums[-1]
        return sum(self.sums) + 1

    def _step(self) -> None:
        match self.text[self.at]:
            case "\\":
                self._escape()
                self._atom(1)
            case "[":
                self._members()
                self._atom(1)
            case "(":
                self._group()
            case ")":
                self.at += 1
                if len(self.sums) > 1:
                    inside = self.sums.pop()
                    self._atom(inside + 1)
            case "{":
                self._repeat()
            case "|" | "*" | "+" | "?":
                self.at += 1
                self.sums[-1] += 1
            case _:
                self.at += 1
                self._atom(1)

    def _atom(self, weight: int) -> None:
        self.sums[-1] += weight
        self.last = weight

    def _escape(self) -> None:
        found = _ESCAPE.match(self.text, self.at)
        assert found is not None, "the engine has taken this escape"
        if found.group() in {"\\<", "\\>", "\\A", "\\z"}:
            raise ValueError(
                f"'{found.group()}' is not of ECMA-262: write ^ and $ for the ends, \\b for the "
                "border of a word, and < and > as they are"
            )
        self.at = found.end()

    def _members(self) -> None:
        self.at += 2 if self.text.startswith("[^", self.at) else 1
        if self.text[self.at] == "]":
            raise ValueError("within [ ] write \\] for the bracket")
        while self.text[self.at] != "]":
            if self.text[self.at] == "\\":
                self._escape()
                continue
            if self.text[self.at] == "[" or self.text.startswith(_SET_OPERATORS, self.at):
                raise ValueError(
                    "within [ ] write \\[ for the bracket, and no &&, -- or ~~: engines read "
                    "them differently"
                )
            self.at += 1
        self.at += 1

    def _group(self) -> None:
        found = _GROUP_BEGIN.match(self.text, self.at)
        begin = "" if found is None else found.group()
        if begin == "(" and self.text.startswith("(?", self.at):
            raise ValueError("of the flags of a group only i, m and s are taken")
        self.at += len(begin)
        if not begin.endswith(")"):
            self.sums.append(0)

    def _repeat(self) -> None:
        found = _COUNT.match(self.text, self.at)
        if found is None:
            raise ValueError("write \\{ for the brace")
        self.at = found.end()
        most = max(int(found.group(1)), int(found.group(3) or 0))
        self.sums[-1] += self.last * max(most - 1, 0) + 1
        self.last *= max(most, 1)
