"""Checking a value against a contract's JSON Schema with bounded work.

Arguments come from callers and answers from targets, and either may be made to be slow. This file
owns how much a check may cost: every keyword pays for what it does, in steps, out of a `Work` that
the caller hands in, and a check that spends all of it ends with `CheckTooCostly`. So that honest
values stay far from the end of it, what the library does in quadratic or exponential time is done
here in linear time: regular expressions (`effect_contracts.patterns`), `uniqueItems`, `enum`.

A step is about a microsecond. Work may be shared between checks of one value, whose sum it bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeAlias

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import ValidationError as SchemaMismatch
from jsonschema.validators import extend
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from effect_contracts.expressions import (
    SCHEMA_BELOW,
    SCHEMA_LIST_BELOW,
    SCHEMAS_BY_NAME_BELOW,
    schema_parts,
)
from effect_contracts.patterns import LinearPattern, linear_pattern

# For arguments: 256 KiB of the smallest elements, each with several keywords, are within it.
ARGUMENT_STEPS_MAX: Final = 1_000_000
# For all checks of one answer together. A worker reads answers on the loop that also beats.
ANSWER_STEPS_MAX: Final = 250_000

# What one step buys: loop rounds of the library, characters of a message, positions of a pattern.
_ROUNDS_PER_STEP: Final = 8
_MESSAGE_CHARS_PER_STEP: Final = 1024
_POSITIONS_PER_STEP: Final = 64

Keyword: TypeAlias = Callable[[Any, Any, Any, Any], Iterator[SchemaMismatch] | None]


class CheckTooCostly(Exception):
    """The check was given up: the value was found neither good nor bad.

    Attributes:
        reason: `check_limit`, or `recursion` for a value that is nested too deeply.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Work(FormatChecker):
    """The steps that are left. It stands in the library's slot for formats, which a contract's
    schema does not check: of all that a validator hands on to the next, it is the one open place.

    Attributes:
        targets: what the references of the present schema lead to.
        parts: made so far, by the id of their schema.
    """

    def __init__(self, steps_max: int) -> None:
        super().__init__(formats=())
        self.targets: Mapping[str, Any] = {}
        self.parts: dict[int, Part] = {}
        self._left = steps_max

    def spend(self, steps: int) -> None:
        """Pay for work that is about to be done.

        Raises:
            CheckTooCostly: it is more than what is left.
        """
        self._left -= steps
        if self._left < 0:
            raise CheckTooCostly("check_limit")


class BoundedSchema:
    """A checked schema (`effect_contracts.expressions.JsonSchema`), ready to be used."""

    def __init__(self, schema: Any) -> None:
        prepared = _prepared(schema)
        self._targets = _targets(prepared)
        self._validator = _BoundedValidator(prepared, registry=Registry())

    def mismatches(self, value: Any, work: Work, *, count_max: int = 1) -> list[SchemaMismatch]:
        """Return what does not fit, at most `count_max` of it.

        Raises:
            CheckTooCostly: `work` is spent, the value is nested too deeply to be checked, or a
                number in it is too large for the schema's arithmetic.
        """
        work.targets = self._targets
        validator = self._validator.evolve(format_checker=work)
        reason = "recursion"
        try:
            return list(islice(validator.iter_errors(value), count_max))
        except RecursionError:
            pass
        except OverflowError:
            reason = "check_limit"
        except BaseException as problem:
            # The same depth, met inside the compiled part of the library: that error is no
            # `Exception` and cannot be imported. Nothing else that is none is held back.
            if type(problem).__module__ != "pyo3_runtime":
                raise
        # Out of the except block on purpose: the library's errors carry the values.
        raise CheckTooCostly(reason)

    def accepts(self, value: Any, work: Work) -> bool:
        """Whether the value fits.

        Raises:
            CheckTooCostly: as `mismatches`.
        """
        return not self.mismatches(value, work)


# Preparing --------------------------------------------------------------------------------------


class _Members(list[Any]):
    """The values of an `enum`, with their identities for one look."""

    def __init__(self, values: list[Any]) -> None:
        super().__init__(values)
        self.identities = frozenset(_identity(value, None) for value in values)


def _prepared(part: Any) -> Any:
    """Return a copy with compiled patterns and enumerations.

    `$schema` is left out: below it, the library would go on with its own keywords.
    """
    if not isinstance(part, dict):
        return part
    return {name: _member(name, value) for name, value in part.items() if name != "$schema"}


def _member(name: str, value: Any) -> Any:
    if name in SCHEMA_BELOW:
        return _prepared(value)
    if name in SCHEMA_LIST_BELOW:
        return [_prepared(part) for part in value]
    if name == "patternProperties":
        return {linear_pattern(text): _prepared(part) for text, part in value.items()}
    if name in SCHEMAS_BY_NAME_BELOW:
        return {below: _prepared(part) for below, part in value.items()}
    if name == "pattern":
        return linear_pattern(value)
    return _Members(value) if name == "enum" else value


def _targets(prepared: Any) -> dict[str, Any]:
    """Look up every reference once; the library would walk the schema at each use of an anchor.

    Without `$id`, which is refused, a dynamic reference has one place to lead to, like any other.
    """
    resource: Resource[Any] = Resource.from_contents(prepared, default_specification=DRAFT202012)
    resolver = Registry().with_resource("", resource).crawl().resolver()
    parts = schema_parts(prepared)
    texts = {part[name] for part in parts for name in ("$ref", "$dynamicRef") if name in part}
    return {text: resolver.lookup(text).contents for text in texts}


def _identity(value: Any, work: Work | None) -> Hashable:
    """Return what two values share if, and only if, they are equal as JSON; linear in the value.

    Numbers go by their text, since whoever chooses numbers chooses their hashes as well.
    """
    if isinstance(value, str) or value is None:
        return value
    if isinstance(value, bool):
        return ("bool", "true" if value else "false")
    if isinstance(value, float) and not value.is_integer():
        return ("number", repr(value))
    if isinstance(value, int | float):
        return ("number", f"{int(value):x}")
    if work is not None:
        work.spend(1 + len(value) // _ROUNDS_PER_STEP)
    if isinstance(value, list):
        return ("array", tuple(_identity(element, work) for element in value))
    return ("object", frozenset((name, _identity(below, work)) for name, below in value.items()))


# Keywords ---------------------------------------------------------------------------------------


def _found(pattern: LinearPattern, text: str, work: Work) -> bool:
    work.spend(len(text) * pattern.weight // _POSITIONS_PER_STEP)
    return pattern.found_in(text)


def _pattern(
    validator: Any, pattern: LinearPattern, instance: Any, _schema: Any
) -> Iterator[SchemaMismatch]:
    if isinstance(instance, str) and not _found(pattern, instance, validator.format_checker):
        yield SchemaMismatch("the text does not match")


def _pattern_properties(
    validator: Any, patterns: dict[LinearPattern, Any], instance: Any, _schema: Any
) -> Iterator[SchemaMismatch]:
    if not isinstance(instance, dict):
        return
    work = validator.format_checker
    for pattern, below in patterns.items():
        work.spend(len(instance))
        for name, value in instance.items():
            if _found(pattern, name, work):
                yield from validator.descend(value, below, path=name, schema_path=pattern)


def _additional_properties(
    validator: Any, below: Any, instance: Any, schema: dict[str, Any]
) -> Iterator[SchemaMismatch]:
    if not isinstance(instance, dict):
        return
    work = validator.format_checker
    declared = schema.get("properties", {})
    patterns = schema.get("patternProperties", {})
    work.spend(len(instance) * len(patterns))
    for name, value in instance.items():
        if name in declared or any(_found(pattern, name, work) for pattern in patterns):
            continue
        if below is False:
            yield SchemaMismatch("there are members that are not declared")
            return
        work.spend(1)
        yield from validator.descend(value, below, path=name)


def _enum(
    validator: Any, members: _Members, instance: Any, _schema: Any
) -> Iterator[SchemaMismatch]:
    if _identity(instance, validator.format_checker) not in members.identities:
        yield SchemaMismatch("the value is not among those that are listed")


def _unique_items(
    validator: Any, wanted: bool, instance: Any, _schema: Any
) -> Iterator[SchemaMismatch]:
    if not wanted or not isinstance(instance, list):
        return
    work = validator.format_checker
    work.spend(len(instance))
    seen: set[Hashable] = set()
    for element in instance:
        found = _identity(element, work)
        if found in seen:
            yield SchemaMismatch("an element is there twice")
            return
        seen.add(found)


def _any_of(
    validator: Any, parts: list[Any], instance: Any, _schema: Any
) -> Iterator[SchemaMismatch]:
    if not any(_fits(validator, part, instance) for part in parts):
        yield SchemaMismatch("the value fits none of the schemas")


def _one_of(
    validator: Any, parts: list[Any], instance: Any, _schema: Any
) -> Iterator[SchemaMismatch]:
    fitting = (part for part in parts if _fits(validator, part, instance))
    if len(list(islice(fitting, 2))) != 1:
        yield SchemaMismatch("the value fits none of the schemas, or several")


def _fits(validator: Any, part: Any, instance: Any) -> bool:
    return next(validator.descend(instance, part), None) is None


def _reference(
    validator: Any, reference: str, instance: Any, _schema: Any
) -> Iterator[SchemaMismatch]:
    target = validator.format_checker.targets[reference]
    yield from validator.descend(instance, target)


_LINEAR: Final[dict[str, Keyword]] = {
    "$dynamicRef": _reference,
    "$ref": _reference,
    "additionalProperties": _additional_properties,
    "anyOf": _any_of,
    "enum": _enum,
    "oneOf": _one_of,
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "uniqueItems": _unique_items,
}
_KEYWORDS: Final = {**Draft202012Validator.VALIDATORS, **_LINEAR}


# What they cost -----------------------------------------------------------------------------------


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list | dict) else 0


def _elements(_value: Any, instance: Any) -> int:
    return _length(instance)


def _branches(value: Any, _instance: Any) -> int:
    return len(value)


def _declared(value: Any, instance: Any) -> int:
    return len(value) // _ROUNDS_PER_STEP + min(len(value), _length(instance))


def _names(value: Any, _instance: Any) -> int:
    listed = sum(map(len, value.values())) if isinstance(value, dict) else len(value)
    return int(listed) // _ROUNDS_PER_STEP


def _unevaluated(_value: Any, instance: Any) -> int:
    # The library looks each element up in a list of those that were evaluated.
    return _length(instance) ** 2 // _ROUNDS_PER_STEP


# What a keyword goes through, beside the checks that it begins below; those pay for themselves.
_PRICES: Final[dict[str, Callable[[Any, Any], int]]] = {
    "allOf": _branches,
    "anyOf": _branches,
    "contains": _elements,
    "dependentRequired": _names,
    "dependentSchemas": _declared,
    "items": _elements,
    "oneOf": _branches,
    "prefixItems": _declared,
    "properties": _declared,
    "propertyNames": _elements,
    "required": _names,
    "unevaluatedItems": _unevaluated,
    "unevaluatedProperties": _unevaluated,
}


def _no_more(_value: Any, _instance: Any) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the schema, ready for as many values as come: its validator and its keywords,
    each with its price, its function and its value."""

    validator: Any
    keywords: tuple[tuple[str, Callable[[Any, Any], int], Keyword, Any], ...]


def _part_of(validator: Any, schema: Any) -> Part:
    """Return the part, made once for each check and not for each element."""
    parts: dict[int, Part] = validator.format_checker.parts
    part = parts.get(id(schema))
    if part is None:
        keywords = tuple(
            (name, _PRICES.get(name, _no_more), _KEYWORDS[name], value)
            for name, value in schema.items()
            if name in _KEYWORDS
        )
        # The validator holds the schema, so that the id stays its own.
        part = parts[id(schema)] = Part(_evolve(validator, schema=schema), keywords)
    return part


def _descend(
    validator: Any,
    instance: Any,
    schema: Any,
    path: str | int | None = None,
    schema_path: str | int | None = None,
) -> Iterator[SchemaMismatch]:
    """Check `instance` against a part of the schema; every keyword pays before it begins."""
    if schema is True:
        return
    if schema is False:
        yield SchemaMismatch("nothing fits here", validator="false", path=_steps(path))
        return
    part = _part_of(validator, schema)
    work: Work = validator.format_checker
    for name, price, keyword, value in part.keywords:
        work.spend(1 + price(value, instance))
        for mismatch in keyword(part.validator, value, instance, schema) or ():
            # The library writes the value into the sentence, whether it is read or not.
            work.spend(1 + len(mismatch.message) // _MESSAGE_CHARS_PER_STEP)
            if not isinstance(mismatch.validator, str):  # it comes from here and not from below
                mismatch.validator, mismatch.validator_value = name, value
                mismatch.instance = instance
            if path is not None:
                mismatch.path.appendleft(path)
            yield mismatch


def _steps(path: str | int | None) -> tuple[str | int, ...]:
    return () if path is None else (path,)


def _evolve_once(validator: Any, **changes: Any) -> Any:
    if changes.keys() == {"schema"} and isinstance(changes["schema"], dict):
        return _part_of(validator, changes["schema"]).validator
    return _evolve(validator, **changes)


def _iter_errors(validator: Any, instance: Any) -> Iterator[SchemaMismatch]:
    return _descend(validator, instance, validator.schema)


# The library's class, with every check going through the loop above.
_BoundedValidator: Final = extend(Draft202012Validator, _LINEAR)  # type: ignore[no-untyped-call]
_evolve: Final = _BoundedValidator.evolve
_BoundedValidator.descend = _descend
_BoundedValidator.evolve = _evolve_once
_BoundedValidator.iter_errors = _iter_errors
