"""The names under which runs are known to the engine: one place for Python and SQL.

They are part of the protocol: a run that was enqueued by one release must be claimed by the next.
"""

from __future__ import annotations

from typing import Final

# The DBOS workflow and the queue it is claimed from.
WORKFLOW_NAME: Final = "effect_run"
QUEUE_NAME: Final = "effects"

# Constant on purpose. DBOS's default, a hash of the source, would strand every queued run of the
# release before; it changes only when the order of a run's steps does.
APPLICATION_VERSION: Final = "effect-broker-1"
APPLICATION_NAME: Final = "effect-broker"
DBOS_SCHEMA: Final = "dbos"


def workflow_id(effect_id: object, generation: int) -> str:
    """Return the engine's id of a run: the effect and its generation."""
    return f"{effect_id}.{generation}"
