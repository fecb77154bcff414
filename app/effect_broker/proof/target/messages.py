"""Owns what the target reads from a request and what it answers: pure values, no I/O.

The promises: the body's bytes are kept as they came; a key is found wherever a contract may place
it (header, query, body field, path); headers that carry credentials are kept as a digest only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias, cast
from urllib.parse import parse_qsl, unquote

Json: TypeAlias = dict[str, Any]
BodyState: TypeAlias = Literal["whole", "early", "cut", "unread"]
"""How much of a request was read: all, only the head by plan, a part, or nothing."""

KEY_QUERY_FIELDS = ("key", "correlation_key", "reference")
CREDENTIAL_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key"})
_WHOLE_NUMBER_FIELDS = frozenset({"amount", "quantity"})
"""Form fields that this API answers as numbers; every other form value stays a string."""


@dataclass(frozen=True)  # not slotted: cached_property needs a __dict__
class Request:
    """One request as it was received."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    body_state: BodyState = "whole"

    @cached_property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @cached_property
    def query(self) -> str:
        return self.target.partition("?")[2]

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The path's segments, decoded."""
        return tuple(unquote(part) for part in self.path.strip("/").split("/"))

    @cached_property
    def parameters(self) -> dict[str, str]:
        return dict(parse_qsl(self.query, keep_blank_values=True))

    @cached_property
    def body_digest(self) -> str:
        return hashlib.sha256(self.body).hexdigest()

    @property
    def mutating(self) -> bool:
        return self.method not in ("GET", "HEAD", "OPTIONS")

    def header(self, name: str) -> str | None:
        return next((value for field, value in self.headers if field == name), None)

    def kept_headers(self) -> list[tuple[str, str]]:
        """The headers as the ledger keeps them: credentials as ``sha256:`` digests."""
        return [
            (field, f"sha256:{hashlib.sha256(value.encode()).hexdigest()}")
            if field in CREDENTIAL_HEADERS
            else (field, value)
            for field, value in self.headers
        ]

    @cached_property
    def content(self) -> Json:
        """The body as fields: a JSON object, a nested form, or one field that holds it all."""
        media_type = (self.header("content-type") or "").partition(";")[0].strip().lower()
        if media_type == "application/x-www-form-urlencoded":
            return form_fields(self.body)
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            return cast(Json, value)
        if isinstance(value, list):
            return {"items": value}
        return {"body_text": self.body.decode("utf-8", "replace")} if self.body else {}


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys that one request carries; each may be absent."""

    downstream: str | None
    correlation: str | None

    @property
    def any(self) -> str | None:
        return self.downstream or self.correlation


def keys_of(request: Request, key_fields: tuple[str, ...], name: str | None = None) -> Keys:
    """Find the keys of `request`.

    The downstream key is the ``Idempotency-Key`` header or the query's ``key``. The correlation
    key is the first of `key_fields` (dotted paths into the body), a query field, or `name`, the
    object's name in the path.
    """
    downstream = request.header("idempotency-key") or request.parameters.get("key")
    correlation = next(
        (value for field in key_fields if (value := _text_at(request.content, field))), None
    )
    if correlation is None:
        asked = (request.parameters.get(field) for field in KEY_QUERY_FIELDS[1:])
        correlation = next((value for value in asked if value), None) or name
    return Keys(downstream or None, correlation)


def _text_at(content: Mapping[str, Any], field: str) -> str | None:
    value: Any = content
    for part in field.split("."):
        if not isinstance(value, dict) or part not in value:
            return None
        value = value[part]
    # A lone surrogate cannot be stored; the ledger keeps the body's bytes in any case.
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) and value else None


def form_fields(body: bytes) -> Json:
    """Fields of a form; ``a[b]=c`` nests, ``a[]=b`` collects a list. Of a clash, the last wins."""
    fields: Json = {}
    for name, text in parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True):
        *outer, last = name.replace("]", "").split("[")
        collects = last == "" and bool(outer)
        if collects:
            last = outer.pop()
        at = fields
        for part in outer:
            below = at.get(part)
            if not isinstance(below, dict):
                below = at[part] = {}
            at = below
        whole_number = last in _WHOLE_NUMBER_FIELDS and text.isascii() and text.isdigit()
        value: str | int = int(text) if whole_number and len(text) < 16 else text
        if collects and isinstance(at.get(last), list):
            at[last].append(value)
        else:
            at[last] = [value] if collects else value
    return fields


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. `headers` holds what is not derived from the body."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()

    def with_headers(self, *more: tuple[str, str]) -> Answer:
        return Answer(self.status, self.body, (*self.headers, *more))


def json_answer(status: int, body: Mapping[str, Any], *headers: tuple[str, str]) -> Answer:
    encoded = json.dumps(body, separators=(",", ":")).encode()
    return Answer(status, encoded, (("content-type", "application/json"), *headers))


def error_answer(status: int, code: str, message: str, **more: Any) -> Answer:
    return json_answer(status, {"error": code, "message": message, **more})
