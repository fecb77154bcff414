"""What the trace check can find: the names of its rules, and where a log breaks them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID


class Rule(StrEnum):
    """The rules of the check; stable names, listed with their meaning in `docs/trace.md`."""

    # The file
    FORM = "form"  # a line does not have the members and types of its kind
    LINE = "line"  # a line does not fit its digest, which is chained to the line before
    COUNT = "count"  # the last line counts something else than the file holds
    ORDER = "order"  # effects do not ascend by tenant and id: one is doubled or out of place
    CONTRACT = "contract"  # the contract's document is missing, unfit, or not the intent's
    # One effect's identity and chain
    IDENTITY = "identity"  # the effect's id, or who asked for what, does not fit
    SEQUENCE = "sequence"  # events are missing, doubled or out of order
    CHAIN = "chain"  # a digest does not follow from the event and the digest before
    TIME = "time"  # time runs backwards, or beyond the export
    LIFE = "life"  # a move that does not stand in the table of states
    KIND = "kind"  # an unknown kind of event, or not with these members
    ACTOR = "actor"  # somebody who does not do such things
    PRUNED = "pruned"  # events are missing from the beginning, where none may be
    # Facts and events
    FACTS = "facts"  # a row without its event, an event without its row, or they disagree
    DECISION = "decision"  # the facts known then called for something else
    # Design §4, judged without `decide`
    ONE_OPEN = "one_open"  # a second attempt while one was open
    RESENT = "resent"  # a new attempt after an answer that ends the effect
    UNSAFE = "unsafe"  # an unsafe effect was sent again after doubt
    RETENTION = "retention"  # sent again when the target may have forgotten the key
    CONCLUSIVE = "conclusive"  # sent again without conclusive evidence of absence
    CERTIFICATE = "certificate"  # sent without the certificate that its contract demands
    SETTLED_BY = "settled_by"  # sent again while the attempt before could still be on the wire
    SUPPORT = "support"  # a settlement that its facts do not support
    MUTATION = "mutation"  # keys and fences of a transactional effect do not fit its facts
    # The end, and where it stands
    RECEIPT = "receipt"  # missing, superfluous, or it says something else
    TARGET = "target"  # a fact that belongs to another target
    AFTER_END = "after_end"  # more than late facts after the end
    HEAD = "head"  # the intent's row does not say what the last event does
    NEXT_ACTION = "next_action"  # an effect that is neither final nor waits for anything


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule within an effect; `sequence` is that of the event, None for a row."""

    rule: Rule
    what: str
    sequence: int | None = None


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule and its place; the text holds ids, ordinals, states and codes only.

    Attributes:
        line: of the file, from 1.
        effect_id, tenant_id: None where the line is of no effect, or does not tell.
    """

    line: int
    tenant_id: UUID | None
    effect_id: UUID | None
    sequence: int | None
    rule: Rule
    what: str


class TraceUnreadable(Exception):
    """The file is no whole trace of this format; the text says why, and names the line."""


class Broken(Exception):
    """The replay of an effect cannot go on; carries what it broke on."""

    def __init__(self, rule: Rule, what: str) -> None:
        super().__init__(what)
        self.rule = rule
        self.what = what


def require(holds: bool, rule: Rule, what: str) -> None:
    """Raise `Broken` unless it holds."""
    if not holds:
        raise Broken(rule, what)
