"""The body of a request, from arguments and downstream key: pure functions.

Owns what a body template means (`effect_contracts.http_settings.template_problem` has its
grammar), the nested form encoding, and where in a body the key goes. A caller's argument never
takes the key's place.
"""

from __future__ import annotations

from typing import Any, Final, assert_never
from urllib.parse import quote_plus

import rfc8785

from effect_adapters.base import RenderError
from effect_contracts.canonical import JsonValue, canonical_bytes
from effect_contracts.errors import InvalidPayload
from effect_contracts.expressions import pointer_tokens, pointer_value
from effect_contracts.http_settings import (
    Body,
    FormBody,
    HttpSettings,
    JsonBody,
    KeyInBody,
    NoBody,
    TextBody,
)

# The arguments are 256 KiB at most; quoting, percent-encoding and repetition by a template can
# make them grow. What is far beyond that is no tool call.
ENVELOPE_BYTES_MAX: Final = 4 * 1024 * 1024

_ABSENT: Final = object()


def request_body(
    settings: HttpSettings, arguments: JsonValue, key: str
) -> tuple[str | None, str | None]:
    """Return the body's text and its content type, (None, None) without a body. Pure.

    Raises:
        RenderError: the arguments do not make a body under this contract.
    """
    body = settings.body
    if isinstance(body, NoBody):
        return None, None
    content = _content(body, arguments, key)
    placement = settings.key
    if isinstance(placement, KeyInBody) and placement.pointer is not None:
        content = _with_key(content, placement.pointer, placement.prefix + key)
    return _written(body, content)


def filled(template: JsonValue, arguments: JsonValue, key: str) -> Any:
    """Return a checked template with arguments and key in it. Pure.

    Raises:
        RenderError: the arguments do not fill it.
    """
    value = fill(template, arguments, key)
    if value is _ABSENT:
        raise RenderError("body_field_missing")
    return value


def message_body(body: JsonBody | TextBody, arguments: JsonValue, key: str) -> tuple[str, str]:
    """Return the text and the content type of a message or object. Pure.

    Raises:
        RenderError: the arguments do not make a body under this contract.
    """
    text, content_type = _written(body, _content(body, arguments, key))
    assert text is not None
    assert content_type is not None
    return text, content_type


def _written(body: JsonBody | FormBody | TextBody, content: Any) -> tuple[str | None, str | None]:
    """Return the text of a filled body and its content type."""
    match body:
        case JsonBody():
            try:
                text = canonical_bytes(content, bytes_max=ENVELOPE_BYTES_MAX).decode()
            except InvalidPayload:
                # Too deep or too much of it: the arguments alone are checked, the template adds.
                raise RenderError("body_invalid") from None
            return text, body.content_type
        case FormBody():
            if not isinstance(content, dict):
                raise RenderError("form_not_an_object")
            pairs = "&".join(_form_pairs(content))
            return pairs, "application/x-www-form-urlencoded"
        case TextBody():
            if not isinstance(content, str):
                raise RenderError("body_not_text")
            return content, body.content_type
        case never:
            assert_never(never)


def _content(body: Body, arguments: JsonValue, key: str) -> Any:
    assert not isinstance(body, NoBody)
    return arguments if body.content is None else filled(body.content, arguments, key)


def fill(template: Any, arguments: JsonValue, key: str) -> Any:
    """Fill a checked body template; `_ABSENT` where an optional argument is not there."""
    if isinstance(template, list):
        filled = [fill(part, arguments, key) for part in template]
        return [part for part in filled if part is not _ABSENT]
    if not isinstance(template, dict):
        return template
    if "$literal" in template:
        return template["$literal"]
    if "$key" in template:
        return key
    if "$concat" in template:
        return "".join(_concat_text(part, arguments, key) for part in template["$concat"])
    if "$arg" in template:
        pointer = template["$arg"]
        found, value = pointer_value(arguments, pointer)
        if found:
            return value
        if "default" in template:
            return template["default"]
        if template.get("optional"):
            return _ABSENT
        raise RenderError("body_field_missing", pointer)
    members = {name: fill(part, arguments, key) for name, part in template.items()}
    return {name: value for name, value in members.items() if value is not _ABSENT}


def _concat_text(part: Any, arguments: JsonValue, key: str) -> str:
    value = fill(part, arguments, key)
    if value is _ABSENT:
        return ""
    pointer = part.get("$arg", "") if isinstance(part, dict) else ""
    return scalar_text(value, "body_field_not_scalar", pointer)


def _with_key(content: Any, pointer: str, value: str) -> Any:
    """Return a copy of `content` with `value` at `pointer`; objects on the way are made."""
    tokens = pointer_tokens(pointer)
    if not tokens:
        raise RenderError("key_place_taken", pointer)
    if not isinstance(content, dict):
        raise RenderError("key_place_not_an_object", pointer)
    if len(tokens) == 1:
        if tokens[0] in content:
            # Whoever sends an argument there would choose what the target takes for the key.
            raise RenderError("key_place_taken", pointer)
        return {**content, tokens[0]: value}
    rest = "".join("/" + token.replace("~", "~0").replace("/", "~1") for token in tokens[1:])
    try:
        return {**content, tokens[0]: _with_key(content.get(tokens[0], {}), rest, value)}
    except RenderError as error:
        raise RenderError(error.code, pointer) from None


def _form_pairs(content: dict[str, Any], prefix: str = "", pointer: str = "") -> list[str]:
    """Return `a[b][0]=c` pairs, members in canonical order (UTF-16), null members left out."""
    pairs: list[str] = []
    for name in sorted(content, key=lambda member: member.encode("utf-16-be")):
        value = content[name]
        if value is not None:
            inner = f"{prefix}[{name}]" if prefix else name
            pairs += _form_value(inner, value, f"{pointer}/{name}")
    return pairs


def _form_value(name: str, value: Any, pointer: str) -> list[str]:
    if isinstance(value, dict):
        return _form_pairs(value, name, pointer)
    if isinstance(value, list):
        pairs: list[str] = []
        for index, element in enumerate(value):
            if element is None:
                # Leaving it out would move the others, and a form has no word for null.
                raise RenderError("form_null_element", f"{pointer}/{index}")
            pairs += _form_value(f"{name}[{index}]", element, f"{pointer}/{index}")
        return pairs
    return [f"{quote_plus(name)}={quote_plus(scalar_text(value, 'form_not_scalar', pointer))}"]


def scalar_text(value: Any, code: str, pointer: str) -> str:
    """Write a scalar as in canonical JSON, a string as it is."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return rfc8785.dumps(value).decode()
    raise RenderError(code, pointer)
