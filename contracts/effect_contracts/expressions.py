"""The small languages inside a contract document, checked when the document is read.

Owns the annotated field types for durations, names, JSON Pointers, JMESPath expressions, URL
templates and JSON Schemas, and the pure functions that evaluate them. What is malformed is
refused here, so that an adapter never meets a broken expression while an effect is under way.
Every validator raises ValueError with a sentence that says what to do and holds no argument.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from ipaddress import ip_address
from typing import Annotated, Any, Final, cast
from urllib.parse import urlsplit

import jmespath
import uritemplate
from jmespath.exceptions import JMESPathError
from jmespath.functions import Functions
from jmespath.parser import ParsedResult
from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import SchemaError
from pydantic import AfterValidator, Field
from pydantic import JsonValue as JsonField
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from effect_contracts.patterns import linear_pattern

# Ten years: longer than any retention that a target publishes, short enough for a timedelta sum.
SECONDS_MAX: Final = 315_360_000.0
EXPRESSION_CHARS_MAX: Final = 1024
URL_CHARS_MAX: Final = 2048

KEY_VARIABLE: Final = "key"
OPERATION_VARIABLE: Final = "operation"

Seconds = Annotated[float, Field(ge=0, le=SECONDS_MAX, allow_inf_nan=False)]
PositiveSeconds = Annotated[float, Field(gt=0, le=SECONDS_MAX, allow_inf_nan=False)]
Factor = Annotated[float, Field(ge=1, le=100, allow_inf_nan=False)]

# Token of RFC 9110, section 5.6.2.
HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$")]
# RFC 9110 allows more; visible ASCII with inner blanks is what every server and library takes.
HeaderText = Annotated[
    str, Field(max_length=4096, pattern=r"^([\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?)?$")
]
# A prefix may end in the blank that separates a scheme from its credentials.
HeaderPrefix = Annotated[str, Field(max_length=256, pattern=r"^([\x21-\x7e][\x20-\x7e]*)?$")]
Code = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
MediaType = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9!#$&^_.+-]*/[a-z0-9!#$&^_.+*-]+$")]
ParameterName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.\[\]-]{1,128}$")]
# `env:NAME` and `file:/absolute/path`; the allow-list is the broker's and is applied at dispatch.
SecretReference = Annotated[
    str,
    Field(
        max_length=512,
        pattern=r"^(env:[A-Za-z_][A-Za-z0-9_]{0,127}|file:(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+)$",
    ),
]


# JSON Pointer ---------------------------------------------------------------------------------


def pointer_tokens(pointer: str) -> tuple[str, ...]:
    """Split a JSON Pointer (RFC 6901) into its member names; the root "" has none."""
    if not pointer:
        return ()
    return tuple(t.replace("~1", "/").replace("~0", "~") for t in pointer[1:].split("/"))


def pointer_step(value: Any, token: str) -> tuple[bool, Any]:
    """Follow one token into `value`; (False, None) where it leads nowhere."""
    if isinstance(value, dict):
        return (token in value), value.get(token)
    if isinstance(value, list) and re.fullmatch(r"0|[1-9][0-9]{0,8}", token):
        index = int(token)
        if index < len(value):
            return True, value[index]
    return False, None


def pointer_value(value: Any, pointer: str) -> tuple[bool, Any]:
    """Return (True, the value that `pointer` names), or (False, None) where it names nothing."""
    for token in pointer_tokens(pointer):
        found, value = pointer_step(value, token)
        if not found:
            return False, None
    return True, value


def _checked_pointer(pointer: str) -> str:
    if pointer and not pointer.startswith("/"):
        raise ValueError("a JSON Pointer begins with '/', for example /customer/id")
    if re.search(r"~(?![01])", pointer):
        raise ValueError("in a JSON Pointer '~' is written ~0 and '/' inside a name ~1")
    if not pointer.isprintable():
        raise ValueError("a JSON Pointer holds printable characters only")
    return pointer


Pointer = Annotated[str, Field(max_length=512), AfterValidator(_checked_pointer)]


# JMESPath -------------------------------------------------------------------------------------

_FUNCTIONS = cast("dict[str, dict[str, Any]]", Functions.FUNCTION_TABLE)


def _function_calls(node: dict[str, Any]) -> Iterator[tuple[str, int]]:
    pending = [node]
    while pending:
        here = pending.pop()
        if here.get("type") == "function_expression":
            yield str(here["value"]), len(here["children"])
        pending.extend(child for child in here.get("children", ()) if isinstance(child, dict))


def _checked_expression(expression: str) -> str:
    try:
        parsed = cast("dict[str, Any]", jmespath.compile(expression).parsed)
    except (JMESPathError, RecursionError, ValueError):
        # The library's text repeats the expression; a sentence of ours is enough.
        raise ValueError("not a JMESPath expression (jmespath.org has the grammar)") from None
    for name, count in _function_calls(parsed):
        known = _FUNCTIONS.get(name)
        if known is None:
            raise ValueError(f"JMESPath has no function '{name}'")
        signature = known["signature"]
        variadic = bool(signature) and bool(signature[-1].get("variadic"))
        if count < len(signature) or (count > len(signature) and not variadic):
            raise ValueError(f"the JMESPath function '{name}' takes {len(signature)} argument(s)")
    return expression


Expression = Annotated[
    str, Field(min_length=1, max_length=EXPRESSION_CHARS_MAX), AfterValidator(_checked_expression)
]


@lru_cache(maxsize=1024)
def _compiled(expression: str) -> ParsedResult:
    return jmespath.compile(expression)


def search(expression: str, value: Any) -> Any:
    """Evaluate a checked JMESPath expression; None where it finds nothing.

    None as well where a function of the expression does not fit the value (`length` of a
    number): what a target sends may have any shape, and an odd one extracts nothing.
    """
    try:
        return _compiled(expression).search(value)
    except (JMESPathError, RecursionError, TypeError, ValueError, ArithmeticError, AttributeError):
        return None


# URL templates --------------------------------------------------------------------------------

_TEMPLATE_PART = re.compile(r"\{([^{}]*)\}")
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*"
_SIMPLE_EXPRESSION = re.compile(
    rf"[/?&;.]?{_VARIABLE}(?::[1-9][0-9]{{0,3}}|\*)?(?:,{_VARIABLE}"
    r"(?::[1-9][0-9]{0,3}|\*)?)*"
)


class UrlExpansionError(Exception):
    """Arguments do not make a URL. `code` is stable, `variable` is a name from the template."""

    def __init__(self, code: str, variable: str = "") -> None:
        super().__init__(f"{code} ({variable})" if variable else code)
        self.code = code
        self.variable = variable


def _filled(template: str) -> str:
    """Return the template with a letter for each expression. The sign that an operator writes
    stays before it, since it may be what ends the host or the path."""
    return _TEMPLATE_PART.sub("x", re.sub(r"\{([/?])", r"\1{", template))


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine by its spelling alone; names are not resolved."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def origin_of(url: str) -> str:
    """Return scheme, host and port of an absolute URL (or template), default ports left out."""
    parts = urlsplit(_filled(url))
    host = parts.hostname or ""
    shown = f"[{host}]" if ":" in host else host
    default = {"http": 80, "https": 443}.get(parts.scheme)
    port = f":{parts.port}" if parts.port is not None and parts.port != default else ""
    return f"{parts.scheme}://{shown}{port}"


def _checked_authority(template: str) -> None:
    matched = re.match(r"(https?)://([^/?#{}]*)", template)
    if matched is None:
        raise ValueError("the URL begins with https:// (or http://) and a fixed host")
    rest = template[matched.end() :]
    if rest[:1] not in {"", "/", "?"} and not re.match(r"\{[/?]", rest):
        raise ValueError(
            "the host is fixed: expressions may stand in the path and the query only, "
            "so put a '/' before the first one"
        )
    authority = matched.group(2)
    if "@" in authority:
        raise ValueError("no user name or password in a URL; use auth with a secret reference")
    host = r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?)"
    if not re.fullmatch(rf"{host}(:[0-9]{{1,5}})?", authority):
        raise ValueError("the host is a DNS name in ASCII or an IP address, with a port if needed")
    try:
        port = urlsplit(f"//{authority}").port
    except ValueError:
        raise ValueError("the host or port of the URL is not valid") from None
    if port == 0:
        raise ValueError("the port of the URL lies between 1 and 65535")


def _checked_url(template: str) -> str:
    if not re.fullmatch(r"[\x21-\x7e]+", template):
        raise ValueError("a URL holds printable ASCII without blanks only; percent-encode the rest")
    if "#" in template:
        raise ValueError("a URL with a fragment, or the operator '#', is not sent; leave it out")
    _checked_authority(template)
    outside = _TEMPLATE_PART.sub("", template)
    if "{" in outside or "}" in outside:
        raise ValueError("a brace of the URL template is not closed")
    if re.search(r"[\"<>\\^`|]", outside):
        raise ValueError('percent-encode the characters " < > \\ ^ ` | in a URL')
    for expression in _TEMPLATE_PART.findall(template):
        if expression.startswith("+"):
            raise ValueError(
                "the operator '+' would let an argument write '/' and '?'; leave it out"
            )
        if not _SIMPLE_EXPRESSION.fullmatch(expression):
            raise ValueError(
                f"'{{{expression}}}' is not an expression of RFC 6570 over names such as "
                "{customer.id}, {key} or {?limit}"
            )
    if _dot_segment(_filled(template)):
        raise ValueError("the path of a URL has no '.' or '..' segments")
    return template


def _dot_segment(url: str) -> bool:
    path = urlsplit(url).path.lower().replace("%2e", ".")
    return any(segment in {".", ".."} for segment in path.split("/"))


UrlTemplate = Annotated[str, Field(max_length=URL_CHARS_MAX), AfterValidator(_checked_url)]


def url_variables(template: str) -> tuple[str, ...]:
    """Return the names of the variables of a checked URL template, in order, each once."""
    return tuple(dict.fromkeys(uritemplate.variables(template)))


def expand_url(template: str, arguments: Any, key: str, operation: str | None = None) -> str:
    """Expand a checked URL template: pure, the same input gives the same URL.

    `{key}` is the downstream key, `{operation}` the reference of an accepted operation; every
    other name is a dotted path into the arguments. Numbers are written as in canonical JSON,
    booleans as `true` and `false`.

    Raises:
        UrlExpansionError: `url_variable_missing` (absent, null, or empty inside the path),
            `url_variable_not_scalar`, `url_dot_segment` (a value of `.` or `..` would climb).
    """
    values: dict[str, Any] = {}
    for variable in url_variables(template):
        if variable == KEY_VARIABLE:
            values[variable] = key
        elif variable == OPERATION_VARIABLE and operation is not None:
            values[variable] = operation
        else:
            values[variable] = _url_text(arguments, variable)
    expanded = uritemplate.expand(template, values)
    path_end = re.split(r"\{?[?&]", template, maxsplit=1)[0]
    for variable in url_variables(path_end):
        if values[variable] == "":
            raise UrlExpansionError("url_variable_missing", variable)
    if _dot_segment(expanded):
        raise UrlExpansionError("url_dot_segment")
    assert origin_of(expanded) == origin_of(template), "a checked template fixes the origin"
    return expanded


def _url_text(arguments: Any, variable: str) -> str:
    value = arguments
    for name in variable.split("."):
        found, value = pointer_step(value, name)
        if not found:
            raise UrlExpansionError("url_variable_missing", variable)
    match value:
        case None:
            raise UrlExpansionError("url_variable_missing", variable)
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return str(int(value)) if value.is_integer() and abs(value) < 1e21 else repr(value)
        case str():
            return value
        case _:
            raise UrlExpansionError("url_variable_not_scalar", variable)


# JSON Schema ----------------------------------------------------------------------------------

_DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
# Where a schema has schemas below it (core and applicator vocabularies of draft 2020-12): under a
# keyword, in its list, or by name in its object.
SCHEMA_BELOW: Final = (
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
SCHEMA_LIST_BELOW: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
SCHEMAS_BY_NAME_BELOW: Final = (
    "$defs",
    "definitions",
    "dependentSchemas",
    "patternProperties",
    "properties",
)


def schema_parts(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield `schema` and every schema inside it; data (`const`, `enum`, `default`) is none."""
    pending = [schema]
    while pending:
        here = pending.pop()
        if not isinstance(here, dict):
            continue
        yield here
        pending.extend(here[keyword] for keyword in SCHEMA_BELOW if keyword in here)
        for keyword in SCHEMA_LIST_BELOW:
            pending.extend(here.get(keyword, ()))
        for keyword in SCHEMAS_BY_NAME_BELOW:
            pending.extend(here.get(keyword, {}).values())


# Of draft 2020-12, beside what the library checks: annotations, and members of other keywords.
_SAID_ONLY: Final = frozenset(
    {
        "$anchor", "$comment", "$defs", "$dynamicAnchor", "$schema", "$vocabulary",
        "contentEncoding", "contentMediaType", "contentSchema", "default", "definitions",
        "deprecated", "description", "else", "examples", "maxContains", "minContains", "readOnly",
        "then", "title", "writeOnly",
    }
)  # fmt: skip


def unknown_keywords(schema: Any) -> list[str]:
    """Return the members of a schema that check nothing and say nothing, as a misspelt one does.

    JSON Schema permits them. Those that begin with `x-` are meant to be unknown.
    """
    members = {str(name) for part in schema_parts(schema) for name in part}
    known = _SAID_ONLY | Draft202012Validator.VALIDATORS.keys()
    return sorted(name for name in members - known if not name.startswith("x-"))


def _checked_schema(schema: Any) -> Any:
    if not isinstance(schema, dict):
        raise ValueError("a JSON Schema is an object here")
    try:
        # Without formats: the library would try the patterns with Python's own engine.
        Draft202012Validator.check_schema(schema, format_checker=FormatChecker(formats=()))
    except SchemaError as error:
        place = "/" + "/".join(str(token) for token in error.absolute_path)
        raise ValueError(
            f"not a JSON Schema of draft 2020-12: {place} breaks the keyword '{error.validator}'"
        ) from None
    except RecursionError:
        raise ValueError("the JSON Schema is nested too deeply") from None
    for part in schema_parts(schema):
        if part.get("$schema", _DRAFT).rstrip("#") != _DRAFT:
            raise ValueError(f"$schema is left out or {_DRAFT}")
        if "$id" in part:
            raise ValueError("leave $id out: references are local, by '#/$defs/…'")
    _check_patterns(schema)
    _check_references(schema)
    return schema


def _check_patterns(schema: Any) -> None:
    parts = list(schema_parts(schema))
    for part in parts:
        for pattern in (*part.get("patternProperties", ()), part.get("pattern", "")):
            try:
                linear_pattern(pattern)
            except ValueError as problem:
                raise ValueError(f"the regular expression {pattern!r}: {problem}") from None
    keywords = {keyword for part in parts for keyword in part}
    if {"patternProperties", "unevaluatedProperties"} <= keywords:
        # The library matches these patterns itself, and not in linear time.
        raise ValueError("patternProperties and unevaluatedProperties do not go together")


def _check_references(schema: Any) -> None:
    resource: Resource[Any] = Resource.from_contents(schema, default_specification=DRAFT202012)
    resolver = Registry().with_resource("", resource).resolver()
    parts = list(schema_parts(schema))
    known = {id(part) for part in parts}
    targets: dict[int, list[Any]] = {}
    for part in parts:
        targets[id(part)] = []
        for keyword in ("$ref", "$dynamicRef"):
            reference = part.get(keyword)
            if reference is None:
                continue
            if not reference.startswith("#"):
                raise ValueError(
                    "only local references are followed: move the schema to $defs and write "
                    "'#/$defs/…'"
                )
            try:
                target = resolver.lookup(reference).contents
            except (Unresolvable, LookupError, ValueError, TypeError):
                raise ValueError(f"the reference '{reference}' leads nowhere here") from None
            if not isinstance(target, bool) and id(target) not in known:
                raise ValueError(
                    f"the reference '{reference}' leads to no schema; put it below $defs"
                )
            targets[id(part)].append(target)
    if _has_endless_reference(schema, targets):
        raise ValueError("a reference leads back to itself without going into the value")


def _has_endless_reference(schema: Any, targets: dict[int, list[Any]]) -> bool:
    """Whether some schema applies itself to the same value again, which would never end."""
    done: set[int] = set()
    for start in schema_parts(schema):
        path: list[tuple[int, list[Any]]] = []
        pending: list[Any] = [start]
        while True:
            if pending:
                part = pending.pop()
                if not isinstance(part, dict) or id(part) in done:
                    continue
                if any(id(part) == open_ for open_, _ in path):
                    return True
                path.append((id(part), pending))
                pending = [*targets.get(id(part), ()), *_applied_in_place(part)]
            elif path:
                finished, pending = path.pop()
                done.add(finished)
            else:
                break
    return False


def _applied_in_place(part: dict[str, Any]) -> list[Any]:
    applied = [part[keyword] for keyword in ("if", "then", "else", "not") if keyword in part]
    for keyword in ("allOf", "anyOf", "oneOf"):
        applied += part.get(keyword, ())
    return applied + list(part.get("dependentSchemas", {}).values())


JsonSchema = Annotated[dict[str, JsonField], AfterValidator(_checked_schema)]


def schema_names(schema: Any) -> frozenset[str]:
    """Return every member name that the schema declares by `properties`, at any depth."""
    return frozenset(name for part in schema_parts(schema) for name in part.get("properties", ()))


def schema_reaches(schema: dict[str, Any], tokens: tuple[str, ...]) -> bool:
    """Whether a value of `schema` may have something at `tokens`, as far as the schema tells.

    A schema that declares no members at all is open and reaches everything; one that declares
    some reaches what it declares. `*` stands for every element of an array or object. This
    finds misspelt pointers; it proves nothing about a particular value.
    """
    return _reaches(schema, schema, tokens)


_IN_PLACE: Final = ("allOf", "anyOf", "oneOf", "if", "then", "else")
_DECLARING: Final = frozenset({"properties", "patternProperties", "items", "prefixItems"})


def _reaches(root: dict[str, Any], here: Any, tokens: tuple[str, ...]) -> bool:
    if not tokens or here is True:
        return True
    parts = list(_parts(root, here))
    below = [schema for part in parts for schema in _below(part, tokens[0])]
    if below:
        return any(_reaches(root, schema, tokens[1:]) for schema in below)
    closed = any(part.get("additionalProperties") is False for part in parts)
    return bool(parts) and not closed and not any(_DECLARING & part.keys() for part in parts)


def _parts(root: dict[str, Any], here: Any) -> Iterator[dict[str, Any]]:
    """Yield the schemas that speak of the same value as `here`: itself, references, branches."""
    pending, seen = [here], set()
    while pending:
        part = pending.pop()
        if not isinstance(part, dict):
            continue
        yield part
        reference = part.get("$ref")
        if isinstance(reference, str) and reference not in seen:
            seen.add(reference)
            # An anchor is not followed: what lies behind it counts as open.
            pending.append(pointer_value(root, reference[1:])[1] or {})
        for keyword in _IN_PLACE:
            inside = part.get(keyword)
            pending.extend(inside if isinstance(inside, list) else [inside])


def _below(part: dict[str, Any], member: str) -> Iterator[Any]:
    """Yield the schemas that one part gives to a member or element."""
    declared = part.get("properties", {})
    if member == "*":
        yield from declared.values()
    elif member in declared:
        yield declared[member]
    for pattern, schema in part.get("patternProperties", {}).items():
        if member == "*" or linear_pattern(pattern).found_in(member):
            yield schema
    if member not in declared and isinstance(part.get("additionalProperties"), dict):
        yield part["additionalProperties"]
    if member == "*" or member.isdecimal():
        yield from part.get("prefixItems", ())
        if "items" in part:
            yield part["items"]
