"""Reading what effects are to each other: parents with their children, and compensations.

A link is written by the submit alone (`effect_broker.submit_linked_effect`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from effect_broker.reading import Children, Links
from effect_broker.store.rows import Row
from effect_contracts.facts import EffectState

# Of the effects of one page. Children are counted anew each time: their number is a parent's own,
# and a stored count could be wrong. With `OFFSET 0` each effect is looked up by its key:
# before there are statistics, the planner would join the whole tenant.
LINKS_OF: Final = """
SELECT p.effect_id, own.parent_id, own.compensates_id,
       children.total, children.succeeded, children.failed, children.unresolved,
       undoing.effect_id AS undoing_id, undoing.state AS undoing_state
FROM unnest(%(effect_ids)s::uuid[]) AS p (effect_id)
LEFT JOIN effect_broker.effect_links AS own
    ON own.tenant_id = %(tenant_id)s AND own.effect_id = p.effect_id
CROSS JOIN LATERAL (
    SELECT count(*)::integer AS total,
           count(*) FILTER (WHERE c.state IN ('succeeded', 'compensated'))::integer AS succeeded,
           count(*) FILTER (WHERE c.state IN ('failed_final', 'cancelled'))::integer AS failed,
           count(*) FILTER (WHERE c.parked OR c.state IN (
               'outcome_unknown', 'reconciling', 'manual_review'))::integer AS unresolved
    FROM effect_broker.effect_links AS l
    CROSS JOIN LATERAL (
        SELECT i.effect_id, i.state, i.parked FROM effect_broker.effect_intents AS i
        WHERE i.tenant_id = l.tenant_id AND i.effect_id = l.effect_id OFFSET 0) AS c
    WHERE l.tenant_id = %(tenant_id)s AND l.parent_id = p.effect_id) AS children
LEFT JOIN LATERAL (
    SELECT c.effect_id, c.state FROM effect_broker.effect_links AS l
    CROSS JOIN LATERAL (
        SELECT i.effect_id, i.state, i.parked FROM effect_broker.effect_intents AS i
        WHERE i.tenant_id = l.tenant_id AND i.effect_id = l.effect_id OFFSET 0) AS c
    WHERE l.tenant_id = %(tenant_id)s AND l.compensates_id = p.effect_id
    ORDER BY l.created_at DESC, l.effect_id LIMIT 1) AS undoing ON true
"""


def links_of(rows: Sequence[Row]) -> dict[UUID, Links]:
    """Return the links of each effect of `LINKS_OF`."""
    return {row["effect_id"]: _links(row) for row in rows}


def _links(row: Row) -> Links:
    undoing = row["undoing_id"]
    return Links(
        parent_id=row["parent_id"],
        compensates_id=row["compensates_id"],
        children=(
            Children(row["total"], row["succeeded"], row["failed"], row["unresolved"])
            if row["total"]
            else None
        ),
        compensated_by=None if undoing is None else (undoing, EffectState(row["undoing_state"])),
    )
