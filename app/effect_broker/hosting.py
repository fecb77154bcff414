"""The names under which runs are known to the engine, and how its queue is parted between tenants.

The names are part of the protocol: a run that was enqueued by one release must be claimed by the
next.

Fairness. A worker has a number of slots, and a run holds one while it waits for its target, up to
the attempt's deadline. Ordering the queue helps nobody once one tenant's runs sit in every slot, so
the queue is parted by tenant, and a worker gives each tenant a share of its slots at most (the
engine's `partition_worker_concurrency`). Looked at as well: runs that end at once when their tenant
is over its share, which cost a run, a generation and some commits each time they come back in vain;
a queue for each tenant, each of which is a thread and a poll in every worker; a limit over all
workers, for which the engine counts at every claim, and counts the runs of dead workers too. The
parts cost nothing where there is nothing to do, and one short transaction for each tenant with
queued runs at a poll. Which of the claimed runs may compute is `effect_broker.turns`.

The limit of it: as many tenants as there are shares, all with targets that hang, still hold every
slot until their deadlines. Share and slots are settings of a worker, and more workers are more
slots.
"""

from __future__ import annotations

from typing import Final

# The DBOS workflow and the queue it is claimed from.
WORKFLOW_NAME: Final = "effect_run"
QUEUE_NAME: Final = "effects"
# The queue of one drill, which its own worker alone listens to (`effect_broker.drills`).
_DRILL_QUEUE_PREFIX: Final = "effects-drill-"

# A run is in the part of the queue that is named after its tenant (`enqueue_run` in SQL). The share
# of one tenant: a quarter of a worker's slots, so that three tenants whose targets hang leave room.
TENANT_SHARE: Final = 0.25

# Constant on purpose. DBOS's default, a hash of the source, would strand every queued run of the
# release before; it changes only when the order of a run's steps does.
APPLICATION_VERSION: Final = "effect-broker-1"
APPLICATION_NAME: Final = "effect-broker"
DBOS_SCHEMA: Final = "dbos"

# What a query on the engine's tables meets while its schema is away, is being made anew, or has
# not been granted again.
ENGINE_MISSING_SQLSTATES: Final = frozenset(
    {
        "42P01",  # undefined_table
        "42703",  # undefined_column
        "42883",  # undefined_function
        "3F000",  # invalid_schema_name
        "42501",  # insufficient_privilege
    }
)


def drill_queue_name(drill_id: object) -> str:
    """Return the name of a drill's queue."""
    return f"{_DRILL_QUEUE_PREFIX}{drill_id}"


def workflow_id(effect_id: object, generation: int) -> str:
    """Return the engine's id of a run: the effect and its generation."""
    return f"{effect_id}.{generation}"
