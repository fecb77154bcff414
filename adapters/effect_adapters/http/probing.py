"""Asking a target whether an effect exists: this file owns what a look-up proves.

A look-up is one or several reads within one budget. What it says is only what the contract's
rules make of complete answers:

    committed      one item carries our key exactly, and the declared fields agree
    mismatch       several items do, or a field disagrees, or the place of our key holds another
    not_committed  a rule of `absent` matches, and for lists every page was read to the end
    rejected       an accepted operation that has failed for good
    unknown        everything else: errors, redirects, wrong types, pages that were not read

Items are compared here, case and all; a target's own search may be as vague as it likes. An item
that was found stays found although a later page failed: it proves that the effect exists.
"""

from __future__ import annotations

import base64
import hashlib
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, assert_never

from effect_adapters.answers import BodyInvalid, extract, id_text
from effect_adapters.base import (
    Finding,
    ProbeCall,
    RenderError,
    SecretResolver,
    SecretUnavailable,
)
from effect_adapters.http.classify import CODE_CHECK_LIMIT, Reading, retry_after_seconds
from effect_adapters.http.exchange import OutgoingRequest, Reply, exchange
from effect_adapters.http.paging import Pager, Undecided
from effect_adapters.http.rendering import (
    SecretInvalid,
    outgoing,
    render,
    render_poll,
    render_probe,
    request_target,
    wire_body,
    wire_url,
)
from effect_contracts.bounded_schema import CheckTooCostly
from effect_contracts.canonical import first_difference
from effect_contracts.expressions import KEY_VARIABLE, pointer_value, search, url_variables
from effect_contracts.facts import CODE_OPERATION_GONE, CODE_SEVERAL_MATCHES, Verdict
from effect_contracts.http_settings import (
    DigestKey,
    EtagKey,
    FieldKey,
    HttpSettings,
    LineKey,
    ProbeRequest,
    TextKey,
    TextLine,
)

_HASHES: Final[dict[str, Callable[[bytes], Any]]] = {
    "sha256": hashlib.sha256,
    # Old ETags and content digests are compared, not trusted for their strength.
    "sha1": lambda data: hashlib.sha1(data, usedforsecurity=False),
    "md5": lambda data: hashlib.md5(data, usedforsecurity=False),
}


_GONE: Final = (404, 410)


@dataclass(slots=True)
class _Search:
    """What the pages read so far have shown.

    Attributes:
        matches: items that carry our key.
        ids: the ids of those, in the target's order; None where an item has none.
        known_ids: the same, for looking one up: a target may list as many as fit into a page.
        single: the answer was one object and no list.
        others: ids of objects at our place that do not carry our key.
        complete: every page was read to the end.
        empty_ruled: so far every page matched a rule of `absent` for lists.
    """

    matches: list[Any] = field(default_factory=list)
    ids: list[str | None] = field(default_factory=list)
    known_ids: set[str | None] = field(default_factory=set)
    single: bool = False
    others: list[str] = field(default_factory=list)
    complete: bool = False
    empty_ruled: bool = True
    last: Reply | None = None


class Prober:
    """Carries out the look-ups of one call."""

    def __init__(
        self, settings: HttpSettings, call: ProbeCall, secrets: SecretResolver, tls: ssl.SSLContext
    ) -> None:
        self._settings = settings
        self._call = call
        self._secrets = secrets
        self._tls = tls

    async def find(self) -> Finding:
        """Return what the target says: by the accepted operation where there is one, else by key.

        An operation that the target no longer knows is looked up by key too; then only what is
        found counts, since nothing says how long an accepted operation may still take.
        """
        by_operation = self._call.operation is not None and self._settings.answers.accepted
        if not by_operation:
            return await self._by_key()
        polled = await self._by_operation()
        lost = polled.verdict is Verdict.UNKNOWN and polled.code != "operation_running"
        if not lost or self._settings.probe is None:
            return polled
        found = await self._by_key()
        return found if found.verdict in {Verdict.COMMITTED, Verdict.MISMATCH} else polled

    # The request ------------------------------------------------------------------------------

    async def _ask(self, request: OutgoingRequest) -> Reading:
        if request.method not in {"GET", "HEAD"}:
            raise Undecided("probe_method_refused")  # a question never changes the target
        end = await exchange(
            request,
            self._call.budget,
            lambda _point: None,
            self._settings.response_bytes_max,
            self._tls,
        )
        if not isinstance(end, Reply):
            raise Undecided(end.code)
        return Reading(end)

    def _request(self, wire: bytes) -> OutgoingRequest:
        try:
            return outgoing(self._settings, wire, self._secrets)
        except SecretUnavailable:
            raise Undecided("secret_unavailable") from None
        except SecretInvalid:
            raise Undecided("secret_invalid") from None
        except RenderError as error:
            raise Undecided(error.code) from None

    # By operation -----------------------------------------------------------------------------

    async def _by_operation(self) -> Finding:
        call = self._call
        assert call.operation is not None
        try:
            wire = render_poll(self._settings, call.arguments, call.downstream_key, call.operation)
            reading = await self._ask(self._request(wire))
        except RenderError as error:
            return Finding(Verdict.UNKNOWN, error.code)
        except Undecided as undecided:
            return Finding(Verdict.UNKNOWN, undecided.code)
        try:
            finding = self._operation_finding(reading)
        except CheckTooCostly:
            finding = Finding(Verdict.UNKNOWN, CODE_CHECK_LIMIT)
        return _with_answer(finding, reading.reply, self._wait(reading))

    def _operation_finding(self, reading: Reading) -> Finding:
        accepted = self._settings.answers.accepted
        assert accepted is not None
        succeeded = any(reading.matches(rule) for rule in accepted.succeeded)
        failed = next((rule for rule in accepted.failed if reading.matches(rule)), None)
        running = any(reading.matches(rule) for rule in accepted.running)
        if succeeded + (failed is not None) + running > 1:
            return Finding(Verdict.UNKNOWN, "contradicting_rules")
        if running:
            return Finding(Verdict.UNKNOWN, "operation_running")
        if failed is not None:
            return Finding(Verdict.REJECTED, failed.code)
        if not succeeded:
            # Nor does its absence say how it ended: targets forget operations, done or not.
            gone = reading.reply.status in _GONE
            return Finding(Verdict.UNKNOWN, CODE_OPERATION_GONE if gone else _unmatched(reading))
        if reading.broken_json:
            return Finding(Verdict.UNKNOWN, "body_invalid")
        extracted = extract(accepted.extraction, reading.json_or_none)
        if extracted is None:
            return Finding(Verdict.UNKNOWN, "external_id_missing")
        ids = () if extracted.external_id is None else (extracted.external_id,)
        return Finding(
            Verdict.COMMITTED,
            "operation_succeeded",
            ids,
            extracted.result,
            extracted.receipt_fields,
        )

    # By key -----------------------------------------------------------------------------------

    async def _by_key(self) -> Finding:
        probe = self._settings.probe
        call = self._call
        if probe is None:
            return Finding(Verdict.UNKNOWN, "no_probe")
        try:
            wire = render_probe(self._settings, probe, call.arguments, call.downstream_key)
            request = self._request(wire)
        except RenderError as error:
            return Finding(Verdict.UNKNOWN, error.code)
        except Undecided as undecided:
            return Finding(Verdict.UNKNOWN, undecided.code)
        search_state = _Search()
        try:
            absent = await self._read_pages(probe, request, wire_url(wire), search_state)
        except (Undecided, CheckTooCostly) as failure:
            end = failure if isinstance(failure, Undecided) else Undecided(CODE_CHECK_LIMIT)
            if not search_state.matches or end.code == "contradicting_rules":
                finding = Finding(Verdict.UNKNOWN, end.code)
                return _with_answer(finding, search_state.last, end.retry_after_seconds)
            absent = None
        finding = self._key_finding(probe, search_state, absent)
        return _with_answer(finding, search_state.last, None)

    async def _read_pages(
        self, probe: ProbeRequest, request: OutgoingRequest, url: str, seen: _Search
    ) -> str | None:
        """Read page after page into `seen`; the code of an `absent` rule that says it all."""
        pager = Pager(probe)
        url = pager.first(url)
        while True:
            reading = await self._ask(replace(request, target=request_target(url)))
            seen.last = reading.reply
            gone = self._absent_code(probe, reading) if pager.pages == 0 else None
            if not reading.matches(probe.found):
                if gone is None:
                    raise Undecided(_unmatched(reading), self._wait(reading))
                return gone
            items = self._read_items(probe, reading, seen)
            if gone is not None:
                if seen.matches:
                    raise Undecided("contradicting_rules")
                return gone
            following = None if seen.single else pager.after(url, reading, items)
            if following is None:
                seen.complete = True
                return None
            url = following

    def _absent_code(self, probe: ProbeRequest, reading: Reading) -> str | None:
        rules = [rule for rule in probe.absent if not rule.empty_list]
        if reading.broken_json or not any(reading.matches(rule) for rule in rules):
            return None
        return f"absent_status_{reading.reply.status}"

    def _read_items(self, probe: ProbeRequest, reading: Reading, seen: _Search) -> list[Any]:
        rules = [rule for rule in probe.absent if rule.empty_list]
        seen.empty_ruled = seen.empty_ruled and any(reading.matches(rule) for rule in rules)
        items = self._items(probe, reading, seen)
        for item in items:
            external_id = _item_id(probe, item)
            if not self._has_key(probe, item, reading):
                if external_id is not None:
                    seen.others.append(external_id)
            elif external_id is None or external_id not in seen.known_ids:
                # The same id on two pages is one object: pages shift while they are read.
                seen.matches.append(item)
                seen.ids.append(external_id)
                seen.known_ids.add(external_id)
        return items

    def _items(self, probe: ProbeRequest, reading: Reading, seen: _Search) -> list[Any]:
        if isinstance(probe.key_match, TextKey):
            seen.single = True
            return [_lines(reading.reply.body)]
        if isinstance(probe.key_match, EtagKey):
            seen.single = True
            return [reading.json_or_none]
        try:
            value = reading.json
        except BodyInvalid:
            raise Undecided("body_invalid") from None
        if probe.items is not None:
            value = search(probe.items, value)
        if isinstance(value, list):
            return value
        if not isinstance(value, dict):
            # An error page with status 200, or another shape: no list is not an empty one.
            raise Undecided("items_missing")
        seen.single = True
        return [value]

    # An item ----------------------------------------------------------------------------------

    def _has_key(self, probe: ProbeRequest, item: Any, reading: Reading) -> bool:
        key = self._call.downstream_key
        match probe.key_match:
            case FieldKey(path=path, prefix=prefix):
                return bool(search(path, item) == prefix + key)
            case DigestKey() as wanted:
                of = key.encode() if wanted.of == "key" else self._request_body()
                return _digest_equals(
                    search(wanted.path, item), of, wanted.algorithm, wanted.encoding
                )
            case EtagKey() as wanted:
                etag = reading.reply.header("etag") or ""
                strong = re.fullmatch(r'"([^"]*)"', etag.strip())
                if strong is None:
                    raise Undecided("etag_weak" if etag else "etag_missing")
                return _digest_equals(
                    strong.group(1), self._request_body(), wanted.algorithm, wanted.encoding
                )
            case TextKey(prefix=prefix, suffix=suffix):
                return prefix + key + suffix in item
            case LineKey(path=path, prefix=prefix, suffix=suffix):
                text = search(path, item)
                return isinstance(text, str) and prefix + key + suffix in _text_lines(text)
            case never:
                assert_never(never)

    def _request_body(self) -> bytes:
        call = self._call
        try:
            return wire_body(render(self._settings, call.arguments, call.downstream_key))
        except RenderError as error:
            raise Undecided(error.code) from None

    def _agrees(self, probe: ProbeRequest, item: Any) -> bool:
        if isinstance(probe.key_match, TextKey):
            return all(
                self._line_agrees(pointer, line, item)
                for pointer, line in probe.agree_lines.items()
            )
        for pointer, expression in probe.agree.items():
            _, wanted = pointer_value(self._call.arguments, pointer)
            if first_difference(wanted, search(expression, item)) is not None:
                return False
        return True

    def _line_agrees(self, pointer: str, line: TextLine, lines: list[str]) -> bool:
        found, value = pointer_value(self._call.arguments, pointer)
        if not found or value is None:
            return not any(
                text.startswith(line.prefix) and text.endswith(line.suffix) for text in lines
            )
        text = value if isinstance(value, str) else _number_text(value)
        return line.prefix + text + line.suffix in lines

    # The verdict ------------------------------------------------------------------------------

    def _key_finding(self, probe: ProbeRequest, seen: _Search, absent: str | None) -> Finding:
        if absent is not None:
            return Finding(Verdict.NOT_COMMITTED, absent)
        ids = tuple(external_id for external_id in seen.ids if external_id is not None)
        if len(seen.matches) > 1:
            return Finding(Verdict.MISMATCH, CODE_SEVERAL_MATCHES, ids)
        if len(seen.matches) == 1:
            return self._match_finding(probe, seen.matches[0], ids)
        if seen.single:
            # An object stands where only ours may stand, and it is not ours.
            if KEY_VARIABLE in url_variables(probe.url) or isinstance(probe.key_match, EtagKey):
                return Finding(Verdict.MISMATCH, "found_other", tuple(seen.others))
            return Finding(Verdict.UNKNOWN, "found_other")
        if seen.complete and seen.empty_ruled:
            return Finding(Verdict.NOT_COMMITTED, "absent_from_list")
        return Finding(Verdict.UNKNOWN, "not_found")

    def _match_finding(self, probe: ProbeRequest, item: Any, ids: tuple[str, ...]) -> Finding:
        if not self._agrees(probe, item):
            return Finding(Verdict.MISMATCH, "fields_disagree", ids)
        value = None if isinstance(probe.key_match, TextKey) else item
        extracted = extract(probe.extraction, value)
        if extracted is None:
            return Finding(Verdict.UNKNOWN, "external_id_missing")
        return Finding(Verdict.COMMITTED, "found", ids, extracted.result, extracted.receipt_fields)

    def _wait(self, reading: Reading) -> float | None:
        return retry_after_seconds(reading.reply, self._settings.answers.retry_after_header)


def _item_id(probe: ProbeRequest, item: Any) -> str | None:
    expression = probe.extraction.external_id
    if expression is None or isinstance(probe.key_match, TextKey):
        return None
    return id_text(search(expression, item))


def _digest_equals(value: Any, of: bytes, algorithm: str, encoding: str) -> bool:
    if not isinstance(value, str):
        return False
    raw = _HASHES[algorithm](of).digest()
    if encoding == "hex":
        return value.lower() == str(raw.hex())
    return value == base64.b64encode(raw).decode()


def _lines(body: bytes) -> list[str]:
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise Undecided("body_invalid") from None
    return _text_lines(text)


def _text_lines(text: str) -> list[str]:
    return [line.removesuffix("\r") for line in text.split("\n")]


def _number_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _unmatched(reading: Reading) -> str:
    status = reading.reply.status
    if 300 <= status <= 399:
        return "unexpected_redirect"
    return f"unmatched_status_{status}"


def _with_answer(finding: Finding, reply: Reply | None, wait: float | None) -> Finding:
    if reply is None:
        return finding
    return replace(
        finding, status=reply.status, response_digest=reply.digest, retry_after_seconds=wait
    )
