"""Owns the control API under ``/_control/``: modes, scripts, the ledger, waits, releases, time.

For tests and the demo on the same machine: only loopback peers are served, and no request here
counts as an arrival. What cannot be understood is refused with 400 and a reason.

==========================================  ===================================================
``GET  /_control/health``                   200 once the target serves
``POST /_control/modes``                    ``{"kind", "mode", …}``: see `modes.Mode`
``POST /_control/faults``                   ``{"script": [plan, …], "kind", "method", "key",
                                            "repeat_last"}``; GET lists the plans that are left
``GET  /_control/ledger?kind=&key=&rows=``  counts, keys, digests and (rows=1) all rows
``GET  /_control/wait?arrivals=&…``         returns when the counts are reached, 408 if not
``POST /_control/release``                  ``{"name"}``: lets holds, gates and hangs go
``POST /_control/clock``                    ``{"advance_seconds"}``: for retention and lag
``POST /_control/reset``                    an empty ledger, no scripts, default modes
==========================================  ===================================================
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Iterable
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from effect_broker.proof.target.counting import CountOnly
from effect_broker.proof.target.faults import VerbError, parse_plan
from effect_broker.proof.target.messages import Answer, Json, Request, error_answer, json_answer
from effect_broker.proof.target.modes import KIND, Mode
from effect_broker.proof.target.scripts import Match, Scripts
from effect_broker.proof.target.service import TargetService
from effect_broker.proof.target.waits import Bulletin, Holds

PREFIX = "/_control/"
WAIT_SECONDS_MAX = 120.0
WAIT_SECONDS = 10.0

_STRICT = ConfigDict(strict=True, frozen=True, extra="forbid")
_Text = Annotated[str, Field(min_length=1, max_length=1000)]


class _Refused(Exception):
    """A control request that cannot be understood."""


class _Faults(BaseModel):
    model_config = _STRICT

    script: Annotated[list[str], Field(min_length=1, max_length=10_000)]
    kind: _Text | None = None
    method: _Text | None = None
    key: _Text | None = None
    repeat_last: bool = False


class _Release(BaseModel):
    model_config = _STRICT

    name: _Text | None = None


class _Advance(BaseModel):
    model_config = _STRICT

    advance_seconds: Annotated[float, Field(ge=0, le=10 * 366 * 86400, allow_inf_nan=False)]


class _Nothing(BaseModel):
    model_config = _STRICT


_Model = TypeVar("_Model", bound=BaseModel)


class Control:
    """The control API over one running target."""

    def __init__(
        self,
        service: TargetService,
        scripts: Scripts,
        holds: Holds,
        bulletin: Bulletin,
        counting: CountOnly,
    ) -> None:
        self._service = service
        self._scripts = scripts
        self._holds = holds
        self._bulletin = bulletin
        self._counting = counting

    async def answer(self, request: Request, peer: str) -> Answer:
        """Serve one control request from the address `peer`."""
        if not ipaddress.ip_address(peer.partition("%")[0]).is_loopback:
            return error_answer(403, "loopback_only", "the control API serves this machine only")
        try:
            return await self._serve(request)
        except _Refused as refused:
            return error_answer(400, "invalid_control_request", str(refused))

    async def _serve(self, request: Request) -> Answer:
        match request.method, request.path.removeprefix(PREFIX):
            case "GET", "health":
                return json_answer(200, {"status": "ok"})
            case "POST", "modes":
                return self._set_mode(request)
            case "POST", "faults":
                return self._add_script(request)
            case "GET", "faults":
                return json_answer(200, {"left": self._scripts.left()})
            case "GET", "ledger":
                return self._ledger(request)
            case "GET", "wait":
                return await self._wait(request)
            case "POST", "release":
                released = self._holds.release(_read(_Release, request).name)
                return json_answer(200, {"released": released})
            case "POST", "clock":
                self._service.clock.advance(_read(_Advance, request).advance_seconds)
                return json_answer(200, {"now": self._service.clock.now()})
            case "POST", "reset":
                _read(_Nothing, request)
                self._reset()
                return json_answer(200, {"status": "empty"})
            case _:
                return error_answer(404, "no_such_control", "see the control API's paths")

    def _set_mode(self, request: Request) -> Answer:
        settings = dict(request.content)
        kind = settings.pop("kind", None)
        if not isinstance(kind, str) or KIND.fullmatch(kind) is None:
            raise _Refused("kind: a lower-case word of up to 40 letters, digits and underscores")
        if isinstance(settings.get("key_fields"), list):  # JSON has no tuples
            settings["key_fields"] = tuple(settings["key_fields"])
        mode = _valid(Mode, settings)
        self._service.set_mode(kind, mode)
        return json_answer(200, {"kind": kind, **mode.model_dump(mode="json")})

    def _add_script(self, request: Request) -> Answer:
        asked = _read(_Faults, request)
        try:
            plans = [parse_plan(text) for text in asked.script]
        except VerbError as error:
            raise _Refused(f"script: {error}") from error
        match = Match(asked.kind, asked.method.upper() if asked.method else None, asked.key)
        if match != Match() and any(plan.where == "accept" for plan in plans):
            raise _Refused("script: 'accept' comes before any request; give no kind, method or key")
        self._scripts.add(match, plans, repeat_last=asked.repeat_last)
        return json_answer(200, {"queued": len(plans)})

    def _reset(self) -> None:
        self._scripts.clear()
        self._holds.release(None)
        self._counting.clear()
        self._service.reset()
        self._bulletin.post()

    # -- the ledger ------------------------------------------------------------------------------

    def _ledger(self, request: Request) -> Answer:
        kind, key = _narrowing(request)
        ledger = self._service.ledger
        rows = ledger.arrival_rows(kind, key)
        received = [row for row in rows if row["mutating"] and row["body_state"] in _RECEIVED]
        body: Json = {
            **self._counts(kind, key),
            "broken": sum(row["body_state"] not in _RECEIVED for row in rows),
            "held": self._holds.held(),
            "keys": _distinct(row["downstream_key"] for row in received),
            "correlation_keys": _distinct(row["correlation_key"] for row in received),
            "body_digests": _distinct(row["body_digest"] for row in received),
            "distinct_keys_counted": self._counting.distinct_keys(kind),
        }
        if request.parameters.get("rows", "1") != "0":
            body["arrival_rows"] = [_arrival_shown(row) for row in rows]
            body["effect_rows"] = [
                {
                    "n": effect.n,
                    "kind": effect.kind,
                    "object_id": effect.object_id,
                    "name": effect.name,
                    "downstream_key": effect.downstream_key,
                    "correlation_key": effect.correlation_key,
                    "arrival_n": effect.arrival_n,
                    "item": effect.item,
                    "content": effect.content,
                    "committed_at": effect.committed_at,
                }
                for effect in ledger.effects(kind, key)
            ]
        return json_answer(200, body)

    def _counts(self, kind: str | None, key: str | None) -> dict[str, int]:
        counts = self._service.ledger.counts(kind, key)
        counted = self._counting.requests(kind) if key is None else 0
        return {
            "arrivals": counts.arrivals + counted,
            "lookups": counts.lookups,
            "effects": counts.effects + counted,
        }

    async def _wait(self, request: Request) -> Answer:
        kind, key = _narrowing(request)
        asked = request.parameters
        wanted = {
            name: _number(name, asked[name])
            for name in ("arrivals", "lookups", "effects", "held")
            if name in asked
        }
        if not wanted:
            raise _Refused("name at least one of arrivals, lookups, effects and held")
        timeout = _number("timeout", asked.get("timeout", str(WAIT_SECONDS)))
        if not 0 <= timeout <= WAIT_SECONDS_MAX:
            raise _Refused(f"timeout: 0 to {WAIT_SECONDS_MAX:g} seconds")

        def present() -> dict[str, int]:
            return {**self._counts(kind, key), "held": self._holds.held()}

        def reached() -> bool:
            counts = present()
            return all(counts[name] >= least for name, least in wanted.items())

        if await self._bulletin.until(reached, timeout):
            return json_answer(200, present())
        return json_answer(408, {"error": "not_reached", "message": "not in time", **present()})


_RECEIVED = ("whole", "early")


def _read(model: type[_Model], request: Request) -> _Model:
    """The request's JSON object as `model`; an empty body is an empty object."""
    return _valid(model, request.content)


def _valid(model: type[_Model], fields: Json) -> _Model:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise _Refused(f"{where}: {first['msg']}") from error


def _narrowing(request: Request) -> tuple[str | None, str | None]:
    return request.parameters.get("kind") or None, request.parameters.get("key") or None


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise _Refused(f"{name}: not a number") from error
    if value != value or value < 0:
        raise _Refused(f"{name}: 0 or more")
    return value


def _distinct(values: Iterable[str | None]) -> list[str]:
    """Each value once, in the order of its first appearance; absent ones left out."""
    return list(dict.fromkeys(value for value in values if value is not None))


def _arrival_shown(row: Json) -> Json:
    encoded = base64.b64encode(row["body"]).decode("ascii")
    shown = {name: value for name, value in row.items() if name != "body"}
    return {**shown, "mutating": bool(row["mutating"]), "body_base64": encoded}
