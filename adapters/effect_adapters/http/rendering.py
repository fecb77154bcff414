"""From arguments to the bytes that are stored, and from those to a request: pure functions.

`render` makes the wire envelope, once per effect; it is stored and sent as stored on every
attempt. `outgoing` makes the request of one attempt from it, and is the only place where secrets
come in. The envelope is canonical JSON:

    {"body": text or null, "headers": [[name, value], …], "method": "POST", "url": "https://…",
     "version": 1}

A header value is a text, or says where a secret comes from: `{"secret": reference, "prefix": …}`
or `{"basic": …}`. No argument chooses the host: the origin of the finished URL must be the one in
the contract, here and again when the envelope is sent.
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Iterable
from typing import Any, Final, assert_never
from urllib.parse import quote, urlsplit

from effect_adapters.base import RenderError, SecretResolver, secret_value
from effect_adapters.http.bodies import ENVELOPE_BYTES_MAX, request_body, scalar_text
from effect_adapters.http.exchange import Origin, OutgoingRequest
from effect_contracts.canonical import JsonObject, JsonValue, canonical_bytes
from effect_contracts.errors import InvalidPayload
from effect_contracts.expressions import (
    UrlExpansionError,
    expand_url,
    origin_of,
    pointer_step,
)
from effect_contracts.http_settings import (
    BasicAuth,
    BearerAuth,
    Headers,
    HttpSettings,
    KeyInHeader,
    KeyInQuery,
    ProbeRequest,
    SecretHeader,
    TemplateHeader,
)

ENVELOPE_VERSION: Final = 1

# What the transport owns (RFC 9110 and 9112), or what would change how an answer is read.
_RESERVED: Final = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)

# Identity: the limit on an answer counts bytes on the wire, and nothing is ever unpacked.
_DEFAULTS: Final = (
    ("User-Agent", "effect-broker"),
    ("Accept", "*/*"),
    ("Accept-Encoding", "identity"),
)

# Visible ASCII with inner blanks, the same as the contract's own header texts.
_HEADER_TEXT: Final = re.compile(r"([\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?)?")
_EXPRESSION: Final = re.compile(r"\{([^{}]*)\}")


class SecretInvalid(Exception):
    """A secret was read and cannot stand in a header; the text names no value."""


# The envelope ----------------------------------------------------------------------------------


def render(settings: HttpSettings, arguments: JsonValue, key: str) -> bytes:
    """Return the wire envelope. Pure: the same input gives the same bytes.

    Raises:
        RenderError: the arguments do not make a request under this contract.
    """
    headers: dict[str, tuple[str, JsonValue]] = {}
    for name, value in _DEFAULTS:
        _put(headers, name, value)
    body, content_type = request_body(settings, arguments, key)
    if content_type is not None:
        _put(headers, "Content-Type", content_type)
    _add_headers(headers, settings.headers, arguments, key)
    _add_auth(headers, settings)
    if isinstance(settings.key, KeyInHeader):
        value = settings.key.prefix + key + settings.key.suffix
        _put(headers, settings.key.name, _header_text(value, ""))
    return envelope(settings.method, _url(settings, arguments, key), headers.values(), body)


def render_probe(
    settings: HttpSettings, probe: ProbeRequest, arguments: JsonValue, key: str
) -> bytes:
    """Return the envelope of the first question of a look-up. Pure.

    Raises:
        RenderError: the arguments do not make the question.
    """
    url = _expanded(probe.url, arguments, key, settings)
    headers = _reading_headers(settings, arguments, key)
    _add_headers(headers, probe.headers, arguments, key)
    return envelope(probe.method, url, headers.values(), None)


def render_poll(settings: HttpSettings, arguments: JsonValue, key: str, operation: str) -> bytes:
    """Return the envelope of a poll of an accepted operation. Pure.

    Without `poll_url` the reference itself is a path or a URL of the contract's own origin.

    Raises:
        RenderError: `origin_changed`, or the reference makes no URL.
    """
    accepted = settings.answers.accepted
    assert accepted is not None, "an operation is polled only where the contract has one"
    if accepted.poll_url is not None:
        url = _expanded(accepted.poll_url, arguments, key, settings, operation)
    else:
        url = same_origin_url(settings.url, operation)
    return envelope("GET", url, _reading_headers(settings, arguments, key).values(), None)


def same_origin_url(base: str, reference: str) -> str:
    """Return `reference` (an absolute path or URL) as a URL of the origin of `base`.

    Raises:
        RenderError: it leads to another origin or is no URL.
    """
    origin = origin_of(base)
    if not re.fullmatch(r"[\x21-\x7e]{1,4096}", reference) or "\\" in reference:
        raise RenderError("reference_invalid")
    if reference.startswith("/") and not reference.startswith("//"):
        reference = origin + reference
    try:
        changed = not _is_of_origin(reference, origin)
    except ValueError:
        raise RenderError("reference_invalid") from None
    if changed:
        raise RenderError("origin_changed")
    return reference.partition("#")[0]


def envelope(
    method: str, url: str, headers: Iterable[tuple[str, JsonValue]], body: str | None
) -> bytes:
    """Return the wire request, as it is stored. Pure.

    Raises:
        RenderError: it is too large.
    """
    listed: list[JsonValue] = [[name, value] for name, value in headers]
    content: JsonObject = {
        "version": ENVELOPE_VERSION,
        "method": method,
        "url": url,
        "headers": listed,
        "body": body,
    }
    try:
        return canonical_bytes(content, bytes_max=ENVELOPE_BYTES_MAX)
    except InvalidPayload:
        # Arguments and contract are checked values; only the size is left to be wrong.
        raise RenderError("request_too_large") from None


def _url(settings: HttpSettings, arguments: JsonValue, key: str) -> str:
    url = _expanded(settings.url, arguments, key, settings)
    if isinstance(settings.key, KeyInQuery):
        value = settings.key.prefix + key
        url = with_parameter(url, settings.key.name, value)
    return url


def with_parameter(url: str, name: str, value: str) -> str:
    """Return `url` with the query parameter `name` set to `value`, replacing one of that name."""
    path, _, query = url.partition("?")
    quoted = quote(name, safe="")
    kept = [part for part in query.split("&") if part and part.partition("=")[0] != quoted]
    kept.append(f"{quoted}={quote(value, safe='')}")
    return f"{path}?{'&'.join(kept)}"


def expanded(template: str, arguments: JsonValue, key: str, operation: str | None = None) -> str:
    """Return the URL of a checked template, whatever its origin. Pure.

    Raises:
        RenderError: the arguments do not make a URL.
    """
    try:
        return expand_url(template, arguments, key, operation)
    except UrlExpansionError as error:
        pointer = "/" + error.variable.replace(".", "/") if error.variable else ""
        raise RenderError(error.code, pointer) from None


def _expanded(
    template: str,
    arguments: JsonValue,
    key: str,
    settings: HttpSettings,
    operation: str | None = None,
) -> str:
    url = expanded(template, arguments, key, operation)
    if not _is_of_origin(url, origin_of(settings.url)):
        raise RenderError("origin_changed")
    return url


def _is_of_origin(url: str, origin: str) -> bool:
    parts = urlsplit(url)
    return (
        parts.scheme in {"http", "https"} and "@" not in parts.netloc and (origin_of(url) == origin)
    )


# Headers ---------------------------------------------------------------------------------------


def _reading_headers(
    settings: HttpSettings, arguments: JsonValue, key: str
) -> dict[str, tuple[str, JsonValue]]:
    """The headers of a read: the contract's own without those that speak of a body."""
    headers: dict[str, tuple[str, JsonValue]] = {}
    for name, value in _DEFAULTS:
        _put(headers, name, value)
    speaking = {n: v for n, v in settings.headers.items() if n.lower() not in _OF_A_WRITE}
    _add_headers(headers, speaking, arguments, key)
    _add_auth(headers, settings)
    return headers


# A condition of the write (If-None-Match: *) would turn the read into a 304 or a 412, and a target
# that keeps answers by Idempotency-Key might answer a read with that of an earlier one.
_OF_A_WRITE: Final = frozenset(
    {
        "content-type",
        "content-language",
        "idempotency-key",
        "if-match",
        "if-none-match",
        "if-modified-since",
        "if-unmodified-since",
        "prefer",
        "range",
    }
)


def _put(headers: dict[str, tuple[str, JsonValue]], name: str, value: JsonValue) -> None:
    """Set a header; a later one of the same name, in any case, replaces an earlier one."""
    headers[name.lower()] = (name, value)


def _add_headers(
    headers: dict[str, tuple[str, JsonValue]], wanted: Headers, arguments: JsonValue, key: str
) -> None:
    for name, value in wanted.items():
        if name.lower() in _RESERVED:
            raise RenderError("header_reserved")
        match value:
            case str():
                _put(headers, name, value)
            case SecretHeader():
                _put(headers, name, {"secret": value.secret, "prefix": value.prefix})
            case TemplateHeader():
                _put(headers, name, filled_template(value.template, arguments, key))
            case never:
                assert_never(never)


def _add_auth(headers: dict[str, tuple[str, JsonValue]], settings: HttpSettings) -> None:
    match settings.auth:
        case None:
            pass
        case BearerAuth(token=token):
            _put(headers, "Authorization", {"secret": token, "prefix": "Bearer "})
        case BasicAuth(username=username, password=password):
            _put(headers, "Authorization", {"basic": {"username": username, "password": password}})
        case never:
            assert_never(never)


def filled_template(template: str, arguments: JsonValue, key: str) -> str:
    """Return a text with its `{name}` expressions filled in, printable ASCII throughout.

    Raises:
        RenderError: an argument is missing, is no scalar, or cannot stand in such a text.
    """
    pieces = []
    end = 0
    for expression in _EXPRESSION.finditer(template):
        pieces.append(template[end : expression.start()])
        end = expression.end()
        variable = expression.group(1)
        if variable == "key":
            pieces.append(key)
            continue
        pointer = "/" + variable.replace(".", "/")
        value: Any = arguments
        for name in variable.split("."):
            found, value = pointer_step(value, name)
            if not found or value is None:
                raise RenderError("header_value_missing", pointer)
        text = scalar_text(value, "header_value_not_scalar", pointer)
        pieces.append(_header_text(text, pointer))
    return _header_text("".join([*pieces, template[end:]]), "")


def _header_text(text: str, pointer: str) -> str:
    if not _HEADER_TEXT.fullmatch(text) or len(text) > 4096:
        raise RenderError("header_value_invalid", pointer)
    return text


# The request -----------------------------------------------------------------------------------


def outgoing(settings: HttpSettings, wire: bytes, secrets: SecretResolver) -> OutgoingRequest:
    """Return the request of one attempt: the stored envelope with its secrets read.

    Raises:
        RenderError: the envelope is not one, or leads away from the contract's origin.
        SecretUnavailable: a secret cannot be had.
        SecretInvalid: a secret cannot stand in a header.
    """
    try:
        envelope = json.loads(wire)
        version, method, url = envelope["version"], envelope["method"], envelope["url"]
        listed, body = envelope["headers"], envelope["body"]
    except (ValueError, KeyError, TypeError):
        raise RenderError("wire_invalid") from None
    if version != ENVELOPE_VERSION:
        raise RenderError("wire_version_unknown")
    if not _is_of_origin(url, origin_of(settings.url)):
        raise RenderError("origin_changed")
    headers = tuple(
        (name.encode("ascii"), _resolved(value, secrets).encode("ascii")) for name, value in listed
    )
    return OutgoingRequest(
        method, target_origin(url), request_target(url), headers, (body or "").encode()
    )


def target_origin(url: str) -> Origin:
    """Return where a URL leads; the default port of its scheme where it names none."""
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    return Origin(parts.scheme, parts.hostname or "", port)


def wire_body(wire: bytes) -> bytes:
    """Return the body of an envelope that `render` has made."""
    return (json.loads(wire)["body"] or "").encode()


def wire_url(wire: bytes) -> str:
    """Return the URL of an envelope that this module has made."""
    return str(json.loads(wire)["url"])


def request_target(url: str) -> bytes:
    """Return the request target: path and query as they stand, "/" where there is no path."""
    parts = urlsplit(url)
    path = parts.path or "/"
    return (f"{path}?{parts.query}" if parts.query else path).encode("ascii")


def _resolved(value: Any, secrets: SecretResolver) -> str:
    if isinstance(value, str):
        return value
    if "basic" in value:
        basic = value["basic"]
        username, password = basic["username"], basic["password"]
        if username.startswith(("env:", "file:")):
            username = _secret(username, secrets, utf8=True)
        secret = "" if password is None else _secret(password, secrets, utf8=True)
        if ":" in username:
            raise SecretInvalid  # RFC 7617: the first colon ends the user name
        pair = f"{username}:{secret}".encode()
        return "Basic " + binascii.b2a_base64(pair, newline=False).decode()
    return str(value["prefix"]) + _secret(value["secret"], secrets)


def _secret(reference: str, secrets: SecretResolver, utf8: bool = False) -> str:
    value = secret_value(reference, secrets)
    if not value or (not utf8 and not _HEADER_TEXT.fullmatch(value)):
        raise SecretInvalid
    return value
