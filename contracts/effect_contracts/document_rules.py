"""The rules that join several fields of a contract document.

Owns every reason to refuse a document whose fields are well formed one by one. A rule is a
generator that yields problems: where, and a sentence that says what to do. All rules run, so that
the author sees all problems at once. The rules of the HTTP adapter are in
`effect_contracts.http_rules`, those of webhooks in `effect_contracts.webhook_rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from effect_contracts.backoff import exponential_seconds
from effect_contracts.caller_rules import broken_caller_rules
from effect_contracts.caller_settings import CallerSettings
from effect_contracts.certificate_settings import broken_certificate_rules
from effect_contracts.client_rules import ClientSettings, broken_client_rules
from effect_contracts.errors import ContractProblem
from effect_contracts.expressions import pointer_tokens, schema_reaches
from effect_contracts.facts import Policy, SafetyClass
from effect_contracts.http_rules import broken_http_rules
from effect_contracts.http_settings import HttpSettings
from effect_contracts.keys import key_format_problem
from effect_contracts.limit_settings import broken_limit_rules
from effect_contracts.mcp_rules import broken_mcp_rules
from effect_contracts.mcp_settings import McpSettings
from effect_contracts.webhook_rules import broken_webhook_rules

if TYPE_CHECKING:
    from effect_contracts.document import ContractDocument

Problems = Iterator[ContractProblem]
Rule = Callable[["ContractDocument"], Problems]

# A connection that is gone raises these; they say nothing about the statement.
_CONNECTION_SQLSTATES: Final = ("08", "57P")


def recovery_horizon_seconds(policy: Policy) -> float:
    """Return how long after its first attempt begins an effect may still put bytes on the wire.

    The longest run of the retry schedule: every attempt with its whole deadline and clock
    margin, the back-off between them as far as the schedule really goes (the cap only where the
    schedule reaches it; jitter only shortens), and the transit of the last request. A longer
    wait that the target asks for (Retry-After, in progress) is not part of it: before each
    attempt, `decide` checks that the whole of it ends while the key is alive.
    """
    attempts = policy.attempts_max * (policy.attempt_deadline_seconds + policy.clock_margin_seconds)
    waits = sum(
        exponential_seconds(
            step,
            policy.backoff_initial_seconds,
            policy.backoff_factor,
            policy.backoff_cap_seconds,
        )
        for step in range(policy.attempts_max - 1)
    )
    return attempts + waits + policy.transit_seconds


def broken_rules(document: ContractDocument) -> list[ContractProblem]:
    """Return every broken rule, in the order of `RULES`."""
    problems = [problem for rule in RULES for problem in rule(document)]
    if isinstance(document.adapter, HttpSettings):
        problems += broken_http_rules(document, document.adapter)
    if isinstance(document.adapter, McpSettings):
        problems += broken_mcp_rules(document, document.adapter)
    if isinstance(document.adapter, CallerSettings):
        problems += broken_caller_rules(document, document.adapter)
    if isinstance(document.adapter, ClientSettings):
        problems += broken_client_rules(document, document.adapter)
    if document.oversight is not None and document.oversight.certificate is not None:
        problems += broken_certificate_rules(document, document.oversight.certificate)
    if document.limits is not None:
        problems += broken_limit_rules(document, document.limits)
    if document.webhook is not None:
        problems += broken_webhook_rules(document, document.webhook)
    return problems


def _key_can_be_written(document: ContractDocument) -> Problems:
    problem = key_format_problem(document.key_format)
    if problem is not None:
        yield ContractProblem("/key", problem)


def _idempotent_has_a_living_key(document: ContractDocument) -> Problems:
    if document.safety is not SafetyClass.IDEMPOTENT:
        return
    retention = document.key_retention_seconds
    if retention is None:
        yield ContractProblem(
            "/key_retention_seconds",
            "an idempotent contract states for how many seconds the target keeps a key; if the "
            "target does not publish it, state a time you can prove, or use another safety class",
        )
        return
    horizon = recovery_horizon_seconds(document.policy())
    if retention <= horizon:
        yield ContractProblem(
            "/key_retention_seconds",
            f"the target forgets the key after {retention:g} s, but the retry schedule reaches "
            f"{horizon:g} s (all attempts with deadline and clock margin, their back-off, and the "
            "transit): lower retry.attempts_max, the back-off or attempt_deadline_seconds",
        )


def _reconcilable_can_look(document: ContractDocument) -> Problems:
    if document.safety is not SafetyClass.RECONCILABLE:
        return
    bound = document.settlement_bound_seconds
    if not document.policy().probes:
        has_section = isinstance(document.adapter, HttpSettings | McpSettings | CallerSettings)
        place = "/adapter/probe" if has_section else "/adapter"
        yield ContractProblem(
            place,
            "a reconcilable contract has a probe, the look-up that finds the effect by our key; "
            "if the target offers none, the safety class is unsafe",
        )
    if bound is None:
        yield ContractProblem(
            "/settlement_bound_seconds",
            "a reconcilable contract states after how many seconds a look-up that finds nothing "
            "is final; without such a bound, the safety class is unsafe",
        )
    elif document.probe.horizon_seconds <= bound:
        yield ContractProblem(
            "/probe/horizon_seconds",
            f"the probes end after {document.probe.horizon_seconds:g} s, before a negative answer "
            f"counts ({bound:g} s): raise the horizon above settlement_bound_seconds",
        )


def _unsafe_has_no_probe(document: ContractDocument) -> Problems:
    probes = document.adapter.kind != "postgres" and document.policy().probes
    if document.safety is SafetyClass.UNSAFE and probes:
        yield ContractProblem(
            "/adapter/probe",
            "an unsafe contract is never looked up: remove the probe, or make the contract "
            "reconcilable if the look-up is authoritative",
        )


def _transactional_is_in_our_database(document: ContractDocument) -> Problems:
    kind = document.adapter.kind
    if document.safety is SafetyClass.TRANSACTIONAL and kind not in {"postgres", "simulated"}:
        yield ContractProblem(
            "/safety",
            f"transactional needs the adapter postgres, which shares our transaction; {kind} "
            "cannot",
        )
    if kind == "postgres" and document.safety is not SafetyClass.TRANSACTIONAL:
        yield ContractProblem(
            "/safety", "the adapter postgres shares our transaction: its class is transactional"
        )


def _sqlstates_speak_of_the_statement(document: ContractDocument) -> Problems:
    adapter = document.adapter
    if adapter.kind != "postgres":
        return
    seen: set[str] = set()
    for name in ("rejected", "retryable"):
        for index, rule in enumerate(getattr(adapter, name)):
            place = f"/adapter/{name}/{index}/sqlstates"
            for sqlstate in rule.sqlstates:
                if sqlstate.startswith(_CONNECTION_SQLSTATES):
                    yield ContractProblem(
                        place, f"{sqlstate} tells of a lost connection, which proves nothing"
                    )
                if sqlstate in seen:
                    yield ContractProblem(place, f"{sqlstate} is listed twice; keep one")
                seen.add(sqlstate)


def _schedules_rise_to_their_cap(document: ContractDocument) -> Problems:
    retry, probe = document.retry, document.probe
    if retry.backoff_cap_seconds < retry.backoff_initial_seconds:
        yield ContractProblem(
            "/retry/backoff_cap_seconds", "the cap is not below backoff_initial_seconds"
        )
    if probe.cap_seconds < probe.initial_seconds:
        yield ContractProblem("/probe/cap_seconds", "the cap is not below initial_seconds")


def _arguments_are_an_object(document: ContractDocument) -> Problems:
    if document.arguments.get("type") != "object":
        yield ContractProblem(
            "/arguments", "arguments are an object: write type: object at the top of the schema"
        )


def _pointers_name_arguments(document: ContractDocument) -> Problems:
    for index, pointer in enumerate(document.sensitive):
        if not schema_reaches(document.arguments, pointer_tokens(pointer)):
            yield ContractProblem(
                f"/sensitive/{index}",
                f"the schema of the arguments has nothing at {pointer}; a misspelt pointer would "
                "show what it should hide",
            )
    required = document.arguments.get("required")
    for index, pointer in enumerate(document.forbidden):
        tokens = pointer_tokens(pointer)
        if not tokens:
            yield ContractProblem(
                f"/forbidden/{index}", "the empty pointer would forbid all arguments"
            )
        elif len(tokens) == 1 and isinstance(required, list) and tokens[0] in required:
            yield ContractProblem(
                f"/forbidden/{index}", f"{pointer} is required by the schema and forbidden here"
            )


RULES: Final[tuple[Rule, ...]] = (
    _key_can_be_written,
    _idempotent_has_a_living_key,
    _reconcilable_can_look,
    _unsafe_has_no_probe,
    _transactional_is_in_our_database,
    _sqlstates_speak_of_the_statement,
    _schedules_rise_to_their_cap,
    _arguments_are_an_object,
    _pointers_name_arguments,
)
