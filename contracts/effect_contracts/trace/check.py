"""The check of a whole trace, line by line: memory does not grow with the number of effects.

`verify_lines` reads lines in order and judges each effect as its line comes. What it keeps is the
contracts, the place in the order, and the violations found so far, up to a limit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from uuid import UUID

from pydantic import ValidationError

from effect_contracts.document import ContractDocument
from effect_contracts.errors import ContractInvalid
from effect_contracts.trace.chain import chain_findings
from effect_contracts.trace.findings import Broken, Finding, Rule, TraceUnreadable, Violation
from effect_contracts.trace.kinds import read_event
from effect_contracts.trace.log import (
    TRACE_FORMAT,
    ContractLine,
    EffectLine,
    EndLine,
    HeaderLine,
    Record,
    line_digest,
    parted_line,
)
from effect_contracts.trace.receipt import check_old_receipt
from effect_contracts.trace.receipt import standing_findings as receipt_findings
from effect_contracts.trace.removed import is_removed, removed_findings
from effect_contracts.trace.replay import Replay
from effect_contracts.trace.standing import identity_findings, row_findings, standing_findings
from effect_contracts.trace.timeline import Timeline

R = TypeVar("R", bound=Record)

# More than a person reads; a log that is wrong everywhere must not fill the memory.
VIOLATIONS_MAX: Final = 1000

# A replay of events that do not follow each other would only repeat what is known.
_STOPS_THE_REPLAY: Final = frozenset({Rule.SEQUENCE, Rule.LIFE, Rule.PRUNED})


@dataclass(frozen=True, slots=True)
class TraceReport:
    """What a check has seen.

    Attributes:
        events: kept events; those that were pruned are not in a trace.
        pruned_effects: effects whose first events were pruned; what is left of them was checked.
        violation_count: of all; `violations` holds the first `VIOLATIONS_MAX`.
    """

    contracts: int
    effects: int
    events: int
    pruned_effects: int
    violation_count: int
    violations: tuple[Violation, ...]

    @property
    def clean(self) -> bool:
        """Whether no rule is broken."""
        return self.violation_count == 0


def verify_lines(lines: Iterable[bytes], *, whole: bool = False) -> TraceReport:
    """Check a trace; `lines` are those of the file, line ends included or not.

    Args:
        whole: events that were pruned are violations too.

    Raises:
        TraceUnreadable: this is not a whole trace of this format.
    """
    check = _Check(whole=whole)
    for number, line in enumerate(lines, start=1):
        check.read(number, line)
    return check.report()


@dataclass
class _Check:
    """The state between two lines."""

    whole: bool
    header: HeaderLine | None = None
    ended: bool = False
    previous: bytes = b""
    latest: tuple[UUID, UUID] | None = None
    documents: dict[str, ContractDocument | None] = field(default_factory=dict)
    contracts: int = 0
    effects: int = 0
    events: int = 0
    pruned: int = 0
    violation_count: int = 0
    violations: list[Violation] = field(default_factory=list)

    def read(self, number: int, line: bytes) -> None:
        """Judge one line."""
        parted = parted_line(line)
        if parted is None:
            raise TraceUnreadable(f"line {number} is no line of a trace: it begins with no digest")
        digest, body = parted
        members = _members(number, body)
        kind = members.get("type")
        if self.header is None:
            self._begin(number, kind, members, body)
        elif self.ended:
            raise TraceUnreadable(f"line {number} follows the end of the trace")
        if line_digest(self.previous, body) != digest:
            what = "the line is not the one that was written here"
            self._found(number, _ids(members), [Finding(Rule.LINE, what)])
        self.previous = digest
        match kind:
            case "header" if number == 1:
                pass
            case "contract":
                self._contract(number, body, members)
            case "effect":
                self._effect(number, body, members)
            case "end":
                self._end(number, body, members)
            case _:
                # The format names all kinds, so this is no newer release's.
                self._found(number, _ids(members), [Finding(Rule.FORM, "a line of no kind")])

    def report(self) -> TraceReport:
        """Return what was seen.

        Raises:
            TraceUnreadable: the end is missing.
        """
        if self.header is None:
            raise TraceUnreadable("the file is empty")
        if not self.ended:
            raise TraceUnreadable("the trace has no end: it was cut, or its export did not finish")
        return TraceReport(
            contracts=self.contracts,
            effects=self.effects,
            events=self.events,
            pruned_effects=self.pruned,
            violation_count=self.violation_count,
            violations=tuple(self.violations),
        )

    # Lines --------------------------------------------------------------------------------------

    def _begin(self, number: int, kind: object, members: dict[str, Any], body: bytes) -> None:
        if kind != "header":
            raise TraceUnreadable("the trace does not begin with its header")
        if members.get("format") != TRACE_FORMAT:
            raise TraceUnreadable(f"another format; this release reads {TRACE_FORMAT}")
        try:
            self.header = HeaderLine.model_validate_json(body)
        except ValidationError as problem:
            raise TraceUnreadable(f"the header: {_place(problem)}") from None

    def _contract(self, number: int, body: bytes, members: dict[str, Any]) -> None:
        self.contracts += 1
        line = self._parsed(ContractLine, number, body, members)
        if line is None:
            return
        findings = []
        if line.contract_digest in self.documents:
            findings.append(Finding(Rule.CONTRACT, "the contract stands here a second time"))
        document: ContractDocument | None = None
        try:
            document = ContractDocument.from_canonical(line.document.encode())
        except ContractInvalid:
            findings.append(Finding(Rule.CONTRACT, "this release cannot read the contract"))
        if hashlib.sha256(line.document.encode()).hexdigest() != line.contract_digest:
            findings.append(Finding(Rule.CONTRACT, "the contract's digest does not fit it"))
        self.documents[line.contract_digest] = document
        self._found(number, (None, None), findings)

    def _effect(self, number: int, body: bytes, members: dict[str, Any]) -> None:
        self.effects += 1
        line = self._parsed(EffectLine, number, body, members)
        if line is None:
            told = members.get("events")
            self.events += len(told) if isinstance(told, list) else 0
            return
        self.events += len(line.events)
        ids = (line.intent.tenant_id, line.intent.effect_id)
        if self.latest is not None and ids <= self.latest:
            self._found(number, ids, [Finding(Rule.ORDER, "the effect is not in its place")])
        self.latest = ids
        self.pruned += _is_pruned(line)
        self._found(number, ids, self._effect_findings(line))

    def _effect_findings(self, line: EffectLine) -> Iterator[Finding]:
        assert self.header is not None
        if is_removed(line):
            yield from removed_findings(line, self.header.exported_at)
            if self.whole:
                yield Finding(Rule.PRUNED, "its events are missing")
            document = self.documents.get(line.intent.contract_digest)
            if document is not None:
                yield from identity_findings(line.intent, document)
            return
        findings = list(chain_findings(line, self.header.exported_at))
        if self.whole and _is_pruned(line):
            findings.append(Finding(Rule.PRUNED, "its first events are missing"))
        findings += row_findings(line)
        yield from findings
        document = self.documents.get(line.intent.contract_digest)
        if document is None:
            if line.intent.contract_digest not in self.documents:
                yield Finding(Rule.CONTRACT, "its contract is not in the trace")
            return
        yield from identity_findings(line.intent, document)
        if not any(finding.rule in _STOPS_THE_REPLAY for finding in findings):
            yield from _replay_findings(line, document, self.header)

    def _end(self, number: int, body: bytes, members: dict[str, Any]) -> None:
        self.ended = True
        line = self._parsed(EndLine, number, body, members)
        if line is None:
            return
        counted = {"contracts": self.contracts, "effects": self.effects, "events": self.events}
        for name, count in counted.items():
            if getattr(line, name) != count:
                what = f"the trace was written with {getattr(line, name)} {name} and holds {count}"
                self._found(number, (None, None), [Finding(Rule.COUNT, what)])

    def _parsed(
        self, model: type[R], number: int, body: bytes, members: dict[str, Any]
    ) -> R | None:
        try:
            return model.model_validate_json(body)
        except ValidationError as problem:
            self._found(number, _ids(members), [Finding(Rule.FORM, _place(problem))])
            return None

    def _found(
        self, number: int, ids: tuple[UUID | None, UUID | None], findings: Iterable[Finding]
    ) -> None:
        for finding in findings:
            self.violation_count += 1
            if len(self.violations) < VIOLATIONS_MAX:
                self.violations.append(
                    Violation(number, *ids, finding.sequence, finding.rule, finding.what)
                )


def _replay_findings(
    line: EffectLine, document: ContractDocument, header: HeaderLine
) -> Iterator[Finding]:
    """Replay the events that were kept, then compare where the effect stands."""
    timeline = Timeline(line, document.policy(), header.bounds_restart_at)
    replay = Replay(timeline)
    if not line.events:
        timeline.begin_through(header.exported_at)
    elif _is_pruned(line):
        replay.begin_before(line.events[0].at)
    for record in line.events:
        try:
            replay.step(read_event(record))
        except Broken as broken:
            yield Finding(broken.rule, broken.what, record.sequence)
            yield from receipt_findings(timeline, settled_in_sight=replay.settled_in_sight)
            return  # what was known from here on is anybody's guess
    yield from timeline.leftovers()
    yield from receipt_findings(timeline, settled_in_sight=replay.settled_in_sight)
    yield from standing_findings(line, replay)
    if not replay.settled_in_sight:
        try:
            check_old_receipt(timeline)
        except Broken as broken:
            yield Finding(broken.rule, broken.what)


def _is_pruned(line: EffectLine) -> bool:
    return not line.events or line.events[0].sequence > 1


def _members(number: int, body: bytes) -> dict[str, Any]:
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        raise TraceUnreadable(f"line {number} is not JSON") from None
    assert isinstance(value, dict), "the body of a line begins with a brace"
    return value


def _ids(members: dict[str, Any]) -> tuple[UUID | None, UUID | None]:
    """The ids of a line that may be malformed."""
    intent = members.get("intent")
    if not isinstance(intent, dict):
        return None, None
    return _uuid(intent.get("tenant_id")), _uuid(intent.get("effect_id"))


def _uuid(value: object) -> UUID | None:
    try:
        return UUID(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _place(problem: ValidationError) -> str:
    """Where a line is malformed, and how; no value of it."""
    first = problem.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"]) or "the line"
    return f"{place}: {first['type']}"
