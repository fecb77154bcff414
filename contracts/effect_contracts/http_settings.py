"""The settings of the declarative HTTP adapter: how to send, how to read, how to ask later.

This file owns the shape of `adapter: {kind: http, …}` in a contract document and what each part
means; the adapter only carries it out. Three questions are answered here and nowhere else:

*How is the request made?* `method`, `url`, `headers`, `auth`, `body`, `key`. All of it is a pure
function of arguments and downstream key, except secret references, which are resolved when the
request is sent and are never stored.

*What does an answer prove?* `answers`. An answer is compared with the rules of every kind, in the
order of `ANSWER_ORDER`; the first kind with a matching rule decides. If a kind that says the
target did it (`success`, `accepted`) and one that says it did not (`rejected`, `retryable`) both
match, or if nothing matches, the answer is **ambiguous**. So is every redirect and every answer
that is cut short, unless a rule names it.

*Does the effect exist?* `probe`, and `answers.accepted` for operations that are polled.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    JsonValue,
    Tag,
)

from effect_contracts.bounded_schema import BoundedSchema, Work
from effect_contracts.expressions import (
    Code,
    Expression,
    HeaderName,
    HeaderPrefix,
    HeaderText,
    JsonSchema,
    MediaType,
    ParameterName,
    Pointer,
    SecretReference,
    UrlTemplate,
)
from effect_contracts.section import Section

# Read no further: an answer that is larger is ambiguous.
RESPONSE_BYTES_MAX_DEFAULT: Final = 1_048_576


# Matching an answer -----------------------------------------------------------------------------

# A class such as "4xx" never covers these; name them. 202 is accepted and not done, 206 and 207
# are parts, and a 408 tells of a wait that ended, not of a request that was not carried out.
NOT_BY_CLASS: Final = frozenset({202, 206, 207, 408})

StatusNumber = Annotated[int, Field(ge=200, le=599)]
StatusClass = Literal["2xx", "3xx", "4xx", "5xx"]
StatusPattern = StatusNumber | StatusClass
Statuses = Annotated[tuple[StatusPattern, ...], Field(min_length=1, max_length=64)]


def statuses_match(patterns: Iterable[int | str], status: int) -> bool:
    """Whether `status` is named by one of `patterns`, by number or by class."""
    by_class = None if status in NOT_BY_CLASS else f"{status // 100}xx"
    return any(pattern in (status, by_class) for pattern in patterns)


class HeaderMatch(Section):
    """A header of the answer: present, and equal to `value` (without regard to case) if given."""

    name: HeaderName
    value: HeaderText | None = None


class AnswerMatch(Section):
    """A predicate over one complete answer; every part that is given has to hold.

    Attributes:
        statuses: numbers, or a class such as "4xx" (see `NOT_BY_CLASS`).
        content_type: the media type without parameters, for example `application/json`.
        body_schema: the body parses as JSON and satisfies this JSON Schema.
        header: a header that has to be there.
    """

    statuses: Statuses
    content_type: MediaType | None = None
    body_schema: JsonSchema | None = None
    header: HeaderMatch | None = None

    @cached_property
    def bounded_body_schema(self) -> BoundedSchema | None:
        """The compiled `body_schema`; None without one."""
        return None if self.body_schema is None else BoundedSchema(self.body_schema)

    def matches_status(self, status: int) -> bool:
        """Whether the status alone fits."""
        return statuses_match(self.statuses, status)

    def body_satisfies(self, body: JsonValue, work: Work) -> bool:
        """Whether a parsed body fits `body_schema`; True without one.

        Raises:
            CheckTooCostly: that would take more than `work`, which the checks of one answer share.
        """
        return self.bounded_body_schema is None or self.bounded_body_schema.accepts(body, work)


class Rule(AnswerMatch):
    """A predicate with the stable code that an answer of this kind gets.

    Attributes:
        proves_no_commit: the author states that the target did nothing. Required of `retryable`
            rules, and of `rejected` rules over 5xx and 408 without a body predicate.
    """

    code: Code
    proves_no_commit: bool = False


class ReplayedMarker(Section):
    """The header by which the target marks an answer as a stored one, sent again."""

    header: HeaderName
    value: HeaderText | None = None


class Extraction(Section):
    """What is taken from an answer, by JMESPath over the parsed JSON body.

    Attributes:
        external_id: the target's id of the object (a string or an integer).
        result: what the caller gets back; the whole body without it.
        receipt_fields: small values for the receipt, by name.
    """

    external_id: Expression | None = None
    result: Expression | None = None
    receipt_fields: Annotated[dict[Code, Expression], Field(max_length=32)] = Field(
        default_factory=dict
    )


# 202 and poll -----------------------------------------------------------------------------------


class BodyReference(Section):
    """The reference of an accepted operation stands in the JSON body, at `path`."""

    location: Literal["body"] = Field(alias="in")
    path: Expression


class HeaderReference(Section):
    """The reference of an accepted operation stands in a header, usually Location."""

    location: Literal["header"] = Field(alias="in")
    name: HeaderName = "Location"


OperationReference = Annotated[BodyReference | HeaderReference, Field(discriminator="location")]


class AcceptedOperation(AnswerMatch):
    """Answers that accept the request as an operation, and how to follow it to its end.

    The poll is a GET. Failed and succeeded at once, or neither of the three, is unknown.

    Attributes:
        reference: where the operation's reference stands. An answer without one is ambiguous.
        poll_url: URL template with `{operation}`. Without it, the reference itself is a path or
            a URL of the same origin; any other origin is not asked.
        succeeded, failed, running: predicates over the poll's answer.
        extraction: what is taken from the answer that says succeeded.
    """

    reference: OperationReference
    poll_url: UrlTemplate | None = None
    succeeded: Annotated[tuple[AnswerMatch, ...], Field(min_length=1, max_length=16)]
    failed: Annotated[tuple[Rule, ...], Field(max_length=16)] = ()
    running: Annotated[tuple[AnswerMatch, ...], Field(max_length=16)] = ()
    extraction: Extraction = Extraction()


RuleList = Annotated[tuple[Rule, ...], Field(max_length=64)]

# The first kind with a matching rule decides: what asks for a person or for patience comes first.
ANSWER_ORDER: Final = (
    "key_conflict",
    "partial",
    "in_progress",
    "already_exists",
    "retryable",
    "rejected",
    "accepted",
    "success",
)


class Answers(Section):
    """How answers are classified; see `ANSWER_ORDER`. What matches nothing is ambiguous.

    Attributes:
        success: the target did it.
        accepted: the target took it as an operation; `reference` is polled.
        rejected: final, and proves that nothing was done.
        retryable: proves that nothing was done, and may be tried again.
        in_progress: the target is still at work on this key.
        key_conflict: the target knows the key with other parameters.
        already_exists: an object of this name exists; ours only if a probe says so.
        partial: a batch with mixed results.
        replayed_marker: how the target marks a stored answer; a stored error is counted.
        retry_after_header: where a wait is announced (seconds or an HTTP date).
    """

    success: Annotated[tuple[AnswerMatch, ...], Field(max_length=16)] = ()
    accepted: AcceptedOperation | None = None
    rejected: RuleList = ()
    retryable: RuleList = ()
    in_progress: RuleList = ()
    key_conflict: RuleList = ()
    already_exists: RuleList = ()
    partial: RuleList = ()
    replayed_marker: ReplayedMarker | None = None
    retry_after_header: HeaderName = "Retry-After"


# The request ------------------------------------------------------------------------------------


class SecretHeader(Section):
    """A header value read from a secret reference when the request is sent."""

    secret: SecretReference
    prefix: HeaderPrefix = ""


class TemplateHeader(Section):
    """A header value with `{name}` expressions over the arguments (dotted paths) and `{key}`.

    Values are inserted as they are, and one that is not printable ASCII makes no request.
    """

    template: HeaderPrefix


def _header_kind(value: Any) -> str | None:
    if isinstance(value, str):
        return "static"
    names = value.keys() if isinstance(value, dict) else {type(value).__name__}
    if names & {"secret", "SecretHeader"}:
        return "secret"
    return "template" if names & {"template", "TemplateHeader"} else None


def _static_header(value: str) -> str:
    if value.startswith(("env:", "file:")):
        raise ValueError("a secret reference is written {secret: …}; as text it would be sent")
    return value


StaticHeader = Annotated[HeaderText, AfterValidator(_static_header)]
HeaderValue = Annotated[
    Annotated[StaticHeader, Tag("static")]
    | Annotated[SecretHeader, Tag("secret")]
    | Annotated[TemplateHeader, Tag("template")],
    Discriminator(
        _header_kind,
        custom_error_type="header_value",
        custom_error_message="a header value is a text, {secret: …} or {template: …}",
    ),
]
Headers = Annotated[dict[HeaderName, HeaderValue], Field(max_length=64)]


class BearerAuth(Section):
    """`Authorization: Bearer <token>`."""

    kind: Literal["bearer"]
    token: SecretReference


class BasicAuth(Section):
    """`Authorization: Basic …` (RFC 7617, UTF-8); without `password` it is empty."""

    kind: Literal["basic"]
    username: SecretReference | Annotated[str, Field(pattern=r"^[\x21-\x39\x3b-\x7e]{1,256}$")]
    password: SecretReference | None = None


Auth = Annotated[BearerAuth | BasicAuth, Field(discriminator="kind")]


class NoBody(Section):
    """A request without a body."""

    kind: Literal["none"]


class JsonBody(Section):
    """A JSON body in canonical form (RFC 8785).

    Attributes:
        content: a template, see `effect_contracts.body_template`; the whole arguments without it.
    """

    kind: Literal["json"]
    content: JsonValue = None
    content_type: MediaType = "application/json"


class FormBody(Section):
    """A form (application/x-www-form-urlencoded), nested as `a[b][0]=c`, members in order of
    their canonical form. `content` is an object template; the whole arguments without it. Null
    members are left out; booleans are `true` and `false`."""

    kind: Literal["form"]
    content: JsonValue = None


class TextBody(Section):
    """A text in UTF-8. `content` is a template that yields a string."""

    kind: Literal["text"]
    content: JsonValue
    content_type: Annotated[
        str, Field(pattern=r"^[a-z0-9.+-]+/[a-z0-9.+-]+(; ?[a-z]+=[A-Za-z0-9-]+)*$")
    ] = "text/plain; charset=utf-8"


Body = Annotated[NoBody | JsonBody | FormBody | TextBody, Field(discriminator="kind")]


class KeyInHeader(Section):
    """The downstream key is the value of a header, after `prefix` and before `suffix`."""

    location: Literal["header"] = Field(alias="in")
    name: HeaderName
    prefix: HeaderPrefix = ""
    suffix: Annotated[str, Field(max_length=64, pattern=r"^[\x21-\x7e]*$")] = ""


class KeyInQuery(Section):
    """The downstream key is a query parameter, added to those of the URL."""

    location: Literal["query"] = Field(alias="in")
    name: ParameterName
    prefix: Annotated[str, Field(max_length=64, pattern=r"^[\x21-\x7e]*$")] = ""


class KeyInPath(Section):
    """The downstream key is the variable `{key}` of the URL's path."""

    location: Literal["path"] = Field(alias="in")


class KeyInBody(Section):
    """The downstream key is a member of the JSON or form body at `pointer`, or, without a
    pointer, wherever the body template has `{"$key": true}`. Objects on the way are made."""

    location: Literal["body"] = Field(alias="in")
    pointer: Pointer | None = None
    prefix: Annotated[str, Field(max_length=64, pattern=r"^[\x20-\x7e]*$")] = ""


KeyPlacement = Annotated[
    KeyInHeader | KeyInQuery | KeyInPath | KeyInBody, Field(discriminator="location")
]


# The probe --------------------------------------------------------------------------------------


class FieldKey(Section):
    """An item is ours if the value at `path` equals `prefix` plus the key, exactly."""

    kind: Literal["field"]
    path: Expression
    prefix: Annotated[str, Field(max_length=64, pattern=r"^[\x20-\x7e]*$")] = ""


class DigestKey(Section):
    """An item is ours if the value at `path` is the digest of the key, or of the request body."""

    kind: Literal["digest"]
    path: Expression
    of: Literal["key", "body"]
    algorithm: Literal["sha256", "sha1", "md5"] = "sha256"
    encoding: Literal["hex", "base64"] = "hex"


class EtagKey(Section):
    """The object is ours if its strong ETag is the digest of the request body."""

    kind: Literal["etag"]
    algorithm: Literal["sha256", "sha1", "md5"] = "md5"
    encoding: Literal["hex", "base64"] = "hex"


class TextLine(Section):
    """One line of a text: `prefix`, the value, `suffix`; without regard to a CR at its end."""

    prefix: Annotated[str, Field(max_length=256)] = ""
    suffix: Annotated[str, Field(max_length=256)] = ""


class TextKey(TextLine):
    """The text answer is ours if one of its lines is `prefix`, the key, `suffix`, exactly."""

    kind: Literal["text"]


class LineKey(TextLine):
    """An item is ours if one line of the text at `path` is `prefix`, the key, `suffix`, exactly:
    a marker in a text that people read, such as that of a ticket."""

    kind: Literal["line"]
    path: Expression


KeyMatch = Annotated[
    FieldKey | DigestKey | EtagKey | TextKey | LineKey, Field(discriminator="kind")
]


class AbsentRule(AnswerMatch):
    """An answer by which the target says with authority that the effect is not there.

    Attributes:
        empty_list: additionally the list of items is complete (no further page) and none of its
            items has our key.
    """

    empty_list: bool = False


PagesMax = Annotated[int, Field(ge=1, le=100)]


class NoPaging(Section):
    """One answer is all. If `has_more` finds something true, the list is not complete."""

    kind: Literal["none"]
    has_more: Expression | None = None


class CursorPaging(Section):
    """The next page is asked with `parameter` set to what `next` finds in the present one, until
    `next` finds nothing or `has_more` finds something not true."""

    kind: Literal["cursor"]
    next: Expression
    parameter: ParameterName
    has_more: Expression | None = None
    pages_max: PagesMax = 10


class NumberedPaging(Section):
    """Pages are asked by number, from `first`, until one is empty or `has_more` is not true."""

    kind: Literal["page"]
    parameter: ParameterName
    first: Annotated[int, Field(ge=0, le=1)] = 1
    has_more: Expression | None = None
    pages_max: PagesMax = 10


class LinkPaging(Section):
    """The next page is the Link header's `rel="next"` (RFC 8288), of the same origin only."""

    kind: Literal["link"]
    pages_max: PagesMax = 10


Paging = Annotated[
    NoPaging | CursorPaging | NumberedPaging | LinkPaging, Field(discriminator="kind")
]


class ProbeRequest(Section):
    """The read that asks whether the effect exists.

    One item with our key whose `agree` fields agree: committed. More than one, or a field that
    disagrees: mismatch. An answer of `absent`: not committed. All else, an incomplete list, a
    wrong content type and every error included: unknown.

    Attributes:
        url: URL template over the arguments and `{key}`, of the same origin as the dispatch.
        headers: added to the contract's headers and auth, and replacing those of that name.
        found: answers that are read for items; application/json with 200 by default.
        items: JMESPath to the list of items or to the single object; the body without it.
        key_match: when an item is ours.
        agree: argument pointer to JMESPath in the item: values that must be equal. An argument
            that is absent agrees with an absent or null value.
        agree_lines: the same for text answers: argument pointer to a line.
        absent: what says "not there". Without a rule a look-up can find, and never deny.
        extraction: what is taken from the item that is ours.
    """

    method: Literal["GET", "HEAD"] = "GET"
    url: UrlTemplate
    headers: Headers = Field(default_factory=dict)
    found: AnswerMatch = AnswerMatch(statuses=(200,), content_type="application/json")
    items: Expression | None = None
    key_match: KeyMatch
    agree: Annotated[dict[Pointer, Expression], Field(max_length=32)] = Field(default_factory=dict)
    agree_lines: Annotated[dict[Pointer, TextLine], Field(max_length=32)] = Field(
        default_factory=dict
    )
    absent: Annotated[tuple[AbsentRule, ...], Field(max_length=16)] = ()
    paging: Paging = NoPaging(kind="none")
    extraction: Extraction = Extraction()


class HttpSettings(Section):
    """A target that is reached by HTTP; see the head of this file.

    Attributes:
        allow_plaintext: permit http:// to a host that is not this machine.
        key: where the downstream key goes; required for `idempotent`.
        response_bytes_max: a longer answer is cut, and ambiguous.
    """

    kind: Literal["http"]
    method: Literal["POST", "PUT", "PATCH", "DELETE"] = "POST"
    url: UrlTemplate
    allow_plaintext: bool = False
    headers: Headers = Field(default_factory=dict)
    auth: Auth | None = None
    body: Body = JsonBody(kind="json")
    key: KeyPlacement | None = None
    answers: Answers
    extraction: Extraction = Extraction()
    probe: ProbeRequest | None = None
    response_bytes_max: Annotated[int, Field(ge=1024, le=16_777_216)] = RESPONSE_BYTES_MAX_DEFAULT
