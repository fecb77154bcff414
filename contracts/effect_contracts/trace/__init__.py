"""The trace check: an exported log of effects, replayed against the rules of the protocol.

A trace is the broker's own account of what it did: intents, attempts, evidence, receipts and the
chained events between them (`effect_contracts.trace.log` owns the format). `verify_lines` needs no
database and believes no row: it computes the chain again, walks the moves through
`effect_contracts.life`, asks `decide` at every event with the facts that were known then, and
judges each attempt, settlement and receipt by rules of its own (`guards`). What it finds has a
place and the name of a rule.

It proves that an account is consistent, not that it is true: whoever can rewrite rows, events and
digests alike can tell another story that obeys all rules. The truth is at the target.
"""

from effect_contracts.trace.check import TraceReport, verify_lines
from effect_contracts.trace.findings import Rule, TraceUnreadable, Violation
from effect_contracts.trace.log import TRACE_FORMAT, TraceWriter

__all__ = [
    "TRACE_FORMAT",
    "Rule",
    "TraceReport",
    "TraceUnreadable",
    "TraceWriter",
    "Violation",
    "verify_lines",
]
