"""A person at the console without a browser: pages, their forms, and how they are sent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Final
from uuid import UUID

import httpx
from fastapi import FastAPI

from effect_broker.store.pool import Pool
from effect_broker.store.tenants import Tenants

SITE: Final = "http://broker"
OWN: Final = {"Origin": SITE, "Sec-Fetch-Site": "same-origin"}


@dataclass
class Form:
    """A form of a page: where it goes, and its fields as a browser would send them."""

    action: str
    fields: dict[str, str] = field(default_factory=dict)
    disabled: set[str] = field(default_factory=set)


class Page(HTMLParser):
    """A page as a browser reads it: its text, its forms, its elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.forms: list[Form] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._parts: list[str] = []
        self._area: str | None = None
        self._select: str | None = None
        self.feed(text)

    @property
    def words(self) -> str:
        """The text, with spaces folded."""
        return " ".join(" ".join(self._parts).split())

    def form(self, ending: str) -> Form:
        """The form whose address ends like this."""
        (found,) = [form for form in self.forms if form.action.endswith(ending)]
        return found

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        name = given.get("name")
        if tag == "form":
            self.forms.append(Form(given.get("action") or ""))
        elif tag == "textarea" and name:
            self._area = name
            self.forms[-1].fields[name] = ""
        elif tag == "select" and name:
            self._select = name
        elif tag == "option" and self._select:
            fields = self.forms[-1].fields
            if "selected" in given or self._select not in fields:
                fields[self._select] = given.get("value") or ""
        elif tag == "input" and name:
            self._input(name, given)

    def _input(self, name: str, given: dict[str, str | None]) -> None:
        value = given.get("value") or ""
        if "disabled" in given:
            self.forms[-1].disabled.add(value)
        elif given.get("type") != "radio" or "checked" in given:
            self.forms[-1].fields[name] = value

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            self._area = None
        elif tag == "select":
            self._select = None

    def handle_data(self, data: str) -> None:
        if self._area is not None:
            self.forms[-1].fields[self._area] += data.removeprefix("\n")
        self._parts.append(data)


@dataclass
class Operator:
    """Somebody who is signed in."""

    client: httpx.AsyncClient
    key_id: UUID
    api_key: str

    async def page(self, path: str) -> Page:
        """Open a page, which has to be there."""
        answer = await self.client.get(path)
        assert answer.status_code == 200, (answer.status_code, answer.text)
        return Page(answer.text)

    async def send(self, form: Form, **fields: str) -> httpx.Response:
        """Send a form, with some fields filled in."""
        return await self.client.post(form.action, data={**form.fields, **fields}, headers=OWN)

    async def sent(self, form: Form, **fields: str) -> Page:
        """Send a form that has to be taken, and follow to the next page."""
        answer = await self.send(form, **fields)
        assert answer.status_code == 303, (answer.status_code, Page(answer.text).words)
        return await self.page(answer.headers["location"])


def browser(app: FastAPI, site: str = SITE) -> httpx.AsyncClient:
    """A browser without a session."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=site)


async def sign_in(client: httpx.AsyncClient, api_key: str, **headers: str) -> httpx.Response:
    """Send the form to sign in."""
    data = {"api_key": api_key}
    return await client.post("/console/login", data=data, headers={**OWN, **headers})


@asynccontextmanager
async def signed_in(app: FastAPI, admin_pool: Pool, tenant: str) -> AsyncIterator[Operator]:
    """An operator of a tenant with a key of their own."""
    made = await Tenants(admin_pool).create_key(tenant, ("effects", "operate"))
    async with browser(app) as client:
        answer = await sign_in(client, made.api_key)
        assert answer.status_code == 303, answer.text
        yield Operator(client, made.key_id, made.api_key)
