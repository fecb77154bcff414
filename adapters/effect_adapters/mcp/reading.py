"""What an answer of an MCP server proves: by the rules of the contract, and nothing else. Pure."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, assert_never

from effect_adapters.answers import (
    BodyInvalid,
    extract,
    id_text,
    parse_answer,
    portable_or_none,
)
from effect_adapters.base import Answer, Finding, not_sent
from effect_adapters.mcp.ends import End, Lost, NotSent, Told
from effect_contracts.canonical import JsonValue, canonical_bytes, first_difference
from effect_contracts.errors import InvalidPayload
from effect_contracts.expressions import pointer_value, search
from effect_contracts.facts import CODE_ALREADY_EXISTS, CODE_SEVERAL_MATCHES, Outcome, Verdict
from effect_contracts.http_settings import Extraction
from effect_contracts.mcp_settings import MCP_ANSWER_ORDER, McpExtraction, McpProbe, McpSettings

_OUTCOME_BY_KIND: Final = {
    "key_conflict": Outcome.KEY_CONFLICT,
    "in_progress": Outcome.IN_PROGRESS,
    "already_exists": Outcome.REJECTED,
    "retryable": Outcome.RETRYABLE,
    "rejected": Outcome.REJECTED,
    "success": Outcome.COMMITTED,
}
# What says that this call did nothing; beside a success it is a contradiction.
_SAYS_NOT_DONE: Final = frozenset({"already_exists", "retryable", "rejected"})

# What the protocol itself adds to `_meta`; everything else there is the server's.
_PROTOCOL_META: Final = "io.modelcontextprotocol/"
_KEPT: Final = ("content", "structuredContent", "isError")


def subject_of(told: Told) -> dict[str, Any]:
    """Return what the expressions of a contract are asked over."""
    subject: dict[str, Any] = {}
    if told.status is not None:
        subject["http_status"] = told.status
    if told.error is not None:
        subject["error"] = told.error
    if told.result is None:
        return subject
    subject |= {name: told.result[name] for name in _KEPT if name in told.result}
    subject.setdefault("isError", False)
    blocks = told.result.get("content") or []
    text = "\n".join(block["text"] for block in blocks if block.get("type") == "text")
    subject["text"] = text
    with suppress(BodyInvalid):
        subject["json"] = parse_answer(text.encode("utf-8", "surrogatepass"))
    return subject


def kept_result(told: Told, bytes_max: int) -> JsonValue:
    """Return what is kept of a result and given back on every replay; None if it is too large or
    could not be stored."""
    if told.result is None:
        return None
    kept: dict[str, Any] = {name: told.result[name] for name in _KEPT if name in told.result}
    meta = {
        name: value
        for name, value in (told.result.get("_meta") or {}).items()
        if not name.startswith(_PROTOCOL_META)
    }
    if meta:
        kept["_meta"] = meta
    value = portable_or_none(kept)
    try:
        canonical_bytes(value, bytes_max=bytes_max)
    except InvalidPayload:
        return None
    return value


# A dispatch ------------------------------------------------------------------------------------


def answer_of(settings: McpSettings, end: End) -> Answer:
    """Return what the end of a dispatch proves under the contract. Total."""
    match end:
        case NotSent(code):
            return not_sent(code)
        case Lost(code, status):
            return Answer(Outcome.AMBIGUOUS, code, status=status)
        case Told():
            return replace(_classified(settings, end), status=end.status)
        case never:
            assert_never(never)


def _classified(settings: McpSettings, told: Told) -> Answer:
    subject = subject_of(told)
    matched = _matching(settings, subject)
    if not matched:
        return Answer(Outcome.AMBIGUOUS, _unmatched_code(subject))
    if "success" in matched and _SAYS_NOT_DONE & matched.keys():
        return Answer(Outcome.AMBIGUOUS, "contradicting_rules")
    kind = next(kind for kind in MCP_ANSWER_ORDER if kind in matched)
    outcome, code = _OUTCOME_BY_KIND[kind], matched[kind]
    extracted = extract(_extraction(settings.extraction), subject)
    match kind:
        case "success" if extracted is None:
            # Done, as the contract reads it, but without the object that has to be there.
            return Answer(Outcome.AMBIGUOUS, "external_id_missing")
        case "success":
            assert extracted is not None
            return Answer(
                outcome,
                "committed",
                external_id=extracted.external_id,
                result=kept_result(told, settings.response_bytes_max),
                receipt_fields=extracted.receipt_fields,
            )
        case "already_exists":
            named = None if extracted is None else extracted.external_id
            return Answer(outcome, CODE_ALREADY_EXISTS, external_id=named)
        case _:
            return Answer(outcome, code)


def _matching(settings: McpSettings, subject: dict[str, Any]) -> dict[str, str]:
    """Return the kinds with a matching rule, each with the code of its first one."""
    matched: dict[str, str] = {}
    for kind in MCP_ANSWER_ORDER:
        if kind == "success":
            continue
        for rule in getattr(settings.answers, kind):
            if kind not in matched and _is_true(rule.match, subject):
                matched[kind] = rule.code
    done = settings.answers.success
    if subject.get("isError") is False and (done is None or _is_true(done, subject)):
        matched["success"] = "committed"
    return matched


def _is_true(expression: str, subject: Any) -> bool:
    return search(expression, subject) is True


def _unmatched_code(subject: dict[str, Any]) -> str:
    if subject.get("isError") is True:
        return "tool_error"
    if "error" in subject:
        return "protocol_error"
    if "isError" in subject:
        return "success_unmatched"
    return f"unmatched_status_{subject.get('http_status', 0)}"


def _extraction(settings: McpExtraction) -> Extraction:
    return Extraction(
        external_id=settings.external_id, receipt_fields=dict(settings.receipt_fields)
    )


# A look-up -------------------------------------------------------------------------------------


def finding_of(probe: McpProbe, key: str, arguments: JsonValue, end: End) -> Finding:
    """Return what a look-up proves under the contract. Total."""
    match end:
        case NotSent(code) | Lost(code):
            return Finding(Verdict.UNKNOWN, code)
        case Told():
            return replace(_found(probe, key, arguments, subject_of(end)), status=end.status)
        case never:
            assert_never(never)


def _found(probe: McpProbe, key: str, arguments: JsonValue, subject: dict[str, Any]) -> Finding:
    complete = probe.complete is not None and _is_true(probe.complete, subject)
    items = search(probe.items, subject)
    if isinstance(items, dict):
        items = [items]
    if subject.get("isError") is not False or not isinstance(items, list):
        # A tool may say "there is none" by an error; then the contract has to read it so.
        if complete:
            return Finding(Verdict.NOT_COMMITTED, "absent")
        code = "items_missing" if subject.get("isError") is False else _unmatched_code(subject)
        return Finding(Verdict.UNKNOWN, code)
    ours = [item for item in items if search(probe.key_path, item) == probe.key_prefix + key]
    ids = tuple(filter(None, (_item_id(probe, item) for item in ours)))
    if len(ours) > 1:
        return Finding(Verdict.MISMATCH, CODE_SEVERAL_MATCHES, ids)
    if not ours:
        if complete:
            return Finding(Verdict.NOT_COMMITTED, "absent_from_list")
        return Finding(Verdict.UNKNOWN, "not_found")
    item = ours[0]
    for pointer, expression in probe.agree.items():
        _, wanted = pointer_value(arguments, pointer)
        if first_difference(wanted, search(expression, item)) is not None:
            return Finding(Verdict.MISMATCH, "fields_disagree", ids)
    extracted = extract(_extraction(probe.extraction), item)
    if extracted is None:
        return Finding(Verdict.UNKNOWN, "external_id_missing")
    return Finding(Verdict.COMMITTED, "found", ids, extracted.result, extracted.receipt_fields)


def _item_id(probe: McpProbe, item: Any) -> str | None:
    expression = probe.extraction.external_id
    return None if expression is None else id_text(search(expression, item))
