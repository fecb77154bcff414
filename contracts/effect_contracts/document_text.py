"""From the text of a contract document to plain JSON values, and from errors to problems.

Owns how YAML is read here: one document, JSON types only, no member twice, no tags, no merge
keys, aliases expanded under a limit. Plain scalars follow JSON and the core schema of YAML 1.2,
so that `no`, `on` and `1_000` are texts and never silently something else; what looks like a date
is refused, since YAML tools disagree on it. Nothing of PyYAML's constructors runs.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NoReturn

import yaml
from pydantic import ValidationError

from effect_contracts.canonical import BODY_BYTES_MAX, DEPTH_MAX
from effect_contracts.errors import ContractInvalid, ContractProblem, json_pointer

# A document is written by hand: the largest in use have a few hundred values.
NODES_MAX: Final = 20_000
PROBLEMS_MAX: Final = 50

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG: Final = "tag:yaml.org,2002:"
_INTEGER: Final = re.compile(r"-?(0|[1-9][0-9]*)")
_FLOAT: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_NOT_FINITE: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt \t].*)?")
_INTEGER_CHARS_MAX: Final = 17  # longer ones lie beyond 2^53-1 and are refused as numbers


def read_yaml(text: str) -> Any:
    """Return the JSON value of one YAML document.

    Raises:
        ContractInvalid: with the line and column of the first thing that is no JSON.
    """
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        size = -1
    if size < 0:
        _refuse("the text is not valid Unicode; save the document as UTF-8")
    if size > BODY_BYTES_MAX:
        _refuse(f"the document is larger than {BODY_BYTES_MAX} bytes; split or shorten it")
    if "\0" in text:
        _refuse("the text holds the character U+0000; save the document as UTF-8 text")
    trouble: str | None = None
    try:
        return _Reader(yaml.parse(text, Loader=_LOADER)).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        trouble = f"{_place(mark)}not valid YAML: {error.problem or 'unreadable'}"
    except yaml.YAMLError:
        trouble = "not valid YAML: it holds a character that YAML does not allow"
    except RecursionError:
        trouble = f"nested deeper than {DEPTH_MAX} levels; flatten the document"
    _refuse(trouble)


def _place(mark: Any) -> str:
    return "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "


def _refuse(message: str, mark: Any = None) -> NoReturn:
    raise ContractInvalid([ContractProblem("", _place(mark) + message)])


class _Reader:
    """Builds one JSON value out of the events of a parser, counting as it goes."""

    def __init__(self, events: Iterator[Any]) -> None:
        self.events = events
        self.anchors: dict[str, tuple[Any, int, int]] = {}
        self.nodes = 0

    def document(self) -> Any:
        next(self.events)  # the start of the stream
        if not isinstance(next(self.events), yaml.DocumentStartEvent):
            _refuse("the document is empty; docs/contracts.md shows how one begins")
        value, _ = self._value(next(self.events), 0)
        next(self.events)  # the end of the document
        after = next(self.events)
        if isinstance(after, yaml.DocumentStartEvent):
            _refuse("a second document begins; put each contract in a file", after.start_mark)
        return value

    def _value(self, event: Any, depth: int) -> tuple[Any, int]:
        """Return the value that begins with `event`, and how many levels it has."""
        if depth > DEPTH_MAX:
            _refuse(f"nested deeper than {DEPTH_MAX} levels; flatten it", event.start_mark)
        if isinstance(event, yaml.AliasEvent):
            return self._aliased(event, depth)
        self._count(1, event)
        nodes_before = self.nodes
        levels = 0
        value: Any
        if isinstance(event, yaml.ScalarEvent):
            value = _scalar(event)
        elif isinstance(event, yaml.SequenceStartEvent):
            _check_tag(event, "seq")
            value, levels = self._sequence(depth)
        else:
            _check_tag(event, "map")
            value, levels = self._mapping(depth)
        if event.anchor is not None:
            self.anchors[event.anchor] = (value, self.nodes - nodes_before + 1, levels)
        return value, levels

    def _aliased(self, event: Any, depth: int) -> tuple[Any, int]:
        if event.anchor not in self.anchors:
            _refuse("the alias names no finished anchor before it", event.start_mark)
        value, nodes, levels = self.anchors[event.anchor]
        if depth + levels > DEPTH_MAX:
            _refuse(f"nested deeper than {DEPTH_MAX} levels; flatten it", event.start_mark)
        self._count(nodes, event)
        return value, levels

    def _count(self, nodes: int, event: Any) -> None:
        self.nodes += nodes
        if self.nodes > NODES_MAX:
            _refuse(
                f"the document has more than {NODES_MAX} values, aliases expanded; shorten it",
                event.start_mark,
            )

    def _sequence(self, depth: int) -> tuple[list[Any], int]:
        elements, levels = [], 0
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            element, below = self._value(event, depth + 1)
            elements.append(element)
            levels = max(levels, below)
        return elements, levels + 1

    def _mapping(self, depth: int) -> tuple[dict[str, Any], int]:
        members: dict[str, Any] = {}
        levels = 0
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            name, _ = self._value(event, depth + 1)
            if not isinstance(name, str):
                _refuse("a member name is a text; put it in quotes", event.start_mark)
            if name == "<<" and event.implicit[0]:
                _refuse("merge keys are not read; write the members out", event.start_mark)
            if name in members:
                _refuse("this member is there twice; remove one of them", event.start_mark)
            members[name], below = self._value(next(self.events), depth + 1)
            levels = max(levels, below)
        return members, levels + 1


def _check_tag(event: Any, kind: str) -> None:
    if event.tag is not None and event.tag not in {_TAG + kind, "!"}:
        _refuse("tags are not read; write plain JSON types", event.start_mark)


def _scalar(event: Any) -> Any:
    text: str = event.value
    if event.tag is not None and event.tag not in {"!", _TAG + "str"}:
        _refuse("tags are not read; write plain JSON types", event.start_mark)
    if event.tag is not None or not event.implicit[0]:
        return text  # quoted, block, or tagged as text
    if text in {"", "~", "null"}:
        return None
    if text in {"true", "false"}:
        return text == "true"
    if _INTEGER.fullmatch(text):
        if len(text) > _INTEGER_CHARS_MAX:
            _refuse("a number lies beyond ±(2^53-1); put it in quotes", event.start_mark)
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _NOT_FINITE.fullmatch(text):
        _refuse("infinities and NaN are no JSON numbers; leave the field out", event.start_mark)
    if _DATE.fullmatch(text):
        _refuse("a date is no JSON type; put it in quotes to make it a text", event.start_mark)
    return text


# Problems ---------------------------------------------------------------------------------------

_SENTENCES: Final = {
    "missing": "this field is required",
    "string_type": "must be a text; put it in quotes",
    "float_type": "must be a number (durations are seconds), without quotes",
    "int_type": "must be a whole number, without quotes",
    "bool_type": "must be true or false, without quotes",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "finite_number": "must be a finite number",
    "recursion_loop": "is nested too deeply",
}


def problems_of(error: ValidationError, document: Any, names: Sequence[str]) -> ContractInvalid:
    """Return the error that lists what pydantic found, as pointers and sentences.

    `names` are all field names of the models, for a hint at the one that was meant. No value of
    the document is repeated but names of fields.
    """
    found: dict[str, list[str]] = {}
    items = error.errors(include_url=False, include_input=False)
    below = {item["loc"][:end] for item in items for end in range(len(item["loc"]))}
    for item in items:
        if item["type"] == "too_short" and item["loc"] in below:
            continue  # what is too few are the items that were refused for themselves
        cause = item.get("ctx", {}).get("error")
        if isinstance(cause, RuleProblems):
            return ContractInvalid(cause.problems[:PROBLEMS_MAX])
        field = json_pointer(_document_path(item["loc"], item["type"], document))
        found.setdefault(field, []).append(_sentence(item, names))
    problems = [
        ContractProblem(field, "; or ".join(dict.fromkeys(sentences)))
        for field, sentences in found.items()
    ]
    return ContractInvalid(problems[:PROBLEMS_MAX])


class RuleProblems(ValueError):
    """Carries the broken rules of a whole document through pydantic."""

    def __init__(self, problems: Sequence[ContractProblem]) -> None:
        super().__init__("; ".join(f"{p.field}: {p.message}" for p in problems))
        self.problems = list(problems)


def _sentence(item: Any, names: Sequence[str]) -> str:
    kind = item["type"]
    if kind == "value_error":
        return str(item["ctx"]["error"])
    if kind == "extra_forbidden":
        near = _near(str(item["loc"][-1]), names)
        hint = f"; did you mean '{near[0]}'?" if near else "; remove it"
        return "unknown field" + hint
    if kind in {"union_tag_not_found", "union_tag_invalid"}:
        # pydantic shows "'location' | 'in'": the attribute, then the name in the document.
        name = item["ctx"]["discriminator"].split("'")[-2]
        if kind == "union_tag_not_found":
            return f"the member {name} is required"
        return f"{name} must be one of {item['ctx']['expected_tags']}"
    sentence = _SENTENCES.get(kind)
    return sentence if sentence is not None else _lower_first(str(item["msg"]))


def _near(name: str, names: Sequence[str]) -> list[str]:
    """The field that was most likely meant: one that begins so, else one that looks alike."""
    longer = [known for known in names if len(name) > 3 and known.startswith(name)]
    return longer[:1] if len(longer) == 1 else difflib.get_close_matches(name, names, n=1)


def _lower_first(text: str) -> str:
    for kind in ("Input ", "String ", "Value ", "Tuple ", "List "):
        text = text.removeprefix(kind)
    return text.partition(" after validation")[0].replace("should", "must", 1)


def _document_path(location: Sequence[str | int], kind: str, document: Any) -> Iterator[str | int]:
    """Leave out what pydantic puts between members: names of union branches."""
    here = document
    for position, token in enumerate(location):
        last = position == len(location) - 1
        if isinstance(here, dict) and token in here:
            here = here[str(token)]
            yield token
        elif isinstance(here, list) and isinstance(token, int) and token < len(here):
            here = here[token]
            yield token
        elif last and kind == "missing":
            yield token


def json_text(document: Any) -> str:
    """Return the JSON text that pydantic's strict JSON mode reads."""
    return json.dumps(document, ensure_ascii=False, allow_nan=False)
