"""The route of the metrics, on the API's own port unless a setting moves or removes it.

It asks for no key: it tells numbers over all tenants, and nothing of any of them. Whoever must not
know how much is going on is kept away by the network, or by `EFFECT_BROKER_METRICS_PORT`.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from effect_broker.api.callers import services_of
from effect_contracts.errors import NotFound

router = APIRouter(tags=["health"])


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {
            "description": "The numbers of this process and of the ledger, for Prometheus.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
        404: {"description": "They are not served here."},
    },
)
async def metrics(request: Request) -> Response:
    """Return what this process has counted and what the ledger knows, for Prometheus."""
    page = services_of(request).metrics
    if page is None:
        raise NotFound
    body, media_type = await page(request.headers.get("accept", ""))
    return Response(body, headers={"Content-Type": media_type})
