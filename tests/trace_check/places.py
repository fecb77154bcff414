"""The places of an effect's account, and those of them that nothing binds.

`docs/trace.md` holds the same lists, for those who want to know what the check cannot see.
"""

from __future__ import annotations

import json

# Columns that no event and no receipt bind: an attacker who can write to the tables can change
# them unseen. Whatever is absurd is found all the same; what is listed here may pass.
UNBOUND_ROWS = {
    "intent.wire_digest",  # before the first attempt
    "intent.downstream_key_digest",  # while there is no receipt
    "intent.retention_stage",  # of a settled effect whose rows are there
    "intent.updated_at",  # later than the last event: a requeue writes none
    "intent.send_before",  # while it would have changed no decision
    "intent.cancel_requested_at",  # likewise
}
# What passes if the attacker chains the events again: no fact goes with these.
UNBOUND_EVENTS = {
    "events.*.metadata.generation",  # of a run that was given up
    "events.*.metadata.why",  # likewise
    "events.*.metadata.by",  # which effect has undone it: a trace holds no links
    "events.*.actor",  # another worker wrote a wait, a park or a settlement
    # The digests that older events do not have, if they are taken out.
    "events.*.metadata.without evidence_id",
    "events.*.metadata.without fact_digest",
    "events.*.metadata.without receipt_digest",
    "events.*.metadata.without wire_digest",
    "events.*.at",  # a wait, or the beginning of a look-up without a finding, at another time
}
# Made again by the forgery itself.
CHAIN = {"events.*.previous_digest", "events.*.digest", "intent.event_digest"}


def place_of(path: tuple[str | int, ...], before: object = None, after: object = None) -> str:
    """Return the place of a path, the same for every element of a list.

    For metadata, and the text before and after: with the members that differ or are gone.
    """
    place = ".".join("*" if isinstance(part, int) else part for part in path)
    if name_of(path) != "metadata" or not isinstance(before, str) or not isinstance(after, str):
        return place
    told, forged = json.loads(before), json.loads(after)
    differ = [name for name in told if name in forged and told[name] != forged[name]]
    differ += [f"without {name}" for name in told if name not in forged]
    return ".".join([place, *differ])


def name_of(path: tuple[str | int, ...]) -> str:
    """Return the name of the member that a path ends in."""
    return [part for part in path if isinstance(part, str)][-1]
