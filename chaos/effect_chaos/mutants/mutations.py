"""The mutants of one module: made by cosmic-ray's operators, without those that change nothing.

Left out before anything runs, and counted: mutants that are no Python; mutants that change only
annotations which nobody evaluates; and the operators of `NOT_USED`.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from cosmic_ray.ast import ast_nodes, get_ast  # type: ignore[import-untyped]
from cosmic_ray.plugins import get_operator, operator_names  # type: ignore[import-untyped]

# Equal or identical is no question: the core compares None and members of enums by identity, and
# these are equal exactly if they are identical; for texts and numbers identity is an accident of
# the interpreter. And members of enums have no order but the alphabet's, which nobody means. So of
# all that `is` can become, `is not` is left, and `==` and `!=` become no identity.
_ORDERS: Final = ("Lt", "LtE", "Gt", "GtE")
NOT_USED: Final = frozenset(
    f"core/ReplaceComparisonOperator_{change}"
    for change in (
        "Eq_Is",
        "Eq_IsNot",
        "NotEq_Is",
        "NotEq_IsNot",
        "Is_Eq",
        "Is_NotEq",
        "IsNot_Eq",
        "IsNot_NotEq",
        *(f"{identity}_{order}" for identity in ("Is", "IsNot") for order in _ORDERS),
        *(f"{order}_{identity}" for identity in ("Is", "IsNot") for order in _ORDERS),
    )
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted bug.

    Attributes:
        operator: cosmic-ray's name of the change, with its provider.
        occurrence: which of the places where that operator could be applied.
        line: the number of the changed line, from 1.
        text: the line as it is in the source, without indentation.
        becomes: the changed lines, without indentation; several are joined by a line feed.
        scope: the first line of the innermost function whose body holds the change; None for a
            change outside of functions, which is made when the module is imported.
        code: the source of the whole module with the bug.
    """

    operator: str
    occurrence: int
    line: int
    text: str
    becomes: str
    scope: int | None
    code: str

    @property
    def place(self) -> str:
        """What identifies it within one text of the module."""
        return f"{self.operator}:{self.occurrence}"


@dataclass(frozen=True, slots=True)
class Mutants:
    """The mutants of one text of one module, in the order of its lines.

    Attributes:
        digest: SHA-256 of the text, in hexadecimal.
        no_python, no_change: how many were left out, and why.
    """

    digest: str
    mutants: tuple[Mutant, ...]
    no_python: int
    no_change: int


def mutants_of(source: str) -> Mutants:
    """Return every mutant of the module with that source."""
    shape = _Shape(source)
    found: list[Mutant] = []
    no_python = no_change = 0
    for place in _places(source):
        if shape.never_evaluated(place.line, place.column):
            no_change += 1
        elif not _is_python(place.code):
            no_python += 1
        else:
            text, becomes = _changed_lines(source, place.code)
            found.append(
                Mutant(
                    place.operator,
                    place.occurrence,
                    place.line,
                    text,
                    becomes,
                    shape.scope(place.line),
                    place.code,
                )
            )
    found.sort(key=lambda mutant: (mutant.line, mutant.operator, mutant.occurrence))
    digest = hashlib.sha256(source.encode()).hexdigest()
    return Mutants(digest, tuple(found), no_python, no_change)


def diff(path: str, source: str, mutant: Mutant) -> str:
    """Return the bug as a unified diff of the module's file."""
    lines = difflib.unified_diff(
        source.splitlines(),
        mutant.code.splitlines(),
        f"a/{path}",
        f"b/{path} {mutant.place}",
        lineterm="",
        n=2,
    )
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Place:
    """One change at one place, and the module's text with it."""

    operator: str
    occurrence: int
    line: int
    column: int
    code: str


def _places(source: str) -> Iterator[_Place]:
    """Every operator at every place it can be applied to, as cosmic-ray would number them.

    cosmic-ray parses the module again for each mutant. Here one tree serves for all: an operator
    changes the node that it is given and what lies below, and both are put back.
    """
    tree = get_ast(source)
    nodes = list(ast_nodes(tree))
    # Lines end where the parser says: at a line feed, and at no other sign.
    starts = [0, *accumulate(len(line) + 1 for line in source.split("\n"))]
    for name in operator_names():
        kind = get_operator(name)
        # Operators that want arguments change variables at random; nobody has asked for them.
        if name in NOT_USED or kind.arguments():
            continue
        operator = kind()
        occurrence = 0
        for node in nodes:
            for index, ((line, column), _) in enumerate(list(operator.mutation_positions(node))):
                if _is_marker(node):
                    occurrence += 1
                    continue
                row, first = node.get_start_pos_of_prefix()
                begin = starts[row - 1] + first
                end = begin + len(node.get_code())
                kept = [(below, _texts_of(below)) for below in ast_nodes(node)]
                try:
                    changed = operator.mutate(node, index)
                    text = "" if changed is None else changed.get_code()
                except AttributeError:
                    # cosmic-ray cannot replace a dotted name (`except module.Error`).
                    occurrence += 1
                    continue
                finally:
                    for below, values in kept:
                        _put_back(below, values)
                yield _Place(name, occurrence, line, column, source[:begin] + text + source[end:])
                occurrence += 1


def _is_marker(node: Any) -> bool:
    """Whether it is the bare star (or slash) of a signature, which is no operator."""
    return node.type == "operator" and node.parent.type in {"parameters", "lambdef"}


def _texts_of(node: Any) -> tuple[str | None, list[Any] | None]:
    """What an operator may change of a node: its text, or the nodes below it."""
    children = getattr(node, "children", None)
    return getattr(node, "value", None), None if children is None else list(children)


def _put_back(node: Any, values: tuple[str | None, list[Any] | None]) -> None:
    """Undo what an operator has done to a node."""
    value, children = values
    if children is None:
        node.value = value
    else:
        node.children = children


def _is_python(code: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            compile(code, "mutant", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def _changed_lines(source: str, code: str) -> tuple[str, str]:
    """The lines that differ, before and after, without indentation."""
    before, after = source.splitlines(), code.splitlines()
    shorter = min(len(before), len(after))
    head = next((i for i in range(shorter) if before[i] != after[i]), shorter)
    rest = range(1, shorter - head + 1)
    tail = next((i - 1 for i in rest if before[-i] != after[-i]), shorter - head)
    texts = (lines[head : len(lines) - tail] for lines in (before, after))
    old, new = ("\n".join(line.strip() for line in text).strip() for text in texts)
    return old, new


class _Shape:
    """Where a module's functions and annotations are."""

    def __init__(self, source: str) -> None:
        tree = ast.parse(source)
        self._lines = source.split("\n")
        self._spans = sorted(_spans(tree), key=lambda span: span[2] - span[1])
        self._words = list(_annotations(tree))

    def scope(self, line: int) -> int | None:
        """The first line (decorators count) of the innermost function around the line."""
        return next((first for first, begin, end in self._spans if begin <= line <= end), None)

    def never_evaluated(self, line: int, column: int) -> bool:
        """Whether the place (column in characters) is inside an annotation that is only read."""
        at = (line, len(self._lines[line - 1][:column].encode()))
        return any(
            (node.lineno, node.col_offset) <= at < (node.end_lineno, node.end_col_offset)
            for node in self._words
        )


def _spans(tree: ast.Module) -> Iterator[tuple[int, int, int]]:
    """Each function: its first line as the interpreter counts it, and the lines of its body."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            last = node.body[-1].end_lineno or node.body[-1].lineno
            yield first, node.body[0].lineno, last


def _annotations(tree: ast.Module) -> Iterator[Any]:
    """The annotations that nobody evaluates.

    With the import from `__future__` those of functions are only words. Those of classes are too,
    but pydantic reads them: they count in a module that imports it, or has parts of documents, if
    the class has a base, as every model has.
    """
    imports = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    if "__future__" not in imports:
        return
    models = bool(imports & {"pydantic", "effect_contracts.section"})
    in_classes = {
        id(statement)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.bases
        for statement in node.body
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation is not None:
            yield node.annotation
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
            yield node.returns
        elif isinstance(node, ast.AnnAssign) and not (models and id(node) in in_classes):
            yield node.annotation
    # Names for unions of types are evaluated, and say nothing but types.
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and _is_union(statement.value):
            yield statement.value


def _is_union(value: ast.expr | None) -> bool:
    if not (isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr)):
        return False
    sides = (value.left, value.right)
    return all(_is_union(s) or isinstance(s, ast.Name | ast.Attribute) for s in sides)
