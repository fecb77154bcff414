"""The route of tools: which contract a submit of now would be bound to."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from effect_broker.api.callers import Caller, only_known_parameters, services_of
from effect_broker.api.documentation import RESPONSES_TOOL
from effect_contracts.document import sent_by_workers

router = APIRouter(
    prefix="/v1/tools", tags=["effects"], dependencies=[Depends(only_known_parameters)]
)


@router.get("/{tool:path}", responses=RESPONSES_TOOL)
async def get_tool(request: Request, tenant: Caller, tool: str) -> Response:
    """Return the active contract of a tool; a configuration can be checked by it.

    Needs the scope `submit`."""
    document = await services_of(request).intake.contract_of(tool)
    return JSONResponse(
        {
            "tool": document.tool,
            "contract": {"name": document.name, "version": document.version},
            "safety": document.safety.value,
            "sent_by": "broker" if sent_by_workers(document) else "caller",
        }
    )
