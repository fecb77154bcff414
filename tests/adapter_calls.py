"""Contracts and calls for the tests of adapters."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import yaml

from effect_adapters.base import Budget, DispatchCall, ProbeCall, SecretUnavailable
from effect_contracts.canonical import JsonValue
from effect_contracts.document import ContractDocument

SECRET = "sk_live_never_print_me"
KEY = "k_5f0c0b1e9d"
ARGUMENTS: dict[str, Any] = {"order": "o-1", "amount": 700, "currency": "eur"}

ARGUMENTS_SCHEMA = """
type: object
properties:
  order: {type: string}
  amount: {type: integer}
  currency: {type: string}
  note: {type: string}
  customer: {type: object}
  tags: {type: array}
"""

HTTP = """
kind: http
url: https://example.com/charges
auth: {kind: bearer, token: "env:EFFECT_BROKER_SECRET_X"}
key: {in: header, name: Idempotency-Key}
answers:
  success:
    - statuses: [200, 201]
      content_type: application/json
      body_schema: {type: object, required: [id]}
  rejected:
    - {statuses: [400, 402, 422], content_type: application/json, code: refused}
  retryable:
    - {statuses: [429], code: rate_limited, proves_no_commit: true}
  in_progress:
    - {statuses: [425], code: still_running}
  key_conflict:
    - statuses: [409]
      body_schema: {properties: {error: {const: idempotency_error}}, required: [error]}
      code: idempotency_error
  already_exists:
    - statuses: [409]
      body_schema: {properties: {error: {const: exists}}, required: [error]}
      code: exists
  partial:
    - {statuses: [207], code: batch}
  replayed_marker: {header: Idempotent-Replayed, value: "true"}
extraction:
  external_id: id
  receipt_fields: {amount: amount}
probe:
  url: https://example.com/charges{?key}
  items: data
  key_match: {kind: field, path: idempotency_key}
  agree: {/amount: amount, /currency: currency}
  absent:
    - {statuses: [200], content_type: application/json, empty_list: true}
  paging: {kind: cursor, next: next, parameter: page, has_more: has_more, pages_max: 3}
  extraction: {external_id: id}
"""


def merged(base: Any, change: Any) -> Any:
    """Return `base` with `change` laid over it; a member that is None there is removed."""
    if not isinstance(base, dict) or not isinstance(change, dict):
        return change
    together = dict(base)
    for name, value in change.items():
        if value is None:
            together.pop(name, None)
        elif isinstance(value, dict) and value.keys() & {"kind", "in"}:
            together[name] = value
        else:
            together[name] = merged(base.get(name), value)
    return together


def http_contract(
    origin: str = "https://example.com", safety: str = "reconcilable", **adapter: Any
) -> ContractDocument:
    """Return a contract of kind `http` at `origin`, with `adapter` laid over its settings."""
    settings = merged(yaml.safe_load(HTTP), adapter)
    text = yaml.safe_dump(settings, sort_keys=False).replace("https://example.com", origin)
    return contract(yaml.safe_load(text), safety)


def contract(adapter: dict[str, Any], safety: str) -> ContractDocument:
    """Return a contract around the settings of an adapter."""
    document: dict[str, Any] = {
        "name": "test",
        "version": "1",
        "tool": "test.charge",
        "safety": safety,
        "account": "acct_1",
        "arguments": yaml.safe_load(ARGUMENTS_SCHEMA),
        "attempt_deadline_seconds": 5,
        "adapter": adapter,
    }
    if safety == "idempotent":
        document |= {"key_retention_seconds": 86400}
    if safety == "reconcilable":
        document |= {"settlement_bound_seconds": 2}
    return ContractDocument.parse_yaml(yaml.safe_dump(document, sort_keys=False))


def secrets(reference: str) -> str:
    """Resolve the one reference that these contracts use."""
    if reference != "env:EFFECT_BROKER_SECRET_X":
        raise SecretUnavailable(reference)
    return SECRET


def budget(seconds: float = 5.0) -> Budget:
    """Return a budget on the real clock."""
    return Budget(time.monotonic() + seconds, time.monotonic)


def ignore(_point: str) -> None:
    """Reach a fault point that nobody armed."""


def dispatch_call(
    document: ContractDocument,
    wire: bytes,
    *,
    ordinal: int = 1,
    within: Budget | None = None,
    reach: Callable[[str], None] = ignore,
) -> DispatchCall:
    """Return a permission to send `wire` once."""
    return DispatchCall(
        effect_id=UUID(int=1),
        tenant_id=UUID(int=2),
        attempt_id=UUID(int=ordinal + 2),
        ordinal=ordinal,
        downstream_key=KEY,
        wire=wire,
        document=document,
        budget=within or budget(),
        reach=reach,
    )


def probe_call(
    document: ContractDocument,
    *,
    arguments: JsonValue = None,
    operation: str | None = None,
    within: Budget | None = None,
) -> ProbeCall:
    """Return a question about the effect of `KEY`."""
    return ProbeCall(
        effect_id=UUID(int=1),
        tenant_id=UUID(int=2),
        downstream_key=KEY,
        arguments=ARGUMENTS if arguments is None else arguments,
        document=document,
        operation=operation,
        budget=within or budget(),
        reach=ignore,
    )
