"""Every route of the real application, as its own OpenAPI document lists them, ready to be asked.

A route that is new is in the document by itself; what the walk needs to know of it beyond that (how
its ids are named, what a good body is) fails loudly where it is missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from fastapi import FastAPI

METHODS = frozenset({"get", "put", "post", "delete", "patch", "head", "options", "trace"})


@dataclass(frozen=True, slots=True)
class Route:
    """One operation: a method, the template of its path, and an example of its body."""

    method: str
    template: str
    body: Any

    @property
    def name(self) -> tuple[str, str]:
        return (self.method, self.template)

    @property
    def parameters(self) -> list[str]:
        return re.findall(r"{(\w+)}", self.template)

    def path(self, ids: Mapping[str, str]) -> str:
        return self.template.format(**{name: ids[name] for name in self.parameters})

    async def ask(
        self, client: httpx.AsyncClient, ids: Mapping[str, str], headers: Mapping[str, str]
    ) -> httpx.Response:
        return await client.request(
            self.method, self.path(ids), json=self.body, headers=dict(headers)
        )


def routes_of(application: FastAPI) -> list[Route]:
    """Return all operations of the application."""
    return list(_routes(application.openapi()))


def _routes(document: Mapping[str, Any]) -> Iterator[Route]:
    for template, item in document["paths"].items():
        for method in METHODS & item.keys():
            content = item[method].get("requestBody", {}).get("content", {})
            body = content["application/json"]["example"] if content else None
            yield Route(method.upper(), template, body)
