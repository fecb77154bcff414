"""The routes of drills: an operator arms a fault for one effect, and reads what has come of it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import AfterValidator, BaseModel, Field, model_validator

from effect_broker.api.bodies import STRICT, read_model
from effect_broker.api.callers import Caller, known_id, only_known_parameters, services_of
from effect_broker.api.documentation import documented
from effect_broker.api.presentation import moment
from effect_broker.clock import new_id
from effect_broker.drills import (
    DEFAULT_POINT,
    EXPIRES_SECONDS_DEFAULT,
    EXPIRES_SECONDS_MAX,
    LISTED_MAX,
    REASON_CHARS_MAX,
    TAKEOVER_SECONDS_DEFAULT,
    TAKEOVER_SECONDS_MAX,
    DrilledEffect,
    DrillOrder,
    DrillRecord,
    DrillStatus,
    checked_point,
)
from effect_contracts.life import is_final

router = APIRouter(
    prefix="/v1/drills", tags=["drills"], dependencies=[Depends(only_known_parameters)]
)


def _storable(text: str) -> str:
    """NUL cannot be stored, and a reason is printed on terminals."""
    if not all(c.isprintable() or c == "\n" for c in text) or not text.strip():
        raise ValueError("printable text only, and some of it")
    return text


Storable = Annotated[str, AfterValidator(_storable)]


class DrillBody(BaseModel):
    """The body of `POST /v1/drills`: one operation key, or a tool."""

    model_config = STRICT

    operation_key: str | None = Field(default=None, pattern=r"^[!-~]{1,255}$")
    tool: Storable | None = Field(default=None, min_length=1, max_length=255)
    fault_point: str = Field(default=DEFAULT_POINT.value, max_length=255)
    reason: Storable = Field(min_length=1, max_length=REASON_CHARS_MAX)
    expires_in_seconds: int = Field(default=EXPIRES_SECONDS_DEFAULT, ge=1, le=EXPIRES_SECONDS_MAX)
    takeover_seconds: int = Field(default=TAKEOVER_SECONDS_DEFAULT, ge=1, le=TAKEOVER_SECONDS_MAX)

    @model_validator(mode="after")
    def _waits_for_one_thing(self) -> DrillBody:
        if (self.operation_key is None) == (self.tool is None):
            raise ValueError("a drill waits for an operation key or for a tool")
        return self

    def order(self, drill_id: UUID) -> DrillOrder:
        """Return what is to be armed.

        Raises:
            InvalidRequest: nothing can be armed at this fault point.
        """
        return DrillOrder(
            drill_id=drill_id,
            operation_key=self.operation_key,
            tool=self.tool,
            point=checked_point(self.fault_point),
            reason=self.reason,
            expires_seconds=self.expires_in_seconds,
            takeover_seconds=self.takeover_seconds,
        )


_ARM: Final = documented(
    DrillBody,
    {"tool": "demo.charge", "reason": "Quarterly drill: does a lost worker duplicate?"},
    {201: "The drill is armed"},
    problems={409: "An effect of this operation key exists, so that no new one can match"},
)
_NOT_FOUND: Final[dict[int | str, dict[str, Any]]] = {404: {"description": "No such drill"}}


@router.post("", **_ARM)
async def arm_drill(request: Request, tenant: Caller) -> Response:
    """Arm a fault for one operation key, or for the first new effect of a tool; single use.

    The effect that matches is left to the drill's worker (`effect-broker drill run --armed ID`) for
    `takeover_seconds`; if none comes, the ordinary workers take it. Needs a key with the scope
    `operate`."""
    order = (await read_model(request, DrillBody)).order(new_id())
    record = await services_of(request).drills.arm(
        tenant.tenant_id, order, f"operator:{tenant.credential}"
    )
    location = {"Location": f"/v1/drills/{record.drill_id}"}
    return JSONResponse(drill_body(record), 201, location)


@router.get("")
async def list_drills(
    request: Request,
    tenant: Caller,
    limit: Annotated[int, Query(ge=1, le=LISTED_MAX)] = LISTED_MAX,
) -> Response:
    """Return the drills of this tenant, the newest first. Needs the scope `operate`."""
    records = await services_of(request).drills.listing(tenant.tenant_id, limit)
    return JSONResponse({"drills": [drill_body(record) for record in records]})


@router.get("/{drill_id}", responses=_NOT_FOUND)
async def get_drill(request: Request, tenant: Caller, drill_id: str) -> Response:
    """Return how far a drill has come: its effect, the death, and how and when it was settled.

    Needs a key with the scope `operate`."""
    record = await services_of(request).drills.drill(tenant.tenant_id, known_id(drill_id))
    return JSONResponse(drill_body(record))


@router.delete("/{drill_id}", responses=_NOT_FOUND | {409: {"description": "It has matched"}})
async def cancel_drill(request: Request, tenant: Caller, drill_id: str) -> Response:
    """Disarm a drill that no effect has met; again is a no-op. Needs the scope `operate`."""
    record = await services_of(request).drills.cancel(
        tenant.tenant_id, known_id(drill_id), f"operator:{tenant.credential}"
    )
    return JSONResponse(drill_body(record))


def drill_body(record: DrillRecord) -> dict[str, Any]:
    """Return the members of a drill, for the API and the command line."""
    effect = record.effect
    settled = record.status is DrillStatus.SETTLED
    body: dict[str, Any] = {
        "drill_id": str(record.drill_id),
        "status": record.status.value,
        "operation_key": record.operation_key,
        "tool": record.tool,
        "fault_point": record.point.value,
        "reason": record.reason,
        "armed_by": record.armed_by,
        "armed_at": moment(record.armed_at),
        "expires_at": moment(record.expires_at),
        "takeover_seconds": record.takeover_seconds,
        "cancelled_by": record.cancelled_by,
        "cancelled_at": moment(record.cancelled_at),
        "matched_at": moment(record.matched_at),
        "executor_id": record.executor_id,
        "worker_ready_at": moment(record.worker_ready_at),
        "died_at": moment(record.died_at),
        "settled_at": moment(effect.settled_at) if effect else None,
        "seconds_to_match": _between(record.armed_at, record.matched_at),
        "seconds_to_death": _between(record.matched_at, record.died_at),
        "seconds_to_settlement": _rounded(record.settlement_seconds),
        "settled_by": record.settled_by.value if settled and record.settled_by else None,
        "promise_kept": record.promise_kept,
        "effect_id": str(effect.effect_id) if effect else None,
        "effect": None if effect is None else _effect_body(effect),
        "now": moment(record.now),
    }
    return body


def _effect_body(effect: DrilledEffect) -> dict[str, Any]:
    return {
        "operation_key": effect.operation_key,
        "tool": effect.tool,
        "safety": effect.safety.value,
        "state": effect.state.value,
        "final": is_final(effect.state),
        "reason": effect.reason,
        "waits_for_person": effect.parked,
        "alert": effect.alert.value if effect.alert else None,
        "attempts": len(effect.attempts),
        "evidence": len(effect.evidence),
        "link": f"/v1/effects/{effect.effect_id}",
    }


def _between(begin: datetime | None, end: datetime | None) -> float | None:
    return None if begin is None or end is None else _rounded((end - begin).total_seconds())


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
