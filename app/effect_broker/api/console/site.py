"""The console as a part of the application: its routes, and its place below `/console`."""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI, Request
from fastapi.responses import RedirectResponse, Response
from starlette.applications import Starlette
from starlette.routing import Route

from effect_broker.api.console import forms, pages
from effect_broker.api.console.access import PATH
from effect_broker.api.console.answers import Endpoint, answered, error_page
from effect_broker.api.console.logins import LoginLimit
from effect_broker.api.console.rendering import Guarded, see_other, style


async def _to_effect(request: Request) -> Response:
    """Who comes to the address of a form by other means, wants its page."""
    return see_other(f"{PATH}/effects/{request.path_params['effect_id']}")


async def _to_holds(_: Request) -> Response:
    return see_other(f"{PATH}/holds")


async def _to_queue(_: Request) -> Response:
    return see_other(f"{PATH}/")


_PAGES: Final[tuple[tuple[str, Endpoint], ...]] = (
    ("/", pages.queue),
    ("/search", pages.search),
    ("/effects/{effect_id}", pages.effect),
    ("/approvals", pages.approvals),
    ("/holds", pages.holds),
    ("/health", pages.health),
    ("/login", forms.login_page),
    ("/logout", _to_queue),
    ("/effects/{effect_id}/{form}", _to_effect),
    ("/holds/{hold_id}/lift", _to_holds),
)
_FORMS: Final[tuple[tuple[str, Endpoint], ...]] = (
    ("/login", forms.login),
    ("/logout", forms.logout),
    ("/effects/{effect_id}/resolve", forms.resolve),
    ("/effects/{effect_id}/confirm", forms.confirm),
    ("/effects/{effect_id}/judge", forms.judge),
    ("/effects/{effect_id}/look", forms.look),
    ("/effects/{effect_id}/acknowledge", forms.acknowledge),
    ("/holds", forms.place_hold),
    ("/holds/{hold_id}/lift", forms.lift_hold),
)


def mount(app: FastAPI) -> None:
    """Add the console to the application, whose `state.services` it stands on."""
    site = Starlette(
        routes=[
            Route("/style.css", style, methods=["GET"]),
            *(Route(path, answered(form), methods=["POST"]) for path, form in _FORMS),
            *(Route(path, answered(page), methods=["GET"]) for path, page in _PAGES),
        ],
        exception_handlers={404: _missing, 405: _not_so},
    )
    site.router.redirect_slashes = False
    site.state = app.state
    app.state.console_logins = LoginLimit()
    app.router.routes.append(Route(PATH, Guarded(RedirectResponse(f"{PATH}/", 308))))
    app.mount(PATH, Guarded(site))


async def _missing(_: Request, __: Exception) -> Response:
    return error_page("There is no such page.", "Begin again on the first page.", 404)


async def _not_so(_: Request, __: Exception) -> Response:
    return error_page("This address takes no such request.", "Begin on the first page.", 405)
