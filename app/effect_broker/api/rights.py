"""Which right each route of the API asks for; one table, and nobody is let in beside it.

The table is judged where a caller is found (`effect_broker.api.callers`), before the body is read.
An application with a route that is in neither table does not start: who adds one has to say whom
it is for. The console asks for `read` and `operate` of every session (`api.console.access`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fastapi.routing import APIRoute

from effect_broker.intake import Scope

RIGHTS: Final[dict[tuple[str, str], Scope]] = {
    ("POST", "/v1/effects"): Scope.SUBMIT,
    ("GET", "/v1/effects"): Scope.READ,
    ("GET", "/v1/effects/{effect_id}"): Scope.READ,
    ("GET", "/v1/effects/{effect_id}/receipt"): Scope.READ,
    ("GET", "/v1/effects/{effect_id}/history"): Scope.READ,
    ("GET", "/v1/effects/{effect_id}/proposals"): Scope.READ,
    # Whoever submits may perform the effect itself, where the contract lets it.
    ("POST", "/v1/effects/elect"): Scope.SUBMIT,
    ("POST", "/v1/effects/{effect_id}/attempts/{ordinal}/extend"): Scope.SUBMIT,
    ("POST", "/v1/effects/{effect_id}/attempts/{ordinal}/confirm"): Scope.SUBMIT,
    # To look sooner and to withdraw what was never sent are wishes of whoever submits.
    ("POST", "/v1/effects/{effect_id}/reconcile"): Scope.SUBMIT,
    ("POST", "/v1/effects/{effect_id}/cancel"): Scope.SUBMIT,
    ("POST", "/v1/effects/{effect_id}/resolve"): Scope.OPERATE,
    ("POST", "/v1/effects/{effect_id}/confirm"): Scope.OPERATE,
    ("POST", "/v1/effects/{effect_id}/approve"): Scope.OPERATE,
    ("POST", "/v1/effects/{effect_id}/deny"): Scope.OPERATE,
    ("POST", "/v1/effects/{effect_id}/acknowledge"): Scope.OPERATE,
    # Whoever submits may see what a submit would be bound to.
    ("GET", "/v1/tools/{tool}"): Scope.SUBMIT,
    ("GET", "/v1/unresolved"): Scope.READ,
    ("POST", "/v1/decisions"): Scope.OPERATE,
    ("GET", "/v1/decisions"): Scope.READ,
    ("GET", "/v1/decisions/{decision_id}"): Scope.READ,
    ("POST", "/v1/holds"): Scope.OPERATE,
    ("GET", "/v1/holds"): Scope.READ,
    ("POST", "/v1/holds/{hold_id}/lift"): Scope.OPERATE,
    ("GET", "/v1/events"): Scope.READ,
    # A subscription lets a tenant's events out to a URL.
    ("POST", "/v1/subscriptions"): Scope.ADMIN,
    ("DELETE", "/v1/subscriptions/{subscription_id}"): Scope.ADMIN,
    ("POST", "/v1/subscriptions/{subscription_id}/replace-secret"): Scope.ADMIN,
    ("GET", "/v1/subscriptions"): Scope.OPERATE,
    ("GET", "/v1/subscriptions/{subscription_id}"): Scope.OPERATE,
    ("POST", "/v1/subscriptions/{subscription_id}/pause"): Scope.OPERATE,
    ("POST", "/v1/subscriptions/{subscription_id}/resume"): Scope.OPERATE,
    ("GET", "/v1/subscriptions/{subscription_id}/dead-letters"): Scope.OPERATE,
    ("POST", "/v1/subscriptions/{subscription_id}/dead-letters/redeliver"): Scope.OPERATE,
    # What providers deliver, and drills, are for those who operate.
    ("GET", "/v1/evidence"): Scope.OPERATE,
    ("GET", "/v1/drills"): Scope.OPERATE,
    ("GET", "/v1/drills/{drill_id}"): Scope.OPERATE,
    # What a drill kills is a worker of its own, which somebody has to start beside the others; one
    # effect may be late for it, and whoever operates can hold all of them.
    ("POST", "/v1/drills"): Scope.OPERATE,
    ("DELETE", "/v1/drills/{drill_id}"): Scope.OPERATE,
}

# Why no API key is asked for.
OPEN: Final[dict[tuple[str, str], str]] = {
    ("GET", "/healthz"): "a load balancer has no key, and it tells nothing but the version",
    ("GET", "/readyz"): "a load balancer has no key, and it tells codes only",
    ("GET", "/metrics"): "numbers over all tenants; moved or removed by EFFECT_BROKER_METRICS*",
    ("POST", "/v1/evidence/{tenant}/{contract}"): "the delivery's own signature is judged",
}


class RightMissing(Exception):
    """A route says neither which right it asks for nor why it asks for none."""


def right_of(method: str, path: str) -> Scope:
    """Return the right that a route asks for; `path` is its template.

    Raises:
        RightMissing.
    """
    try:
        return RIGHTS[method, path]
    except KeyError:
        raise RightMissing(f"{method} {path} is not in effect_broker.api.rights") from None


def check_routes(routes: Iterable[APIRoute]) -> None:
    """See that every route names its right.

    Raises:
        RightMissing.
    """
    for route in routes:
        for method in route.methods or ():
            if (method, route.path_format) not in OPEN:
                right_of(method, route.path_format)
