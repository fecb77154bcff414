"""The name of a log record: what a program that reads logs goes by, whatever the sentence says.

Names never change their meaning; docs/observability.md lists them. What a record says besides is
ids, counts and codes. An operation key is never said, only what `effect_broker.tracing.key_digest`
makes of it.
"""

from __future__ import annotations

from typing import Any

FieldValue = str | int | float | bool | None


def event(name: str, *, seldom: str | None = None, **fields: FieldValue) -> dict[str, Any]:
    """Return the `extra` of a log call.

    Args:
        name: of what has happened, in snake case.
        seldom: set for what may happen many times a second; records of one place with the same
            word are written once in a while (`effect_broker.logs`).
        fields: further members of the JSON object.
    """
    return {"event": name, "fields": fields, "seldom": seldom}
