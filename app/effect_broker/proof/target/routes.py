"""Owns the target's paths: which action, on which kind, a request asks for.

Every request has a route, so that every request can be recorded; what the API does not know is a
route that carries its refusal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from effect_broker.proof.target.messages import Answer, Request, error_answer
from effect_broker.proof.target.modes import KIND

Action: TypeAlias = Literal["create", "list", "get", "put", "refund", "cancel", "poll", "none"]


@dataclass(frozen=True, slots=True)
class Route:
    """`kind` is what the request counts under, `of_kind` the kind of the object that it names."""

    action: Action
    kind: str
    name: str = ""
    of_kind: str = ""
    refusal: Answer | None = None


def route_of(request: Request) -> Route:
    parts = request.parts
    if parts[0] == "charges":
        parts = ("objects", *parts)
    match request.method, *parts:
        case "GET", "operations", str(name):
            return Route("poll", "operations", name)
        case _, "operations", str():
            return _no_method("operations")
        case _, "objects", str(kind), *_ if KIND.fullmatch(kind) is None:
            refusal = error_answer(400, "invalid_kind", "a kind is a lower-case word of up to 40")
            return Route("none", "", refusal=refusal)
        case "POST", "objects", str(kind):
            return Route("create", kind)
        case "GET", "objects", str(kind):
            return Route("list", kind)
        case "GET", "objects", str(kind), str(name):
            return Route("get", kind, name)
        case "PUT", "objects", str(kind), str(name):
            return Route("put", kind, name)
        case "POST", "objects", "charges", str(name), "refund":
            return Route("refund", "refunds", name, "charges")
        case ("DELETE", "objects", str(kind), str(name)) | (
            "POST",
            "objects",
            str(kind),
            str(name),
            "cancel",
        ):
            return Route("cancel", "cancellations", name, kind)
        case (_, "objects", str(kind)) | (_, "objects", str(kind), str()):
            return _no_method(kind)
        case _:
            refusal = error_answer(404, "no_such_path", "see the API's paths")
            return Route("none", "", refusal=refusal)


def _no_method(kind: str) -> Route:
    refusal = error_answer(405, "no_such_method", "this path does not know the method")
    return Route("none", kind, refusal=refusal)
