"""What a simulated world contains: a contract, the faults that may happen in it, and its sizes.

A fault is a word here, so that a guard, a test and a user can name the world in which something
breaks. Faults of the first kind keep every promise of the design; the broker must bear them all.
Those of the second kind break a promise of the target, the contract or the machine; they show
what remains.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Final

from effect_contracts.document import ContractDocument
from effect_contracts.facts import SafetyClass


class Fault(StrEnum):
    """What may happen in a world."""

    # Processes.
    DEATH = "death"
    PAUSE = "pause"
    TAKEOVER = "takeover"
    HASTY_REPAIR = "hasty_repair"
    LOST_RUN = "lost_run"
    DRAIN = "drain"
    SLOW_CLOCK = "slow_clock"
    # The store.
    STORE_AWAY = "store_away"
    STORE_BUSY = "store_busy"
    COMMIT_UNHEARD = "commit_unheard"
    COMMIT_LOST = "commit_lost"
    # The target, within its promises.
    LOST_ANSWER = "lost_answer"
    LATE_LANDING = "late_landing"
    LOST_REQUEST = "lost_request"
    REFUSAL = "refusal"
    BUSY = "busy"
    UNREACHED = "unreached"
    IN_PROGRESS = "in_progress"
    EXISTS = "exists"
    OPERATION = "operation"
    FORGOTTEN_OPERATION = "forgotten_operation"
    KEY_TAKEN = "key_taken"
    PARTIAL = "partial"
    STORED_ERROR = "stored_error"
    LAG = "lag"
    SLOW_LOOK_UP = "slow_look_up"
    FAILED_LOOK_UP = "failed_look_up"
    STRANGE_OBJECT = "strange_object"
    # Others who act.
    HOLD = "hold"
    UNCERTIFIED = "uncertified"
    OPERATOR = "operator"
    GIVE_UP = "give_up"
    WEBHOOK = "webhook"
    STRANGE_NOTICE = "strange_notice"
    CANCEL = "cancel"
    LOOK = "look"
    SEND_BEFORE = "send_before"
    UNRENDERED = "unrendered"
    MOVED_TARGET = "moved_target"
    SPOILED_REQUEST = "spoiled_request"
    # Broken promises.
    KEYS_IGNORED = "keys_ignored"
    KEYS_FORGOTTEN = "keys_forgotten"
    LANDS_TOO_LATE = "lands_too_late"
    SEEN_TOO_LATE = "seen_too_late"
    BLIND_LOOK_UP = "blind_look_up"
    FALSE_REFUSAL = "false_refusal"
    FALSE_SUCCESS = "false_success"
    STALLED_WRITE = "stalled_write"
    FAST_DATABASE = "fast_database"
    EAGER_OPERATOR = "eager_operator"


BROKEN_PROMISES: Final = frozenset(
    {
        Fault.KEYS_IGNORED,
        Fault.KEYS_FORGOTTEN,
        Fault.LANDS_TOO_LATE,
        Fault.SEEN_TOO_LATE,
        Fault.BLIND_LOOK_UP,
        Fault.FALSE_REFUSAL,
        Fault.FALSE_SUCCESS,
        Fault.STALLED_WRITE,
        Fault.FAST_DATABASE,
        Fault.EAGER_OPERATOR,
    }
)

BORNE: Final = frozenset(Fault) - BROKEN_PROMISES

# In sentences, for reports: what happens in a world with this fault.
WORDS: Final[Mapping[Fault, str]] = {
    Fault.DEATH: "a process is killed, anywhere",
    Fault.PAUSE: "a process stops, anywhere, and goes on much later",
    Fault.TAKEOVER: "a run is given to another process while its owner lives",
    Fault.HASTY_REPAIR: "repair takes a living run for dead",
    Fault.LOST_RUN: "the engine loses a queued run",
    Fault.DRAIN: "a process is told to end, or cannot beat",
    Fault.SLOW_CLOCK: "a process's clock runs slow, within the contract's margin",
    Fault.STORE_AWAY: "the database is away or takes no writes",
    Fault.STORE_BUSY: "a lock is not granted in time",
    Fault.COMMIT_UNHEARD: "a commit stands and its answer is lost",
    Fault.COMMIT_LOST: "a commit is lost and so is its answer",
    Fault.LOST_ANSWER: "the target acts and its answer is lost",
    Fault.LATE_LANDING: "a request is on its way as long as the contract allows",
    Fault.LOST_REQUEST: "a request is lost and nobody is told",
    Fault.REFUSAL: "the target refuses for good",
    Fault.BUSY: "the target says that it did nothing and may be asked again",
    Fault.UNREACHED: "the target is not reached",
    Fault.IN_PROGRESS: "the target is still at work on this key",
    Fault.EXISTS: "the target says that the object exists already",
    Fault.OPERATION: "the target accepts the request as an operation to be polled",
    Fault.FORGOTTEN_OPERATION: "a poll finds no such operation, now and then or for good",
    Fault.KEY_TAKEN: "the target says that our key is another request's",
    Fault.PARTIAL: "the target says that it did a part",
    Fault.STORED_ERROR: "the target repeats an error that it has stored under our key",
    Fault.LAG: "a look-up shows an object as late as the contract allows",
    Fault.SLOW_LOOK_UP: "a look-up's answer is old when it arrives",
    Fault.FAILED_LOOK_UP: "a look-up fails",
    Fault.STRANGE_OBJECT: "a look-up shows an object under our key that is not clearly ours",
    Fault.HOLD: "the tenant is paused or disabled, and goes on",
    Fault.UNCERTIFIED: "the target's certificate ends, and another one is made",
    Fault.OPERATOR: "a person looks at the target and tells what is there",
    Fault.GIVE_UP: "a person ends the effect as failed",
    Fault.WEBHOOK: "the target tells of an object by itself",
    Fault.STRANGE_NOTICE: "the target tells of an object that is not ours, or of a failure",
    Fault.CANCEL: "the caller cancels",
    Fault.LOOK: "a person asks for a look at the target",
    Fault.SEND_BEFORE: "the effect may not be sent after a moment",
    Fault.UNRENDERED: "the effect was submitted without its request",
    Fault.MOVED_TARGET: "a process is set up for another account of the target",
    Fault.SPOILED_REQUEST: "the stored request has become another one",
    Fault.KEYS_IGNORED: "the target takes no notice of keys",
    Fault.KEYS_FORGOTTEN: "the target forgets a key before its declared time",
    Fault.LANDS_TOO_LATE: "a request is on its way for longer than the contract says",
    Fault.SEEN_TOO_LATE: "a look-up shows an object later than the contract says",
    Fault.BLIND_LOOK_UP: "a look-up now and then misses an object that it has shown",
    Fault.FALSE_REFUSAL: "the target says that it did nothing, and it did",
    Fault.FALSE_SUCCESS: "the target says that it did it, and it did not",
    Fault.STALLED_WRITE: "a process stops between its last check and the write to the socket",
    Fault.FAST_DATABASE: "the database's clock jumps ahead",
    Fault.EAGER_OPERATOR: "a person takes a look for proof while a request may be on its way",
}


@dataclass(frozen=True)
class Scope:
    """One kind of world.

    Attributes:
        document: the contract; its adapter is the simulated one (`stand_in` makes it so).
        faults: what may happen.
        effects: how many effects there are, all of this contract and one tenant.
        processes: how many processes take runs.
        moves: how many moves chance makes; after them everything is quiet until all is at rest.
        unjudged: invariants that the judge is to overlook, by name.
    """

    document: ContractDocument
    faults: frozenset[Fault]
    effects: int = 1
    processes: int = 3
    moves: int = 64
    unjudged: frozenset[str] = frozenset()

    @cached_property
    def safety(self) -> SafetyClass:
        """The class of the contract."""
        return self.document.safety

    @property
    def keeps_promises(self) -> bool:
        """Whether no fault breaks a promise, so that every invariant must hold."""
        return not self.faults & BROKEN_PROMISES

    def without(self, *faults: Fault) -> Scope:
        """Return the scope with fewer faults."""
        return replace(self, faults=self.faults - set(faults))


# Faults that need something of the contract to mean anything in its world.
_NEEDS_LOOK_UP: Final = frozenset(
    {
        Fault.LAG,
        Fault.SLOW_LOOK_UP,
        Fault.FAILED_LOOK_UP,
        Fault.STRANGE_OBJECT,
        Fault.SEEN_TOO_LATE,
        Fault.BLIND_LOOK_UP,
    }
)
_NEEDS_OPERATIONS: Final = frozenset({Fault.OPERATION, Fault.FORGOTTEN_OPERATION})
_NEEDS_KEYS: Final = frozenset({Fault.STORED_ERROR, Fault.KEYS_IGNORED, Fault.KEYS_FORGOTTEN})
# A target inside the transaction has no wire on which something could be late or lost.
_NEEDS_WIRE: Final = frozenset(
    {
        Fault.LOST_ANSWER,
        Fault.LATE_LANDING,
        Fault.LOST_REQUEST,
        Fault.UNREACHED,
        Fault.IN_PROGRESS,
        Fault.EXISTS,
        Fault.OPERATION,
        Fault.FORGOTTEN_OPERATION,
        Fault.KEY_TAKEN,
        Fault.PARTIAL,
        Fault.WEBHOOK,
        Fault.STRANGE_NOTICE,
        Fault.LANDS_TOO_LATE,
        Fault.FALSE_REFUSAL,
        Fault.FALSE_SUCCESS,
        Fault.STALLED_WRITE,
    }
)


def possible_faults(
    document: ContractDocument, faults: Iterable[Fault] = Fault
) -> frozenset[Fault]:
    """Return those faults that can happen in a world of this contract."""
    policy = document.policy()
    found = set(faults)
    if document.safety is SafetyClass.TRANSACTIONAL:
        found -= _NEEDS_WIRE | _NEEDS_LOOK_UP
        found -= {Fault.MOVED_TARGET, Fault.OPERATOR, Fault.EAGER_OPERATOR}
    if not policy.probes:
        found -= _NEEDS_LOOK_UP | {Fault.EXISTS}
    if not policy.polls_operations:
        found -= _NEEDS_OPERATIONS
    if document.safety is not SafetyClass.IDEMPOTENT:
        found -= _NEEDS_KEYS
    if policy.settlement_bound_seconds is not None:
        found.discard(Fault.EAGER_OPERATOR)
    if policy.certificate is None:
        found.discard(Fault.UNCERTIFIED)
    return frozenset(found)


# Look-ups of one effect in a simulated world, about.
_LOOK_UPS_MAX: Final = 40


def stand_in(document: ContractDocument) -> ContractDocument:
    """Return the contract for the simulated target: the same class and numbers, another wire.

    The arguments' schema is dropped, since the simulated request is always the same. A long
    schedule of look-ups is thinned out: how often a look-up finds nothing changes no outcome.

    Raises:
        ContractInvalid: the rules refuse these numbers for a simulated target.
    """
    policy = document.policy()
    body: dict[str, Any] = json.loads(document.canonical())
    for member in ("sensitive", "forbidden", "description"):
        body.pop(member, None)
    body |= {
        "arguments": {"type": "object"},
        "adapter": {
            "kind": "simulated",
            "target": "target",
            "probes": policy.probes and document.safety is not SafetyClass.TRANSACTIONAL,
            "polls_operations": policy.polls_operations,
        },
    }
    spread = policy.probe_horizon_seconds / _LOOK_UPS_MAX
    body["probe"]["cap_seconds"] = max(policy.probe_cap_seconds, spread)
    if policy.certificate is not None:
        body["oversight"]["certificate"].pop("sandbox", None)  # the simulated target is its own
    return ContractDocument.parse_yaml(json.dumps(body))


def sample(safety: SafetyClass, **members: Any) -> ContractDocument:
    """Return a contract of the class for the simulated target, with usual numbers."""
    fields: dict[str, Any] = {
        "name": f"simulated-{safety.value}",
        "version": "1",
        "tool": f"simulated.{safety.value}",
        "safety": safety.value,
        "account": "acct_1",
        "arguments": {"type": "object"},
        "adapter": {
            "kind": "simulated",
            "target": "target",
            "probes": safety is SafetyClass.RECONCILABLE,
        },
        "attempt_deadline_seconds": 30,
        "retry": {"attempts_max": 4, "backoff_initial_seconds": 2},
    }
    if safety is SafetyClass.IDEMPOTENT:
        fields["key_retention_seconds"] = 180
    if safety is SafetyClass.RECONCILABLE:
        fields["settlement_bound_seconds"] = 60
        fields["probe"] = {"horizon_seconds": 900}
    return ContractDocument.parse_yaml(json.dumps({**fields, **members}))
