"""The errors of the protocol: their tree, stable codes and problem bodies.

    EffectError
    ├── RequestError                 the request itself is wrong; the same bytes fail again
    │   ├── RequestMalformed         400 request_malformed
    │   ├── MethodNotAllowed         405 method_not_allowed
    │   ├── PayloadTooLarge          413 payload_too_large
    │   ├── UnsupportedMediaType     415 unsupported_media_type
    │   ├── InvalidRequest           422 invalid_request
    │   ├── InvalidPayload           422 invalid_payload
    │   ├── InvalidOperationKey      422 invalid_operation_key
    │   ├── InvalidArguments         422 invalid_arguments
    │   ├── UnknownTool              422 unknown_tool
    │   └── NotForCallers            422 not_for_callers
    ├── AccessError                  who asks, how often, or what may be seen
    │   ├── Unauthenticated          401 unauthenticated
    │   ├── Forbidden                403 forbidden
    │   ├── SecondPersonRequired     403 second_person_required
    │   ├── TenantDisabled           403 tenant_disabled
    │   ├── NotFound                 404 not_found
    │   └── RateLimited              429 rate_limited
    ├── ConflictError                the request is fine, the present state forbids it
    │   ├── PayloadConflict          409 payload_conflict
    │   ├── StaleVersion             409 stale_version
    │   ├── TooEarly                 409 too_early
    │   ├── DecisionConflict         409 decision_conflict
    │   ├── AnotherRequest           409 another_request
    │   ├── AnotherAlert             409 another_alert
    │   ├── CursorSuperseded         409 cursor_superseded
    │   ├── LimitReached             409 limit_reached
    │   ├── ElectionLost             409 election_lost
    │   └── TransitionRefused        409 illegal_transition
    ├── ContractError                a contract document is at fault
    │   ├── ContractInvalid          422 contract_invalid
    │   └── ContractConflict         409 contract_conflict
    └── BrokerError                  the broker or what it stands on is at fault
        ├── StorageUnavailable       503 storage_unavailable
        ├── KeyRingMissing           500 key_ring_missing
        ├── ConfigurationInvalid     500 configuration_invalid
        └── InternalError            500 internal

Each branch has a module of its name (`errors.conflict` for ConflictError), and everything is
imported from here. Every leaf has one code and every code one leaf. An error carries codes, JSON
Pointers, limits, times and sentences that stand in the source, and never a value, an argument or a
secret: the constructors have no place to put one. `problem` prints the body of RFC 9457. A code,
once published, keeps its meaning and its status.
"""

from __future__ import annotations

from effect_contracts.errors.access import AccessError as AccessError
from effect_contracts.errors.access import Forbidden as Forbidden
from effect_contracts.errors.access import NotFound as NotFound
from effect_contracts.errors.access import RateLimited as RateLimited
from effect_contracts.errors.access import SecondPersonRequired as SecondPersonRequired
from effect_contracts.errors.access import TenantDisabled as TenantDisabled
from effect_contracts.errors.access import Unauthenticated as Unauthenticated
from effect_contracts.errors.base import EffectError as EffectError
from effect_contracts.errors.base import Extra as Extra
from effect_contracts.errors.broker import BrokerError as BrokerError
from effect_contracts.errors.broker import ConfigurationInvalid as ConfigurationInvalid
from effect_contracts.errors.broker import InternalError as InternalError
from effect_contracts.errors.broker import KeyRingMissing as KeyRingMissing
from effect_contracts.errors.broker import StorageUnavailable as StorageUnavailable
from effect_contracts.errors.conflict import AnotherAlert as AnotherAlert
from effect_contracts.errors.conflict import AnotherRequest as AnotherRequest
from effect_contracts.errors.conflict import ConflictError as ConflictError
from effect_contracts.errors.conflict import CursorSuperseded as CursorSuperseded
from effect_contracts.errors.conflict import DecisionConflict as DecisionConflict
from effect_contracts.errors.conflict import ElectionLost as ElectionLost
from effect_contracts.errors.conflict import LimitReached as LimitReached
from effect_contracts.errors.conflict import PayloadConflict as PayloadConflict
from effect_contracts.errors.conflict import StaleVersion as StaleVersion
from effect_contracts.errors.conflict import TooEarly as TooEarly
from effect_contracts.errors.conflict import TransitionRefused as TransitionRefused
from effect_contracts.errors.contract import ContractConflict as ContractConflict
from effect_contracts.errors.contract import ContractError as ContractError
from effect_contracts.errors.contract import ContractInvalid as ContractInvalid
from effect_contracts.errors.contract import ContractProblem as ContractProblem
from effect_contracts.errors.request import InvalidArguments as InvalidArguments
from effect_contracts.errors.request import InvalidOperationKey as InvalidOperationKey
from effect_contracts.errors.request import InvalidPayload as InvalidPayload
from effect_contracts.errors.request import InvalidRequest as InvalidRequest
from effect_contracts.errors.request import MethodNotAllowed as MethodNotAllowed
from effect_contracts.errors.request import NotForCallers as NotForCallers
from effect_contracts.errors.request import PayloadTooLarge as PayloadTooLarge
from effect_contracts.errors.request import RequestError as RequestError
from effect_contracts.errors.request import RequestMalformed as RequestMalformed
from effect_contracts.errors.request import UnknownTool as UnknownTool
from effect_contracts.errors.request import UnsupportedMediaType as UnsupportedMediaType
from effect_contracts.pointers import POINTER_CHARS_MAX as POINTER_CHARS_MAX
from effect_contracts.pointers import json_pointer as json_pointer
from effect_contracts.problem_codes import PROBLEM_TYPE_PREFIX as PROBLEM_TYPE_PREFIX
from effect_contracts.problem_codes import ProblemCode as ProblemCode
from effect_contracts.problem_codes import status_of as status_of
from effect_contracts.reasons import OperationKeyReason as OperationKeyReason
from effect_contracts.reasons import ParameterReason as ParameterReason
from effect_contracts.reasons import PayloadReason as PayloadReason
from effect_contracts.reasons import RequestReason as RequestReason


def problem(error: EffectError, instance: str | None = None) -> dict[str, object]:
    """Return the problem body of RFC 9457 for `error`.

    `instance` is a URI reference of this occurrence (for instance the request id), if there is
    one. Members of the standard come first and are never overwritten by an extra.
    """
    body: dict[str, object] = {
        "type": PROBLEM_TYPE_PREFIX + error.code.value,
        "title": error.title,
        "status": error.status,
        "detail": error.detail,
        "code": error.code.value,
    }
    if instance is not None:
        body["instance"] = instance
    if error.field is not None:
        body["field"] = error.field
    for name, extra in error.extras.items():
        body.setdefault(name, extra)
    return body
