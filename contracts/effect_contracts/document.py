"""The contract document: what the broker may do with one tool of one target, and on what terms.

This file owns the document's shape, its canonical form and its digest. A document is read from
YAML (`parse_yaml`) or from its stored canonical form (`from_canonical`); both are strict, and the
rules of `effect_contracts.document_rules` hold for every instance, however it was made. A
document is a value: an effect is pinned to one by digest, and a later version never changes what
an effect under way may do. Defaults are part of the canonical form for the same reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cached_property, lru_cache
from hashlib import sha256
from itertools import islice
from typing import Annotated, Any, Final, Literal, Self

from jsonschema.exceptions import ValidationError as SchemaMismatch
from pydantic import Field, ValidationError, model_validator

from effect_contracts.aws_settings import S3Settings, SqsSettings
from effect_contracts.bounded_schema import (
    ARGUMENT_STEPS_MAX,
    BoundedSchema,
    CheckTooCostly,
    Work,
)
from effect_contracts.caller_settings import CallerSettings
from effect_contracts.canonical import JsonValue, canonical_bytes, parse_strict
from effect_contracts.certificate_settings import CertificateSettings, demand_of
from effect_contracts.document_rules import broken_rules
from effect_contracts.document_text import RuleProblems, json_text, problems_of, read_yaml
from effect_contracts.errors import (
    ContractInvalid,
    ContractProblem,
    InvalidArguments,
    InvalidPayload,
    json_pointer,
)
from effect_contracts.expressions import (
    Code,
    Factor,
    JsonSchema,
    Pointer,
    PositiveSeconds,
    Seconds,
    pointer_step,
    pointer_tokens,
    schema_names,
)
from effect_contracts.facts import Policy, SafetyClass
from effect_contracts.http_settings import Extraction, HttpSettings
from effect_contracts.keys import KeyFormat, KeyKind
from effect_contracts.limit_settings import LimitSettings, limits_of
from effect_contracts.mcp_settings import McpSettings
from effect_contracts.nats_settings import NatsSettings
from effect_contracts.section import Section
from effect_contracts.smtp_settings import SmtpSettings
from effect_contracts.webhook_settings import WebhookSettings

REDACTED: Final = "[redacted]"
# A preview is for a line in a list and a page of an operator, not a copy of the payload.
PREVIEW_TEXT_CHARS_MAX: Final = 120
PREVIEW_MEMBERS_MAX: Final = 50
PREVIEW_DEPTH_MAX: Final = 8

# RFC 6901 has no wildcard; here one element stands for all of an array or object.
EVERY: Final = "*"

# An exchange that runs longer is an operation to be accepted and polled, and would hold up the
# drain of a worker.
ATTEMPT_DEADLINE_SECONDS_MAX: Final = 3600.0

# An approval that is older was given in another situation.
APPROVAL_SECONDS_MAX: Final = 30 * 86_400.0


class SqlStateRule(Section):
    """SQLSTATEs (five characters) or classes of them (two) that get a code."""

    sqlstates: Annotated[
        tuple[Annotated[str, Field(pattern=r"^[0-9A-Z]{2}([0-9A-Z]{3})?$")], ...],
        Field(min_length=1, max_length=64),
    ]
    code: Code


class PostgresSettings(Section):
    """A function in the broker's own database that shares the receipt's transaction.

    It is called as `function(arguments jsonb, downstream_key text) returns jsonb`. An error that
    it raises rolls its work back, and so proves that nothing was committed.

    Attributes:
        function: schema-qualified name, lower case, as it is spelt in the database.
        rejected: errors that are final.
        retryable: errors that may be tried again; serialization failures, deadlocks and lock
            time-outs (40001, 40P01, 55P03) by default.
        unlisted: what every other error is. Errors of the moment (a full disk, a time-out) and of
            a database that is not ready (a schema, table, function or right is missing) are
            retryable all the same, unless `rejected` lists them.
        extraction: JMESPath over the jsonb that the function returns.
    """

    kind: Literal["postgres"]
    function: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_$]{0,62}\.[a-z_][a-z0-9_$]{0,62}$")]
    rejected: Annotated[tuple[SqlStateRule, ...], Field(max_length=32)] = ()
    retryable: Annotated[tuple[SqlStateRule, ...], Field(max_length=32)] = (
        SqlStateRule(sqlstates=("40001", "40P01"), code="serialization_conflict"),
        SqlStateRule(sqlstates=("55P03",), code="lock_timeout"),
    )
    unlisted: Literal["rejected", "retryable"] = "rejected"
    extraction: Extraction = Extraction()


class SimulatedSettings(Section):
    """A target inside the simulator; `target` names it.

    Attributes:
        probes: it can be looked up.
        polls_operations: it accepts operations that are polled.
    """

    kind: Literal["simulated"]
    target: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]
    probes: bool = False
    polls_operations: bool = False


# One line for each adapter that a contract may name.
AdapterSettings = Annotated[
    HttpSettings
    | McpSettings
    | PostgresSettings
    | CallerSettings
    | SimulatedSettings
    | SqsSettings
    | S3Settings
    | NatsSettings
    | SmtpSettings,
    Field(discriminator="kind"),
]


class KeySettings(Section):
    """How the target wants the downstream key written; see `effect_contracts.keys`.

    Attributes:
        format: `base64url`, `hex`, `uuid`, or `alphabet` with its symbols.
        length_max: the most characters that the target takes, prefix included.
        alphabet: the symbols of the format `alphabet`.
        prefix: fixed text before the key.
    """

    format: KeyKind = "base64url"
    length_max: Annotated[int, Field(ge=1, le=4096)] | None = None
    alphabet: Annotated[str, Field(max_length=94)] | None = None
    prefix: Annotated[str, Field(max_length=64)] = ""


class RetrySettings(Section):
    """How often and when the broker may send again; see `facts.Policy` for each number."""

    attempts_max: Annotated[int, Field(ge=1, le=100)] = 3
    backoff_initial_seconds: PositiveSeconds = 1.0
    backoff_factor: Factor = 2.0
    backoff_cap_seconds: PositiveSeconds = 300.0
    retry_after_cap_seconds: Seconds = 3600.0
    in_progress_bound_seconds: Seconds = 600.0
    replayed_errors_max: Annotated[int, Field(ge=1, le=100)] = 2


class ProbeSchedule(Section):
    """When the target is asked; the horizon counts from the last moment a byte may have left."""

    initial_seconds: PositiveSeconds = 1.0
    factor: Factor = 2.0
    cap_seconds: PositiveSeconds = 300.0
    horizon_seconds: PositiveSeconds = 86_400.0


class OversightSettings(Section):
    """What has to be there before anything is sent or concluded: persons' words, a certificate.

    Attributes:
        approval_valid_seconds: nothing is sent before somebody has approved it; the first attempt
            has to start within this time of the approval. Absent: no approval is needed.
        second_person: what one person concludes of an effect counts once another one, with a
            credential of their own, has confirmed it.
        certificate: nothing is sent while no such certificate of the target is in force. Absent:
            none is needed.
    """

    approval_valid_seconds: (
        Annotated[float, Field(gt=0, le=APPROVAL_SECONDS_MAX, allow_inf_nan=False)] | None
    ) = None
    second_person: bool = False
    certificate: CertificateSettings | None = None


class ContractDocument(Section):
    """One version of the contract of one tool. Durations are seconds.

    Attributes:
        name, version: identity of the document; a published version never changes.
        tool: the name that callers submit.
        account: the target account that the credentials belong to; with the origin it is the
            target's identity, and an effect under way is not sent to another.
        arguments: JSON Schema (draft 2020-12, local references) of the arguments.
        sensitive: pointers into the arguments that no preview shows; `*` is every element.
        forbidden: pointers that arguments may not have.
        key_retention_seconds: how long the target keeps a key, from its first use.
        settlement_bound_seconds: after this, counted from the last possible send, a negative
            look-up is final.
        attempt_deadline_seconds: the whole exchange of one attempt, from before the connection
            to the last byte of the answer.
        transit_seconds: how long a request may travel after its last byte has left.
        clock_margin_seconds: how far two clocks may drift apart during one attempt.
        oversight: what persons have to agree to, and what has to be certified; absent, nothing.
        limits: how hard the target is driven at most; absent, as hard as workers can.
        webhook: how deliveries of the target's webhook are believed and read; absent, none count.
    """

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,62}$")]
    version: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    description: Annotated[str, Field(max_length=2000)] | None = None
    tool: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,127}$")]
    safety: SafetyClass
    account: Annotated[str, Field(pattern=r"^[\x21-\x7e]{1,255}$")]
    adapter: AdapterSettings
    arguments: JsonSchema
    sensitive: Annotated[tuple[Pointer, ...], Field(max_length=128)] = ()
    forbidden: Annotated[tuple[Pointer, ...], Field(max_length=128)] = ()
    key: KeySettings = KeySettings()
    key_retention_seconds: PositiveSeconds | None = None
    settlement_bound_seconds: Seconds | None = None
    attempt_deadline_seconds: Annotated[
        float, Field(gt=0, le=ATTEMPT_DEADLINE_SECONDS_MAX, allow_inf_nan=False)
    ] = 30.0
    transit_seconds: Seconds = 5.0
    clock_margin_seconds: Seconds = 0.5
    retry: RetrySettings = RetrySettings()
    probe: ProbeSchedule = ProbeSchedule()
    oversight: OversightSettings | None = None
    limits: LimitSettings | None = None
    webhook: WebhookSettings | None = None

    @model_validator(mode="after")
    def _obeys_the_rules(self) -> Self:
        problems = broken_rules(self)
        if problems:
            raise RuleProblems(problems)
        return self

    def __hash__(self) -> int:
        return hash(self.digest())

    # Reading and writing --------------------------------------------------------------------

    @classmethod
    def parse_yaml(cls, text: str) -> ContractDocument:
        """Read a document that a person wrote.

        Raises:
            ContractInvalid: with all problems that were found, each with its place.
        """
        return cls._from_value(read_yaml(text))

    @classmethod
    def from_canonical(cls, stored: bytes) -> ContractDocument:
        """Read a document as `canonical` wrote it; results are shared between calls.

        Raises:
            ContractInvalid: these bytes are not the canonical form of a valid document.
        """
        return _document_of(stored)

    @classmethod
    def _from_value(cls, value: Any) -> ContractDocument:
        if not isinstance(value, dict):
            raise ContractInvalid(
                [ContractProblem("", "a contract document is an object; it begins with name: …")]
            )
        refusal: ContractInvalid | None = None
        try:
            canonical_bytes(value)
            return cls.model_validate_json(json_text(value))
        except InvalidPayload as error:
            refusal = ContractInvalid([ContractProblem(error.field or "", error.detail)])
        except ValidationError as error:
            refusal = problems_of(error, value, field_names())
        raise refusal

    def canonical(self) -> bytes:
        """Return the RFC 8785 text of the document with its defaults: what is stored."""
        return self.canonical_form

    def digest(self) -> bytes:
        """Return the SHA-256 (32 bytes) of `canonical`."""
        return self.canonical_digest

    @cached_property
    def canonical_form(self) -> bytes:
        """The value of `canonical`."""
        return canonical_bytes(self.model_dump(mode="json", by_alias=True))

    @cached_property
    def canonical_digest(self) -> bytes:
        """The value of `digest`."""
        return sha256(self.canonical_form).digest()

    # What the protocol needs ----------------------------------------------------------------

    def policy(self) -> Policy:
        """Return the numbers that `decide` works with."""
        return self.policy_numbers

    @cached_property
    def policy_numbers(self) -> Policy:
        """The value of `policy`."""
        return policy_of(self)

    @cached_property
    def key_format(self) -> KeyFormat:
        """The format of the downstream key."""
        return key_format_of(self.key)

    @cached_property
    def arguments_schema(self) -> BoundedSchema:
        """The compiled schema of the arguments."""
        return BoundedSchema(self.arguments)

    @cached_property
    def argument_names(self) -> frozenset[str]:
        """Member names that the schema declares; only these are ever shown in an error."""
        return schema_names(self.arguments)

    def check_arguments(self, arguments: JsonValue) -> None:
        """Raise `InvalidArguments` unless the arguments satisfy the contract.

        The error names a place and a keyword of the schema, never a value, and no member name
        that the schema itself does not declare. The work is bounded; what would take more is
        refused by the keyword `check_limit`.
        """
        try:
            self.check_arguments_within(arguments, Work(ARGUMENT_STEPS_MAX))
            return
        except CheckTooCostly as given_up:
            reason = given_up.reason
        raise InvalidArguments(field="", keyword=reason)

    def check_arguments_within(self, arguments: JsonValue, work: Work) -> None:
        """Do what `check_arguments` does, or give up.

        Raises:
            InvalidArguments: as there. CheckTooCostly: it would take more than `work`.
        """
        for pointer in self.forbidden:
            if any(True for _ in _places(arguments, pointer_tokens(pointer), work)):
                raise InvalidArguments(field=pointer, keyword="forbidden")
        mismatches = self.arguments_schema.mismatches(arguments, work, count_max=20)
        if not mismatches:
            return
        first = min(mismatches, key=lambda m: ([str(p) for p in m.absolute_path], str(m.validator)))
        field, keyword = json_pointer(self._shown_path(first)), str(first.validator)
        raise InvalidArguments(field=field, keyword=keyword, expected=_expected(first))

    def _shown_path(self, mismatch: SchemaMismatch) -> Iterator[str | int]:
        for token in mismatch.absolute_path:
            yield token if isinstance(token, int) or token in self.argument_names else EVERY
        if mismatch.validator == "required":
            present: Any = mismatch.instance
            wanted: Any = mismatch.validator_value
            yield from islice((name for name in wanted if name not in present), 1)

    def preview(self, arguments: JsonValue) -> dict[str, JsonValue]:
        """Return what may be shown of the arguments: sensitive places and long values replaced.

        Bounded in every direction, so it is small whatever the arguments are.
        """
        hidden = tuple(pointer_tokens(pointer) for pointer in self.sensitive)
        shown = _shown(arguments, hidden, 0)
        return shown if isinstance(shown, dict) else {}


def policy_of(document: ContractDocument) -> Policy:
    """Return the numbers of a document; it need not have passed the rules yet."""
    adapter, retry, probe = document.adapter, document.retry, document.probe
    oversight = document.oversight or OversightSettings()
    match adapter:
        case HttpSettings():
            probes, polls = adapter.probe is not None, adapter.answers.accepted is not None
        case McpSettings():
            probes, polls = adapter.probe is not None, False
        case PostgresSettings():
            probes, polls = True, False  # the receipt's unique key is the look-up
        case SimulatedSettings():
            probes, polls = adapter.probes, adapter.polls_operations
        case SqsSettings() | NatsSettings():
            probes, polls = False, False
        case S3Settings():
            probes, polls = True, False
        case SmtpSettings():
            probes, polls = adapter.mailbox is not None, False
        case CallerSettings():
            probes, polls = adapter.probes, False
    return Policy(
        safety=document.safety,
        awaits_caller=not sent_by_workers(document),
        lease_seconds_max=(
            adapter.lease_seconds_max if isinstance(adapter, CallerSettings) else None
        ),
        attempts_max=retry.attempts_max,
        attempt_deadline_seconds=document.attempt_deadline_seconds,
        clock_margin_seconds=document.clock_margin_seconds,
        transit_seconds=document.transit_seconds,
        key_retention_seconds=document.key_retention_seconds,
        settlement_bound_seconds=document.settlement_bound_seconds,
        backoff_initial_seconds=retry.backoff_initial_seconds,
        backoff_factor=retry.backoff_factor,
        backoff_cap_seconds=retry.backoff_cap_seconds,
        retry_after_cap_seconds=retry.retry_after_cap_seconds,
        in_progress_bound_seconds=retry.in_progress_bound_seconds,
        replayed_errors_max=retry.replayed_errors_max,
        probes=probes,
        polls_operations=polls,
        probe_initial_seconds=probe.initial_seconds,
        probe_factor=probe.factor,
        probe_cap_seconds=probe.cap_seconds,
        probe_horizon_seconds=probe.horizon_seconds,
        approval_valid_seconds=oversight.approval_valid_seconds,
        certificate=demand_of(oversight.certificate, document.account),
        limits=limits_of(document.limits),
    )


def sent_by_workers(document: ContractDocument) -> bool:
    """Whether a worker may send an effect of this contract by itself.

    What a caller performs, a worker sends only where sending again is a replay, and only where the
    contract says how.
    """
    adapter = document.adapter
    if not isinstance(adapter, CallerSettings):
        return True
    return document.safety is SafetyClass.IDEMPOTENT and adapter.http is not None


def key_format_of(key: KeySettings) -> KeyFormat:
    """Return the key format that the settings name; it need not be able to carry a key."""
    return KeyFormat(key.format, key.length_max, key.alphabet, key.prefix)


@lru_cache(maxsize=256)
def _document_of(stored: bytes) -> ContractDocument:
    refusal = "the stored contract is not in canonical form; apply the contract again"
    try:
        value: Any = parse_strict(stored)
    except InvalidPayload as error:
        raise ContractInvalid([ContractProblem(error.field or "", error.detail)]) from None
    document = ContractDocument._from_value(value)
    if document.canonical() != stored:
        raise ContractInvalid([ContractProblem("", refusal)])
    return document


def with_origin(document: ContractDocument, origin: str) -> ContractDocument:
    """Return the document with the scheme, host and port of all its URLs replaced.

    For a contract whose target listens elsewhere (a demo, a test, a staging host). `origin` is
    for example `http://127.0.0.1:8090`.

    Raises:
        ContractInvalid: no HTTP contract, or an origin that the rules refuse.
    """
    if not isinstance(document.adapter, HttpSettings):
        raise ContractInvalid([ContractProblem("/adapter/kind", "only http has an origin")])
    value = json.loads(document.canonical())
    adapter = value["adapter"]
    places = [(adapter, "url"), (adapter.get("probe", {}), "url")]
    places.append((adapter["answers"].get("accepted", {}), "poll_url"))
    for section, name in places:
        if name in section:
            _, _, rest = section[name].partition("://")
            path = rest[len(rest.split("/")[0].split("?")[0].split("{")[0]) :]
            section[name] = origin.rstrip("/") + path
    return ContractDocument._from_value(value)


# Arguments --------------------------------------------------------------------------------------


def _expected(mismatch: SchemaMismatch) -> str | None:
    """What the schema asks for, where that is a type's name or a number and no text of its own."""
    wanted: Any = mismatch.validator_value
    if mismatch.validator == "type":
        return wanted if isinstance(wanted, str) else " or ".join(wanted)
    return str(wanted) if type(wanted) in (int, float) else None


def _places(value: Any, tokens: tuple[str, ...], work: Work) -> Iterator[Any]:
    """Yield every value that the tokens name, `*` standing for every element."""
    if not tokens:
        yield value
        return
    work.spend(1)
    first, rest = tokens[0], tokens[1:]
    if first != EVERY:
        found, below = pointer_step(value, first)
        chosen = [below] if found else []
    elif isinstance(value, dict):
        chosen = list(value.values())
    else:
        chosen = value if isinstance(value, list) else []
    for below in chosen:
        yield from _places(below, rest, work)


def _shown(value: Any, hidden: tuple[tuple[str, ...], ...], depth: int) -> JsonValue:
    if () in hidden:
        return REDACTED
    if isinstance(value, str) and len(value) > PREVIEW_TEXT_CHARS_MAX:
        return f"[{len(value)} characters]"
    if not isinstance(value, dict | list):
        return value  # type: ignore[no-any-return]  # a scalar of JSON
    if depth >= PREVIEW_DEPTH_MAX:
        return f"[{len(value)} members]"
    members = value.items() if isinstance(value, dict) else enumerate(value)
    shown = {
        str(name)[:PREVIEW_TEXT_CHARS_MAX]: _shown(below, _below(hidden, str(name)), depth + 1)
        for name, below in islice(members, PREVIEW_MEMBERS_MAX)
    }
    more = len(value) - PREVIEW_MEMBERS_MAX
    if more > 0:
        shown["…"] = f"[{more} more]"
    return shown if isinstance(value, dict) else list(shown.values())


def _below(hidden: tuple[tuple[str, ...], ...], name: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tokens[1:] for tokens in hidden if tokens and tokens[0] in (name, EVERY))


# The JSON Schema of a document ------------------------------------------------------------------


def contract_json_schema() -> dict[str, Any]:
    """Return the JSON Schema of contract documents, for editors; committed with the catalog.

    It states the shape. The rules that join several fields are checked when a document is read.
    """
    schema = ContractDocument.model_json_schema(by_alias=True, mode="validation")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "effect-broker contract document",
        **{name: part for name, part in schema.items() if name != "title"},
    }


@lru_cache(maxsize=1)
def field_names() -> tuple[str, ...]:
    """Return every field name of the document and its sections, for hints at misspellings."""
    names: set[str] = set()
    schema = contract_json_schema()
    for part in (schema, *schema["$defs"].values()):
        names |= part.get("properties", {}).keys()
    return tuple(sorted(names))


__all__ = [
    "AdapterSettings",
    "CallerSettings",
    "CertificateSettings",
    "ContractDocument",
    "KeySettings",
    "LimitSettings",
    "OversightSettings",
    "PostgresSettings",
    "ProbeSchedule",
    "RetrySettings",
    "SimulatedSettings",
    "SqlStateRule",
    "contract_json_schema",
    "field_names",
    "sent_by_workers",
    "with_origin",
]
