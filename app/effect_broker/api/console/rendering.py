"""Templates to answers: this module owns what may reach a page, and the headers of each answer.

Every value that a template prints is escaped for HTML, and before that its characters that are not
printable (control characters, marks that turn the direction of text) are written out as `\\u202e`,
so that a name can neither break the page nor look like another name.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from effect_broker.api.console import words
from effect_broker.api.console.access import Visit
from effect_contracts.counting import span

_PACKAGE: Final = "effect_broker.api.console"

# No script, no style but the one file, no frame, no form that goes elsewhere.
_POLICY: Final = (
    "default-src 'none'; style-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not `no-referrer`: browsers would then send `Origin: null` with our own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_RAW_HEADERS: Final = tuple((k.lower().encode(), v.encode()) for k, v in _HEADERS.items())
_OWN_NAMES: Final = frozenset(name for name, _ in _RAW_HEADERS)


def visible(value: object) -> object:
    """Return text with what cannot be printed written out; everything else as it is."""
    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return value
    return "".join(c if c.isprintable() else _written_out(c) for c in value)


def prose(value: str) -> Markup:
    """Return a text of several lines; line breaks stay."""
    return Markup("\n").join(escape(visible(line)) for line in value.split("\n"))


def _written_out(character: str) -> str:
    number = ord(character)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader(_PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"prose": prose, "clock": words.clock, "span": span}
    made.globals |= {"ago": words.ago, "who": words.who, "words": words.words}
    return made


def page(
    name: str,
    content: Mapping[str, Any],
    *,
    visit: Visit | None,
    status: int = 200,
    flash: str | None = None,
) -> Response:
    """Return a rendered page; `visit` is None before anybody is signed in."""
    text = _environment().get_template(f"{name}.html").render(
        visit=visit, me=visit.credential if visit else "", flash=flash, **content
    )  # fmt: skip
    return HTMLResponse(text, status)


def style(_: Request) -> Response:
    """Return the style sheet."""
    return Response(files(_PACKAGE).joinpath("style.css").read_bytes(), media_type="text/css")


def see_other(path: str) -> Response:
    """Send the browser to a page of the console after a form."""
    assert path.startswith("/console"), "the console sends nobody elsewhere"
    return RedirectResponse(path, 303)


class Guarded:
    """Puts the headers of the console on every answer, also on those that a framework has made."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [h for h in message.get("headers", ()) if h[0].lower() not in _OWN_NAMES]
                message["headers"] = [*kept, *_RAW_HEADERS]
            await send(message)

        await self._app(scope, receive, sending)
