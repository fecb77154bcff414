"""What a complete answer proves, by the contract's rules: pure functions.

A success is what the contract's success predicate says, and nothing less: a 201 cut in mid-JSON,
an empty 200 where a body is needed, a second document with the same member twice are not one.
What no rule explains is ambiguous, and so is an answer that two rules explain in opposite ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import Any, Final, assert_never

from effect_adapters.answers import (
    BodyInvalid,
    extract,
    id_text,
    parse_answer,
    portable_or_none,
)
from effect_adapters.base import Answer, not_sent
from effect_adapters.http.exchange import End, Lost, NotSent, Reply
from effect_contracts.bounded_schema import ANSWER_STEPS_MAX, CheckTooCostly, Work
from effect_contracts.expressions import search
from effect_contracts.facts import CODE_ALREADY_EXISTS, CODE_REPLAYED_ERROR, Outcome
from effect_contracts.http_settings import (
    ANSWER_ORDER,
    AcceptedOperation,
    AnswerMatch,
    BodyReference,
    HeaderReference,
    HttpSettings,
)

# As long as a URL that is followed (`rendering.same_origin_url`).
_REFERENCE_CHARS_MAX: Final = 4096

# The rules over the body were not judged to their end.
CODE_CHECK_LIMIT: Final = "body_check_limit"

_OUTCOME_BY_KIND: Final = {
    "key_conflict": Outcome.KEY_CONFLICT,
    "partial": Outcome.PARTIAL,
    "in_progress": Outcome.IN_PROGRESS,
    "already_exists": Outcome.REJECTED,
    "retryable": Outcome.RETRYABLE,
    "rejected": Outcome.REJECTED,
    "accepted": Outcome.IN_PROGRESS,
    "success": Outcome.COMMITTED,
}
_SAYS_DONE: Final = frozenset({"success", "accepted"})
_SAYS_NOT_DONE: Final = frozenset({"rejected", "retryable"})


# Reading an answer -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """A complete answer, its body parsed once, when it is first needed.

    Attributes:
        work: what all checks of the body by schemas may cost together; an answer may be made so
            that they do not end.
    """

    reply: Reply
    work: Work = field(
        default_factory=lambda: Work(ANSWER_STEPS_MAX), init=False, repr=False, compare=False
    )

    @cached_property
    def json(self) -> Any:
        """The parsed body.

        Raises:
            BodyInvalid: it is empty or no strict JSON.
        """
        return parse_answer(self.reply.body)

    @cached_property
    def json_or_none(self) -> Any:
        """The parsed body, None where it is no strict JSON."""
        try:
            return self.json
        except BodyInvalid:
            return None

    @property
    def media_type(self) -> str:
        """The media type in lower case, without parameters; empty where there is none."""
        return (self.reply.header("content-type") or "").partition(";")[0].strip().lower()

    @property
    def broken_json(self) -> bool:
        """Whether the body says that it is JSON, is not empty, and is no JSON."""
        if not self.reply.body or not self.says_json:
            return False
        try:
            _ = self.json
        except BodyInvalid:
            return True
        return False

    @property
    def says_json(self) -> bool:
        """Whether the media type is JSON or built on it."""
        return self.media_type == "application/json" or self.media_type.endswith("+json")

    def matches(self, match: AnswerMatch) -> bool:
        """Whether every part of the predicate holds.

        Raises:
            CheckTooCostly: that cannot be found out within `work`.
        """
        return self.mismatch(match) is None

    def mismatch(self, match: AnswerMatch) -> str | None:
        """Return what does not hold: `status`, `header`, `content_type`, `body_missing` or
        `body_invalid`; None where all of it does.

        Raises:
            CheckTooCostly: as `matches`.
        """
        if not match.matches_status(self.reply.status):
            return "status"
        if match.header is not None and not self.has_header(match.header.name, match.header.value):
            return "header"
        if match.content_type is not None and self.media_type != match.content_type:
            missing = not self.reply.body and not self.media_type
            return "body_missing" if missing else "content_type"
        if match.body_schema is None:
            return None
        if not self.reply.body:
            return "body_missing"
        try:
            return None if match.body_satisfies(self.json, self.work) else "body_invalid"
        except BodyInvalid:
            return "body_invalid"

    def has_header(self, name: str, value: str | None) -> bool:
        """Whether a header is there, with `value` (in any case) if one is given."""
        found = [v.strip() for n, v in self.reply.headers if n == name.lower()]
        if value is None:
            return bool(found)
        return any(text.lower() == value.lower() for text in found)


# Classification --------------------------------------------------------------------------------


def answer_of(settings: HttpSettings, end: End) -> Answer:
    """Return what the end of a dispatch proves under the contract. Pure and total."""
    match end:
        case NotSent(code):
            return not_sent(code)
        case Lost(code, status, digest):
            return Answer(Outcome.AMBIGUOUS, code, status=status, response_digest=digest)
        case Reply():
            try:
                answer = _classified(settings, Reading(end))
            except CheckTooCostly:
                # A rule that was not judged may have said the opposite of the one that matched.
                answer = Answer(Outcome.AMBIGUOUS, CODE_CHECK_LIMIT)
            return replace(answer, status=end.status, response_digest=end.digest)
        case never:
            assert_never(never)


def _classified(settings: HttpSettings, reading: Reading) -> Answer:
    answers = settings.answers
    kind, code = _first_rule(settings, reading)
    if kind is None:
        marker = answers.replayed_marker
        if marker is not None and reading.has_header(marker.header, marker.value):
            return Answer(Outcome.AMBIGUOUS, CODE_REPLAYED_ERROR)
        return Answer(Outcome.AMBIGUOUS, _unmatched_code(settings, reading))
    if _contradicted(settings, reading, kind):
        return Answer(Outcome.AMBIGUOUS, "contradicting_rules")
    outcome = _OUTCOME_BY_KIND[kind]
    wait = retry_after_seconds(reading.reply, answers.retry_after_header)
    match kind:
        case "success":
            return _committed(settings, reading)
        case "accepted":
            assert answers.accepted is not None, "its rule has matched"
            return _accepted(answers.accepted, reading, wait)
        case "already_exists":
            return Answer(outcome, CODE_ALREADY_EXISTS, external_id=_named(settings, reading))
        case "rejected" | "retryable" if _is_replay(settings, reading):
            # A stored refusal, sent again: it speaks of the request that it was first given to,
            # and an attempt that got no answer may have been another one.
            return Answer(Outcome.AMBIGUOUS, CODE_REPLAYED_ERROR)
        case "rejected" | "partial":
            # What a refusal says, and which items of a batch went through, is for the caller.
            result = portable_or_none(reading.json_or_none)
            return Answer(outcome, code, result=result, retry_after_seconds=wait)
        case _:
            return Answer(outcome, code, retry_after_seconds=wait)


def _first_rule(settings: HttpSettings, reading: Reading) -> tuple[str | None, str]:
    """Return the first kind of `ANSWER_ORDER` with a matching rule, and the rule's code."""
    for kind in ANSWER_ORDER:
        for rule in _rules(settings, kind):
            if reading.matches(rule):
                return kind, getattr(rule, "code", kind)
    return None, ""


def _rules(settings: HttpSettings, kind: str) -> Sequence[AnswerMatch]:
    rules: AnswerMatch | Sequence[AnswerMatch] | None = getattr(settings.answers, kind)
    if rules is None:
        return ()
    return (rules,) if isinstance(rules, AnswerMatch) else rules


def _contradicted(settings: HttpSettings, reading: Reading, kind: str) -> bool:
    """Whether a rule of the opposite meaning matches the same answer."""
    opposite = _SAYS_NOT_DONE if kind in _SAYS_DONE else _SAYS_DONE
    if kind not in _SAYS_DONE | _SAYS_NOT_DONE:
        return False
    return any(reading.matches(rule) for other in opposite for rule in _rules(settings, other))


def _is_replay(settings: HttpSettings, reading: Reading) -> bool:
    marker = settings.answers.replayed_marker
    return marker is not None and reading.has_header(marker.header, marker.value)


def _committed(settings: HttpSettings, reading: Reading) -> Answer:
    if reading.broken_json:
        # A rule over the status alone does not make half a document a whole one.
        return Answer(Outcome.AMBIGUOUS, "success_body_invalid")
    extracted = extract(settings.extraction, reading.json_or_none)
    if extracted is None:
        missing = not reading.reply.body
        return Answer(
            Outcome.AMBIGUOUS, "success_body_missing" if missing else "external_id_missing"
        )
    return Answer(
        Outcome.COMMITTED,
        "committed",
        external_id=extracted.external_id,
        result=extracted.result,
        receipt_fields=extracted.receipt_fields,
    )


def _accepted(accepted: AcceptedOperation, reading: Reading, wait: float | None) -> Answer:
    match accepted.reference:
        case BodyReference(path=path):
            operation = id_text(search(path, reading.json_or_none))
        case HeaderReference(name=name):
            operation = reading.reply.header(name.lower())
        case never:
            assert_never(never)
    if not operation or len(operation) > _REFERENCE_CHARS_MAX or not operation.isprintable():
        return Answer(Outcome.AMBIGUOUS, "operation_reference_missing")
    return Answer(
        Outcome.IN_PROGRESS, "operation_accepted", operation=operation, retry_after_seconds=wait
    )


def _named(settings: HttpSettings, reading: Reading) -> str | None:
    """The id of the existing object where the refusal names it as a success would."""
    extracted = extract(settings.extraction, reading.json_or_none)
    return None if extracted is None else extracted.external_id


def _unmatched_code(settings: HttpSettings, reading: Reading) -> str:
    status = reading.reply.status
    wanted = [reading.mismatch(rule) for rule in _rules(settings, "success")]
    reasons = [reason for reason in wanted if reason != "status"]
    if reasons:
        return f"success_{reasons[0]}"
    if 300 <= status <= 399:
        return "unexpected_redirect"
    return f"unmatched_status_{status}"


# Retry-After -----------------------------------------------------------------------------------

_IMF_CHARS_MAX: Final = 64


def retry_after_seconds(reply: Reply, header: str) -> float | None:
    """Return the wait that the target asked for, unclamped; None where it names none.

    Seconds, or an HTTP date (RFC 9110, section 10.2.3). A date is read against the answer's own
    Date header: the two come from one clock, and ours may differ.
    """
    text = (reply.header(header.lower()) or "").strip()
    if text.isascii() and text.isdigit() and len(text) <= 12:
        return float(text)
    until, now = _http_date(text), _http_date(reply.header("date") or "")
    if until is None or now is None:
        return None
    return max((until - now).total_seconds(), 0.0)


def _http_date(text: str) -> datetime | None:
    if not text or len(text) > _IMF_CHARS_MAX:
        return None
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
