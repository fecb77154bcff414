"""The OpenAPI text of the routes: what each may answer, the schemas of bodies, and examples.

Bodies are parsed by `effect_broker.api.bodies`, not by the framework, so their schemas are taken
from the same models here; a test submits each example and compares the answer's members.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

_EFFECT_ID = "0c0e3a1f-7a64-8e0c-9b3f-2d5a4d1c8e77"

SUBMIT_EXAMPLE: dict[str, Any] = {
    "operation_key": "order:42:charge:v1",
    "tool": "demo.charge",
    "arguments": {"order": "42", "amount": 1200, "currency": "eur"},
}

EFFECT_EXAMPLE: dict[str, Any] = {
    "effect_id": _EFFECT_ID,
    "operation_key": "order:42:charge:v1",
    "tool": "demo.charge",
    "contract": {"name": "demo-charge-idempotent", "version": "1"},
    "request_hash": "5d" * 32,
    "safety": "idempotent",
    "guarantee": "one observable effect while the target's contract holds",
    "state": "prepared",
    "final": False,
    "reason": "submitted",
    "version": 1,
    "next_action_at": "2026-11-29T12:00:00.000000+00:00",
    "created_at": "2026-11-29T12:00:00.000000+00:00",
    "updated_at": "2026-11-29T12:00:00.000000+00:00",
    "links": {
        "self": f"/v1/effects/{_EFFECT_ID}",
        "receipt": f"/v1/effects/{_EFFECT_ID}/receipt",
    },
    "waits_for_person": False,
    "alert": None,
    "requested_by": "5f0c1c1e-3a52-4a0b-9c59-0f5f6d2c9a11",
    "trace_id": None,
    "preview": {"order": "42", "amount": 1200, "currency": "eur"},
    "receipt_digest": None,
    "now": "2026-11-29T12:00:00.000000+00:00",
    "parent_effect_id": None,
    "compensates": None,
    "compensated_by": None,
    "children": None,
    "classification": None,
}

NEW_EXAMPLE: dict[str, Any] = EFFECT_EXAMPLE | {"replayed": False}

REPLAY_EXAMPLE: dict[str, Any] = EFFECT_EXAMPLE | {
    "state": "succeeded",
    "final": True,
    "reason": "committed",
    "version": 3,
    "next_action_at": None,
    "receipt_digest": "9f" * 32,
    "replayed": True,
}

CONFLICT_EXAMPLE: dict[str, Any] = {
    "type": "urn:effect-broker:problem:payload_conflict",
    "title": "Payload conflict",
    "status": 409,
    "detail": (
        "This operation key is bound to another request; nothing was sent. "
        "Repeat the first request unchanged, or use a new key for a new intent."
    ),
    "instance": "/v1/effects",
    "code": "payload_conflict",
    "field": "/arguments/amount",
    "effect_id": _EFFECT_ID,
    "state": "succeeded",
}


def _problem(description: str) -> dict[str, Any]:
    content = {"application/problem+json": {"schema": {"type": "object"}}}
    return {"description": description, "content": content}


def _answer(description: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"type": "object"}}}
    return {"description": description, "content": content}


RESOLVE_EXAMPLE: dict[str, Any] = {
    "decision_id": "incident-4711",
    "expected_version": 3,
    "conclusion": "committed",
    "external_id": "ch_000001",
    "reason": "The charge stands in the provider's dashboard under our key.",
    "evidence": [
        {
            "kind": "provider_dashboard",
            "observed_at": "2026-11-29T12:05:00Z",
            "reference": "https://dashboard.example/charges/ch_000001",
        }
    ],
}

_PROBLEMS_READ: dict[int | str, dict[str, Any]] = {
    400: _problem("A parameter of the request is at fault"),
    401: _problem("No or an unknown API key"),
    403: _problem("The key lacks the scope that this needs, or the tenant is disabled"),
    429: _problem("The tenant makes too many requests; ask again later"),
    503: _problem("The database cannot be reached; ask again"),
    # Keeps the framework from promising its own 422.
    "default": _problem("Any other problem"),
}

RESPONSES_GET: dict[int | str, dict[str, Any]] = _PROBLEMS_READ | {
    200: _answer("The effect as it stands"),
    404: _problem("No such effect of this tenant"),
    429: _problem("Too many requests wait already; ask again later, or without `wait`"),
}

RESPONSES_LIST: dict[int | str, dict[str, Any]] = _PROBLEMS_READ | {
    200: _answer("A page, newest first"),
}

UNRESOLVED_EXAMPLE: dict[str, Any] = {
    "effect_id": _EFFECT_ID,
    "operation_key": "order:42:charge:v1",
    "tenant": "acme",
    "tool": "demo.charge",
    "contract": {"name": "demo-charge-idempotent", "version": "1"},
    "safety": "idempotent",
    "state": "outcome_unknown",
    "reason": "crash_window",
    "reasons": ["crash_window", "backoff"],
    "waits_for_person": False,
    "alert": None,
    "created_at": "2026-11-29T12:00:00.000000+00:00",
    "age_seconds": 61.5,
    "key_expires_at": "2026-11-30T12:00:00.100000+00:00",
    "key_expires_in_minutes": 1439.0,
    "last_evidence": {
        "source": "attempt",
        "says": "presumed_ambiguous",
        "code": None,
        "at": "2026-11-29T12:00:30.100000+00:00",
    },
    "next_action": {"step": "send", "at": "2026-11-29T12:01:04.000000+00:00"},
    "permitted_resolutions": [
        {"conclusion": "committed", "observed_after": None, "possible_now": True},
        {
            "conclusion": "not_committed",
            "observed_after": "2026-11-29T12:00:30.600000+00:00",
            "possible_now": True,
        },
        {"conclusion": "failed", "observed_after": None, "possible_now": True},
    ],
    "version": 3,
    "now": "2026-11-29T12:01:01.500000+00:00",
    "links": {
        "self": f"/v1/effects/{_EFFECT_ID}",
        "resolve": f"/v1/effects/{_EFFECT_ID}/resolve",
    },
}

RESPONSES_UNRESOLVED: dict[int | str, dict[str, Any]] = _PROBLEMS_READ | {
    200: _answer("A page, the most urgent first"),
}

RESPONSES_HISTORY: dict[int | str, dict[str, Any]] = _PROBLEMS_READ | {
    200: _answer("A page of events, or the effect as it stood after `at_sequence`"),
    404: _problem("No such effect of this tenant"),
}

RESPONSES_RECEIPT: dict[int | str, dict[str, Any]] = _PROBLEMS_READ | {
    404: _problem("No such effect of this tenant, or it is not settled"),
}

RESPONSES_WISH: dict[int | str, dict[str, Any]] = _PROBLEMS_READ | {
    200: _answer("The effect as it stands now; `changed` tells whether the wish did anything"),
    404: _problem("No such effect of this tenant"),
    409: _problem("The effect does not permit it any more"),
}

# What a route with a body of its own may answer beside its success.
_PROBLEMS_BODY: dict[int | str, dict[str, Any]] = {
    400: _problem("A parameter of the request is at fault"),
    401: _problem("No or an unknown API key"),
    403: _problem("The key lacks the scope that this needs, or the tenant is disabled"),
    413: _problem("The body is too large"),
    415: _problem("The body is not declared as JSON"),
    422: _problem("The body is incomplete or at fault; nothing was changed"),
    429: _problem("The tenant makes too many requests; nothing was changed, ask again later"),
    503: _problem("The database cannot be reached; ask again"),
}


def documented(
    model: type[BaseModel],
    example: dict[str, Any],
    answers: dict[int, str],
    *,
    problems: dict[int, str] | None = None,
) -> dict[str, Any]:
    """Return the arguments of a route whose body is read as `model`, the first answer its usual.

    Bodies are read by `effect_broker.api.bodies`, so the framework does not know their schema.
    """
    responses = dict(_PROBLEMS_BODY)
    responses |= {status: _answer(text) for status, text in answers.items()}
    responses |= {status: _problem(text) for status, text in (problems or {}).items()}
    schema = model.model_json_schema(ref_template="#/$defs/{model}")
    content = {"application/json": {"schema": _inlined(schema), "example": example}}
    return {
        "status_code": next(iter(answers)),
        "responses": responses,
        "openapi_extra": {"requestBody": {"required": True, "content": content}},
    }


def _inlined(schema: Any, definitions: Any = None) -> Any:
    """A schema without references: its parts are small, and used once."""
    if isinstance(schema, list):
        return [_inlined(member, definitions) for member in schema]
    if not isinstance(schema, dict):
        return schema
    definitions = schema.get("$defs", definitions)
    if "$ref" in schema:
        return _inlined(definitions[schema["$ref"].removeprefix("#/$defs/")], definitions)
    # The docstrings of models speak to us.
    dropped = {"$defs"} | ({"description", "title"} if "properties" in schema else set())
    return {k: _inlined(v, definitions) for k, v in schema.items() if k not in dropped}


RESPONSES_PROPOSALS: dict[int | str, dict[str, Any]] = _PROBLEMS_READ | {
    200: _answer("The statements that wait to be confirmed, oldest first"),
    404: _problem("No such effect of this tenant"),
}

RESPONSES_BATCHES: dict[int | str, dict[str, Any]] = _PROBLEMS_READ | {
    200: _answer("The decisions, newest first; `open` where their group has unresolved effects"),
}

RESPONSES_BATCH: dict[int | str, dict[str, Any]] = _PROBLEMS_READ | {
    200: _answer("The decision; `reopened_by` is what is unresolved and was not named"),
    404: _problem("No such decision of this tenant"),
}

RESPONSES_HOLDS: dict[int | str, dict[str, Any]] = _PROBLEMS_READ | {
    200: _answer("The holds, newest first"),
}

RESPONSES_TOOL: dict[int | str, dict[str, Any]] = _PROBLEMS_READ | {
    200: _answer("The contract that a submit of now would be bound to"),
    422: _problem("No active contract serves this tool"),
}

RESPONSES_DELIVERY: dict[int | str, dict[str, Any]] = {
    200: _answer("The delivery is stored, or was before; it will not be lost"),
    400: _problem("The body does not come to its end in time"),
    404: _problem("Not believed: no such endpoint, or not signed as its contract asks"),
    413: _problem("The body is too large"),
    422: _problem("Signed, and no JSON; it is kept as rejected"),
    503: _problem("The database cannot be reached; deliver it again"),
}

RESPONSES_DELIVERIES: dict[int | str, dict[str, Any]] = _PROBLEMS_READ | {
    200: _answer("A page of deliveries, newest first"),
}

RESPONSES_EVENTS: dict[int | str, dict[str, Any]] = _PROBLEMS_READ | {
    200: _answer("A page of events, and the cursor after which to go on"),
    409: _problem("The cursor is of another copy of the database; `resume` is where to go on"),
}

_NO_SUBSCRIPTION = _problem("No such subscription of this tenant")

RESPONSES_SUBSCRIPTIONS: dict[int | str, dict[str, Any]] = _PROBLEMS_READ | {
    200: _answer("The subscriptions, the oldest first"),
}

RESPONSES_SUBSCRIPTION: dict[int | str, dict[str, Any]] = _PROBLEMS_READ | {
    200: _answer("The subscription as it stands"),
    404: _NO_SUBSCRIPTION,
}

RESPONSES_SUBSCRIPTION_GONE: dict[int | str, dict[str, Any]] = _PROBLEMS_READ | {
    204: {"description": "It is gone"},
    404: _NO_SUBSCRIPTION,
}

RESPONSES_DEAD_LETTERS: dict[int | str, dict[str, Any]] = _PROBLEMS_READ | {
    200: _answer("A page of dead letters, the oldest first"),
    404: _NO_SUBSCRIPTION,
}

_READY_EXAMPLE: dict[str, Any] = {
    "status": "degraded",
    "checks": {
        "database": "ok",
        "schema": "ok",
        "engine": "ok",
        "key_ring": "ok",
        "workers": "none",
    },
}

RESPONSES_READY: dict[int | str, dict[str, Any]] = {
    200: _answer("Submits are accepted; `degraded` if nobody works on them"),
    503: _answer("Submits cannot be accepted"),
}

# Path, method and status of every answer that has an example.
EXAMPLES: dict[tuple[str, str, str], dict[str, Any]] = {
    ("/v1/effects", "post", "200"): REPLAY_EXAMPLE,
    ("/v1/effects", "post", "202"): NEW_EXAMPLE,
    ("/v1/effects", "post", "409"): CONFLICT_EXAMPLE,
    ("/v1/effects", "get", "200"): {"effects": [EFFECT_EXAMPLE], "cursor": None},
    ("/v1/effects/{effect_id}", "get", "200"): EFFECT_EXAMPLE | {"attempts": []},
    ("/v1/unresolved", "get", "200"): {"unresolved": [UNRESOLVED_EXAMPLE], "cursor": None},
    ("/readyz", "get", "200"): _READY_EXAMPLE,
    ("/readyz", "get", "503"): _READY_EXAMPLE | {"status": "unavailable"},
}


def add_examples(schema: dict[str, Any]) -> dict[str, Any]:
    """Put the examples into a generated schema; the generator would drop their null members."""
    for (path, method, status), example in EXAMPLES.items():
        (content,) = schema["paths"][path][method]["responses"][status]["content"].values()
        content["example"] = example
    return schema
